"""Texts of numbers that depend on data or change from call to call: Python writes them behind the graph, where they
leave the captured code."""

from __future__ import annotations

import functools
import itertools
import operator
import re
import string
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import torch

from turret.plugins.capture.errors import TextNeeded, Unsupported
from turret.plugins.capture.values.base import Constant, MethodOfValue, Rebuilder, Tracer, Unread, Value
from turret.plugins.capture.values.floats import Changing
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.sequences import List, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.dispatch import disable_current_modes

_EXAMPLES: dict[type, tuple[Any, ...]] = {
    float: (1.5, -0.0, 1e300, float("nan"), float("inf")),
    int: (3, -1, 10**18, 0, 255),
    bool: (True, False, True, False, True),
}
"""Numbers that stand for those that data give: what raises for none of them is taken to raise for no number."""
_FLOAT_FIELD = re.compile(r"%[#0\- +]*\d*(\.\d+)?[eEfFgG]")
_DEEPEST = 16
"""Levels of lists, tuples and dicts in which numbers are looked for."""
_OF_NUMBERS = {bool: frozenset("TrueFals"), int: frozenset("0123456789-"), float: frozenset("0123456789+-.naife")}
"""Characters that numbers are written with."""
_OF_FORMATS = frozenset(" +-.,_%xXoabcdefABCDEFIN")
"""Those that a format may add, beside those in it."""
_TEXT_METHODS = frozenset(
    {
        "capitalize", "center", "expandtabs", "ljust", "lower", "lstrip", "removeprefix", "removesuffix", "replace",
        "rjust", "rstrip", "strip", "swapcase", "title", "upper", "zfill",
    }
)  # fmt: skip
"""Methods of ``str`` that make a text of one that is written later."""
_WRITERS = frozenset({"format", "join"})
"""Methods of ``str`` whose results are texts of their arguments."""


@attrs.frozen
class Spelling:
    """What a text begins and ends with, and of which characters (None: any) there are more between the two."""

    start: str
    end: str = ""
    between: frozenset[str] | None = frozenset()
    whole: bool = True
    """Whether ``start`` is all of it."""

    @staticmethod
    def unknown(characters: Iterable[str] | None) -> Spelling:
        return Spelling("", "", None if characters is None else frozenset(characters), whole=False)

    def then(self, other: Spelling) -> Spelling:
        """That of two texts, one behind the other."""
        if self.whole:
            return attrs.evolve(other, start=self.start + other.start)
        if other.whole:
            return attrs.evolve(self, end=self.end + other.start)
        known = None if None in (self.between, other.between) else self.between | other.between  # type: ignore[operator]
        between = None if known is None else known | set(self.end) | set(other.start)
        return Spelling(self.start, other.end, between, whole=False)

    def may_be(self, text: str) -> bool:
        """Whether the text may be ``text``."""
        if self.whole:
            return text == self.start
        if len(text) < len(self.start) + len(self.end):
            return False
        middle = text[len(self.start) : len(text) - len(self.end)]
        fits = text.startswith(self.start) and text.endswith(self.end)
        return fits and (self.between is None or self.between.issuperset(middle))

    def differs_from(self, other: Spelling) -> bool:
        """Whether two texts cannot be equal."""
        for one, two in ((self, other), (other, self)):
            if one.whole:
                return not two.may_be(one.start)
        return not (self.may_begin(other) and other.may_begin(self))

    def may_begin(self, other: Spelling) -> bool:
        """Whether a text of this spelling may begin and end as one of another one does, as far as that reaches."""
        starts, ends = min(len(self.start), len(other.start)), min(len(self.end), len(other.end))
        known = other.end[len(other.end) - ends :]
        if self.start[:starts] != other.start[:starts] or self.end[len(self.end) - ends :] != known:
            return False
        more = other.start[starts:] + other.end[: len(other.end) - ends]
        return self.between is None or set(more) <= self.between | set(self.start) | set(self.end)


