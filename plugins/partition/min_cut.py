"""Which values to save, as a minimum cut.

Each candidate node becomes an edge whose capacity is the cost of saving its value; a node whose input end lies
on the sink's side is recomputed, for which the source pays the node's recompute cost.  The minimum cut is
thus the exact minimum of saving and recomputing together, over all ways to feed the backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs
import torch
from torch import fx

from turret.graph.op_traits import is_view, looks_at_memory, size_hint, storage_root, tensor_bytes, view_base
from turret.graph.partitioning.analysis import JointAnalysis, is_size, is_tensor
from turret.graph.partitioning.tags import Checkpoint, checkpoint_of, is_interior
from turret.plugins.partition.flow import UNBOUNDED, FlowNetwork
from turret.plugins.partition.traffic import LatePasses, is_written_late, materialized

READ = 1.0
WRITE = 1.0
RETAIN = 1.5
"""Worth of one byte read by the backward, written by the forward, and held in memory in between.

Holding counts: at 1.5 a GELU that a matmul's backward reads is recomputed from its input, at 0.5 both are saved.
"""

_SIZE_COST = 1
_PREFERENCE = 1000.0


@attrs.frozen(eq=False)
class CutProblem:
    """Costs of one joint graph, from which cuts for several weights of memory are made.

    Per candidate: ``traffic`` is the time to save it, ``memory`` the bytes that saving it holds (0 for a
    primal, which the caller holds anyway), both None where it cannot be saved; ``recompute`` is the cost of running
    it again, ``inf`` where it cannot be.
    """

    analysis: JointAnalysis
    traffic: dict[fx.Node, float | None]
    memory: dict[fx.Node, int]
    recompute: dict[fx.Node, float]

    def solve(self, memory_weight: float = 0.0, time_weight: float = 1.0) -> frozenset[fx.Node]:
        """The values to save for the least ``time_weight * time + memory_weight * bytes``."""
        priced = [node for node in self.analysis.candidates if node.op != "get_attr"]
        index = {node: i for i, node in enumerate(priced)}
        network = FlowNetwork(2 * len(index))
        for node, i in index.items():
            enter, leave = 2 * i, 2 * i + 1
            network.connect(network.source, enter, _capacity(self.recompute[node], time_weight))
            network.connect(enter, leave, self._save_capacity(node, memory_weight, time_weight))
            for source in node.all_input_nodes:
                if source in index:
                    network.connect(2 * index[source] + 1, enter, UNBOUNDED)
            if node in self.analysis.needed:
                network.connect(leave, network.sink, UNBOUNDED)
        late = network.sink_side()
        return frozenset(node for node, i in index.items() if late[2 * i + 1] and not late[2 * i])

    def _save_capacity(self, node: fx.Node, memory_weight: float, time_weight: float) -> int:
        traffic = self.traffic[node]
        if traffic is None:
            return UNBOUNDED
        return max(_capacity(time_weight * traffic + memory_weight * self.memory[node], 1.0), 1)

    def bytes_saved(self, saved: frozenset[fx.Node]) -> int:
        """Bytes held between forward and backward on top of what the caller holds."""
        return sum(self.memory[node] for node in saved)


def _capacity(cost: float, weight: float) -> int:
    return UNBOUNDED if math.isinf(cost) else round(cost * weight * 4)


def build_problem(analysis: JointAnalysis, cost: Callable[[fx.Node], float]) -> CutProblem:
    """Price every candidate of a joint graph; ``cost`` is the recompute cost of one node (``inf`` forbids it)."""
    backward = set(analysis.backward)
    kept = materialized(analysis)
    passes = LatePasses(analysis)
    traffic: dict[fx.Node, float | None] = {}
    memory: dict[fx.Node, int] = {}
    recompute: dict[fx.Node, float] = {}
    for node in analysis.candidates:
        pinned = node.op == "placeholder" or analysis.reads_own_storage(node)
        recompute[node] = math.inf if pinned else _tagged_cost(node, _extra_cost(node, cost(node), analysis))
        memory[node] = _memory(node, analysis)
        traffic[node] = _traffic(node, node in kept, analysis)
        tag = checkpoint_of(node)
        if tag is Checkpoint.MUST_RECOMPUTE and is_interior(node, backward) and not math.isinf(recompute[node]):
            traffic[node] = None
        elif is_written_late(node) and not math.isinf(recompute[node]):
            again = READ if passes.stands_alone(node) else 0.0
            recompute[node] += (READ + WRITE + again) * tensor_bytes(node.meta.get("val"))
    return CutProblem(analysis, traffic, memory, recompute)


def _extra_cost(node: fx.Node, cost: float, analysis: JointAnalysis) -> float:
    """What running a node in the backward adds: nothing when the forward has no need to run it as well."""
    return cost if node in analysis.required or math.isinf(cost) else 0.0


def _tagged_cost(node: fx.Node, cost: float) -> float:
    """The recompute cost after the user's checkpoint tag."""
    tag = checkpoint_of(node)
    if tag is Checkpoint.MUST_SAVE:
        return math.inf
    if tag is Checkpoint.PREFER_SAVE:
        return cost * _PREFERENCE
    if tag in (Checkpoint.MUST_RECOMPUTE, Checkpoint.PREFER_RECOMPUTE) and not math.isinf(cost):
        return 0.0
    return cost


def _memory(node: fx.Node, analysis: JointAnalysis) -> int:
    return 0 if node in analysis.held or not is_tensor(node) else tensor_bytes(node.meta["val"])


def _traffic(node: fx.Node, materialized: bool, analysis: JointAnalysis) -> float | None:
    """Time of saving a value; None when it cannot or should not be saved."""
    if is_size(node):
        return _SIZE_COST
    if not is_tensor(node) or node.op == "get_attr":
        return None
    size = tensor_bytes(node.meta["val"])
    if node in analysis.held and not is_view(node):
        return (READ + RETAIN) * size if _is_borrowed(node, analysis) else READ * size
    copied = (READ + WRITE + RETAIN) * size
    if is_view(node):
        worth = narrows(node) and storage_root(node) not in analysis.held and not _has_strided_user(node)
        return copied if worth or analysis.reads_own_storage(node) else None
    return copied - (WRITE * size if materialized else 0.0)


def _is_borrowed(node: fx.Node, analysis: JointAnalysis) -> bool:
    """Whether a node is an input that eager's backward would not hold: its owner may drop it, or write to it."""
    return node in analysis.primals and node not in analysis.needed and analysis.gradient_of(node) is None


def _has_strided_user(node: fx.Node) -> bool:
    return any(looks_at_memory(user.target) or (is_view(user) and _has_strided_user(user)) for user in node.users)


def narrows(node: fx.Node) -> bool:
    """Whether a view shows at most half of its base, so that a copy of it is worth more than the base."""
    base = view_base(node)
    if base is None or not is_tensor(base) or not is_tensor(node):
        return False
    shown, whole = size_hint(node.meta["val"].numel()), size_hint(base.meta["val"].numel())
    return 2 * shown <= whole and not _broadcasts(node.meta["val"])


def _broadcasts(value: torch.Tensor) -> bool:
    return any(isinstance(s, int) and s == 0 for s in value.stride())
