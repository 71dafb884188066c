"""Texts of numbers that depend on data: Python writes them behind the graph, where they leave the captured code."""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Unread, Value
from turret.plugins.capture.values.floats import Changing
from turret.plugins.capture.values.sequences import List, Tuple
from turret.plugins.capture.values.symbols import Symbolic

_EXAMPLES: dict[type, tuple[Any, ...]] = {
    float: (1.5, -0.0, 1e300, float("nan"), float("inf")),
    int: (3, -1, 10**18, 0, 255),
    bool: (True, False, True, False, True),
}
"""Numbers that stand for those that data give: what raises for none of them is taken to raise for no number."""
_WRITERS = frozenset({"format", "join"})
"""Methods of ``str`` whose results are texts of their arguments."""


class NumberText(Unread):
    """A text of numbers that depend on data, or of other such texts."""

    def __init__(self, t: Tracer, function: Callable, args: list[Value], kwargs: dict[str, Value]) -> None:
        super().__init__("a text of a number that depends on data, where one is read", t.call_stack.step)
        self.function, self.args, self.kwargs = function, args, kwargs
        self.source = None  # type: ignore[assignment]

    def type(self) -> type:
        return str

    def example(self, number: int) -> str:
        """What the text is where data give the ``number``-th examples of numbers."""
        named = {name: _example(value, number) for name, value in self.kwargs.items()}
        text: str = self.function(*(_example(value, number) for value in self.args), **named)
        return text

    def rebuild(self, r: Rebuilder) -> str:
        given = [*map(r.load, self.args), *(f"{name}={r.load(value)}" for name, value in self.kwargs.items())]
        return r.assign(f"{r.constant(self.function)}({', '.join(given)})")


def written_later(t: Tracer, function: Callable, args: list[Value], kwargs: dict[str, Value]) -> NumberText | None:
    """The text that a function makes of arguments some of which depend on data; None where none does, or where the
    function may raise, which the program would see at once."""
    if writes_text(function):  # as a method of the class, which other processes find by its name
        function, args = getattr(str, function.__name__), [Constant(function.__self__), *args]  # type: ignore[attr-defined]
    kinds = (Tuple, List) if getattr(function, "__name__", None) == "join" else (Tuple,)
    given, named = [_kept(v, *kinds) for v in args], {name: _kept(value) for name, value in kwargs.items()}
    values = list(itertools.chain.from_iterable(map(_leaves, (*given, *named.values()))))
    if not any(map(_is_late, values)) or not all(_is_late(v) or isinstance(v, Constant) for v in values):
        return None
    made = NumberText(t, function, given, named)
    try:
        texts = [made.example(number) for number in range(len(_EXAMPLES[float]))]
    except Exception:
        return None
    return made if all(type(text) is str for text in texts) else None


def writes_text(function: Callable) -> bool:
    """Whether a function is a method of a text that makes another one of its arguments."""
    if type(function) is not types.BuiltinMethodType or function.__name__ not in _WRITERS:
        return False
    return type(function.__self__) is str


def operated_later(t: Tracer, operation: Callable, left: Value, right: Value) -> NumberText | None:
    """What ``+`` and ``%`` make of texts, some of which are written later; None for other operators and sides."""
    if operation is operator.mod:
        left = _kept(left)
        if not isinstance(left, NumberText) and not (isinstance(left, Constant) and type(left.value) is str):
            return None
    elif operation is not operator.add or not (isinstance(left, NumberText) or isinstance(right, NumberText)):
        return None
    return written_later(t, operation, [left, right], {})


def _is_late(value: Value) -> bool:
    if isinstance(value, NumberText):
        return True
    if not isinstance(value, Symbolic) or isinstance(value, Changing):
        return False
    return value.assumed is None and not value.is_known()


def _kept(value: Value, *sequences: type) -> Value:
    """A value that stays what it is, and the items of a sequence, which may be a list that changes later."""
    if isinstance(value, Unread):
        return value
    value = value.realize()
    if type(value) not in sequences:
        return value
    return Tuple([_kept(item) for item in value.items])  # type: ignore[attr-defined]


def _leaves(value: Value) -> Sequence[Value]:
    if type(value) is not Tuple:
        return (value,)
    return value.items


def _example(value: Value, number: int) -> Any:
    if isinstance(value, NumberText):
        return value.example(number)
    if type(value) is Tuple:
        return tuple(_example(item, number) for item in value.items)
    return _EXAMPLES[value.type()][number] if isinstance(value, Symbolic) else value.constant()