class NumberText(Unread):
    """A text of numbers that depend on data or that change, or of other such texts."""

    def __init__(self, t: Tracer, function: Callable, args: list[Value], kwargs: dict[str, Value]) -> None:
        super().__init__("a text of a number that depends on data, where one is read", t.call_stack.step)
        self.function, self.args, self.kwargs = function, args, kwargs
        self.source = None  # type: ignore[assignment]
        self.shown: list[tuple[torch.Tensor, int]] = []
        """Tensors in it, and how often they had been written to."""

    def type(self) -> type:
        return str

    def changes(self) -> bool:
        """Whether there is a number in it that changes from call to call."""
        return any(map(_changes, _all_leaves(self)))

    def realize(self) -> Value:
        if self.changes():
            raise TextNeeded("a text of a number that changes, where one is read", step=self.step)
        return super().realize()

    def example(self, number: int) -> str:
        """What the text is where data give the ``number``-th examples of numbers."""
        named = {name: _example(value, number) for name, value in self.kwargs.items()}
        text: str = self.function(*(_example(value, number) for value in self.args), **named)
        return text

    def get_attr(self, t: Tracer, name: str) -> Value:
        return MethodOfValue(self, name) if name in _TEXT_METHODS else super().get_attr(t, name)

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made = written_later(t, getattr(str, name), [self, *args], kwargs) if name in _TEXT_METHODS else None
        return super().call_method(t, name, args, kwargs) if made is None else made

    def is_same(self, other: Value) -> bool:
        if not isinstance(other, NumberText) or self.function is not other.function:
            return self is other
        mine, theirs = (_leaves_of(v.args, v.kwargs) for v in (self, other))
        return (
            [*map(type, self.args), *self.kwargs] == [*map(type, other.args), *other.kwargs]
            and len(mine) == len(theirs)
            and all(map(_is_same_leaf, mine, theirs))
        )

    def differs_from(self, other: Value) -> bool:
        if isinstance(other, NumberText):
            return self.spelling().differs_from(other.spelling())
        known = other.realize()
        if not isinstance(known, Constant):
            return False
        return not isinstance(known.value, str) or not self.spelling().may_be(known.value)

    def spelling(self) -> Spelling:
        """What is known of the text whatever the numbers are."""
        first, *rest = self.args
        if self.function is str.join and isinstance(first, Constant) and isinstance(rest[0], (Tuple, List)):
            head, *others = map(_spelling_of, rest[0].items)
            between = Spelling(first.value)
            return functools.reduce(lambda made, part: made.then(between).then(part), others, head)
        if self.function is operator.add:
            return _spelling_of(first).then(_spelling_of(rest[0]))
        if self.function in (format, str, repr) and isinstance(first, Symbolic):
            return _spelling_of_number(first.type(), rest[0].constant() if rest else "")
        if self.function is format and not rest[0].constant():
            return _spelling_of(first)
        return Spelling.unknown(None)

    def rebuild(self, r: Rebuilder) -> str:
        held = {id(v.fake) for v in _leaves_of(self.args, self.kwargs) if isinstance(v, Tensor)}
        for fake, version in self.shown:
            if id(fake) not in held or r.t.recorder.versions.of(fake) != version:
                raise Unsupported("a text of a tensor that is written to later", step=self.step)
        given = [*map(r.load, self.args), *(f"{name}={r.load(value)}" for name, value in self.kwargs.items())]
        return r.assign(f"{r.constant(self.function)}({', '.join(given)})")


def written_later(t: Tracer, function: Callable, args: list[Value], kwargs: dict[str, Value]) -> NumberText | None:
    """The text that a function makes of arguments some of which depend on data; None where none does, or where the
    function may raise, which the program would see at once."""
    if writes_text(function):  # as a method of the class, which other processes find by its name
        function, args = getattr(str, function.__name__), [Constant(function.__self__), *args]  # type: ignore[attr-defined]
    try:
        given, named = [_kept(v) for v in args], {name: _kept(value) for name, value in kwargs.items()}
    except RecursionError:
        return None
    if any(isinstance(v, Tensor) for v in _leaves_of(given, named)):
        given, named = with_numbers_of_tensors(t, function, given, named)
    return _written(t, function, given, named)


