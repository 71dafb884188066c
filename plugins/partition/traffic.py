"""What forward and backward kernels move through memory: values written anyway, and passes that nothing shares."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from torch import fx

from turret.graph.op_set import Family, family_of
from turret.graph.op_traits import is_view, tensor_bytes
from turret.graph.partitioning.analysis import JointAnalysis, is_size, is_tensor

_REGION = 200
"""Nodes that a value is fused from, and nodes behind a library call, that are looked at before it is left open."""


def is_whole_call(node: fx.Node) -> bool:
    """Whether a node reads and writes whole tensors in memory; sizes and plain Python calls do not count."""
    if node.op != "call_function" or is_size(node) or node.target is operator.getitem:
        return False
    return family_of(node.target) in (None, Family.EXTERN, Family.WINDOW)


def users_through_views(node: fx.Node) -> list[fx.Node]:
    """What reads a value or a view of it."""
    users, stack = [], list(node.users)
    while stack:
        user = stack.pop()
        if is_view(user):
            stack.extend(user.users)
        else:
            users.append(user)
    return users


def materialized(analysis: JointAnalysis) -> set[fx.Node]:
    """Values that the forward writes to memory whether or not they are saved.

    Its outputs, results and operands of library calls, and what is read on both sides of such a call, as the residual
    stream of a transformer is.
    """
    late = analysis.late
    kept = {node for node in analysis.forward_outputs if isinstance(node, fx.Node)}
    depths = _depths(analysis)
    for node in analysis.candidates:
        if any(map(is_whole_call, (node, *(node.all_input_nodes if node.target is operator.getitem else ())))):
            kept.add(node)
        elif is_tensor(node) and not is_view(node):
            early = [user for user in users_through_views(node) if user not in late and user in depths]
            if any(map(is_whole_call, early)) or len({depths[user] for user in early}) > 1:
                kept.add(node)
    return kept


def _depths(analysis: JointAnalysis) -> dict[fx.Node, int]:
    """How many library calls come before each early node that the forward runs, along the longest way."""
    depths: dict[fx.Node, int] = {}
    for node in analysis.order:
        if node in analysis.late or node not in analysis.required:
            continue
        before = max((depths[source] for source in node.all_input_nodes if source in depths), default=0)
        depths[node] = before + is_whole_call(node)
    return depths


def is_written_late(node: fx.Node) -> bool:
    """Whether some consumer is a library call, which needs a recomputed value in memory."""
    return is_tensor(node) and not is_view(node) and any(map(is_whole_call, users_through_views(node)))


class LatePasses:
    """Which values the backward would recompute in a kernel that does nothing else.

    A value that library calls of the backward read is recomputed before them.  What else reads its sources may come
    before them, too, and recompute it along the way, as the gradient of an activation does, for the product with its
    result waits for nobody.  Behind a convolution's gradient everything else waits: there the sources are read once
    more, for this value alone.
    """

    def __init__(self, analysis: JointAnalysis) -> None:
        self._late, self._live, self._required = analysis.late, frozenset(analysis.backward), analysis.required

    def stands_alone(self, node: fx.Node) -> bool:
        """Whether all other late readers of what a value is made of wait for the library calls that read it."""
        calls = [user for user in users_through_views(node) if user in self._live and is_whole_call(user)]
        if not calls:
            return False
        behind = self._behind(calls)
        others = [user for user in self._readers(self._region(node)) if not is_whole_call(user)]
        return bool(others) and all(self._waits(user, behind, {}) for user in others)

    def _readers(self, region: set[fx.Node]) -> set[fx.Node]:
        """What depends on a tangent and reads some values, or what the backward alone makes of them."""
        readers, seen, stack = set(), set(region), list(region)
        while stack:
            for user in stack.pop().users:
                if user in self._live and not is_view(user):
                    readers.add(user)
                elif user not in seen and (is_view(user) or user in self._live or user not in self._required):
                    seen.add(user)
                    stack.append(user)
        return readers

    def _region(self, node: fx.Node) -> set[fx.Node]:
        """The value and the large ones that it is fused from, up to results of library calls and inputs."""
        least = tensor_bytes(node.meta.get("val")) // 2
        region, stack = {node}, [node]
        while stack and len(region) < _REGION:
            below = stack.pop()
            if is_whole_call(below) or below.op == "placeholder":
                continue
            for source in below.all_input_nodes:
                large = is_view(source) or tensor_bytes(source.meta.get("val")) >= least
                if large and source not in region and source not in self._late:
                    region.add(source)
                    stack.append(source)
        return region

    def _behind(self, calls: Iterable[fx.Node]) -> set[fx.Node]:
        """What depends on one of some calls, as far as it is near."""
        reached = set(calls)
        frontier = list(reached)
        while frontier and len(reached) < _REGION:
            following = [user for node in frontier for user in node.users if user not in reached]
            frontier = list(dict.fromkeys(following))
            reached.update(frontier)
        return reached

    def _waits(self, node: fx.Node, behind: set[fx.Node], known: dict[fx.Node, bool]) -> bool:
        """Whether a kernel around a node cannot run before what ``behind`` begins with; False where that is far."""
        if node in behind:
            return True
        if node not in known and len(known) < _REGION:
            known[node] = False
            fused = family_of(node.target) is Family.POINTWISE or is_view(node)
            known[node] = fused and bool(node.users) and all(self._waits(u, behind, known) for u in node.users)
        return known.get(node, False)
