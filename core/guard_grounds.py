"""What guards rest on: the objects whose being unchanged makes a guard true again without a look.

A guard that held once, and whose sources lead from an object that the unit holds through dicts, instances, classes and
other things that stamps can watch (core/native/stamps.cpp), holds for as long as none of these changes.  ``Grounds``
walks sources as Python would, past any code of the program's.  What a step depends on is watched before it is read, so
that no change in between is missed.  A step that it does not know is no error: such a guard is checked on every call.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Container
from typing import Any

import attrs
import torch

from turret.guards import Guard, same_constant, same_keys
from turret.sources import (
    AttrSource,
    BaseItemSource,
    BoundSource,
    DictSource,
    ItemSource,
    Source,
    TypeSource,
)

Key = tuple[str, int, int]
"""Names a record: its kind, and the identities of its object and of what else the stamp takes."""

_HEAP_TYPE = 1 << 9
_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(...), torch.dtype, torch.device, range)
_READ_PLAINLY = (object.__getattribute__, types.ModuleType.__getattribute__)
_FIXED = {
    (types.FunctionType, "__closure__"), (types.FunctionType, "__globals__"),
    (types.MethodType, "__func__"), (types.MethodType, "__self__"),
}  # fmt: skip
"""Attributes that no assignment changes."""
_MISSING = object()


class Restless(Exception):
    """A source that leads through something that no stamp watches."""


@attrs.frozen(eq=False)
class _ClassDict:
    """``__dict__`` of a class: a new view each time it is asked for."""

    owner: type


class Grounds:
    """A walk over guards that notes what they rest on in a set of stamps.

    ``restless`` are keys of what is not to be watched; ``keys`` are those of the records, in the stamps' order.
    """

    def __init__(self, stamps: Any, restless: Container[Key] = ()) -> None:
        self.stamps, self.restless = stamps, restless
        self.keys: dict[Key, Any] = {}
        """With what keeps the identities from being others': the objects."""
        self._found: dict[Source, Any] = {}

    def holds(self, guard: Guard) -> bool | None:
        """Whether a guard holds, and will for as long as the stamps are fresh; None for one that does not rest."""
        leaf = _LEAVES.get(guard.kind)
        if leaf is None or guard.source is None:
            return None
        try:
            return leaf(self, guard, *(self.find(s) for s in (guard.source, *guard.others)))
        except Restless:
            return None

    def watch(self, kind: str, object: Any, extra: Any = None) -> None:
        """Note that what comes depends on an object.  Raises ``Restless`` for one that is not to be watched."""
        key = (kind, id(object), id(extra))
        if key in self.keys:
            return
        if key in self.restless:
            raise Restless
        self.stamps.add(kind, object, extra)
        self.keys[key] = object

    def watch_class(self, kind: type) -> None:
        """The same for the attributes of a class; one that is written in C does not change."""
        if kind.__flags__ & _HEAP_TYPE:
            self.watch("type", kind)

    def find(self, source: Source) -> Any:
        """What a source leads to now.  Raises ``Restless``."""
        known = self._found.get(source, _MISSING)
        if known is _MISSING:
            known = self._found[source] = self._step(source)
        return known

    def _step(self, source: Source) -> Any:
        if isinstance(source, BoundSource):
            return source.value
        base = source.base_source()
        if base is None:
            raise Restless
        held = self.find(base)
        if isinstance(held, _ClassDict):
            return self._class_dict_item(held.owner, source)
        if isinstance(source, AttrSource):
            return self._attribute(held, source.name)
        if isinstance(source, ItemSource):
            return self._item(held, source.key)
        if isinstance(source, BaseItemSource) and source.cast is dict and isinstance(held, dict):
            return self._dict_item(held, source.key)
        if isinstance(source, DictSource):
            return self._instance_dict(held)
        if isinstance(source, TypeSource):
            self.watch("instance", held)
            return type(held)
        raise Restless

    def _attribute(self, held: Any, name: str) -> Any:
        kind = type(held)
        if isinstance(held, type):
            return self._class_attribute(held, name)
        if kind is types.FunctionType and name in ("__code__", "__defaults__", "__kwdefaults__"):
            self.watch("function", held)
            return getattr(held, name)
        if (kind, name) in _FIXED:
            return getattr(held, name)
        if kind is types.CellType and name == "cell_contents":
            self.watch("cell", held)
            try:
                return held.cell_contents
            except ValueError:
                raise Restless from None
        return self._instance_attribute(held, name)

    def _instance_attribute(self, held: Any, name: str) -> Any:
        """An attribute that the instance or, past no descriptor, its class has."""
        self.watch("instance", held)
        kind = type(held)
        self.watch_class(kind)
        if _in_mro(kind, "__getattribute__") not in _READ_PLAINLY:
            raise Restless
        of_class = _in_mro(kind, name)
        own = type(of_class)
        if own is types.MemberDescriptorType and of_class.__objclass__.__flags__ & _HEAP_TYPE:
            self.watch("slot", held, of_class)
            try:
                return of_class.__get__(held)
            except AttributeError:
                raise Restless from None
        if of_class is not _MISSING and (hasattr(own, "__set__") or hasattr(own, "__delete__")):
            raise Restless
        attributes = self._instance_dict(held)
        self.watch("dict", attributes)
        found = attributes.get(name, _MISSING)
        if found is not _MISSING:
            return found
        if of_class is _MISSING or hasattr(own, "__get__"):
            raise Restless
        return of_class

    def _class_attribute(self, held: type, name: str) -> Any:
        """An attribute of a class."""
        if name == "__dict__":
            return _ClassDict(held)
        self.watch("instance", held)
        kind = type(held)
        self.watch_class(kind)
        self.watch_class(held)
        if _in_mro(kind, "__getattribute__") is not type.__getattribute__ or _in_mro(kind, name) is not _MISSING:
            raise Restless
        found = _in_mro(held, name)
        if found is _MISSING or (hasattr(type(found), "__get__") and type(found) is not types.FunctionType):
            raise Restless
        return found

    def _class_dict_item(self, owner: type, source: Source) -> Any:
        if not isinstance(source, ItemSource):
            raise Restless
        self.watch_class(owner)
        found = vars(owner).get(source.key, _MISSING)
        if found is _MISSING:
            raise Restless
        return found

    def _item(self, held: Any, key: Any) -> Any:
        if type(held) is tuple and type(key) is int and -len(held) <= key < len(held):
            return held[key]
        if type(held) in _DICTS:
            return self._dict_item(held, key)
        raise Restless

    def _dict_item(self, held: dict, key: Any) -> Any:
        self.watch("dict", held)
        found = dict.get(held, key, _MISSING)
        if found is _MISSING:
            raise Restless
        return found

    def _instance_dict(self, held: Any) -> dict:
        try:
            found = object.__getattribute__(held, "__dict__")
        except AttributeError:
            raise Restless from None
        if type(found) is not dict or isinstance(held, type):
            raise Restless
        self.watch("instance", held, True)
        return found