def _written(t: Tracer, function: Callable, args: list[Value], kwargs: dict[str, Value]) -> NumberText | None:
    """The text of arguments that stay what they are; None as above."""
    values = _leaves_of(args, kwargs)
    if not _are_late(t, values):
        return None
    tensors = [v for v in values if isinstance(v, Tensor)]
    if tensors and not _shows_whole_tensors(t, function, args, tensors):
        return None
    made = NumberText(t, function, args, kwargs)
    made.shown = [(v.fake, t.recorder.versions.of(v.fake)) for v in tensors]
    try:
        texts = [made.example(number) for number in range(len(_EXAMPLES[float]))]
    except Exception:
        return None
    return made if all(type(text) is str for text in texts) else None


def _are_late(t: Tracer, values: Sequence[Value]) -> bool:
    """Whether values are constants and such as texts are written of behind the graph, one of these among them."""
    in_region = bool(t.recorder.open_regions)
    if in_region:
        for text in values:
            if isinstance(text, NumberText) and text.changes():
                text.realize()  # sides of a branch on data leave constants, of which one is chosen
    late = [_is_late(v, t.policy.history.reads_texts or in_region) for v in values]
    return any(late) and all(known or isinstance(v, Constant) for v, known in zip(values, late, strict=True))


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


def _is_late(value: Value, are_read: bool) -> bool:
    """Whether texts of a value are written behind the graph; ``are_read``: the program reads some of what changes."""
    if isinstance(value, (NumberText, Tensor)):
        return True
    if not isinstance(value, Symbolic) or value.assumed is not None:
        return False
    return not are_read if _changes(value) else not isinstance(value, Changing) and not value.is_known()


def _changes(value: Value) -> bool:
    """Whether a value is a number that changes from call to call, and that a guard may hold on to."""
    if isinstance(value, Changing):
        return not value.is_drawn
    return isinstance(value, Symbolic) and value.type() is int and value.is_known() and not value.is_ragged()


def _all_leaves(text: NumberText) -> Iterator[Value]:
    """The numbers and constants in a text, and in the texts that it is made of."""
    for value in _leaves_of(text.args, text.kwargs):
        if isinstance(value, NumberText):
            yield from _all_leaves(value)
        else:
            yield value


def _kept(value: Value, depth: int = 0) -> Value:
    """A value that stays what it is, where a list or a dict may change later, or hold itself."""
    if depth > _DEEPEST:
        raise RecursionError
    if isinstance(value, Unread):
        return value
    value = value.realize()
    if type(value) in (Tuple, List):
        return type(value)([_kept(item, depth + 1) for item in value.items])  # type: ignore[attr-defined,call-arg]
    if type(value) is Dict and value.kind is dict:
        return Dict({key: (one, _kept(other, depth + 1)) for key, (one, other) in value.items.items()})
    return value


def _is_same_leaf(one: Value, other: Value) -> bool:
    if isinstance(one, Constant) and isinstance(other, Constant):
        return type(one.value) is type(other.value) and repr(one.value) == repr(other.value)
    if isinstance(one, Symbolic) and isinstance(other, Symbolic):
        return one.node is other.node
    return isinstance(one, NumberText) and one.is_same(other)


def _spelling_of(value: Value) -> Spelling:
    if isinstance(value, NumberText):
        return value.spelling()
    return Spelling(value.value) if isinstance(value, Constant) and type(value.value) is str else Spelling.unknown(None)


def _spelling_of_number(kind: type, spec: str) -> Spelling:
    if {"c", "n"} & set(spec):  # any character, or what the locale says
        return Spelling.unknown(None)
    return Spelling.unknown(_OF_NUMBERS[kind].union(*((_OF_FORMATS, spec, _OF_NUMBERS[float]) if spec else ())))


