"""Captured graphs as plain data, for a process that did not capture them itself and still needs the graph.

It does where a backward was never compiled before, or where inputs share memory in another way than in the example and
the graph runs eagerly.  Only graphs whose calls have names and whose sizes are numbers are written.
"""

from __future__ import annotations

import operator
import sys
from typing import Any

import attrs
import torch
from torch import fx

from turret.errors import CacheError
from turret.graph.fakes.histories import with_history
from turret.graph.ops import define_own_ops
from turret.hooks.products import CapturedGraph
from turret.pipeline.keys.graph_key import TAGS, Unstable, function_name
from turret.storage import codec
from turret.storage.codec import record
from turret.storage.source_lines import new_graph_module
from turret.torch_compat.operators.native_functions import nn_c


@record
@attrs.frozen
class StoredInput:
    """One tensor that a graph is called with; ``parameter``: it is an ``nn.Parameter``."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: str
    requires_grad: bool
    leaf: bool
    parameter: bool


@record
@attrs.frozen
class NodeRef:
    """A node by its number, among a node's arguments."""

    number: int


@record
@attrs.frozen
class FunctionRef:
    """A function by its name, see ``graph_key.function_name``."""

    name: str


@record
@attrs.frozen
class SliceRef:
    """A slice among a node's arguments."""

    parts: tuple[Any, ...]


@record
@attrs.frozen
class StoredNode:
    """One node; ``target`` is a function's name, a method's, or a placeholder's."""

    op: str
    target: str
    name: str
    args: Any
    kwargs: Any
    stack_trace: str = ""
    tags: Any = attrs.field(factory=dict)


@record
@attrs.frozen
class StoredGraph:
    """One captured graph; ``nodes`` is the text of its nodes, which few that read the rest need."""

    inputs: tuple[StoredInput, ...]
    static_inputs: tuple[int, ...]
    grad_enabled: bool
    inference_mode: bool
    nodes: str
    steady_inputs: tuple[int, ...] = ()

    def examples(self) -> list[torch.Tensor]:
        """Tensors without memory that are laid out as the inputs are."""
        return [torch.empty_strided(i.shape, i.stride, dtype=i.dtype, device="meta") for i in self.inputs]


def stored(captured: CapturedGraph) -> StoredGraph | None:
    """A graph as plain data; None for one that has parts without a name, or sizes that are symbols."""
    inputs = [_input(value) for value in captured.example_inputs]
    storages = {v.untyped_storage()._cdata for v in captured.example_inputs if isinstance(v, torch.Tensor)}
    if any(i is None for i in inputs) or len(storages) != len(inputs):
        return None
    try:
        nodes = nodes_text(captured.module.graph)
    except (CacheError, Unstable):
        return None
    modes = captured.grad_enabled, captured.inference_mode
    static, steady = tuple(sorted(captured.static_inputs)), tuple(sorted(captured.steady_inputs))
    return StoredGraph(tuple(inputs), static, *modes, nodes, steady)  # type: ignore[arg-type]


def _input(value: Any) -> StoredInput | None:
    if not isinstance(value, torch.Tensor) or value.is_conj() or value.is_neg():
        return None
    shape, stride, offset = tuple(value.shape), tuple(value.stride()), value.storage_offset()
    if type(offset) is not int or not all(type(s) is int for s in (*shape, *stride)):
        return None
    parameter = isinstance(value, torch.nn.Parameter)
    grad = (value.requires_grad, value.is_leaf)
    return StoredInput(shape, stride, offset, value.dtype, str(value.device), *grad, parameter)


def nodes_text(graph: fx.Graph, held: bool = False) -> str:
    """The nodes of a graph as text, attributes and modules by their names where they are ``held`` elsewhere.

    Raises ``Unstable`` or ``CacheError`` for a node that cannot be written.
    """
    return codec.dumps(_nodes(graph, held))


def _nodes(graph: fx.Graph, held: bool) -> list[StoredNode]:
    numbers: dict[fx.Node, int] = {}
    found = []
    for node in graph.nodes:
        numbers[node] = len(numbers)
        if (node.op in ("get_attr", "call_module") and not held) or node.meta.get("unbacked_bindings"):
            raise Unstable
        target = function_name(node.target) if node.op == "call_function" else str(node.target)
        if node.op == "call_function" and _function(target) is not node.target:
            raise Unstable
        tags = {tag: node.meta[tag] for tag in TAGS if tag in node.meta}
        args, kwargs = _plain(node.args, numbers), _plain(dict(node.kwargs), numbers)
        found.append(StoredNode(node.op, target, node.name, args, kwargs, node.meta.get("stack_trace") or "", tags))
    return found


