"""Classes: looking attributes up as the interpreter does, binding them, and making instances."""

from __future__ import annotations

import abc
import collections
import ctypes
import enum
import functools
import operator
import types
from collections.abc import Callable
from typing import Any

from turret.frames.class_members import ABSENT, find_in_mro
from turret.frames.sources import AttrSource, BoundSource, ItemSource
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.python.signatures import takes
from turret.plugins.capture.values.base import (
    BINARY_NAMES,
    COMPARISON_NAMES,
    IMMUTABLE,
    Answer,
    Constant,
    Rebuilder,
    Tracer,
    Unread,
    Value,
    made_in_c,
)
from turret.plugins.capture.values.functions import Handler, Known, Method, Partial

_C_METHODS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)

_PLAIN_OF_CLASSES = (*_C_METHODS, types.BuiltinFunctionType, types.GetSetDescriptorType, types.MemberDescriptorType)
"""What classes have that is as it is of a class, and bound by instances, if at all."""

_FIELD = type(vars(collections.namedtuple("_Sample", "field"))["field"])
"""What reads a field of a named tuple."""

_new_bound_by_c = ctypes.pythonapi.PyInstanceMethod_New
_new_bound_by_c.restype, _new_bound_by_c.argtypes = ctypes.py_object, [ctypes.py_object]
_BOUND_BY_C = type(_new_bound_by_c(len))
"""What makes a function written in C a method, as pybind11 does; Python has no name for it."""


def builtin_base(kind: type) -> type:
    """The class written in C that a class derives from first."""
    return next((base for base in kind.__mro__ if made_in_c(base)), object)


def look_up(t: Tracer, kind: type, name: str) -> tuple[Any, Any]:
    """The same, taken for a fact: of data of the program's own classes which class defines it, else what it is."""
    owner, raw = find_in_mro(kind, name)
    data = owner is not None and not t.trusted(owner) and not hasattr(type(raw), "__get__")
    t.provenance.member(kind, name, owner, ABSENT if owner is None else raw, by_value=data)
    return owner, raw


def defines(t: Tracer, kind: type, name: str) -> bool:
    """Whether a class itself, past its bases, defines a name: ``super`` asks the classes in turn."""
    if name in kind.__dict__:
        look_up(t, kind, name)
        return True
    t.provenance.undefined(kind, name)
    return False


def changed_in_class(t: Tracer, kind: type, name: str) -> Value | None:
    """An attribute that the program set on a class while it was captured, where that is what ``kind`` has now."""
    for base in kind.__mro__:
        stored = t.effects.attribute(t.wrap_known(base), name)
        if stored is not None or name in base.__dict__:
            return stored
    return None


def class_member(t: Tracer, owner: type, name: str, raw: Any) -> Value:
    """A raw attribute of a class, guarded where the class is the user's own."""
    if t.trusted(owner):
        return t.wrap_known(raw)
    source = ItemSource(AttrSource(BoundSource(owner.__qualname__, owner), "__dict__"), name)
    return t.wrap(raw, source)


def says_its_class(t: Tracer, kind: type) -> bool:
    """Whether instances of a class answer for their ``__class__``, which Python's ``isinstance`` asks, too."""
    if look_up(t, kind, "__class__")[0] is not object:
        return True
    return isinstance(look_up(t, kind, "__getattribute__")[1], types.FunctionType)


def _is_of_every_object(owner: type, name: str) -> bool:
    """Whether an attribute is what Python itself knows of an object."""
    return name == "__dict__" or (name == "__class__" and owner is object)


