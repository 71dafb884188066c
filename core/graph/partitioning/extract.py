"""Build the forward and the backward graph once it is known what is saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import sympy
import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.graph.fakes.values import propagate, same_layout
from turret.graph.lazy_module import lazy_module
from turret.graph.op_traits import has_static_size, is_view, tensor_bytes
from turret.graph.partitioning.analysis import JointAnalysis, is_size, is_tensor, parts_of, runs_once
from turret.hooks.products import JointGraph, PartitionedGraph, SavedValue


def extract(joint: JointGraph, analysis: JointAnalysis, saved: Iterable[fx.Node], report: str = "") -> PartitionedGraph:
    """Cut a joint graph so that ``saved`` passes from forward to backward and the rest is recomputed.

    A saved primal that the program writes to is copied before the write, and a saved view that shows a
    part of a larger base is copied so that the base can be freed.  Of a call with several results, those that the
    backward reads are saved.  What the backward does not read is not saved.  ``report`` is the result's, for people.
    Raises ``UnsupportedError`` for a set that lacks what must be saved (``complete`` adds it).
    """
    saved = parts_of(saved)
    emitted = backward_order(analysis, saved)
    _refuse_second_runs(joint, analysis, emitted)
    read = {source for node in emitted for source in node.all_input_nodes}
    read.update(g for g in analysis.gradients if isinstance(g, fx.Node))
    used = sorted((node for node in saved if node in read), key=analysis.order.__getitem__)
    tensors = [node for node in used if is_tensor(node)]
    sizes = [node for node in used if is_size(node)]
    if len(tensors) + len(sizes) != len(used):
        odd = next(node for node in used if not is_tensor(node) and not is_size(node))
        raise UnsupportedError(f"graph {joint.name!r}: {odd.name} is neither a tensor nor a size and cannot be saved")
    forward = _Forward(joint, analysis, tensors, sizes)
    sizes += forward.add_free_symbols([*emitted, *tensors, *sizes, *analysis.tangents])
    return PartitionedGraph(
        forward=forward.finish(),
        backward=_backward(joint, analysis, sizes, tensors, emitted),
        signature=joint.signature,
        num_forward_outputs=joint.num_forward_outputs,
        saved_tensors=tuple(_describe(node, analysis) for node in tensors),
        saved_sizes=tuple(SavedValue(node.name, 8, "size") for node in sizes),
        report=report,
        name=joint.name,
    )


def _refuse_second_runs(joint: JointGraph, analysis: JointAnalysis, emitted: list[fx.Node]) -> None:
    """Refuse a cut by which the backward would draw other random numbers, or write once more, than the forward."""
    for node in emitted:
        if node not in analysis.late and runs_once(node):
            raise UnsupportedError(
                f"graph {joint.name!r}: the cut computes {node.name} again, which must run once: save its result, or "
                f"what is computed from it ({node.format_node()})"
            )


def _describe(node: fx.Node, analysis: JointAnalysis) -> SavedValue:
    size = tensor_bytes(node.meta["val"]) if has_static_size(node.meta["val"]) else None
    if node in analysis.primals:
        reason = "input, copied before the program writes to it" if node in analysis.mutated else "input"
    elif node in analysis.held:
        reason = "output"
    else:
        reason = "copy of a part of its base" if is_view(node) else "activation"
    return SavedValue(node.name, size, reason)


def backward_order(analysis: JointAnalysis, saved: frozenset[fx.Node]) -> list[fx.Node]:
    """Nodes of the backward in the order to run them: each recomputed node just before its first reader."""
    available = set(saved) | set(analysis.tangents)
    emitted: list[fx.Node] = []

    def emit_with_inputs(roots: Iterable[fx.Node]) -> None:
        missing: set[fx.Node] = set()
        stack = [node for node in roots if node not in available]
        while stack:
            node = stack.pop()
            if node not in missing and node not in available:
                missing.add(node)
                stack.extend(node.all_input_nodes)
        for node in sorted(missing, key=analysis.order.__getitem__):
            if node.op == "placeholder":
                raise UnsupportedError(f"the cut needs input {node.name!r} in the backward but does not save it")
            emitted.append(node)
        available.update(missing)

    for node in analysis.backward:
        emit_with_inputs(node.all_input_nodes)
        emit_with_inputs([node])
    emit_with_inputs(g for g in analysis.gradients if isinstance(g, fx.Node))
    return emitted


class _Forward:
    """The forward graph while it is being built."""

    def __init__(
        self, joint: JointGraph, analysis: JointAnalysis, tensors: list[fx.Node], sizes: list[fx.Node]
    ) -> None:
        self._joint, self._analysis = joint, analysis
        self._graph = fx.Graph()
        self._env: dict[fx.Node, fx.Node] = {}
        self._copies: dict[fx.Node, fx.Node] = {}
        self._tensors, self._sizes = tensors, list(sizes)
        for primal in analysis.primals:
            self._env[primal] = self._graph.node_copy(primal)
        for primal in analysis.primals:
            if primal in tensors and _is_copied(primal, analysis):
                self._copies[primal] = self._clone(primal)
        roots = [node for node in analysis.forward_outputs if isinstance(node, fx.Node)]
        self._emit([*roots, *tensors, *sizes, *analysis.effects])

    def _emit(self, roots: list[fx.Node]) -> None:
        wanted: set[fx.Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in wanted and node not in self._env:
                wanted.add(node)
                stack.extend(node.all_input_nodes)
        copied = set(self._tensors)
        for node in sorted(wanted, key=self._analysis.order.__getitem__):
            self._env[node] = self._graph.node_copy(node, self._env.__getitem__)
            if node in copied and _is_copied(node, self._analysis):
                self._copies[node] = self._clone(node)

    def _clone(self, node: fx.Node) -> fx.Node:
        """A copy of a value that shares storage with something that is written to or should be freed."""
        copy = self._graph.call_function(torch.ops.aten.clone.default, (self._env[node],))
        copy.meta = dict(node.meta) | {"val": _copied_value(node, self._joint)}
        return copy

    def add_free_symbols(self, nodes: list[fx.Node]) -> list[fx.Node]:
        """Size nodes of the forward for the symbols in the backward's shapes and numbers that no saved size gives."""
        given = {symbol_of(node) for node in self._sizes}
        wanted = sorted(free_symbols(nodes) - given, key=str)
        added = [node for node in map(self._size_node, wanted) if node is not None]
        self._sizes += added
        return added

    def _size_node(self, symbol: sympy.Symbol) -> fx.Node | None:
        """An early node of the joint graph whose value is the symbol, read off an early tensor if need be."""
        for node in self._analysis.order:
            if is_size(node) and symbol_of(node) == symbol and node not in self._analysis.late:
                self._emit([node])
                return node
        for node in self._analysis.order:
            for op, rest, size in _numbers_of(node) if node not in self._analysis.late else ():
                if _expression(size) == symbol:
                    self._emit([node])
                    return self._make_size(op, node, rest, size)
        return None

    def _make_size(self, op: Any, tensor: fx.Node, rest: tuple[int, ...], size: Any) -> fx.Node:
        """A size read in the forward; stands for itself in both graphs, as the joint graph has no such node."""
        node = self._graph.call_function(op, (self._env[tensor], *rest))
        node.meta["val"] = size
        self._env[node] = node
        return node

    def finish(self) -> fx.GraphModule:
        outputs = [fx.node.map_arg(o, self._env.__getitem__) for o in self._analysis.forward_outputs]
        saved = [self._copies.get(node, self._env[node]) for node in self._tensors]
        result = self._graph.output((*outputs, *saved, *(self._env[node] for node in self._sizes)))
        result.meta = dict(self._joint.module.graph.output_node().meta)
        self._graph.lint()
        return lazy_module(self._joint.module, self._graph, "Forward")