def _plain(value: Any, numbers: dict[fx.Node, int]) -> Any:
    if isinstance(value, fx.Node):
        return NodeRef(numbers[value])
    if isinstance(value, slice):
        return SliceRef(tuple(_plain(v, numbers) for v in (value.start, value.stop, value.step)))
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, (tuple, list)):
        kind = tuple if isinstance(value, tuple) else list
        return kind(_plain(v, numbers) for v in value)
    if isinstance(value, dict):
        return {k: _plain(v, numbers) for k, v in value.items()}
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise Unstable
    if callable(value) and not isinstance(value, torch.dtype):
        name = function_name(value)
        if _function(name) is not value:
            raise Unstable
        return FunctionRef(name)
    return value


def _function(name: str) -> Any:
    """The function of a name, or None."""
    kind, _, rest = name.partition(" ")
    try:
        if kind in ("OpOverload", "OpOverloadPacket"):
            if rest.startswith("turret."):
                define_own_ops()
            return operator.attrgetter(rest)(torch.ops)
        if name.startswith("torch:"):
            simple = name.removeprefix("torch:")
            homes = (torch, nn_c, torch.nn.functional)
            return next((getattr(m, simple) for m in homes if hasattr(m, simple)), None)
        module = name.replace("torch._VariableFunctionsClass.", "torch._C._VariableFunctions.")
        name = module
        while module not in sys.modules and "." in module:
            module = module.rpartition(".")[0]
        return operator.attrgetter(name[len(module) + 1 :])(sys.modules[module])
    except (AttributeError, KeyError, RuntimeError):
        return None


def graph_of(text: str) -> fx.Graph:
    """The graph that ``nodes_text`` wrote; raises ``CacheError`` for a call that is not known."""
    made = fx.Graph()
    nodes: list[fx.Node] = []

    def value(item: Any) -> Any:
        match item:
            case NodeRef(number):
                return nodes[number]
            case SliceRef(parts):
                return slice(*map(value, parts))
            case FunctionRef(name):
                return known_function(name)
            case dict():
                return {k: value(v) for k, v in item.items()}
            case tuple() | list():
                return type(item)(map(value, item))
        return item

    def known_function(name: str) -> Any:
        found = _function(name)
        if found is None:
            raise CacheError(f"a stored graph calls {name}, which is not there")
        return found

    for stored_node in codec.loads(text):
        target = known_function(stored_node.target) if stored_node.op == "call_function" else stored_node.target
        node = made.create_node(
            stored_node.op, target, value(stored_node.args), value(stored_node.kwargs), stored_node.name
        )
        node.meta.update(stored_node.tags, stack_trace=stored_node.stack_trace)
        nodes.append(node)
    return made


def restored(graph: StoredGraph, name: str) -> CapturedGraph:
    """The captured graph again, over fake inputs of its own; raises ``CacheError`` for a call that is not known."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from turret.graph.fakes.corrections import CorrectedFakeTensorMode

    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    inputs = tuple(fake_input(mode, i) for i in graph.inputs)
    return CapturedGraph(
        module=new_graph_module(torch.nn.Module(), graph_of(graph.nodes)),
        example_inputs=inputs,
        fake_mode=mode,
        static_inputs=frozenset(graph.static_inputs),
        steady_inputs=frozenset(graph.steady_inputs),
        grad_enabled=graph.grad_enabled,
        inference_mode=graph.inference_mode,
        name=name,
    )


def fake_input(mode: Any, item: StoredInput) -> torch.Tensor:
    """A fake tensor of ``mode`` that is laid out as the input, with a history where it is no leaf."""
    from turret.torch_compat.fakes import FakeTensor

    with torch.inference_mode(False), torch.enable_grad():
        memory = FakeTensor(mode, _without_memory(item), torch.device(item.device))
        if item.parameter:
            return torch.nn.Parameter(memory, item.requires_grad)
        if not item.requires_grad or item.leaf:
            return memory.detach().requires_grad_(item.requires_grad)
        return with_history(memory)


def _without_memory(item: StoredInput) -> torch.Tensor:
    """A tensor of the meta device that is laid out as the input."""
    if item.offset == 0:
        return torch.empty_strided(item.shape, item.stride, dtype=item.dtype, device="meta")
    extent = item.offset + 1 + sum((n - 1) * s for n, s in zip(item.shape, item.stride, strict=True))
    memory = torch.empty(0 if 0 in item.shape else extent, dtype=item.dtype, device="meta")
    return memory.as_strided(item.shape, item.stride, item.offset)
