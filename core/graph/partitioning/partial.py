"""The backward for some of the tangents, over what the forward saved for the backward of all.

Autograd runs no formula for a gradient that did not come, and zeros in its place are not the same (``0 * inf``).  So
the graph is traced again for the tangents that are there, and what the first cut saved is found in the new trace:
values are numbered by what computes them, so that equal calls of equal values have one number in both traces.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

import sympy
import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.graph.fakes.values import propagate, same_layout
from turret.graph.lazy_module import lazy_module
from turret.graph.op_traits import is_mutating_op, is_random_call
from turret.graph.partitioning.analysis import JointAnalysis, analyze, is_size, is_tensor, runs_once
from turret.graph.partitioning.choice import Cost, is_pinned
from turret.graph.partitioning.extract import backward_order, free_symbols, handed_over, symbol_of
from turret.hooks.products import JointGraph, PartitionedGraph


class SavedValues:
    """What a cut hands from forward to backward, so that it is found in another trace of the same captured graph.

    To be made before passes rewrite the graphs of the cut.
    """

    def __init__(self, joint: JointGraph, parts: PartitionedGraph) -> None:
        self.joint = joint.name
        self.contract = _contract(joint)
        self.numbering = _Numbering()
        numbers = self.numbering.of(joint.module)
        self.draws = _draws(joint, numbers)
        self.late = _late_memory(joint)
        live = joint.module.graph.find_nodes(op="placeholder")[-len(self.late) :] if self.late else []
        self.live = [(node.name, node.meta.get("val")) for node in live]
        self.writes = any(
            node.op == "call_function" and is_mutating_op(node.target) for node in joint.module.graph.nodes
        )
        named = {node.name: number for node, number in numbers.items()}
        inputs = parts.graph_of("backward").graph.find_nodes(op="placeholder")
        values = (*parts.saved_sizes, *parts.saved_tensors)
        self.inputs = [(node.name, node.meta.get("val")) for node in inputs[: len(values)]]
        self.positions: dict[int, int] = {}
        self.symbols: dict[Any, int] = {}
        for position, value in enumerate(values):
            if value.name in named:
                self.positions.setdefault(named[value.name], position)
            if position < len(parts.saved_sizes):
                self.symbols.setdefault(symbol_of(inputs[position]), position)

    def backward(self, joint: JointGraph, tangents: int, cost: Cost) -> fx.GraphModule:
        """The backward of a trace for so many tangents: saved sizes, saved tensors, those tangents -> gradients.

        What lies in the late memory of the backward of all is given behind them, and None comes back where this one
        does not write.
        ``UnsupportedError`` where it reads what was not saved and must not be computed again.
        """
        if self.writes:
            raise UnsupportedError(f"graph {self.joint!r} writes to tensors, so equal calls may give different values")
        numbers = self.numbering.of(joint.module)
        if _contract(joint) != self.contract or _draws(joint, numbers) != self.draws:
            raise UnsupportedError(f"graph {self.joint!r} was traced to another forward for fewer gradients")
        analysis = analyze(joint)
        late = _late_memory(joint)
        if len(analysis.tangents) != tangents + len(late):
            raise UnsupportedError(f"graph {self.joint!r} was not traced for fewer gradients (CapturedGraph.tangents)")
        saved = {node: p for node in analysis.candidates if (p := self._position(node, numbers)) is not None}
        emitted = backward_order(analysis, frozenset(saved))
        _refuse_unsaved(joint, analysis, emitted, cost)
        given = self.symbols.keys() | {symbol_of(node) for node in saved if is_size(node)}
        unknown = free_symbols([*emitted, *analysis.tangents]) - given
        if unknown:
            raise UnsupportedError(f"graph {self.joint!r}: the backward of fewer gradients reads sizes {unknown}")
        return self._build(joint, analysis, saved, emitted, self._among_all(late))

    def _among_all(self, late: list[Hashable]) -> list[int]:
        """For each memory of a backward of fewer gradients its position among that of all."""
        if not set(late) <= set(self.late):
            raise UnsupportedError(f"graph {self.joint!r}: the backward of fewer gradients reads other memory")
        return [self.late.index(key) for key in late]

    def _position(self, node: fx.Node, numbers: dict[fx.Node, int]) -> int | None:
        if is_size(node):
            symbol = symbol_of(node)
            if isinstance(symbol, sympy.Symbol) and symbol in self.symbols:
                return self.symbols[symbol]
        return self.positions.get(numbers[node])

    def _build(
        self,
        joint: JointGraph,
        analysis: JointAnalysis,
        saved: dict[fx.Node, int],
        emitted: list[fx.Node],
        late: list[int],
    ) -> fx.GraphModule:
        graph = fx.Graph()
        env: dict[fx.Node, fx.Node] = {}
        changed: set[fx.Node] = set()
        places = [graph.placeholder(name) for name, _ in self.inputs]
        for place, (_, value) in zip(places, self.inputs, strict=True):
            place.meta["val"] = value
        for node, position in saved.items():
            env[node] = place = places[position]
            place.meta["val"] = handed_over(node, analysis, joint) if is_tensor(node) else node.meta["val"]
            if is_tensor(node) and not same_layout(node.meta["val"], place.meta["val"]):
                changed.add(place)
        count = len(analysis.tangents) - len(late)
        for node in analysis.tangents[:count]:
            env[node] = graph.placeholder(node.name)
            env[node].meta = dict(node.meta)
        memory = [graph.placeholder(name) for name, _ in self.live]
        for place, (_, value) in zip(memory, self.live, strict=True):
            place.meta["val"] = value
        env.update(zip(analysis.tangents[count:], (memory[position] for position in late), strict=True))
        for node in emitted:
            env[node] = graph.node_copy(node, env.__getitem__)
        if changed:
            propagate(graph, changed, joint.fake_mode)
        made = [fx.node.map_arg(g, env.__getitem__) for g in analysis.gradients]
        first = len(made) - len(late)
        written = dict(zip(late, made[first:], strict=True))
        graph.output((*made[:first], *map(written.get, range(len(self.late)))))
        graph.lint()
        return lazy_module(joint.module, graph, "Backward")


def _late_memory(joint: JointGraph) -> list[Hashable]:
    """What the memory is that the backward reads when it runs, alike in all traces of a captured graph."""
    return [m.label if m.made else m.index for m in joint.signature.late_memory]


def _contract(joint: JointGraph) -> Hashable:
    """What two traces of one captured graph have in common, whichever gradients they are for."""
    signature = joint.signature
    inputs = tuple((i.mutation, i.updated, i.tracked) for i in signature.inputs)
    hidden = sum(m.made for m in signature.late_memory)  # the last ones; fewer gradients may need fewer of them
    count = joint.num_forward_outputs - hidden
    outputs = tuple((o.differentiable, o.dtype, o.view_of) for o in signature.graph_outputs[:count])
    return inputs, outputs, count


def _draws(joint: JointGraph, numbers: dict[fx.Node, int]) -> list[int]:
    """The calls of the forward that run once, in order; a stream of random numbers counts, as others shift it."""
    return [
        numbers[node]
        for node in joint.module.graph.nodes
        if node.op == "call_function"
        and not _of_backward(node)
        and (runs_once(node) or node.target is torch.ops.turret.random.default)
    ]


def _of_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def _refuse_unsaved(joint: JointGraph, analysis: JointAnalysis, emitted: Iterable[fx.Node], cost: Cost) -> None:
    for node in emitted:
        if node not in analysis.late and (is_pinned(node, cost) or analysis.reads_own_storage(node)):
            raise UnsupportedError(
                f"graph {joint.name!r}: the backward of fewer gradients reads {node.name}, which was not saved and "
                f"must not be computed again ({node.format_node()})"
            )


class _Numbering:
    """Numbers of values: one number for equal calls of values with equal numbers, in all graphs that it is asked of."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def of(self, module: fx.GraphModule) -> dict[fx.Node, int]:
        """The number of each node.  Of calls that run once the first, the second and so on differ."""
        numbers: dict[fx.Node, int] = {}
        runs: Counter[Hashable] = Counter()
        for position, node in enumerate(module.graph.nodes):
            key = self._key(module, node, position, numbers)
            if node.op == "call_function" and (runs_once(node) or is_random_call(node)):
                runs[key] += 1
                key = object() if _of_backward(node) else (key, runs[key])
            numbers[node] = self._known.setdefault(key, len(self._known))
        return numbers

    def _key(self, module: fx.GraphModule, node: fx.Node, position: int, numbers: dict[fx.Node, int]) -> Hashable:
        if node.op == "placeholder":
            return node.op, position
        if node.op == "get_attr":
            return node.op, self._constant(operator.attrgetter(str(node.target))(module))
        return node.op, node.target, _argument(node.args, numbers), _argument(node.kwargs, numbers)

    def _constant(self, value: Any) -> Hashable:
        if isinstance(value, fx.GraphModule):
            return "graph", tuple(self.of(value).values())
        if isinstance(value, torch.Tensor):
            bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            return value.dtype, value.device, tuple(value.shape), value.stride(), bits
        return object()


def _argument(value: Any, numbers: dict[fx.Node, int]) -> Hashable:
    """An argument, apart from others that only compare equal (``1``, ``1.0`` and ``True``; ``0.0`` and ``-0.0``)."""
    if isinstance(value, fx.Node):
        return fx.Node, numbers[value]
    if isinstance(value, (list, tuple)):
        return tuple, tuple(_argument(v, numbers) for v in value)
    if isinstance(value, dict):
        return dict, tuple((k, _argument(v, numbers)) for k, v in sorted(value.items()))
    if isinstance(value, slice):
        return slice, _argument((value.start, value.stop, value.step), numbers)
    if isinstance(value, (bool, int, float, complex, str, type(None))):
        return type(value), repr(value)
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Generator)):
        return type(value), value
    return object()
