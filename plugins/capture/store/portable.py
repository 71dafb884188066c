"""Guards, sources and scopes as plain data, and back: the objects that they speak of are found again in the process
that reads them, and compared with what is on record of them."""

from __future__ import annotations

import functools
import math
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import torch

from turret.frames import sources as source_kinds
from turret.frames.class_members import own_attribute
from turret.frames.guards import Guard, TensorProperties
from turret.frames.sources import BoundSource, References, Source, SourceReader
from turret.plugins.capture.facts.fingerprints import Memo
from turret.plugins.capture.python.random_draws import Draw
from turret.plugins.capture.store import references
from turret.plugins.capture.store.references import FOUND_BY_SOURCE, Changed, NotPortable
from turret.torch_compat.dispatch import DispatchKeySet

_SOURCES: dict[str, type[Source]] = {
    name: kind for name, kind in vars(source_kinds).items() if isinstance(kind, type) and issubclass(kind, Source)
}


Made = dict[int, tuple[Any, Any, tuple]]
"""Objects that capture made, by id: the object, the function that makes it, and its arguments."""


@attrs.frozen
class Packed:
    """The tables that packed data refers to by number.

    ``objects``: for each a reference (``["source", number]`` for one found at a source) and its fingerprint.
    """

    objects: list[list]
    sources: list[list]


