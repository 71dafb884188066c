"""What asks for attributes by name, and what tells objects apart: ``getattr`` and its kin, ``id``, ``hash``."""

from __future__ import annotations

from typing import Any

import torch

from turret.frames.sources import WeakSource
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Answer, Constant, Opaque, Rebuilder, Tracer, Value
from turret.plugins.capture.values.functions import Function, Known, LocalFunction, Partial
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.modules import LocalModule
from turret.plugins.capture.values.objects import Instance, InstanceDict, keeps_attributes, slot_hash
from turret.plugins.capture.values.sequences import List, Tuple
from turret.plugins.capture.values.sets import Set, is_stable
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor


def _attribute_name(t: Tracer, name: Value) -> str:
    text = t.constant_of(name)
    if not isinstance(text, str):
        raise t.raised(TypeError, f"attribute name must be string, not {type(text).__name__!r}")
    return text


@registry.function(getattr)
def getattr_(t: Tracer, value: Value, name: Value, *default: Value) -> Value:
    text = _attribute_name(t, name)
    if not default:
        return t.get_attr(value, text)
    try:
        return value.realize().get_attr(t, text)
    except Raised as raised:
        if issubclass(raised.value.type(), AttributeError):
            return default[0]
        raise


@registry.function(hasattr)
def hasattr_(t: Tracer, value: Value, name: Value) -> Value:
    value, text = value.realize(), _attribute_name(t, name)
    if isinstance(value, Tensor) and hasattr(torch.Tensor, text):
        return Constant(True)
    try:
        value.get_attr(t, text)
    except Raised as raised:
        if issubclass(raised.value.type(), AttributeError):
            return Constant(False)
        raise
    return Constant(True)


@registry.function(setattr)
def setattr_(t: Tracer, value: Value, name: Value, content: Value) -> Value:
    value.realize().set_attr(t, _attribute_name(t, name), content)
    return Constant(None)


@registry.function(delattr)
def delattr_(t: Tracer, value: Value, name: Value) -> Value:
    value.realize().del_attr(t, _attribute_name(t, name))
    return Constant(None)


@registry.function(vars)
def vars_(t: Tracer, value: Value | None = None) -> Value:
    if value is None:
        return t.call(t.wrap_known(locals), [], {})
    value = value.realize()
    if isinstance(value, Instance):
        if not keeps_attributes(value.kind):
            raise t.raised(TypeError, "vars() argument must have __dict__ attribute")
        return InstanceDict(value)
    if isinstance(value, (Partial, Function)):
        return value.get_attr(t, "__dict__")
    raise Unsupported(f"vars of {value.describe()}")


class NewId(Value):
    """The ``id`` of an object that captured code makes: a number that tells it from all others, and no more."""

    source = None

    def __init__(self, made: Value) -> None:
        self.made = made

    def type(self) -> type:
        return int

    def describe(self) -> str:
        return f"id of {self.made.describe()}"

    def key(self, t: Tracer) -> Any:
        return NewId, self.made

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        known = isinstance(other, Constant) and type(other.value) is int
        if symbol not in ("==", "!=") or not (known or isinstance(other, NewId)):
            raise Unsupported(self.describe())
        same = isinstance(other, NewId) and t.is_same(self.made, other.made)
        return Constant(same is (symbol == "=="))

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(id)}({r.load(self.made)})")


def _is_made(value: Value) -> bool:
    """Whether captured code makes an object, which therefore is none from before."""
    kinds = (Tensor, List, Dict, Set, Instance)
    known = isinstance(value, Opaque) or getattr(value, "real", None) is not None
    return isinstance(value, kinds) and value.source is None and not known


@registry.function(id)
def id_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, (Known, Instance)) and getattr(value, "object", None) is not None:
        if isinstance(value, (LocalFunction, LocalModule)):
            value.constant()
        if value.source is not None and not isinstance(value, Known):
            t.guards.take("ID", value.source, value.object)
        t.provenance.bound_to_process("the address of an object")
        return Constant(id(value.object))
    if isinstance(value, Tensor) and value.real is not None and value.source is not None and t.policy.data_dependent:
        t.guards.take("IS", value.source, others=(WeakSource(str(value.source), value.real),))
        t.provenance.bound_to_process("the address of an object")
        return Constant(id(value.real))
    if _is_made(value):
        return NewId(value)
    raise Unsupported(f"id of {value.describe()}")


@registry.tensor_method("__getitem__")
def tensor_item(t: Tracer, /, tensor: Tensor, key: Value) -> Value:
    return tensor.get_item(t, key)


@registry.tensor_method("__hash__")
def hash_of_tensor(t: Tracer, tensor: Value) -> Value:
    """By identity; the fake tensor that stands for it at capture has another."""
    address = id_(t, tensor)
    if isinstance(address, NewId):
        raise Unsupported(f"hash of {tensor.describe()}")
    return Constant(slot_hash(t.int_of(address)))


@registry.function(hash)
def hash_(t: Tracer, value: Value) -> Value:
    value = value.realize()
    if isinstance(value, Tensor):
        return t.call(value.get_attr(t, "__hash__"), [], {})
    if isinstance(value, Instance):
        return Constant(slot_hash(t.int_of(value.need_special(t, "__hash__"))))
    t.provenance.bound_to_process("a hash")
    if type(value) is Tuple and not value.is_constant():
        return Constant(hash(tuple(_Hashed(t.int_of(hash_(t, item))) for item in value.items)))
    if isinstance(value, Symbolic) and is_stable(key := value.key(t)):
        return Constant(hash(key))
    return t.fold(hash, [value], {})


class _Hashed:
    """Something of a known hash: that of a tuple is made of its elements' alone."""

    def __init__(self, known: int) -> None:
        self.known = known

    def __hash__(self) -> int:
        return self.known
