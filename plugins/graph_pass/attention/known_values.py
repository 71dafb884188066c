"""What is known of the values of a captured graph while it is compiled: tensors made of numbers alone, and finite ones.

A mask that a program makes of ``arange``, ``ones``, ``tril`` and comparisons is the same in every call of the compiled
graph, whatever way it is written, so it is computed here, once, on the host, and looked at.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from turret.hooks.devices import HOST
from turret.plugins.graph_pass.attention.written import only_reads
from turret.torch_compat.dispatch import disable_current_modes
from turret.torch_compat.function_overrides import DisableTorchFunction

MOST_ELEMENTS = 1 << 23
"""Elements of the largest tensor that is computed."""

_MADE = """
arange zeros ones full eye linspace tril_indices triu_indices new_ones new_zeros new_full zeros_like ones_like
full_like scalar_tensor
"""
_COMPUTED = """
getitem add sub mul truediv div floordiv mod remainder neg invert and_ or_ xor eq ne lt le gt ge logical_and
logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not where masked_fill to type type_as float
double half bfloat16 int long bool unsqueeze squeeze view reshape expand expand_as broadcast_to repeat
repeat_interleave transpose permute t mT T contiguous clone detach flatten flip roll cumsum diff cat stack abs
min max minimum maximum clamp log exp tril triu outer narrow select chunk split getattr sum all any
"""
_WRITES = "fill_ zero_ masked_fill_ tril_ triu_ add_ sub_ mul_ div_ clamp_ logical_not_ iadd isub imul iand ior"
_LIKE = frozenset(["new_ones", "new_zeros", "new_full", "zeros_like", "ones_like", "full_like"])
"""Calls that take nothing but the layout of their first argument."""
_PURE, _IN_PLACE = frozenset([*_MADE.split(), *_COMPUTED.split()]), frozenset(_WRITES.split())
_VIEWS = frozenset(
    ["expand", "getitem", "unsqueeze", "squeeze", "view", "reshape", "transpose", "permute", "contiguous", "expand_as"]
)
_CASTS = frozenset(["to", "type", "type_as", "float", "double", "half", "bfloat16"])


class KnownValues:
    """Values that a captured graph computes from numbers alone.

    Nothing is known of memory that somebody writes to with values of which nothing is known, or in an unknown way.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._places = {node: place for place, node in enumerate(graph.nodes)}
        self._constant: set[fx.Node] = set()
        self._writes: list[fx.Node] = []
        self._values: dict[fx.Node, Any] = {}
        for node in graph.nodes:
            if node.op in ("call_function", "call_method"):
                self._learn(node)

    def _learn(self, node: fx.Node) -> None:
        """Note a node where its value is known; forget what it may write to where it is not."""
        name = _name(node)
        if _is_of_torch(node) and self._is_constant(node, name):
            self._constant.add(node)
            if name in _IN_PLACE:
                self._writes.append(node)
        elif not only_reads(node):
            written = {memory for source in _written(node) for memory in _memories(_value(source))}
            self._constant = {known for known in self._constant if written.isdisjoint(_memories(_value(known)))}

    def _is_constant(self, node: fx.Node, name: str) -> bool:
        if (name not in _PURE and name not in _IN_PLACE) or "out" in node.kwargs:
            return False
        return self._constant.issuperset(_sources(node)) and _is_small(_value(node))

    def tensor(self, node: Any, reader: fx.Node) -> torch.Tensor | None:
        """What a node's value is where ``reader`` reads it, as a tensor on the host; None where it is not known."""
        if not isinstance(node, fx.Node) or node not in self._constant or not isinstance(_value(node), torch.Tensor):
            return None
        needed = self._needed(node, reader)
        known = {} if any(write in needed for write in self._writes) else self._values
        try:
            with disable_current_modes(), DisableTorchFunction(), torch.no_grad():
                for step in needed:
                    if step not in known:
                        known[step] = _computed(step, known)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None  # what eager refuses it refuses when it runs
        found, fake = known[node], _value(node)
        same = isinstance(found, torch.Tensor) and (found.shape, found.dtype) == (fake.shape, fake.dtype)
        return found if same else None

    def _needed(self, node: fx.Node, reader: fx.Node) -> list[fx.Node]:
        """All that has to be computed for a node, with writes that come before ``reader``, in order."""
        needed: set[fx.Node] = set()
        waiting = [node, *(w for w in self._writes if self._places[w] < self._places.get(reader, 0))]
        while waiting:
            step = waiting.pop()
            if step not in needed:
                needed.add(step)
                waiting += _sources(step)
        return sorted(needed, key=self._places.__getitem__)

    def is_finite(self, node: Any, reader: fx.Node) -> bool:
        """Whether no element of a value can be infinite, as far as it shows."""
        if isinstance(node, int | float):
            return math.isfinite(node)
        if not isinstance(node, fx.Node):
            return False
        known = self.tensor(node, reader)
        if known is not None:
            return bool(known.isfinite().all())
        name, value = _name(node), _value(node)
        if not isinstance(value, torch.Tensor) or not _is_of_torch(node):
            return False
        if not value.dtype.is_floating_point:
            return True
        return self._stays_finite(node, name, value, reader)

    def _stays_finite(self, node: fx.Node, name: str, value: torch.Tensor, reader: fx.Node) -> bool:
        if node.kwargs.get("out") is not None:
            return False
        if name == "where" and len(node.args) == 3:
            return all(self.is_finite(choice, reader) for choice in node.args[1:])
        if name == "masked_fill" and len(node.args) == 3:
            return all(self.is_finite(choice, reader) for choice in (node.args[0], node.args[2]))
        source = _value(node.args[0]) if node.args else None
        if not isinstance(source, torch.Tensor):
            return False
        if name in _VIEWS:
            return self.is_finite(node.args[0], reader)
        if name in _CASTS:
            return source.dtype == torch.bool or (source.dtype == value.dtype and self.is_finite(node.args[0], reader))
        return False


