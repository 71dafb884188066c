"""The FX graph under construction: calls with their fake values and provenance, sizes as expressions, constants."""

from __future__ import annotations

import bisect
import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs
import sympy
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.errors import UnsupportedError
from turret.graph.op_traits import CAPTURED_CALL, called_name
from turret.graph.ops.host_scalars import evaluated
from turret.torch_compat.autograd import current_node, sequence_number
from turret.torch_compat.operators.ops import OpOverload
from turret.torch_compat.sizes import PythonPrinter, PythonReferenceAnalysis, sympy_interp

aten = torch.ops.aten

FORWARD, BACKWARD = "is_forward", "is_backward"
_INHERITED = ("stack_trace", "nn_module_stack", "source_fn_stack", "recompute", "ac_graph_id", "custom")
FORWARD_ONLY = ("recompute", "ac_graph_id")


@attrs.define(eq=False)
class CallLog:
    """What is recorded, in order, each node with the number of the call (of some in a row) that it stems from.

    ``call`` is the present one; ``sequence`` are those with gradients.  Of a backward: the number of calls with
    gradients that came ``first``, and the node of autograd ``within`` which it runs.
    """

    calls: dict[fx.Node, int | None] = attrs.field(factory=dict)
    call: int = -1
    sequence: list[int] = attrs.field(factory=list)
    first: int = 0
    within: Any = None


def inherited(call: fx.Node) -> dict[str, Any]:
    """What nodes have in their ``meta`` from the captured call that they stem from."""
    found = {key: call.meta[key] for key in _INHERITED if call.meta.get(key) is not None}
    if call.op in ("call_function", "call_method"):
        found[CAPTURED_CALL] = called_name(call.target)
    return found


