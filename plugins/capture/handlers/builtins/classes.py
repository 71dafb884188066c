"""What asks for classes: ``isinstance``, ``issubclass``, ``type`` and ``super``."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch

from turret.frames.class_members import member_owner
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Opaque, Tracer, Value
from turret.plugins.capture.values.classes import Class, says_its_class
from turret.plugins.capture.values.functions import Known, Method
from turret.plugins.capture.values.objects import Instance, Super
from turret.plugins.capture.values.sequences import Tuple
from turret.plugins.capture.values.tensors import Tensor


def _classes(t: Tracer, kinds: Value) -> Any:
    kinds = kinds.realize()
    if isinstance(kinds, Tuple):
        return tuple(_classes(t, k) for k in kinds.items)
    return t.constant_of(kinds)


@registry.function(isinstance)
def isinstance_(t: Tracer, value: Value, kinds: Value) -> Value:
    classes = _classes(t, kinds)
    value = value.realize()
    if isinstance(value, Opaque) and value.source is None:
        raise Unsupported(f"the type of {value.describe()}")
    for cls in _each_class(classes):
        if not isinstance(cls, type) and member_owner(type(cls), "__instancecheck__") is None:
            raise t.raised(TypeError, "isinstance() arg 2 must be a type, a tuple of types, or a union")
        _assume_ordinary(t, cls)
        if (answers := _own_check(t, cls, "__instancecheck__")) is not None:
            if value.type() is cls or t.truth(t.call(answers, [value], {}).realize()):
                return Constant(True)
        elif _checked(t, value, cls):
            return Constant(True)
    return Constant(False)


def _checked(t: Tracer, value: Value, cls: Any) -> bool:
    try:
        return _is_instance(t, value, cls)
    except TypeError as error:  # of what stands for classes and answers for no instances, as ``list[int]``
        raise t.raised_from(error) from None


def _is_instance(t: Tracer, value: Value, cls: Any) -> bool:
    """``isinstance`` of one class that answers in torch's way, or in Python's."""
    if isinstance(value, Tensor):
        return _is_tensor_of(t, value, cls)
    if isinstance(value, (Constant, Known)):
        return isinstance(value.object if isinstance(value, Known) else value.value, cls)
    if getattr(value, "object", None) is not None and not isinstance(value, Method):
        return isinstance(value.object, cls)  # type: ignore[attr-defined]
    if issubclass(value.type(), cls):
        return True
    if not isinstance(value, Instance) or not says_its_class(t, value.kind):
        return False
    said = t.constant_of(value.get_attr(t, "__class__"))
    return isinstance(said, type) and issubclass(said, cls)


def _is_tensor_of(t: Tracer, value: Tensor, cls: Any) -> bool:
    """The same of a tensor: metaclasses of torch's ask the tensor itself."""
    if cls is torch.nn.Buffer:
        return _marked_buffer(t, value) or issubclass(value.type(), cls)
    if not isinstance(cls, type) or issubclass(value.type(), cls):
        return issubclass(value.type(), cls)
    known = value.fake if value.real is None else value.real
    return type(cls).__instancecheck__ is not type.__instancecheck__ and isinstance(known, cls)


def _each_class(classes: Any) -> Iterator[Any]:
    """One by one, those of tuples and unions in them too."""
    if isinstance(classes, (tuple, types.UnionType)):
        for part in classes if isinstance(classes, tuple) else classes.__args__:
            yield from _each_class(part)
    else:
        yield classes


def _own_check(t: Tracer, cls: Any, name: str) -> Value | None:
    """How a metaclass of the program's own answers for a class, or None."""
    value = t.wrap_known(cls) if isinstance(cls, type) else None
    return value.of_program(t, name) if isinstance(value, Class) else None


def _marked_buffer(t: Tracer, value: Tensor) -> bool:
    """Whether a tensor is an ``nn.Buffer``, which is a mark on a plain tensor."""
    try:
        return t.truth(value.get_attr(t, "_is_buffer"))
    except Raised:
        return False


def _assume_ordinary(t: Tracer, cls: Any) -> None:
    """Whatever a program's own metaclass answers to ``isinstance`` holds in this process."""
    if isinstance(cls, tuple):
        for part in cls:
            _assume_ordinary(t, part)
    elif isinstance(cls, type) and not t.trusted(type(cls)):
        t.provenance.bound_to_process(f"what {type(cls).__qualname__} says of instances")


@registry.function(issubclass)
def issubclass_(t: Tracer, cls: Value, kinds: Value) -> Value:
    classes = _classes(t, kinds)
    _assume_ordinary(t, classes)
    if isinstance(classes, tuple):
        return Constant(any(t.truth(issubclass_(t, cls, t.wrap_known(kind))) for kind in classes))
    if (answers := _own_check(t, classes, "__subclasscheck__")) is not None:
        return Constant(t.truth(t.call(answers, [cls], {}).realize()))
    return t.fold(issubclass, [cls, t.made(_classes(t, kinds))], {})


@registry.kind(type)
def type_(t: Tracer, value: Value, *rest: Value) -> Value:
    if rest:
        raise Unsupported("a class made in compiled code")
    value = value.realize()
    if isinstance(value, Instance) and not isinstance(value, Opaque):
        return value.its_class(t) if says_its_class(t, value.kind) else value.get_attr(t, "__class__")
    return t.wrap_known(value.type())


@registry.kind(super)
def super_(t: Tracer, *args: Value) -> Value:
    if args:
        return _explicit_super(t, [a.realize() for a in args])
    frame = t.call_stack.frames[-1]
    slots = frame.decoded.slots
    if "__class__" not in slots:
        raise Unsupported("super() outside of a method")
    cell = frame.locals[slots.index("__class__")]
    first = frame.locals[0]
    if first is None:
        raise Unsupported("super() after its first argument was deleted")
    if type(first).__name__ == "Cell":
        first = first.content
    return Super(cell.content.constant(), first.realize())


def _explicit_super(t: Tracer, args: list[Value]) -> Value:
    if len(args) > 2:
        raise t.raised(TypeError, f"super() expected at most 2 arguments, got {len(args)}")
    start, owner = args[0], args[-1]
    known = start.is_constant() and start.constant()
    if not isinstance(known, type):
        raise t.raised(TypeError, f"super() argument 1 must be a type, not {start.type().__name__}")
    if len(args) == 1:
        raise Unsupported("super() that is bound to nothing")
    owned = owner.constant() if owner.is_constant() else None
    if known not in owner.type().__mro__ and not (isinstance(owned, type) and known in owned.__mro__):
        raise t.raised(TypeError, "super(type, obj): obj must be an instance or subtype of type")
    return Super(known, owner)
