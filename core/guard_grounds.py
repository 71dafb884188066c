"""What guards rest on: the objects whose being unchanged makes a guard true again without a look.

A guard that held once, and whose sources lead from an object that the unit holds through dicts, instances, classes and
other things that stamps can watch (core/native/stamps.cpp), holds for as long as none of these changes.  ``Grounds``
walks sources as Python would, past any code of the program's, and notes what each step depends on; a step that it
does not know is no error: such a guard is checked on every call.
"""

from __future__ import annotations

import collections
import types
from typing import Any

import attrs
import torch

from turret.guards import Guard
from turret.sources import (
    AttrSource,
    BaseItemSource,
    BoundSource,
    DictSource,
    ItemSource,
    Source,
    TypeSource,
)

Record = tuple[str, Any, Any]
"""Kind, object and what else a stamp takes."""

_HEAP_TYPE = 1 << 9
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device, range)
_READ_PLAINLY = (object.__getattribute__, types.ModuleType.__getattribute__)
_MISSING = object()


class Restless(Exception):
    """A source that leads through something that no stamp watches."""


@attrs.frozen(eq=False)
class _ClassDict:
    """``__dict__`` of a class: a new view each time it is asked for."""

    owner: type


@attrs.define(eq=False)
class Grounds:
    """Grounds of guards; ``records`` are those of all guards asked about, each once, by their keys."""

    records: dict[tuple[str, int, int], Record] = attrs.field(factory=dict)
    _found: dict[Source, tuple[Any, frozenset]] = attrs.field(factory=dict)

    def of(self, guard: Guard) -> frozenset | None:
        """Keys of the records that a guard rests on; None for a guard that must be checked on every call."""
        relevant = _LEAVES.get(guard.kind)
        if relevant is None or guard.source is None:
            return None
        try:
            values, keys = [], frozenset()
            for source in (guard.source, *guard.others):
                value, more = self.find(source)
                values.append(value)
                keys |= more
            own = relevant(guard, values[0])
            if own is None or any(isinstance(v, _ClassDict) for v in values[1:]):
                return None
            return keys | {self._note(*record) for record in own}
        except Restless:
            return None

    def find(self, source: Source) -> tuple[Any, frozenset]:
        """What a source leads to now, and the keys of what that depends on.  Raises ``Restless``."""
        known = self._found.get(source)
        if known is None:
            known = self._found[source] = self._step(source)
        return known

    def _note(self, kind: str, object: Any, extra: Any = None) -> tuple[str, int, int]:
        key = (kind, id(object), id(extra))
        self.records.setdefault(key, (kind, object, extra))
        return key

    def _step(self, source: Source) -> tuple[Any, frozenset]:
        if isinstance(source, BoundSource):
            return source.value, frozenset()
        base = source.base_source()
        if base is None:
            raise Restless
        held, keys = self.find(base)
        if isinstance(source, AttrSource):
            value, records = _attribute(held, source.name)
        elif isinstance(source, ItemSource):
            value, records = _item(held, source.key)
        elif isinstance(source, BaseItemSource) and source.cast is dict and isinstance(held, dict):
            value, records = _dict_item(held, source.key)
        elif isinstance(source, DictSource):
            value, records = _instance_dict(held)
        elif isinstance(source, TypeSource):
            value, records = type(held), [("instance", held, None)]
        else:
            raise Restless
        return value, keys | {self._note(*record) for record in records}


def _attribute(held: Any, name: str) -> tuple[Any, list[Record]]:
    kind = type(held)
    if isinstance(held, _ClassDict):
        raise Restless
    if isinstance(held, type):
        return _class_attribute(held, name)
    if kind is types.FunctionType and name in ("__code__", "__defaults__", "__kwdefaults__"):
        return getattr(held, name), [("function", held, None)]
    if kind is types.FunctionType and name in ("__closure__", "__globals__"):
        return getattr(held, name), []
    if kind is types.MethodType and name in ("__func__", "__self__"):
        return getattr(held, name), []
    if kind is types.CellType and name == "cell_contents":
        try:
            return held.cell_contents, [("cell", held, None)]
        except ValueError:
            raise Restless from None
    return _instance_attribute(held, name)


