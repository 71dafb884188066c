"""What ``max(tensor, 1)`` gives: one of two objects, and data decide which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.values.base import Answer, Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.symbols import Symbolic, as_float64
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.dispatch import no_dispatch

_MOST = 16
"""Objects that one choice is among."""


class Choice(Value):
    """``chosen if condition else other``, each a tensor without dimensions, a number, or a choice again.

    Beside a tensor in an operator it makes no difference which it is, where all lead to the same type: the graph
    then selects the value.  Operators with numbers give choices.  Whatever else needs the object itself is left to
    Python, behind the graph.
    """

    def __init__(self, condition: Tensor, chosen: Value, other: Value) -> None:
        self.condition, self.chosen, self.other = condition, chosen, other
        self.leaves: list[Value] = [*leaves(chosen), *leaves(other)]
        if len(self.leaves) > _MOST:
            raise Unsupported(f"a choice among more than {_MOST} objects that data make")

    def type(self) -> type:
        raise Unsupported(f"the type of {self.describe()}")

    def describe(self) -> str:
        return " or ".join(v.describe() for v in self.leaves) + ", as data decide"

    def beside(self, t: Tracer, tensor: Value) -> Value:
        """A tensor that stands for any of them in an operator with another tensor."""
        if not isinstance(tensor, Tensor):
            raise Unsupported(f"an operator of {self.describe()} and {tensor.describe()}")
        held = next((v for v in self.leaves if isinstance(v, Tensor)), None)
        if held is None:
            return self.as_float(t, tensor)
        dtype = held.fake.dtype
        results = {torch.result_type(_plain(v), tensor.fake) for v in self.leaves}
        if len(results) > 1:
            raise Unsupported(f"{self.describe()} beside a tensor, where the type depends on which it is")
        rounds = results == {dtype} and dtype in (torch.float32, torch.float64)  # as the operator itself would
        for value in self.leaves:
            if isinstance(value, Tensor):
                if value.fake.requires_grad or value.fake.dtype != dtype or value.fake.device != held.fake.device:
                    raise Unsupported(f"{self.describe()}, with gradients, or of several types or devices")
            elif not rounds and not _fits(_plain(value), dtype):
                raise Unsupported(f"{self.describe()}, of which {dtype} cannot hold the number")
        return self.selected(t, held)

    def as_float(self, t: Tracer, tensor: Tensor) -> Value:
        """The number that it is, as a float, where that is all the same to an operator with a tensor."""
        results = {torch.result_type(_plain(v), tensor.fake) for v in self.leaves}
        if len(results) > 1 or not results.pop().is_floating_point or not all(map(_is_float, self.leaves)):
            raise Unsupported(f"an operator of {self.describe()} and a tensor")
        return chosen_float(t, self)

    def to_float(self, t: Tracer) -> Value:
        """``float`` of the number that it is."""
        if any(isinstance(v, Tensor) for v in self.leaves) or not all(map(_is_float, self.leaves)):
            raise Unsupported(f"float of {self.describe()}")
        return chosen_float(t, self)

    def selected(self, t: Tracer, like: Tensor) -> Value:
        """The value as a tensor of the type of ``like``."""
        options = []
        for part in (self.chosen, self.other):
            if isinstance(part, Choice):
                options.append(part.selected(t, like))
            else:
                options.append(part if isinstance(part, Tensor) else t.recorder.call(torch.full_like, [like, part], {}))
        return t.recorder.call(torch.where, [self.condition, *options], {})

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        if inplace:
            raise Unsupported(f"a change in place of {self.describe()}")
        return self.combined(t, operation, self, other)

    def reflected(self, t: Tracer, operation: Callable, other: Value) -> Answer:
        return self.combined(t, operation, other, self)

    def combined(self, t: Tracer, operation: Callable, left: Value, right: Value) -> Answer:
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return t.binary(operation, left.beside(t, right), right.beside(t, left))
        if not all(isinstance(v, (Choice, Constant, Symbolic)) for v in (left, right)):
            return NotImplemented
        try:
            return settled(t, combine(lambda a, b: t.binary(operation, a, b), *few(t, left, right)))
        except Raised as raised:
            reason = f"{operation.__name__}, which may raise {raised.value.describe()}, as data decide"
            raise Unsupported(reason) from None

    def unary(self, t: Tracer, operation: Callable) -> Value:
        """A unary operator."""

        def of(part: Value) -> Value:
            if isinstance(part, Choice):
                return Choice(part.condition, of(part.chosen), of(part.other))
            return t.call(t.wrap_known(operation), [part], {}).realize()

        return settled(t, of(self))

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        return t.compare(symbol, self.beside(t, other), other)

    def rebuild(self, r: Rebuilder) -> str:
        condition, chosen, other = map(r.load, (self.condition, self.chosen, self.other))
        return r.assign(f"{chosen} if {condition} else {other}")


def leaves(value: Value) -> list[Value]:
    """All objects that a value may be."""
    return value.leaves if isinstance(value, Choice) else [value]


def combine(function: Callable[[Value, Value], Value], left: Value, right: Value) -> Value:
    """A function of each pair of objects that two values may be."""
    choice = next((v for v in (left, right) if isinstance(v, Choice)), None)
    if choice is None:
        return function(left, right).realize()
    parts = [
        combine(function, _given(left, choice.condition, holds), _given(right, choice.condition, holds))
        for holds in (True, False)
    ]
    return Choice(choice.condition, *parts)


def few(t: Tracer, left: Value, right: Value) -> tuple[Value, Value]:
    """Two values, among whose pairs of objects there are no more than one choice is among, if need be without those
    that are the same."""
    if len(leaves(left)) * len(leaves(right)) <= _MOST:
        return left, right
    return _distinct(t, left), _distinct(t, right)


def _distinct(t: Tracer, value: Value) -> Value:
    """A choice among the same objects, each of them once."""
    objects = {_identity(v): v for v in leaves(value)}
    if not isinstance(value, Choice) or len(objects) == len(value.leaves):
        return value
    places = {identity: number for number, identity in enumerate(objects)}

    def place_of(part: Value) -> Value:
        if not isinstance(part, Choice):
            return Constant(places[_identity(part)])
        parts = [place_of(v) for v in (part.chosen, part.other)]
        return t.recorder.call(torch.where, [part.condition, *parts], {}).realize()

    place = place_of(value)
    *others, chosen = objects.items()
    made = chosen[1]
    for identity, found in reversed(others):
        condition = t.compare("==", place, Constant(places[identity])).realize()
        assert isinstance(condition, Tensor)
        made = Choice(condition, found, made)
    return made


def settled(t: Tracer, value: Value) -> Value:
    """The number itself, where a choice is among floats that only the run tells: all of them are of one type."""
    parts = leaves(value)
    if not any(isinstance(v, Symbolic) for v in parts) or any(isinstance(v, Tensor) or v.type() is int for v in parts):
        return value
    return chosen_float(t, value)


def chosen_float(t: Tracer, value: Value) -> Value:
    """Of numbers of which data choose one, that one as a float.  Each of them is a float, or an int that one can be."""
    return _placed(t, value).call_method(t, "item", [], {}).realize()


def _placed(t: Tracer, value: Value) -> Value:
    """A number, or the one that is chosen, as a tensor."""
    if isinstance(value, Choice):
        parts = [_placed(t, part) for part in (value.chosen, value.other)]
        return t.recorder.call(torch.where, [value.condition, *parts], {}).realize()
    return as_float64(t, value).realize()


def _identity(value: Value) -> Any:
    """What objects are the same by: what only the run tells is itself, other numbers are told by type and text."""
    return (type(value.value), repr(value.value)) if isinstance(value, Constant) else id(value)


def _given(value: Value, condition: Tensor, holds: bool) -> Value:
    """What a value is, once a condition is decided."""
    if not isinstance(value, Choice):
        return value
    if value.condition is condition:
        return _given(value.chosen if holds else value.other, condition, holds)
    return Choice(value.condition, *(_given(v, condition, holds) for v in (value.chosen, value.other)))


def _plain(value: Value) -> Any:
    """What torch tells the type of a result by."""
    if isinstance(value, Symbolic):
        return 1.0
    return value.fake if isinstance(value, Tensor) else value.constant()


def _fits(number: Any, dtype: torch.dtype) -> bool:
    """Whether a type holds a number exactly."""
    with no_dispatch():
        try:
            return torch.tensor(number, dtype=dtype).item() == number
        except (RuntimeError, OverflowError):
            return False


def extreme_of_two(t: Tracer, symbol: str, first: Value, second: Value) -> Value | None:
    """``max(first, second)`` (``min`` for ``<``) where data decide; None for anything else.

    Of floats that only the run tells, too: a symbol for the larger of two knows nothing of what Python gives where one
    of them is not a number, or where both are zero.
    """
    if not _do_data_decide([*leaves(first), *leaves(second)]):
        return None

    def extreme(one: Value, other: Value) -> Value:
        symbolic = any(isinstance(v, Symbolic) for v in (one, other))
        left, right = (_placed(t, v) if symbolic else v for v in (other, one))
        condition = t.compare(symbol, left, right).realize()
        if isinstance(condition, Tensor) and getattr(condition.fake, "constant", None) is None:
            return Choice(condition, other, one)
        return other if t.truth(condition) else one

    return settled(t, combine(extreme, *few(t, first, second)))


def _do_data_decide(parts: list[Value]) -> bool:
    """Whether numbers are such as the larger of can be told in tensors, and is told by data alone."""
    symbols = [v for v in parts if isinstance(v, Symbolic)]
    if symbols:
        return all(map(_is_float, parts)) and not all(v.is_known() for v in symbols)
    return all(map(_is_number, parts)) and any(isinstance(v, Tensor) for v in parts)


def _is_number(value: Value) -> bool:
    if isinstance(value, Tensor):
        return value.fake.dim() == 0 and not value.fake.is_complex()
    return isinstance(value, Constant) and type(value.value) in (int, float)


def _is_float(value: Value) -> bool:
    """Whether a value is a float, or a number that one can be exactly."""
    if isinstance(value, Symbolic):
        return value.type() is float
    return _is_number(value) and isinstance(value, Constant) and _fits(value.value, torch.float64)