def _value(node: fx.Node | Any) -> Any:
    return node.meta.get("val", node.meta.get("example_value")) if isinstance(node, fx.Node) else node


def _written(node: fx.Node) -> list[fx.Node]:
    """The arguments that a call may write to: of a method in place and of an operator the first, else any."""
    of_self = node.op == "call_method" and node.target != "backward" and "out" not in node.kwargs
    if of_self or getattr(operator, _name(node), None) is node.target:
        return [source for source in node.args[:1] if isinstance(source, fx.Node)]
    return node.all_input_nodes


def _memories(value: Any) -> Iterator[int]:
    """The storages of the tensors that a value consists of."""
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided:
            yield value.untyped_storage()._cdata
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for part in value:
            yield from _memories(part)


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_of_torch(node: fx.Node) -> bool:
    """Whether a call is a method, or a function of torch's or of Python's of the name that it has."""
    if node.op == "call_method":
        return True
    if node.op != "call_function":
        return False
    name = _name(node)
    return any(getattr(place, name, None) is node.target for place in (torch, operator)) or node.target is getattr


def _sources(node: fx.Node) -> list[fx.Node]:
    """The arguments whose values a call takes."""
    found = node.all_input_nodes
    if _name(node) in _LIKE and node.args:
        fake = _value(node.args[0])
        if isinstance(fake, torch.Tensor) and _is_small(fake):
            return [source for source in found if source is not node.args[0]]
    return found


def _is_small(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        static = all(isinstance(n, int) for n in value.shape)
        return static and value.numel() <= MOST_ELEMENTS and not value.is_sparse
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(map(_is_small, value))
    return value is None or isinstance(value, bool | int | float)


def _computed(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """A call on the host."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda source: _known(source, known))
    args, kwargs = fx.node.map_aggregate((args, kwargs), _on_host)
    if node.op == "call_method":
        target: Any = node.target
        return getattr(args[0], target)(*args[1:], **kwargs)
    assert callable(node.target)
    return node.target(*args, **kwargs)


def _known(node: fx.Node, known: dict[fx.Node, Any]) -> Any:
    """A value; of a tensor that only its layout is taken of, another of that layout."""
    if node in known:
        return known[node]
    fake = _value(node)
    return torch.empty(fake.shape, dtype=fake.dtype)


def _on_host(argument: Any) -> Any:
    """An argument of a call, with the host in place of a device."""
    return torch.device(HOST) if isinstance(argument, torch.device) or _names_device(argument) else argument


def _names_device(argument: Any) -> bool:
    if not isinstance(argument, str):
        return False
    try:
        torch.device(argument)
    except RuntimeError:
        return False
    return True
