"""Choices of what is saved: made complete, measured, and the check of a cut that was made of one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable

from torch import fx

from turret.errors import UnsupportedError, VerificationError
from turret.graph.op_traits import output_nodes, tensor_bytes
from turret.graph.partitioning.analysis import (
    JointAnalysis,
    is_part,
    is_savable,
    is_size,
    is_tensor,
    parts_of,
    runs_once,
)
from turret.hooks.context import CompileContext
from turret.hooks.products import JointGraph, PartitionedGraph

Cost = Callable[[fx.Node], float]


def costs(context: CompileContext) -> Cost:
    """What computing one call again costs, in bytes of memory traffic, by ``turret_partition_cost``; asked once a call.

    Infinity: it must not run twice (a random draw, an effect, code that nobody knows).
    """
    return functools.cache(lambda node: context.hooks.turret_partition_cost(context=context, node=node))


def complete(analysis: JointAnalysis, wanted: Iterable[fx.Node], cost: Cost) -> frozenset[fx.Node]:
    """The values among ``wanted`` that the backward reads, and those that it has to be handed beside them.

    Starting from what the backward reads, everything not wanted is computed again, until that would run a call of
    infinite cost or take an input of the program: these are saved, and so are sizes.  ``UnsupportedError`` where
    something can be neither.
    """
    chosen = parts_of(wanted)
    saved: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    pending = list(analysis.needed)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        pinned = is_pinned(node, cost) or analysis.reads_own_storage(node)
        if is_savable(node) and (pinned or node in chosen or is_size(node)):
            saved.add(node)
        elif pinned:
            raise UnsupportedError(f"{node.name} can be neither saved nor computed again: {node.format_node()}")
        else:
            pending.extend(node.all_input_nodes)
    return frozenset(saved)


def is_pinned(node: fx.Node, cost: Cost) -> bool:
    """Whether a value must not be computed again; that of a call is asked of each of its results."""
    if node.op != "call_function":
        return node.op != "get_attr"
    source = node.args[0] if is_part(node) else node
    assert isinstance(source, fx.Node)
    return runs_once(source) or math.isinf(cost(source)) or math.isinf(cost(node))


def recomputed(analysis: JointAnalysis, saved: Collection[fx.Node]) -> list[fx.Node]:
    """The calls of the forward that the backward runs again when ``saved`` is what it is handed, in graph order."""
    seen: set[fx.Node] = set()
    stack = [node for node in analysis.needed if node not in saved]
    while stack:
        node = stack.pop()
        if node not in seen and node not in saved:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return sorted(seen, key=analysis.order.__getitem__)


def bytes_saved(analysis: JointAnalysis, saved: Iterable[fx.Node]) -> int:
    """Bytes held between forward and backward on top of the inputs and outputs, which are held anyway."""
    return sum(tensor_bytes(node.meta["val"]) for node in saved if is_tensor(node) and node not in analysis.held)


def verify(joint: JointGraph, parts: PartitionedGraph) -> None:
    """Raise ``VerificationError`` where a partition does not keep the contract of ``PartitionedGraph``."""
    inputs = len(joint.module.graph.find_nodes(op="placeholder"))
    if parts.backward is None:
        if joint.signature.training:
            raise VerificationError(f"{joint.name!r} is a training graph, and its partition has no backward")
        return
    gradients = len(output_nodes(joint.module.graph)) - joint.num_forward_outputs
    saved = len(parts.saved_tensors) + len(parts.saved_sizes)
    primals = gradients - joint.signature.behind_gradients
    counts = {
        "inputs of the forward": (_inputs(parts.forward), primals),
        "outputs of the forward": (len(output_nodes(parts.forward.graph)), joint.num_forward_outputs + saved),
        "inputs of the backward": (_inputs(parts.backward), saved + inputs - primals),
        "outputs of the backward": (len(output_nodes(parts.backward.graph)), gradients),
    }
    for what, (given, expected) in counts.items():
        if given != expected:
            raise VerificationError(f"the partition of {joint.name!r} has {given} {what}; expected {expected}")


def _inputs(module: fx.GraphModule) -> int:
    return len(module.graph.find_nodes(op="placeholder"))
