"""Questions about tensors that Python's bools answer: numbers of the graph, where such are wanted."""

from __future__ import annotations

from typing import Any

import torch

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.tensors import Tensor


def _answer(t: Tracer, name: str, condition: Value) -> Value:
    """The bool that a tensor of one bool holds."""
    held = condition.realize()
    found = held.read(t, "item") if isinstance(held, Tensor) else held
    if found is None:
        raise Unsupported(f"torch.{name} reads its tensors' values", "keep the values in tensors")
    return found


def _tensors(t: Tracer, name: str, *values: Value) -> list[Tensor]:
    """The arguments, plain tensors of one dtype on one device, of which torch's function raises nothing."""
    held = [v.realize() for v in values]
    if not all(isinstance(v, Tensor) for v in held):
        t.recorder.call(getattr(torch, name), held, {})  # which raises
    tensors = [v for v in held if isinstance(v, Tensor) and v.fake.layout is torch.strided]
    places = {(v.fake.dtype, v.fake.device) for v in tensors}
    if len(tensors) < len(held) or len(places) > 1:
        raise Unsupported(f"torch.{name} of {' and '.join(v.describe() for v in held)}")
    return tensors


def _equal(t: Tracer, /, input: Value, other: Value) -> Value:
    """Of tensors of other sizes it is known to be False."""
    one, two = _tensors(t, "equal", input, other)
    if one.fake.dim() != two.fake.dim():
        return Constant(False)
    for number in range(one.fake.dim()):
        sizes = (t.recorder.size_value(v, number) for v in (one, two))
        if not t.truth(t.compare("==", *sizes)):
            return Constant(False)
    same = t.recorder.call(torch.eq, [one, two], {})
    return _answer(t, "equal", t.recorder.call_method("all", [same], {}))


def _allclose(t: Tracer, /, input: Value, other: Value, *limits: Value, **named: Value) -> Value:
    close = t.recorder.call(torch.isclose, [*_tensors(t, "allclose", input, other), *limits], named)
    return _answer(t, "allclose", t.recorder.call_method("all", [close], {}))


def _is_nonzero(t: Tracer, /, input: Value) -> Value:
    (held,) = _tensors(t, "is_nonzero", input)
    if held.fake.numel() != 1:
        t.fails(torch.is_nonzero, torch.zeros(2 if held.fake.numel() else 0))
    known = held.read(t, "is_nonzero") if held.known(t) is not None else None
    return _answer(t, "is_nonzero", t.compare("!=", held, Constant(0))) if known is None else known


_names: dict[str, Any] = {"equal": _equal, "allclose": _allclose, "is_nonzero": _is_nonzero}
for _name, _handler in _names.items():
    registry.function(getattr(torch, _name))(_handler)


@registry.tensor_method("equal")
def equal_of(t: Tracer, /, tensor: Tensor, other: Value) -> Value:
    return _equal(t, tensor, other)


@registry.tensor_method("allclose")
def allclose_of(t: Tracer, /, tensor: Tensor, other: Value, *limits: Value, **named: Value) -> Value:
    return _allclose(t, tensor, other, *limits, **named)


@registry.tensor_method("is_nonzero")
def is_nonzero_of(t: Tracer, /, tensor: Tensor) -> Value:
    return _is_nonzero(t, tensor)
