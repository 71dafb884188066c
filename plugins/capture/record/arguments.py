"""Values as arguments of nodes, and of the calls on fake values that say what a node gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import numpy
import torch
from torch import fx

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.record.overflow import fits_64_bits
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.floats import ChangingBool
from turret.plugins.capture.values.functions import Known
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import Deque, Range, Sequence, Slice
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Array, Tensor

_DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128
}  # fmt: skip
"""What torch takes Python's types for where a dtype is asked for; the text of a graph cannot name the types."""


def argument_of(t: Tracer, value: Value, *, in_64_bits: bool) -> tuple[Any, Any]:
    """A value as an argument of a node, and as one of the call on fake values.

    ``in_64_bits``: what no 64-bit integer holds is a number to it, no symbol.
    """
    value = value.realize()
    if isinstance(value, ChangingBool):
        value = Constant(value.truth(t))
    if isinstance(value, Array):
        value = value.as_number(t) or value
    if isinstance(value, Tensor):
        return t.recorder.node_here(value.node), value.fake
    if isinstance(value, Constant):
        plain = _as_written(value.value)
        return plain, plain
    if isinstance(value, Symbolic):
        return _number(t, value, in_64_bits)
    if isinstance(value, Range):
        numbers = list(value.concrete(t))
        return numbers, numbers
    if isinstance(value, Known) and isinstance(value.object, type):
        dtype = _DTYPES.get(value.object, value.object)
        return dtype, dtype
    return _nest(t, value, in_64_bits)


def _number(t: Tracer, value: Symbolic, in_64_bits: bool) -> tuple[Any, Any]:
    if in_64_bits and isinstance(value.number, torch.SymInt) and value.is_known() and not value.is_ragged():
        if not fits_64_bits(value.number):
            return value.fixed(), value.fixed()
        t.recorder.integers[value.number.node.expr] = None
    return t.recorder.node_here(value.node), value.number


def _nest(t: Tracer, value: Value, in_64_bits: bool) -> tuple[Any, Any]:
    """A container of arguments."""
    if isinstance(value, Instance) and isinstance(value.payload, (Sequence, Constant)):
        return argument_of(t, value.payload, in_64_bits=in_64_bits)  # of which torch's own code sees no more
    if isinstance(value, Deque):
        raise Unsupported("a deque as an argument of an operation on tensors")  # of which few take one
    if isinstance(value, Sequence):
        nodes, fakes = _row(t, value.items, in_64_bits)
        kind = list if value.kind is list else tuple
        return kind(nodes), kind(fakes)
    if isinstance(value, Slice):
        nodes, fakes = _row(t, value.parts, in_64_bits)
        return slice(*nodes), slice(*fakes)
    if isinstance(value, Dict):
        keys = [k.constant() for k, _ in value.items.values()]
        nodes, fakes = _row(t, [v for _, v in value.items.values()], in_64_bits)
        return dict(zip(keys, nodes, strict=True)), dict(zip(keys, fakes, strict=True))
    if isinstance(value, Instance) and _is_frozen_dataclass(value.kind):
        return _frozen(t, value, in_64_bits)
    raise Unsupported(f"{value.describe()} as an argument of an operation on tensors")


def _frozen(t: Tracer, value: Instance, in_64_bits: bool) -> tuple[fx.Node, Any]:
    """An instance of a frozen dataclass, which a node puts together from its fields."""
    names = [field.name for field in dataclasses.fields(value.kind)]
    parts = [value.own(t, name) for name in names]
    if None in parts or not value.stores.keys() <= set(names):
        raise Unsupported(f"{value.describe()} as an argument, which is more than its fields, or less")
    make = Assembled(value.kind, tuple(names))
    nodes, fakes = _row(t, [v for v in parts if v is not None], in_64_bits)
    example = make(*fakes)
    return t.recorder.record("call_function", make, tuple(nodes), {}, example), example


def _row(t: Tracer, values: Iterable[Value], in_64_bits: bool) -> tuple[list, list]:
    pairs = [argument_of(t, v, in_64_bits=in_64_bits) for v in values]
    return [p[0] for p in pairs], [p[1] for p in pairs]


def _plain_number(scalar: numpy.generic) -> Any:
    """What torch takes a scalar of numpy for; of others than these it makes a float in some places."""
    if isinstance(scalar, (numpy.integer, numpy.floating, complex)):
        return scalar.item()
    raise Unsupported(f"{scalar!r} as an argument of torch's")


def _as_written(constant: Any) -> Any:
    """A constant as an argument that the text of a graph can hold: a plain number or text for one of another class."""
    if isinstance(constant, numpy.generic):
        return _plain_number(constant)
    for base, plain in _PLAIN.items():
        if isinstance(constant, base) and type(constant) not in (base, bool):
            return plain(constant)
    return constant


_PLAIN: dict[type, Callable[[Any], Any]] = {int: int.__int__, float: float.__float__, str: str.__str__}


def _is_frozen_dataclass(kind: type) -> bool:
    """Whether instances of a class are their fields, which nobody changes."""
    parameters = getattr(kind, "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and "__dataclass_params__" in vars(kind)


@attrs.frozen
class Assembled:
    """A function of the fields of a dataclass that gives an instance, which the program has made before."""

    kind: type
    names: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return self.kind.__name__

    def __call__(self, *fields: Any) -> Any:
        made: Any = object.__new__(self.kind)
        for name, value in zip(self.names, fields, strict=True):
            object.__setattr__(made, name, value)
        return made