def _backward(
    joint: JointGraph,
    analysis: JointAnalysis,
    sizes: list[fx.Node],
    tensors: list[fx.Node],
    emitted: list[fx.Node],
) -> fx.GraphModule:
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    changed: set[fx.Node] = set()
    for node in [*sizes, *tensors, *analysis.tangents]:
        placeholder = graph.placeholder(node.name)
        placeholder.meta = {key: node.meta[key] for key in ("val", "stack_trace") if key in node.meta}
        if is_tensor(node):
            placeholder.meta["val"] = handed_over(node, analysis, joint)
            if not same_layout(node.meta["val"], placeholder.meta["val"]):
                changed.add(placeholder)
        env[node] = placeholder
    for node in emitted:
        env[node] = graph.node_copy(node, env.__getitem__)
    if changed:
        propagate(graph, changed, joint.fake_mode)
    result = graph.output(tuple(fx.node.map_arg(g, env.__getitem__) for g in analysis.gradients))
    result.meta = dict(joint.module.graph.output_node().meta)
    graph.lint()
    return lazy_module(joint.module, graph, "Backward")


def _is_copied(node: fx.Node, analysis: JointAnalysis) -> bool:
    """Whether a saved value is handed over as a copy: its storage is written to, or is larger than what it shows."""
    return node in analysis.mutated or is_view(node) or node.target is torch.ops.aten.copy_.default


def handed_over(node: fx.Node, analysis: JointAnalysis, joint: JointGraph) -> torch.Tensor:
    """The fake value of a saved tensor as the backward gets it, which is a copy of some."""
    return _copied_value(node, joint) if _is_copied(node, analysis) else node.meta["val"]


def _copied_value(node: fx.Node, joint: JointGraph) -> torch.Tensor:
    with joint.fake_mode:
        made: torch.Tensor = torch.ops.aten.clone.default(node.meta["val"])
        return made


def _numbers_of(node: fx.Node) -> Iterator[tuple[Any, tuple[int, ...], Any]]:
    """What can be read off a tensor, with op and arguments: its sizes, and of an input where its elements lie, too."""
    value, aten = node.meta.get("val"), torch.ops.aten
    if not isinstance(value, torch.Tensor):
        return
    yield from ((aten.sym_size.int, (dim,), size) for dim, size in enumerate(value.shape))
    if node.op == "placeholder":
        yield from ((aten.sym_stride.int, (dim,), stride) for dim, stride in enumerate(value.stride()))
        yield aten.sym_storage_offset.default, (), value.storage_offset()


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else size


def symbol_of(node: fx.Node) -> Any:
    """The symbol that a size node's value is, or None when it is a number or an expression."""
    expression = _expression(node.meta.get("val"))
    return expression if isinstance(expression, sympy.Symbol) else None


def free_symbols(nodes: Iterable[fx.Node]) -> set[sympy.Symbol]:
    symbols: set[sympy.Symbol] = set()
    for node in nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            dims = (*tensor.shape, *tensor.stride()) if isinstance(tensor, torch.Tensor) else (tensor,)
            for size in dims:
                if isinstance(size, torch.SymInt | torch.SymFloat):
                    symbols |= size.node.expr.free_symbols
    return symbols