def bind_attribute(t: Tracer, value: Value, owner: type, name: str, raw: Any, on_class: type | None = None) -> Value:
    """What ``value.name`` is, ``raw`` being what the class ``owner`` has under that name.

    ``on_class``: ``value`` is this class itself, not an instance.
    """
    if on_class is None and _is_of_every_object(owner, name):
        return value.generic_attr(t, name)  # type: ignore[attr-defined]
    stored = t.effects.attribute(t.wrap_known(owner), name) if t.effects.class_changes else None
    if stored is not None:
        return stored
    if isinstance(raw, staticmethod):
        return _unwrapped(t, owner, name, raw)
    if isinstance(raw, classmethod):
        bound = value if on_class is not None else t.wrap_known(value.type())
        return Method(_unwrapped(t, owner, name, raw), bound)
    if isinstance(raw, types.FunctionType):
        function = class_member(t, owner, name, raw)
        return function if on_class is not None else Method(function, value)
    if isinstance(raw, types.ClassMethodDescriptorType):
        class_member(t, owner, name, raw)
        return t.wrap_known(raw.__get__(None, value.type() if on_class is None else on_class))
    if on_class is not None:
        getter = look_up(t, type(raw), "__get__")[1]
        found = class_member(t, owner, name, raw)
        if isinstance(getter, types.FunctionType) and not getter.__module__.startswith("torch."):
            return t.call(t.wrap_known(getter), [found, Constant(None), t.wrap_known(on_class)], {})
        return found
    return _of_instance(t, value, owner, name, raw)


def _of_instance(t: Tracer, value: Value, owner: type, name: str, raw: Any) -> Value:
    """What an attribute is that a class gives its instances: what its ``__get__`` answers, if it has one."""
    for kinds, bind in _DESCRIPTORS:
        if isinstance(raw, kinds):
            return bind(t, value, owner, name, raw)
    getter = look_up(t, type(raw), "__get__")[1]
    if isinstance(getter, types.FunctionType):
        return t.call(t.wrap_known(getter), [t.wrap_known(raw), value, t.wrap_known(value.type())], {})
    if name == "__weakref__" and not getattr(value, "weakly_held", True):
        return Constant(None)
    if getter is not None:
        raise Unsupported(f"the descriptor {owner.__name__}.{name}")
    return class_member(t, owner, name, raw)


def _property(t: Tracer, value: Value, owner: type, name: str, raw: property) -> Value:
    class_member(t, owner, name, raw)
    if raw.fget is None:
        raise t.raised(AttributeError, f"property {name!r} of {value.type().__name__!r} object has no getter")
    return t.call(t.wrap_known(written_in_c(raw.fget)), [value], {})


def _cached_property(t: Tracer, value: Value, owner: type, name: str, raw: functools.cached_property) -> Value:
    found = t.call(t.wrap_known(raw.func), [value], {})
    value.store(t, name, found)  # type: ignore[attr-defined]
    return found


def _field(t: Tracer, value: Value, owner: type, name: str, raw: Any) -> Value:
    payload = getattr(value, "payload", None)
    if not isinstance(payload, Value):
        raise Unsupported(f"the descriptor {owner.__name__}.{name}")
    return payload.get_item(t, Constant(raw.__reduce__()[1][0]))


class _MethodInC(Handler):
    """A method written in C, bound to an instance."""

    def __init__(self, value: Value, owner: type, name: str, raw: Any) -> None:
        super().__init__(f"{owner.__name__}.{name}", functools.partial(_call_c_method, value, name, raw))
        self.value, self.own_name, self.raw = value, name, raw

    def type(self) -> type:
        return types.MethodWrapperType if isinstance(self.raw, types.WrapperDescriptorType) else super().type()

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.value
        return Constant(self.own_name) if name == "__name__" else super().get_attr(t, name)

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(self.raw)}.__get__({r.load(self.value)})")


def _c_method(t: Tracer, value: Value, owner: type, name: str, raw: Any) -> Value:
    return _MethodInC(value, owner, raw.__name__, raw)  # the class may have it by another


def _method_bound_by_c(t: Tracer, value: Value, owner: type, name: str, raw: Any) -> Value:
    return Method(t.wrap_known(written_in_c(raw)), value)


