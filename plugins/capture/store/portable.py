"""Guards, sources and scopes as plain data, and back: the objects that they speak of are found again in the process
that reads them, and compared with what is on record of them."""

from __future__ import annotations

import functools
import math
import types
import weakref
from collections.abc import Sequence
from typing import Any

import attrs
import torch

from turret.frames import sources as source_kinds
from turret.frames.guards import Guard, TensorProperties
from turret.frames.sources import BoundSource, References, Source, SourceReader
from turret.plugins.capture.facts.fingerprints import Memo
from turret.plugins.capture.store import references
from turret.plugins.capture.store.references import FOUND_BY_SOURCE, Changed, NotPortable

_SOURCES: dict[str, type[Source]] = {
    name: kind for name, kind in vars(source_kinds).items() if isinstance(kind, type) and issubclass(kind, Source)
}
_TORCH_NAMES = (torch.dtype, torch.layout, torch.memory_format)


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

    ``places`` are expressions of attributes of modules that hold objects without a name of their own (``os.environ``).
    ``made`` are objects that capture made, with the function and arguments that make them again.
    """

    def __init__(self, origins: dict[int, Source], places: dict[int, str], made: Made) -> None:
        self.origins, self.places, self.made = origins, places, made
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
            reference or references.reference_of(value, self.places.get(id(value), label)) or self._origin(value)
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
            fields = (getattr(source, a.name) for a in attrs.fields(type(source)))
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
        if kind is float:
            return {"f": value.hex() if math.isfinite(value) else repr(value)}
        if kind in (tuple, list, torch.Size):
            return {{tuple: "t", list: "l", torch.Size: "s"}[kind]: [self.value(v) for v in value]}
        if kind is dict and not isinstance(value.get("__name__"), str):
            return {"d": [[self.value(k), self.value(v)] for k, v in value.items()]}
        if isinstance(value, _TORCH_NAMES):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        if isinstance(value, Source):
            return {"at": self.source(value)}
        if kind is References:
            return {"refs": [item if isinstance(item, int) else {"o": self.object(item())} for item in value]}
        if kind is bytes:
            return {"b": value.hex()}
        if kind is complex:
            return {"c": [self.value(value.real), self.value(value.imag)]}
        if kind is slice:
            return {"slice": [self.value(v) for v in (value.start, value.stop, value.step)]}
        if kind is range:
            return {"range": [value.start, value.stop, value.step]}
        if kind is functools.partial and not value.__dict__:
            return {"p": [self.value(v) for v in (value.func, value.args, value.keywords)]}
        if kind is TensorProperties:
            fields = [getattr(value, a.name) for a in attrs.fields(TensorProperties)]
            return {"T": [*map(self.value, fields[:-1]), value.keys.raw_repr()]}
        return {"o": self.object(value)}


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
        ((kind, content),) = data.items()
        match kind:
            case "o":
                return self.object(content)
            case "at":
                return self.source(content)
            case "f":
                return float(content) if content in ("inf", "-inf", "nan") else float.fromhex(content)
            case "t":
                return tuple(map(self.value, content))
            case "l":
                return list(map(self.value, content))
            case "s":
                return torch.Size(map(self.value, content))
            case "d":
                return {self.value(k): self.value(v) for k, v in content}
            case "refs":
                return References(i if isinstance(i, int) else weakref.ref(self.value(i)) for i in content)
            case "torch":
                return getattr(torch, content)
            case "device":
                return torch.device(content)
            case "b":
                return bytes.fromhex(content)
            case "c":
                return complex(*map(self.value, content))
            case "slice":
                return slice(*map(self.value, content))
            case "range":
                return range(*content)
            case "p":
                function, args, keywords = map(self.value, content)
                return functools.partial(function, *args, **keywords)
            case "T":
                *fields, keys = content
                return TensorProperties(*map(self.value, fields), torch._C.DispatchKeySet.from_raw_repr(keys))
        raise Changed(f"data of a kind that is not known: {kind}")


def _short(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    return str(name) if isinstance(name, str) else f"a {type(value).__qualname__}"
