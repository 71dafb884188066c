"""Classes of containers."""

from __future__ import annotations

import collections
import types

import torch

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.handlers.builtins.calls import callable_
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.mappings import Dict, MappingProxy
from turret.plugins.capture.values.sequences import Deque, List, Size, Tuple
from turret.plugins.capture.values.sets import Set


@registry.kind(tuple)
def tuple_(t: Tracer, items: Value | None = None) -> Value:
    if items is not None and type(items.realize()) is Tuple:
        return items.realize()
    return Tuple([] if items is None else t.all_items(items))


@registry.kind(list)
def list_(t: Tracer, items: Value | None = None) -> Value:
    return List([] if items is None else t.all_items(items))


@registry.kind(torch.Size)
def size_(t: Tracer, items: Value | None = None) -> Value:
    return Size.of(t, [] if items is None else items.realize().unpack(t))


@registry.kind(set)
def set_(t: Tracer, items: Value | None = None) -> Value:
    return Set.from_value(t, items, set)


registry.classes[frozenset] = lambda t, items=None: Set.from_value(t, items, frozenset)


def _dict(cls: type) -> Handler:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        made = Dict({}, cls)
        made.m_update(t, *args, **kwargs)
        return made

    return handler


registry.classes[dict] = _dict(dict)
registry.classes[collections.OrderedDict] = _dict(collections.OrderedDict)


@registry.kind(collections.defaultdict)
def defaultdict(t: Tracer, factory: Value | None = None, /, *args: Value, **kwargs: Value) -> Value:
    made = Dict({}, collections.defaultdict, None, (factory or Constant(None)).realize())
    if factory is not None and not t.is_none(factory) and not t.truth(callable_(t, factory)):
        raise t.raised(TypeError, "first argument must be callable or None")
    made.m_update(t, *args, **kwargs)
    return made


@registry.kind(collections.deque)
def deque(t: Tracer, items: Value | None = None, maxlen: Value | None = None) -> Value:
    made = Deque([])
    made.m___init__(t, items, maxlen)
    return made


@registry.kind(types.MappingProxyType)
def mapping_proxy(t: Tracer, mapping: Value) -> Value:
    shown = mapping.realize()
    if not isinstance(shown, Dict):
        raise Unsupported(f"a mappingproxy of {shown.describe()}")
    return MappingProxy(shown)