def written_in_c(function: Any) -> Any:
    """The function that pybind11 made a method of, or the function itself; some versions wrap it, some do not."""
    return function.__func__ if isinstance(function, _BOUND_BY_C) else function


def _partial_method(t: Tracer, value: Value, owner: type, name: str, raw: functools.partialmethod) -> Value:
    if not isinstance(raw.func, types.FunctionType):
        raise Unsupported(f"functools.partialmethod of a {type(raw.func).__name__}")
    class_member(t, owner, name, raw)
    given = [t.wrap_known(v) for v in raw.args]
    named = {k: t.wrap_known(v) for k, v in raw.keywords.items()}
    return Partial(Method(t.wrap_known(raw.func), value), given, named)


def _remembering_method(t: Tracer, value: Value, owner: type, name: str, raw: Any) -> Value:
    return Method(class_member(t, owner, name, raw), value)


_DESCRIPTORS: tuple[tuple[Any, Callable[..., Value]], ...] = (
    (property, _property),
    (functools.cached_property, _cached_property),
    (_FIELD, _field),
    (_C_METHODS, _c_method),
    (_BOUND_BY_C, _method_bound_by_c),
    (functools.partialmethod, _partial_method),
    (functools._lru_cache_wrapper, _remembering_method),
)
"""Kinds of descriptors whose ``__get__`` is known, with what it gives for ``(t, instance, class, name, raw)``."""


def _unwrapped(t: Tracer, owner: type, name: str, raw: Any) -> Value:
    class_member(t, owner, name, raw)
    return t.wrap_known(raw.__func__)