def _in_mro(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        attributes = base.__dict__
        if name in attributes:
            return attributes[name]
    return _MISSING


# Whether a guard of each kind holds of what its sources lead to; ``Restless`` where that is more than stamps can tell.


def _identity(g: Grounds, guard: Guard, value: Any) -> bool:
    return _one_object(value) is guard.expected


def _same(g: Grounds, guard: Guard, value: Any, other: Any) -> bool:
    return _one_object(value) is _one_object(other)


def _not_same(g: Grounds, guard: Guard, value: Any, other: Any) -> bool:
    return _one_object(value) is not _one_object(other)


def _one_object(value: Any) -> Any:
    if isinstance(value, _ClassDict):
        raise Restless
    return value


def _type(g: Grounds, guard: Guard, value: Any) -> bool:
    g.watch("instance", _one_object(value))
    return type(value) is guard.expected


def _equality(g: Grounds, guard: Guard, value: Any) -> bool:
    if not _immutable(value):
        raise Restless
    return same_constant(value, guard.expected)


def _immutable(value: Any) -> bool:
    return type(value) in _CONSTANTS or (type(value) in (tuple, torch.Size) and all(map(_immutable, value)))


def _length(g: Grounds, guard: Guard, value: Any) -> bool:
    if type(value) not in (tuple, str):
        g.watch("dict", _any_dict(value))
    return len(value) == guard.expected


def _keys(g: Grounds, guard: Guard, value: Any) -> bool:
    if type(value) is not dict and guard.expected:
        raise Restless  # the order of an OrderedDict can change without the dict inside it
    g.watch("dict", _any_dict(value))
    return same_keys(value, guard.expected)


def _has_key(g: Grounds, guard: Guard, value: Any) -> bool:
    if isinstance(value, _ClassDict):
        g.watch_class(value.owner)
        return guard.expected in vars(value.owner)
    g.watch("dict", _any_dict(value))
    return guard.expected in value


def _no_key(g: Grounds, guard: Guard, value: Any) -> bool:
    return not _has_key(g, guard, value)


def _any_dict(value: Any) -> dict:
    if type(value) not in _DICTS:
        raise Restless
    return value


_LEAVES: dict[str, Callable[..., bool]] = {
    "ID": _identity,
    "SAME": _same,
    "NOT_SAME": _not_same,
    "TYPE": _type,
    "EQUALS": _equality,
    "LENGTH": _length,
    "KEYS": _keys,
    "HAS_KEY": _has_key,
    "NO_KEY": _no_key,
}