def _leaves_of(args: list[Value], kwargs: dict[str, Value]) -> list[Value]:
    return list(itertools.chain.from_iterable(map(_leaves, (*args, *kwargs.values()))))


def _leaves(value: Value) -> Sequence[Value]:
    if type(value) in (Tuple, List):
        return _leaves_of(value.items, {})  # type: ignore[attr-defined]
    return _leaves_of(value.contents(), {}) if type(value) is Dict else (value,)


def _example(value: Value, number: int) -> Any:
    if isinstance(value, NumberText):
        return value.example(number)
    if type(value) in (Tuple, List):
        return value.type()(_example(item, number) for item in value.items)  # type: ignore[attr-defined]
    if type(value) is Dict:
        return {_example(key, number): _example(item, number) for key, item in value.items.values()}
    if isinstance(value, Tensor):
        with disable_current_modes():
            return torch.full((2,) * value.fake.dim(), 1, dtype=value.fake.dtype).as_subclass(value.type())
    return _EXAMPLES[value.type()][number] if isinstance(value, Symbolic) else value.constant()


# Tensors in texts.


def with_numbers_of_tensors(
    t: Tracer, function: Callable, args: list[Value], kwargs: dict[str, Value]
) -> tuple[list[Value], dict[str, Value]]:
    """The arguments of ``str.format`` or ``%`` with the numbers of tensors that are written as such; else unchanged."""
    text = args[0].value if isinstance(args[0], Constant) else None
    if type(text) is not str:
        return args, kwargs
    if function is str.format and _asks_for_formats(text):
        found = [_number(t, v, of_any_shape=False) for v in args]
        return found, {name: _number(t, v, of_any_shape=False) for name, v in kwargs.items()}
    if function is operator.mod and _asks_for_numbers(text):
        right = args[1]
        written = Tuple([_number(t, v) for v in right.items]) if type(right) is Tuple else _number(t, right)
        return [args[0], written], kwargs
    return args, kwargs


def _shows_whole_tensors(t: Tracer, function: Callable, args: list[Value], tensors: list[Tensor]) -> bool:
    """Whether a text is made of tensors that leave compiled code as what they are in eager, and of all of each."""
    if function is str.format:
        text = args[0].constant() if isinstance(args[0], Constant) else "["
        if "[" in text or not set(re.findall(r"\.([A-Za-z_]\w*)", text)) <= {"shape", "dtype", "device"}:
            return False
    return not t.recorder.open_regions and not t.recorder.gradient_transform() and all(map(_is_shown, tensors))


def _is_shown(tensor: Tensor) -> bool:
    """Whether a tensor's text is that of eager's: the history of one that the graph makes has other names in it."""
    plain = type(tensor) is Tensor and tensor.outer is None and tensor.new_data is None and not tensor.stores
    if not plain or tensor.fake.is_inference() or tensor.type() not in (torch.Tensor, torch.nn.Parameter):
        return False
    return tensor.real is not None or not tensor.fake.requires_grad


def _asks_for_formats(text: str) -> bool:
    """Whether each field of a text for ``str.format`` is what an argument's ``__format__`` gives."""
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return False
    plain = re.compile(r"\w*").fullmatch
    return all(name is None or (not conversion and plain(name) is not None) for _, name, _, conversion in fields)


def _asks_for_numbers(text: str) -> bool:
    """Whether each field of a text for ``%`` takes what it is given for a float."""
    return _FLOAT_FIELD.sub("", text.replace("%%", "")).count("%") == 0


def _number(t: Tracer, value: Value, of_any_shape: bool = True) -> Value:
    """The number in a plain tensor of one element, as a text shows it; other values as they are."""
    if not isinstance(value, Tensor) or value.type() is not torch.Tensor or value.patched(t, "__format__") is not None:
        return value
    if value.fake.requires_grad if of_any_shape else value.fake.dim():  # ``float()`` of the former warns
        return value
    number = value.read(t, "item")
    return value if number is None else number.realize()