def _call_c_method(value: Value, name: str, raw: Any, t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """A method written in C, of an instance: one that ``METHODS_IN_C`` has, or one of the container that the instance
    is; ``type``'s own of a class."""
    if raw is type.__call__:
        return t.instantiate(value, list(args), kwargs)
    handler = METHODS_IN_C.get(getattr(raw, "__objclass__", None), {}).get(name)
    if handler is not None:
        if not takes(handler, len(args) + 2, kwargs):
            raise Unsupported(f"arguments of {value.describe()}.{name}")
        return handler(t, value, *args, **kwargs)
    payload = getattr(value, "payload", None)
    if payload is not None and isinstance(payload.type(), type):
        return _call_container_method(t, value, payload, name, list(args), kwargs)
    if name == "__init__":
        return _exception_init(t, value, args, kwargs)
    if name in ("__str__", "__repr__") and hasattr(value, "real_group"):
        return t.wrap_known(getattr(value.real_group(t), name)())
    if name in ("__str__", "__repr__") and issubclass(value.type(), BaseException):
        return value.text(t, name)  # type: ignore[attr-defined]
    raise Unsupported(f"{value.describe()}.{name}, a method written in C")


def _call_container_method(
    t: Tracer, value: Value, payload: Any, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """The same of an instance of a class that derives from a container: ``payload`` is what it contains."""
    if name == "__init__" and not hasattr(payload, "m___init__"):
        return Constant(None)
    asks = name == "__getitem__" and len(args) == 1 and issubclass(payload.type(), dict)
    absent = look_up(t, value.type(), "__missing__")[1] if asks else None
    if isinstance(absent, types.FunctionType) and not t.truth(payload.contains(t, args[0])):
        return t.call(Method(t.wrap_known(absent), value), args, {})
    special = _CONTAINER_SPECIALS.get(name)
    if special is None and payload.type() in _CONTAINERS:
        special = _CONTAINER_OPERATORS.get(name)
    if special is None:
        return payload.call_method(t, name, args, kwargs)
    if not takes(special, len(args) + 2, kwargs):
        raise Unsupported(f"arguments of {value.describe()}.{name}")
    result = special(t, payload, *args)
    if result is payload and name.startswith("__i"):
        return value
    return Constant(None) if result is None else result


_NAMED = {
    ImportError: ("name", "path", "name_from") if hasattr(ImportError, "name_from") else ("name", "path"),
    AttributeError: ("name", "obj"),
    NameError: ("name",),
}
"""What exceptions take by name, and keep as attributes."""


def _exception_init(t: Tracer, value: Value, args: tuple[Value, ...], kwargs: dict[str, Value]) -> Value:
    kind = value.type()
    if issubclass(kind, BaseException):
        taken = next((names for base, names in _NAMED.items() if issubclass(kind, base)), ())
        if kwargs and not taken:
            raise t.raised(TypeError, f"{kind.__name__}() takes no keyword arguments")
        if not kwargs.keys() <= set(taken):
            raise Unsupported(f"the arguments of {kind.__name__}()")
        for name in taken:
            value.stores.pop(name, None)  # type: ignore[attr-defined]
        value.stores.update(kwargs)  # type: ignore[attr-defined]
        value.args = value.initialized_with = list(args)  # type: ignore[attr-defined]
        return Constant(None)
    raise Unsupported(f"{value.describe()}.__init__, a method written in C")


def _init(t: Tracer, value: Value, /, *args: Value, **kwargs: Value) -> Value:
    """``object.__init__``, which takes arguments where the class makes something of them in ``__new__`` alone."""
    kind = value.type()
    if args or kwargs:
        owner = "object" if look_up(t, kind, "__init__")[1] is not object.__init__ else kind.__name__
        if owner == "object" or look_up(t, kind, "__new__")[1] is object.__new__:
            raise t.raised(TypeError, f"{owner}.__init__() takes exactly one argument (the instance to initialize)")
    return Constant(None)


def _set(t: Tracer, value: Value, name: Value, content: Value) -> Value:
    value.store(t, t.constant_of(name), content)  # type: ignore[attr-defined]
    return Constant(None)


def _delete(t: Tracer, value: Value, name: Value) -> Value:
    value.remove(t, t.constant_of(name))  # type: ignore[attr-defined]
    return Constant(None)


def _get(t: Tracer, value: Value, name: Value) -> Value:
    return value.generic_attr(t, t.constant_of(name))  # type: ignore[attr-defined]


def _not_implemented(t: Tracer, value: Value, *args: Value) -> Value:
    if args and t.is_same(value, args[0]):
        return Constant(True)
    return Constant(NotImplemented)


def _not_equal(t: Tracer, value: Value, other: Value) -> Value:
    answer = value.compare(t, "!=", other.realize())
    return Constant(NotImplemented) if isinstance(answer, types.NotImplementedType) else answer


class AddressText(Unread):
    """The text that tells the address of an object: written where it leaves the captured code."""

    def __init__(self, t: Tracer, value: Value) -> None:
        super().__init__(f"{value.describe()}.__repr__, which tells its address", t.call_stack.step)
        self.value, self.source = value, None  # type: ignore[assignment]

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(object.__repr__)}({r.load(self.value)})")


def _default_text(t: Tracer, value: Value) -> Value:
    """``object.__repr__``, which tells the address: of an object from before, assumed to be the same one."""
    existed = getattr(value, "object", None)
    known = existed is not None and value.source is not None and bool(value.type().__weakrefoffset__)
    if value.source is None or not known or t.policy.fresh_object(value.source, existed):
        return AddressText(t, value)
    t.provenance.bound_to_process("the address of an object")
    if not isinstance(value.source, BoundSource):
        t.guards.take("ID", value.source, existed)
    return Constant(object.__repr__(existed))


OBJECT_METHODS: dict[str, Callable[..., Value]] = {
    "__init__": _init,
    "__setattr__": _set,
    "__delattr__": _delete,
    "__getattribute__": _get,
    "__init_subclass__": _init,
    "__eq__": _not_implemented,
    "__ne__": _not_equal,
    "__str__": lambda t, value: t.call(t.wrap_known(repr), [value], {}),
    "__repr__": _default_text,
}
"""Methods of ``object`` itself."""

METHODS_IN_C: dict[type | None, dict[str, Callable[..., Value]]] = {object: OBJECT_METHODS, type: {"__setattr__": _set}}
"""By class written in C, its methods as capture does them, called with the tracer, the instance and the arguments."""


def _payload_compared(t: Tracer, payload: Value, symbol: str, other: Value) -> Value:
    other = getattr(other, "payload", None) or other
    if isinstance(payload, Constant) and other.is_constant():  # the operator would ask the other side, and raise
        return t.fold(getattr(payload.type(), COMPARISON_NAMES[symbol]), [payload, other], {})
    answer = payload.compare(t, symbol, other)
    return Constant(NotImplemented) if isinstance(answer, types.NotImplementedType) else answer


def _comparison(symbol: str) -> Callable[..., Value]:
    return lambda t, payload, other: _payload_compared(t, payload, symbol, other.realize())


_CONTAINERS = (list, tuple, dict, set, frozenset)
_READ_BY_C = ("__iter__", "__getitem__", "keys")


def contained(t: Tracer, value: Value, operation: Callable) -> Value:
    """What an operator written in C takes its right side for: of an instance that is a container, what it contains."""
    payload = getattr(value, "payload", None)
    if payload is None or payload.type() not in _CONTAINERS:
        return value
    kind = payload.type()
    if kind is dict and any(look_up(t, value.type(), n)[1] is not getattr(kind, n) for n in _READ_BY_C):
        raise Unsupported(f"{operation.__name__} of a dict whose class looks its items up itself")
    return payload


def _operator(operation: Callable, inplace: bool) -> Callable[..., Value]:
    def answer(t: Tracer, payload: Value, other: Value) -> Value:
        other = other.realize()
        extends = inplace and operation is operator.add
        found = payload.binary(t, operation, other if extends else contained(t, other, operation), inplace)
        return Constant(NotImplemented) if isinstance(found, types.NotImplementedType) else found

    return answer


def _reflected(operation: Callable) -> Callable[..., Value]:
    def answer(t: Tracer, payload: Value, other: Value) -> Value:
        left = contained(t, other.realize(), operation)
        if payload.type() not in _CONTAINERS:
            raise Unsupported(
                f"{operation.__name__} with an instance of a class that derives from {payload.describe()}"
            )
        if operation is operator.mul:
            found = payload.reflected(t, operation, left)
        else:
            found = left.binary(t, operation, payload, False) if left.type() in _CONTAINERS else NotImplemented
        return Constant(NotImplemented) if isinstance(found, types.NotImplementedType) else found

    return answer


_OF_CONTAINERS = (operator.add, operator.mul, operator.or_, operator.and_, operator.sub, operator.xor)
_CONTAINER_SPECIALS: dict[str, Callable[..., Value | None]] = {
    "__getitem__": lambda t, payload, key: payload.get_item(t, key),
    "__setitem__": lambda t, payload, key, value: payload.set_item(t, key, value),
    "__delitem__": lambda t, payload, key: payload.del_item(t, key),
    "__contains__": lambda t, payload, item: payload.contains(t, item),
    "__iter__": lambda t, payload: payload.iterate(t),
    "__len__": lambda t, payload: payload.length(t),
    **{
        name: _comparison(symbol)
        for symbol, name in COMPARISON_NAMES.items()
    },
}  # fmt: skip


_CONTAINER_OPERATORS: dict[str, Callable[..., Value]] = {
    **{f"__{BINARY_NAMES[o]}__": _operator(o, False) for o in _OF_CONTAINERS},
    **{f"__i{BINARY_NAMES[o]}__": _operator(o, True) for o in _OF_CONTAINERS},
    **{f"__r{BINARY_NAMES[o]}__": _reflected(o) for o in _OF_CONTAINERS},
}
"""Of the plain kinds alone: what derives from others makes an instance of its own class."""


class Class(Known):
    """A class."""

    object: type

    def get_attr(self, t: Tracer, name: str) -> Value:
        try:
            return self.type_attr(t, name)
        except Raised as raised:
            fallback = look_up(t, type(self.object), "__getattr__")[1]
            if not issubclass(raised.value.type(), AttributeError) or not isinstance(fallback, types.FunctionType):
                raise
        return t.call(Method(t.wrap_known(fallback), self), [Constant(name)], {})

    def type_attr(self, t: Tracer, name: str) -> Value:
        """``type.__getattribute__``."""
        kind = self.object
        if name in ("__name__", "__qualname__", "__module__", "__doc__", "__mro__", "__bases__", "__class__"):
            return t.wrap_known(getattr(kind, name))
        if t.effects.class_changes and (stored := changed_in_class(t, kind, name)) is not None:
            return stored
        if isinstance(kind, enum.EnumMeta):
            return self.plain(t, name)
        if (computed := self.computed(t, name)) is not None:
            return computed
        owner, raw = look_up(t, kind, name)
        if owner is None:
            return self.of_metaclass(t, name)
        if isinstance(raw, _PLAIN_OF_CLASSES):
            return self.plain(t, name)
        return bind_attribute(t, self, owner, name, raw, kind)

    def computed(self, t: Tracer, name: str) -> Value | None:
        """What a metaclass of the program's own computes, before attributes of the class are looked at."""
        meta = type(self.object)
        if meta in ORDINARY_METACLASSES or t.trusted(meta):
            return None
        if isinstance(look_up(t, meta, "__getattribute__")[1], types.FunctionType):
            raise Unsupported(f"an attribute of {self.describe()}, whose metaclass looks attributes up itself")
        owner, raw = look_up(t, meta, name)
        if owner is None or t.trusted(owner) or not hasattr(type(raw), "__set__"):
            return None
        if isinstance(raw, property) and isinstance(raw.fget, types.FunctionType):
            class_member(t, owner, name, raw)
            return t.call(t.wrap_known(raw.fget), [self], {})
        raise Unsupported(f"the descriptor {owner.__name__}.{name} of a metaclass")

    def of_metaclass(self, t: Tracer, name: str) -> Value:
        """An attribute that the class has from its metaclass."""
        meta = type(self.object)
        owner, raw = look_up(t, meta, name)
        if isinstance(raw, types.FunctionType):
            return Method(class_member(t, owner, name, raw), self)
        if owner is not None:
            return self.plain(t, name)
        raise t.raised(AttributeError, f"type object {self.object.__name__!r} has no attribute {name!r}")

    def plain(self, t: Tracer, name: str) -> Value:
        if not t.trusted(type(self.object)):
            t.provenance.bound_to_process(f"an attribute that {type(self.object).__qualname__} computes")
        try:
            return t.wrap_known(getattr(self.object, name))
        except AttributeError as error:
            raise t.raised_from(error) from None

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        setter = look_up(t, type(self.object), "__setattr__")[1]
        if isinstance(setter, types.FunctionType):
            t.call(Method(t.wrap_known(setter), self), [Constant(name), value], {})
            return
        if setter is not type.__setattr__:
            raise Unsupported(f"setting attribute {name!r} of {self.describe()}, of which its metaclass has a say")
        self.store(t, name, value)

    def store(self, t: Tracer, name: str, value: Value) -> None:
        """``type.__setattr__``."""
        kind = self.object
        if kind.__flags__ & IMMUTABLE:
            t.fails(type.__setattr__, kind, name, None)
        raw = look_up(t, type(kind), name)[1]
        if any(look_up(t, type(raw), n)[0] for n in ("__set__", "__delete__")):
            raise Unsupported(f"setting attribute {name!r} of {self.describe()}, of which its metaclass has a say")
        t.effects.set_attribute(self, name, value)

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        method = self.of_program(t, COMPARISON_NAMES[symbol])
        if method is not None:
            return _unless_not_implemented(t.call(method, [other], {}).realize())
        if symbol == "!=" and (method := self.of_program(t, "__eq__")) is not None:
            equal = _unless_not_implemented(t.call(method, [other], {}).realize())
            return equal if isinstance(equal, types.NotImplementedType) else Constant(not t.truth(equal))
        if isinstance(other, Known) and symbol in ("==", "!="):
            return Constant((self.object is other.object) == (symbol == "=="))
        return super().compare(t, symbol, other)

    def of_program(self, t: Tracer, name: str) -> Value | None:
        """A special method that a metaclass of the program's own has for the class, bound, or None."""
        owner, raw = look_up(t, type(self.object), name)
        if not isinstance(raw, types.FunctionType) or t.trusted(owner):
            return None
        return Method(class_member(t, owner, name, raw), self)

    def truth(self, t: Tracer) -> bool:
        method = self.of_program(t, "__bool__") or self.of_program(t, "__len__")
        return True if method is None else t.truth(t.call(method, [], {}).realize())

    def contains(self, t: Tracer, item: Value) -> Value:
        if (method := self.of_program(t, "__contains__")) is not None:
            return Constant(t.truth(t.call(method, [item], {}).realize()))
        return super().contains(t, item)

    def iterate(self, t: Tracer) -> Value:
        if (method := self.of_program(t, "__iter__")) is not None:
            return t.call(method, [], {}).realize()
        if isinstance(self.object, enum.EnumMeta):
            return t.items_iterator([t.wrap_known(m) for m in list[Any](self.object)])
        return super().iterate(t)

    def length(self, t: Tracer) -> Value:
        if (method := self.of_program(t, "__len__")) is not None:
            return t.call(method, [], {}).realize()
        return Constant(len(self.object)) if isinstance(self.object, enum.EnumMeta) else super().length(t)

    def get_item(self, t: Tracer, key: Value) -> Value:
        if (method := self.of_program(t, "__getitem__")) is not None:
            return t.call(method, [key], {})
        if isinstance(self.object, enum.EnumMeta):
            return t.fold(type(self.object).__getitem__, [self, key], {})
        owner, getter = look_up(t, self.object, "__class_getitem__")
        if isinstance(getter, classmethod) and isinstance(getter.__func__, types.FunctionType) and not t.trusted(owner):
            return t.call(Method(_unwrapped(t, owner, "__class_getitem__", getter), self), [key], {})
        if getter is not None:
            return t.fold(operator.getitem, [self, key], {})
        return super().get_item(t, key)

    def binary(self, t: Tracer, operation: Any, other: Value, inplace: bool) -> Answer:
        if (method := self.of_program(t, f"__{BINARY_NAMES[operation]}__")) is not None:
            return t.call(method, [other], {})
        if not other.is_constant():
            return super().binary(t, operation, other, inplace)
        if inplace:  # the same, but for the words of its TypeError
            operation = getattr(operator, "i" + operation.__name__.rstrip("_"))
        return t.fold(operation, [self, other], {})

    def reflected(self, t: Tracer, operation: Any, other: Value) -> Answer:
        method = self.of_program(t, f"__r{BINARY_NAMES[operation]}__")
        return super().reflected(t, operation, other) if method is None else t.call(method, [other], {})

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call(self.get_attr(t, name), args, kwargs)

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call_class(self, args, kwargs)

    def replay(self, r: Rebuilder) -> None:
        r.replay_attributes(self)


def _unless_not_implemented(found: Value) -> Answer:
    return NotImplemented if isinstance(found, Constant) and found.value is NotImplemented else found


ORDINARY_METACLASSES: set[type] = {type, abc.ABCMeta}
"""Metaclasses whose call makes an instance in the usual way."""