class Packer:
    """Writes; ``origins`` tells, for objects without a name, the source at which capture found them.

    ``expressions`` are those of attributes of modules that hold objects without a name of their own (``os.environ``).
    ``made`` are objects that capture made, with the function and arguments that make them again.
    """

    def __init__(self, origins: dict[int, Source], expressions: dict[int, str], made: Made) -> None:
        self.origins, self.expressions, self.made = origins, expressions, made
        self.objects: list[list] = []
        self.sources: list[list] = []
        self.values: list[Any] = []
        """The objects of the table."""
        self._objects: dict[int, int] = {}
        self._sources: dict[Source, int] = {}
        self._open: set[int] = set()
        self._memo: Memo = {}

    @property
    def packed(self) -> Packed:
        return Packed(self.objects, self.sources)

    def object(self, value: Any, label: str = "") -> int:
        """The number of an object; raises ``NotPortable`` for one that cannot be found again."""
        known = self._objects.get(id(value))
        if known is not None:
            return known
        if id(value) in self.made:
            _, function, arguments = self.made[id(value)]
            return self._add(value, ["made", self.value(function), [self.value(a) for a in arguments]])
        reference = self._origin(value) if isinstance(value, torch.Tensor | torch.nn.Module) else None
        reference = (
            reference or references.reference_of(value, self.expressions.get(id(value), label)) or self._origin(value)
        )
        if reference is None:
            raise NotPortable(f"{label or _short(value)} ({type(value).__qualname__}) has no name outside this process")
        return self._add(value, reference)

    def _add(self, value: Any, reference: list) -> int:
        number = self._objects[id(value)] = len(self.objects)
        self.objects.append([reference, references.fingerprint(value, self._memo)])
        self.values.append(value)
        return number

    def _origin(self, value: Any) -> list | None:
        origin = self.origins.get(id(value))
        if origin is None or id(value) in self._open or not isinstance(value, FOUND_BY_SOURCE):
            return None
        self._open.add(id(value))
        try:
            return ["source", self.source(origin)]
        finally:
            self._open.discard(id(value))

    def source(self, source: Source) -> int:
        """The number of a source."""
        known = self._sources.get(source)
        if known is not None:
            return known
        if isinstance(source, BoundSource):
            row: list = [type(source).__name__, source.label, {"o": self.object(source.value, source.label)}]
        else:
            if _SOURCES.get(type(source).__name__) is not type(source):
                raise NotPortable(f"a source of kind {type(source).__name__}")
            fields = (getattr(source, a.name) for a in attrs.fields(type(source)) if a.init)
            row = [type(source).__name__, *(self.value(f) for f in fields)]
        number = self._sources[source] = len(self.sources)
        self.sources.append(row)
        return number

    def guard(self, guard: Guard) -> list:
        source = None if guard.source is None else self.source(guard.source)
        return [guard.kind, source, self.value(guard.expected), [self.source(s) for s in guard.others], guard.stack]

    def value(self, value: Any) -> Any:
        """Plain JSON for a value; anything but plain data is a number in the table of objects."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        form = _FORMS.get(kind)
        if form is not None and _has_no_more(value):
            return {form.key: form.write(self, value)}
        if isinstance(value, Source):
            return {"at": self.source(value)}
        return {"o": self.object(value)}

    def parts(self, items: Iterable[Any]) -> list:
        return [self.value(item) for item in items]


def _has_no_more(value: Any) -> bool:
    """Whether a value is told by its parts: a namespace is an object, and so is a partial call with attributes."""
    if type(value) is dict:
        return not isinstance(value.get("__name__"), str)
    return type(value) is not functools.partial or not value.__dict__


class Unpacker:
    """Reads, for one call of ``function``: objects are found, and their fingerprints compared.

    Raises ``Changed`` for an object that is not there or not what it was.
    """

    def __init__(self, packed: Packed, function: types.FunctionType, arguments: tuple) -> None:
        self.packed = packed
        self.reader = SourceReader(function, arguments)
        self._objects: dict[int, Any] = {}
        self._sources: dict[int, Source] = {}
        self._memo: Memo = {}

    def objects(self) -> list[Any]:
        """All objects, found and compared.  What was found by source must be as many objects as there were."""
        found = [self.object(n) for n in range(len(self.packed.objects))]
        by_source = [
            v for v, (reference, _) in zip(found, self.packed.objects, strict=True) if reference[0] == "source"
        ]
        if len({id(v) for v in by_source}) != len(by_source):
            raise Changed("objects that were different are one now")
        return found

    def object(self, number: int) -> Any:
        if number not in self._objects:
            reference, fingerprint = self.packed.objects[number]
            by_source = reference[0] == "source"
            value = self._find(reference)
            if by_source and not isinstance(value, FOUND_BY_SOURCE):
                raise Changed(f"{self.source(reference[1])} is a {type(value).__name__} now")
            if references.fingerprint(value, self._memo) != fingerprint:
                raise Changed(f"{self.source(reference[1]) if by_source else _short(value)} was changed")
            self._objects[number] = value
        return self._objects[number]

    def _find(self, reference: list) -> Any:
        match reference:
            case ["source", number]:
                return self.read(self.source(number))
            case ["made", function, arguments]:
                return self.value(function)(*map(self.value, arguments))
        return references.find(reference)

    def read(self, source: Source) -> Any:
        """What lies at a source in this call."""
        try:
            return self.reader.read(source)
        except Exception as error:
            raise Changed(f"{source} is not there: {error}") from None

    def source(self, number: int) -> Source:
        if number not in self._sources:
            kind, *fields = self.packed.sources[number]
            self._sources[number] = _SOURCES[kind](*map(self.value, fields))
        return self._sources[number]

    def guard(self, row: Sequence) -> Guard:
        kind, source, expected, others, stack = row
        found = None if source is None else self.source(source)
        return Guard(kind, found, self.value(expected), tuple(map(self.source, others)), stack)

    def value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        ((key, content),) = data.items()
        read = _READERS.get(key)
        if read is None:
            raise Changed(f"data of a kind that is not known: {key}")
        return read(self, content)

    def parts(self, items: Iterable[Any]) -> list:
        return [self.value(item) for item in items]


@attrs.frozen
class _Form:
    """How values of a type are written as JSON, under which key, and how they are read again."""

    key: str
    write: Callable[[Packer, Any], Any]
    read: Callable[[Unpacker, Any], Any]


def _write_float(p: Packer, value: float) -> str:
    return value.hex() if math.isfinite(value) else repr(value)


def _read_float(u: Unpacker, text: str) -> float:
    return float(text) if text in ("inf", "-inf", "nan") else float.fromhex(text)


def _write_references(p: Packer, value: References) -> list:
    return [item if isinstance(item, int) else {"o": p.object(item())} for item in value]


def _read_references(u: Unpacker, items: list) -> References:
    return References(i if isinstance(i, int) else weakref.ref(u.value(i)) for i in items)


def _read_partial(u: Unpacker, parts: list) -> functools.partial:
    function, args, keywords = u.parts(parts)
    return functools.partial(function, *args, **keywords)


def _write_draw(p: Packer, value: Draw) -> list:
    if value.number >= _MOST_DRAWS:
        raise NotPortable(f"a row of more than {_MOST_DRAWS} random numbers")
    return [p.parts((draw.method, draw.arguments, draw.named)) for draw in value.row()]


def _read_draw(u: Unpacker, row: list) -> Draw:
    made: Draw | None = None
    for parts in reversed(row):
        made = Draw(made, *u.parts(parts))
    assert made is not None
    return made


_MOST_DRAWS = 64
"""Draws of one generator that are kept: what is kept of each has all those before it."""


def _write_properties(p: Packer, value: TensorProperties) -> list:
    fields = [getattr(value, a.name) for a in attrs.fields(TensorProperties)]
    return [*p.parts(fields[:-1]), value.keys.raw_repr()]


def _read_properties(u: Unpacker, content: list) -> TensorProperties:
    *fields, keys = content
    values = [*u.parts(fields), DispatchKeySet.from_raw_repr(keys)]
    return TensorProperties(*values)


_TORCH_NAME = _Form("torch", lambda p, v: str(v).removeprefix("torch."), lambda u, name: getattr(torch, name))
_FORMS: dict[type, _Form] = {
    float: _Form("f", _write_float, _read_float),
    tuple: _Form("t", Packer.parts, lambda u, items: tuple(u.parts(items))),
    list: _Form("l", Packer.parts, Unpacker.parts),
    torch.Size: _Form("s", Packer.parts, lambda u, items: torch.Size(u.parts(items))),
    dict: _Form("d", lambda p, v: [p.parts(pair) for pair in v.items()], lambda u, pairs: dict(map(u.parts, pairs))),
    **dict.fromkeys((torch.dtype, torch.layout, torch.memory_format, torch.qscheme), _TORCH_NAME),
    torch.device: _Form("device", lambda p, v: str(v), lambda u, name: torch.device(name)),
    References: _Form("refs", _write_references, _read_references),
    bytes: _Form("b", lambda p, v: v.hex(), lambda u, digits: bytes.fromhex(digits)),
    complex: _Form("c", lambda p, v: p.parts((v.real, v.imag)), lambda u, parts: complex(*u.parts(parts))),
    slice: _Form("slice", lambda p, v: p.parts((v.start, v.stop, v.step)), lambda u, parts: slice(*u.parts(parts))),
    range: _Form("range", lambda p, v: [v.start, v.stop, v.step], lambda u, parts: range(*parts)),
    Draw: _Form("draw", _write_draw, _read_draw),
    functools.partial: _Form("p", lambda p, v: p.parts((v.func, v.args, v.keywords)), _read_partial),
    TensorProperties: _Form("T", _write_properties, _read_properties),
}
_READERS: dict[str, Callable[[Unpacker, Any], Any]] = {
    **{form.key: form.read for form in _FORMS.values()},
    "o": Unpacker.object,
    "at": Unpacker.source,
}


def _short(value: Any) -> str:
    name = own_attribute(value, "__qualname__") or own_attribute(value, "__name__")
    return str(name) if isinstance(name, str) else f"a {type(value).__qualname__}"