class Recorder:
    """Appends nodes to one graph.

    Every node gets ``meta["val"]``, ``meta["partitioner_tag"]`` (``"is_forward"`` or ``"is_backward"``),
    ``meta["original_aten"]`` (the op that was decomposed into it, if any) and, of the captured node that it
    stems from, ``stack_trace``, ``nn_module_stack``, checkpoint tags and the name of what was called.  Nodes of the
    backward take the first two from the forward call whose gradient they compute.  ``before_call`` is called in front
    of each call, and may record others.
    """

    def __init__(self) -> None:
        self.before_call: Callable[[], None] = lambda: None
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.tag = FORWARD
        self.origin: Any = None
        self.provenance: dict[str, Any] = {}
        self._last_input: fx.Node | None = None
        self._sequence_starts: list[int] = []
        self._sequence_provenance: list[dict[str, Any]] = []
        self.call_log: CallLog | None = None
        self._size_of_symbol: dict[sympy.Symbol, tuple[Any, fx.Node, int | None]] = {}
        self._size_nodes: dict[sympy.Expr, fx.Node] = {}

    def placeholder(self, name: str, value: Any) -> fx.Node:
        """One more input, after those there are; its sizes become readable."""
        after = self._last_input
        with self.graph.inserting_after(after) if after is not None else self.graph.inserting_before(None):
            node = self.graph.placeholder(name)
        node.meta["val"] = value
        node.meta["partitioner_tag"] = self.tag
        self._last_input = node
        self.bind_sizes(node, value)
        return node

    def call(self, target: Any, args: tuple, kwargs: dict[str, Any], value: Any) -> fx.Node:
        """One call whose arguments are nodes and plain values."""
        self.before_call()
        name = target._opname if isinstance(target, OpOverload) else None
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        self.describe(node, value)
        return node

    def element(self, node: fx.Node, index: int, value: Any) -> fx.Node:
        """``node[index]`` of a call that returns several values."""
        return self.call(operator.getitem, (node, index), {}, value)

    def describe(self, node: fx.Node, value: Any) -> None:
        """Give a node its fake value and what is known of where it comes from."""
        meta = node.meta
        meta["val"] = value
        meta["partitioner_tag"] = self.tag
        if self.origin is not None:
            meta["original_aten"] = self.origin
        if self.tag is FORWARD:
            meta.update(self.provenance)
            if self.call_log is not None:
                self.call_log.calls[node] = self.call_log.call
        else:
            meta.update(self._provenance_of_gradient(node))

    def enter_call(self, node: fx.Node, outer: dict[str, Any]) -> None:
        """What is recorded from here on stems from ``node`` of the captured graph, inside a call described by
        ``outer``."""
        self.provenance = outer | inherited(node)
        if self.call_log is not None:
            self.call_log.call += 1
        if torch.is_grad_enabled():
            if self.call_log is not None:
                self.call_log.sequence.append(self.call_log.call)
            self._sequence_starts.append(sequence_number())
            self._sequence_provenance.append(self.provenance)

    def copy(self, target: Any, args: tuple, kwargs: dict[str, Any], meta: dict[str, Any]) -> fx.Node:
        """One call like another, whose ``meta`` (val and provenance) is known already."""
        self.before_call()
        name = target._opname if isinstance(target, OpOverload) else None
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        node.meta.update(meta)
        return node

    @property
    def calls(self) -> int:
        """The calls of the captured graph so far that gradients may be taken of."""
        return len(self._sequence_starts)

    @contextlib.contextmanager
    def beside(self, first: int, sequence: list[int]) -> Iterator[CallLog]:
        """What is recorded meanwhile goes to a graph of its own, from within a node of autograd; it is the backward of
        what a call_log with this ``sequence`` recorded when ``first`` calls had been made."""
        graph, self.graph = self.graph, fx.Graph()
        self.call_log = CallLog(first=first, sequence=sequence, within=current_node())
        try:
            yield self.call_log
        finally:
            self.graph, self.call_log = graph, None

    def _provenance_of_gradient(self, node: fx.Node) -> dict[str, Any]:
        """Provenance of the forward call whose autograd node runs now (autograd numbers its nodes in order)."""
        current, call_log = current_node(), self.call_log
        if call_log is not None:
            call_log.calls[node] = None
        if current is None or (call_log is not None and current is call_log.within):
            return {}
        position = bisect.bisect_right(self._sequence_starts, current._sequence_nr()) - 1
        if position < 0:
            return {}
        if call_log is not None and 0 <= position - call_log.first < len(call_log.sequence):
            call_log.calls[node] = call_log.sequence[position - call_log.first]
        found = self._sequence_provenance[position]
        return {key: value for key, value in found.items() if key not in FORWARD_ONLY}

    def constant(self, value: torch.Tensor) -> fx.Node:
        """A ``get_attr`` node of a real tensor, which must not change any more."""
        name = f"_tensor_constant{len(self.root._buffers)}"
        self.root.register_buffer(name, value, persistent=False)
        return self.graph.create_node("get_attr", name)

    def submodule(self, module: fx.GraphModule) -> fx.Node:
        """A ``get_attr`` node of a subgraph."""
        name = f"subgraph{len(self.root._modules)}"
        self.root.add_module(name, module)
        return self.graph.create_node("get_attr", name)

    def bind_sizes(self, node: fx.Node, value: Any) -> None:
        """Make the size symbols that appear by themselves in a value readable from its node."""
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            self._bind(value, (None, node, None))
        elif isinstance(value, torch.Tensor):
            for dimension, extent in enumerate(value.shape):
                self._bind(extent, (aten.sym_size.int, node, dimension))
            for dimension, stride in enumerate(value.stride()):
                self._bind(stride, (aten.sym_stride.int, node, dimension))
            self._bind(value.storage_offset(), (aten.sym_storage_offset.default, node, None))

    def _bind(self, value: Any, source: tuple[Any, fx.Node, int | None]) -> None:
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            self.bind_symbol(value.node.expr, source)

    def bind_symbol(self, symbol: Any, source: tuple[Any, fx.Node, int | None]) -> None:
        """Make a symbol readable: ``(op, node, dimension)``, or ``(None, node, None)`` where the node is the number."""
        if isinstance(symbol, sympy.Symbol):
            self._size_of_symbol.setdefault(symbol, source)

    def knows(self, symbols: Iterable[sympy.Symbol]) -> bool:
        """Whether all of the symbols can be read."""
        return all(symbol in self._size_of_symbol for symbol in symbols)

    def size(self, value: Any) -> Any:
        """The node (or plain number) of a symbolic number."""
        expression = value.node.expr
        if expression.is_number or expression in (sympy.true, sympy.false):
            return _plain_number(value, expression)
        node = self._size_nodes.get(expression)
        if node is None:
            node = self._compute(value, expression)
            if node.meta["partitioner_tag"] == self.tag or self.tag is FORWARD:
                self._size_nodes[expression] = node
        return node

    def computed(self, expression: sympy.Expr) -> fx.Node:
        """The node of an expression over readable symbols, as it is written."""
        return self._compute(None, expression)

    def _compute(self, value: Any, expression: sympy.Expr) -> fx.Node:
        provenance, self.provenance = self.provenance, {}
        tag, self.tag = self.tag, FORWARD
        origin, self.origin = self.origin, None
        try:
            if isinstance(expression, sympy.Symbol):
                return self._symbol_node(expression) if value is None else self._read_symbol(value, expression)
            if free_unbacked_symbols(expression):
                return self._evaluate_by_text(value, expression)
            return self._evaluate(expression)
        finally:
            self.provenance, self.tag, self.origin = provenance, tag, origin

    def _read_symbol(self, value: Any, symbol: sympy.Symbol) -> fx.Node:
        source = self._size_of_symbol.get(symbol)
        if source is None:
            raise UnsupportedError(f"size {symbol} is not a size of any input or earlier result")
        target, node, dimension = source
        if target is None:
            return node
        return self.call(target, (node,) if dimension is None else (node, dimension), {}, value)

    def _evaluate_by_text(self, value: Any, expression: sympy.Expr) -> fx.Node:
        """A number computed from others that depend on data, by one call; an assertion (no value) counts as true."""
        symbols = sorted(expression.free_symbols, key=str)
        text = PythonPrinter().doprint(expression)
        arguments = (text, tuple(s.name for s in symbols), *map(self._symbol_node, symbols))
        return self.call(evaluated, arguments, {}, True if value is None else value)

    def _evaluate(self, expression: sympy.Expr) -> fx.Node:
        # In the order of their names: that of a set is another one in each process, and generated code would be, too.
        nodes = {s: self._symbol_node(s) for s in sorted(expression.free_symbols, key=str)}
        last = next(iter(reversed(self.graph.nodes)), None)
        proxies = {s: fx.Proxy(n) for s, n in nodes.items()}
        result = sympy_interp(_Calls, proxies, expression)
        made = []
        for node in reversed(self.graph.nodes):
            if node is last:
                break
            made.append(node)
        for node in reversed(made):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            self.describe(node, node.target(*args, **kwargs))
        return result.node

    def _symbol_node(self, symbol: sympy.Symbol) -> fx.Node:
        node = self._size_nodes.get(symbol)
        if node is None:
            node = self._size_nodes[symbol] = self._read_symbol(self._value_of_symbol(symbol), symbol)
        return node

    def _value_of_symbol(self, symbol: sympy.Symbol) -> Any:
        target, node, dimension = self._size_of_symbol.get(symbol, (None, None, None))
        if node is None:
            raise UnsupportedError(f"size {symbol} is not a size of any input or earlier result")
        value = node.meta["val"]
        if target is None:
            return value
        if target is aten.sym_size.int:
            return value.shape[dimension]
        return value.stride(dimension) if target is aten.sym_stride.int else value.storage_offset()


def _call(function: Any, *values: Any) -> Any:
    proxy = next((v for v in values if isinstance(v, fx.Proxy)), None)
    return function(*values) if proxy is None else proxy.tracer.create_proxy("call_function", function, values, {})


class _Calls(PythonReferenceAnalysis):
    """Arithmetic of sizes as calls in a graph: what Python does by a method that a proxy lacks, too."""

    @staticmethod
    def int_truediv(a: Any, b: Any) -> Any:
        return a / b

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        return _call(torch.sym_min, a, b)

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        return _call(torch.sym_max, a, b)

    @staticmethod
    def floor_to_int(x: Any, dtype: Any) -> Any:
        return _call(math.floor, x)

    @staticmethod
    def ceil_to_int(x: Any, dtype: Any) -> Any:
        return _call(math.ceil, x)

    @staticmethod
    def trunc_to_int(x: Any, dtype: Any) -> Any:
        return _call(math.trunc, x)


def _plain_number(value: Any, expression: Any) -> Any:
    if isinstance(value, torch.SymBool):
        return bool(expression)
    return int(expression) if isinstance(value, torch.SymInt) else float(expression)