def _instance_attribute(held: Any, name: str) -> tuple[Any, list[Record]]:
    """An attribute that the instance or, past no descriptor, its class has."""
    kind = type(held)
    if _in_mro(kind, "__getattribute__") not in _READ_PLAINLY:
        raise Restless
    of_class = _in_mro(kind, name)
    own = type(of_class)
    if isinstance(of_class, types.MemberDescriptorType) and of_class.__objclass__.__flags__ & _HEAP_TYPE:
        try:
            return of_class.__get__(held), [("instance", held, None), *_class(kind), ("slot", held, of_class)]
        except AttributeError:
            raise Restless from None
    if of_class is not _MISSING and (hasattr(own, "__set__") or hasattr(own, "__delete__")):
        raise Restless
    attributes, records = _instance_dict(held)
    found = dict.get(attributes, name, _MISSING)
    if found is _MISSING:
        if of_class is _MISSING or hasattr(own, "__get__"):
            raise Restless
        found = of_class
    return found, [*records, *_class(kind), ("dict", attributes, None)]


def _class_attribute(held: type, name: str) -> tuple[Any, list[Record]]:
    """An attribute of a class."""
    if name == "__dict__":
        return _ClassDict(held), []
    if type(held).__getattribute__ is not type.__getattribute__ or _in_mro(type(held), name) is not _MISSING:
        raise Restless
    found = _in_mro(held, name)
    if found is _MISSING or (hasattr(type(found), "__get__") and type(found) is not types.FunctionType):
        raise Restless
    return found, [*_class(held), *_class(type(held)), ("instance", held, None)]


def _item(held: Any, key: Any) -> tuple[Any, list[Record]]:
    if isinstance(held, _ClassDict):
        found = vars(held.owner).get(key, _MISSING)
        if found is _MISSING:
            raise Restless
        return found, _class(held.owner)
    if type(held) is tuple and type(key) is int and -len(held) <= key < len(held):
        return held[key], []
    if type(held) in _DICTS:
        return _dict_item(held, key)
    raise Restless


def _dict_item(held: dict, key: Any) -> tuple[Any, list[Record]]:
    found = dict.get(held, key, _MISSING)
    if found is _MISSING:
        raise Restless
    return found, [("dict", held, None)]


def _instance_dict(held: Any) -> tuple[dict, list[Record]]:
    try:
        found = object.__getattribute__(held, "__dict__")
    except AttributeError:
        raise Restless from None
    if type(found) is not dict or isinstance(held, type):
        raise Restless
    return found, [("instance", held, True)]


def _class(kind: type) -> list[Record]:
    """A class and its bases; those that are written in C do not change."""
    return [("type", kind, None)] if kind.__flags__ & _HEAP_TYPE else []


def _in_mro(kind: type, name: str) -> Any:
    return next((vars(k)[name] for k in kind.__mro__ if name in vars(k)), _MISSING)


# What a guard of each kind assumes of the object that its source leads to; None: more than stamps can tell.


def _identity(guard: Guard, value: Any) -> list[Record] | None:
    return None if isinstance(value, _ClassDict) else []


def _type(guard: Guard, value: Any) -> list[Record] | None:
    return None if isinstance(value, _ClassDict) else [("instance", value, None)]


def _equality(guard: Guard, value: Any) -> list[Record] | None:
    return [] if _immutable(value) else None


def _immutable(value: Any) -> bool:
    return type(value) in _CONSTANTS or (type(value) in (tuple, torch.Size) and all(map(_immutable, value)))


def _length(guard: Guard, value: Any) -> list[Record] | None:
    if type(value) in (tuple, str):
        return []
    return [("dict", value, None)] if type(value) in _DICTS else None


def _keys(guard: Guard, value: Any) -> list[Record] | None:
    # The order of an OrderedDict can change without the dict inside it.
    if type(value) is dict or (type(value) in _DICTS and not guard.expected):
        return [("dict", value, None)]
    return None


def _membership(guard: Guard, value: Any) -> list[Record] | None:
    if isinstance(value, _ClassDict):
        return _class(value.owner)
    return [("dict", value, None)] if type(value) in _DICTS else None


_LEAVES = {
    "ID": _identity,
    "SAME": _identity,
    "NOT_SAME": _identity,
    "TYPE": _type,
    "EQUALS": _equality,
    "LENGTH": _length,
    "KEYS": _keys,
    "HAS_KEY": _membership,
    "NO_KEY": _membership,
}
