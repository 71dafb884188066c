"""Instances of classes, ``super``, and an instance's ``__dict__``."""

from __future__ import annotations

import builtins
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from turret.frames.class_members import find_in_mro
from turret.frames.sources import AttrSource, DictSource, ItemSource, Source, TypeSource, instance_dict
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.python.lifetimes import LETS_GO, has_observable_finalizer
from turret.plugins.capture.values.base import (
    BINARY_NAMES,
    COMPARISON_NAMES,
    Answer,
    Constant,
    Rebuilder,
    Tracer,
    Value,
    spelled,
    told_by_pybind,
)
from turret.plugins.capture.values.classes import (
    AddressText,
    bind_attribute,
    builtin_base,
    changed_in_class,
    defines,
    look_up,
)
from turret.plugins.capture.values.functions import Callable_, Known, Method
from turret.torch_compat.operators.native_functions import TensorBase

MODULE_GETATTR = torch.nn.Module.__getattr__
DELETED: Any = type("Deleted", (), {})()
_RESULTS: dict[str, type] = {
    "__bool__": bool, "__len__": int, "__int__": int, "__index__": int, "__hash__": int, "__float__": float,
    "__complex__": complex, "__str__": str, "__repr__": str, "__format__": str, "__bytes__": bytes,
}  # fmt: skip
"""By special method, what Python insists that it gives."""


def slot_hash(given: int) -> int:
    """What ``hash`` makes of the number that a ``__hash__`` gave."""
    fits = -sys.maxsize - 1 <= given <= sys.maxsize
    return -2 if given == -1 else given if fits else hash(given)


class Instance(Value):
    """An instance of a class.

    ``object`` is the real one where it existed before.  ``stores`` are attributes set since then (all of them, for
    a new one).  ``payload`` is the container that an instance of a subclass of dict, list, ... also is.
    """

    def __init__(
        self, kind: type, object: Any = None, source: Source | None = None, payload: Value | None = None
    ) -> None:
        self.kind, self.object, self.source, self.payload = kind, object, source, payload
        self.stores: dict[str, Any] = {}
        self.weakly_held = object is not None or source is not None
        """Whether there may be weak references to it."""
        if payload is not None:
            payload.holder = weakref.ref(self)  # type: ignore[attr-defined]

    def type(self) -> type:
        return self.kind

    def key(self, t: Tracer) -> Any:
        method = look_up(t, self.kind, "__hash__")[1]
        if method is object.__hash__ and look_up(t, self.kind, "__eq__")[1] is object.__eq__:
            t.identity_keys.note(self)
            return self
        if isinstance(method, types.FunctionType):
            return _HashedInstance(t, self)
        if isinstance(self.payload, Constant):
            base = self.payload.type()
            if method is base.__hash__ and look_up(t, self.kind, "__eq__")[1] is base.__eq__:
                return self.payload.value
        if method is frozenset.__hash__ and look_up(t, self.kind, "__eq__")[1] is frozenset.__eq__:
            return self.payload.key(t)  # type: ignore[union-attr]
        raise Unsupported(f"{self.describe()} as a dict key or set member")

    def beside(self, t: Tracer, tensor: Value) -> Value:
        number = isinstance(self.payload, Constant) and self.payload.type() in (int, float)
        return self.payload if number else self  # type: ignore[return-value]

    def own(self, t: Tracer, name: str) -> Value | None:
        """An attribute of the instance's own ``__dict__`` (or slot), or None."""
        if name in self.stores:
            found = self.stores[name]
            return None if found is DELETED else found
        if self.object is None:
            return None
        held = held_by(self.object)
        if name in held:
            source = (
                ItemSource(self.step(DictSource), name) if self.runs_code_for(t, name) else self.step(AttrSource, name)
            )
            return t.wrap(held[name], source)
        slot = look_up(t, self.kind, name)[1]
        if isinstance(slot, types.MemberDescriptorType):
            try:
                return t.wrap(slot.__get__(self.object), self.step(AttrSource, name))
            except AttributeError:
                if self.source is not None:
                    t.guards.take("CALL", self.source, (functools.partial(lookups.is_unset, name), True))
                return None
        return None

    def runs_code_for(self, t: Tracer, name: str) -> bool:
        """Whether code of the program may run where an attribute is asked of an instance that has none of its own.

        A guard must not: it would fill a ``cached_property``, say."""
        if isinstance(look_up(t, self.kind, "__getattribute__")[1], types.FunctionType):
            return True
        fallback = look_up(t, self.kind, "__getattr__")[1]
        asks = isinstance(fallback, types.FunctionType) and fallback is not MODULE_GETATTR
        return asks or look_up(t, type(look_up(t, self.kind, name)[1]), "__get__")[0] is not None

    def step(self, kind: Callable[..., Source], *args: Any) -> Source:
        """A source one step from this instance's."""
        if self.source is None:
            raise Unsupported(f"an attribute of {self.describe()}, which no source leads to")
        return kind(self.source, *args)

    def get_attr(self, t: Tracer, name: str) -> Value:
        owner, getter = look_up(t, self.kind, "__getattribute__")
        try:
            if not isinstance(getter, types.FunctionType):
                return self.generic_attr(t, name)
            return t.call(bind_attribute(t, self, owner, "__getattribute__", getter), [Constant(name)], {})
        except Raised as raised:
            if not issubclass(raised.value.type(), AttributeError) or look_up(t, self.kind, "__getattr__")[0] is None:
                raise
        return self.fallback_attr(t, name)

    def its_class(self, t: Tracer) -> Value:
        """``type(self)``, whatever it says of its ``__class__``."""
        return t.wrap(self.kind, None if self.source is None else TypeSource(self.source))

    def generic_attr(self, t: Tracer, name: str) -> Value:
        """``object.__getattribute__``."""
        if name == "__class__" and look_up(t, self.kind, name)[0] is object:
            return self.its_class(t)
        if name == "__dict__" and keeps_attributes(self.kind):
            return InstanceDict(self)
        owner, raw = look_up(t, self.kind, name)
        if self.kept_by_payload(owner, raw):
            return self.payload.get_attr(t, name)  # type: ignore[union-attr]
        data = owner is not None and is_data_descriptor(t, raw) and not isinstance(raw, types.MemberDescriptorType)
        if data and look_up(t, type(raw), "__get__")[0] is not None:
            return self.computed(t, owner, name, raw)
        found = self.own(t, name)
        return self.of_class(t, owner, name, raw) if found is None else found

    def of_class(self, t: Tracer, owner: Any, name: str, raw: Any) -> Value:
        """What the class has under a name that the instance has not."""
        if t.effects.class_changes and (changed := changed_in_class(t, self.kind, name)) is not None:
            self.assume_absent(t, name)
            return Method(changed, self) if changed.type() is types.FunctionType else changed
        if owner is not None and not isinstance(raw, types.MemberDescriptorType):
            self.assume_absent(t, name)
            return bind_attribute(t, self, owner, name, raw)
        self.lacks(t, name, raw)

    def computed(self, t: Tracer, owner: Any, name: str, raw: Any) -> Value:
        """What a descriptor of the class gives that comes ahead of the instance's own attribute."""
        return told_by_pybind(t, self, name) or bind_attribute(t, self, owner, name, raw)

    def kept_by_payload(self, owner: Any, raw: Any) -> bool:
        """Whether an attribute is one of the container in C that the instance is (``maxlen`` of a deque)."""
        kept_in_c = isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType))
        return kept_in_c and self.payload is not None and owner is self.payload.type()

    def lacks(self, t: Tracer, name: str, raw: Any) -> NoReturn:
        """It has no attribute of a name; ``raw``: an empty slot of its class, or none."""
        self.assume_absent(t, name)
        if isinstance(raw, types.MemberDescriptorType):
            t.fails(object.__getattribute__, _with_slot(self.kind, name), name, of=self)
        text = f"{spelled(self.kind)!r} object has no attribute {name!r}"
        raise t.raised(AttributeError, text, name=Constant(name), obj=self)

    def fallback_attr(self, t: Tracer, name: str) -> Value:
        """What ``__getattr__`` gives for an attribute that ``__getattribute__`` has refused."""
        owner, fallback = look_up(t, self.kind, "__getattr__")
        return t.call(bind_attribute(t, self, owner, "__getattr__", fallback), [Constant(name)], {})

    def assume_absent(self, t: Tracer, name: str) -> None:
        if self.source is not None and name not in self.stores and has_dict(self.object):
            t.guards.take("NO_KEY", DictSource(self.source), name)

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        owner, setter = look_up(t, self.kind, "__setattr__")
        if is_of_class(setter, "__setattr__"):
            t.call(bind_attribute(t, self, owner, "__setattr__", setter), [Constant(name), value], {})
            return
        self.store(t, name, value)

    def store(self, t: Tracer, name: str, value: Value) -> None:
        """``object.__setattr__``."""
        owner, raw = look_up(t, self.kind, name)
        if self.kept_by_payload(owner, raw):
            raise Unsupported(f"setting attribute {name!r} of {self.describe()}")
        if isinstance(raw, property):
            if raw.fset is None:
                raise t.raised(AttributeError, f"property {name!r} of {self.kind.__name__!r} object has no setter")
            t.call(t.wrap_known(raw.fset), [self, value], {})
            return
        if is_data_descriptor(t, raw) and not isinstance(raw, types.MemberDescriptorType):
            if isinstance(look_up(t, type(raw), "__set__")[1], types.FunctionType):
                t.call(t.wrap_known(raw).get_attr(t, "__set__"), [self, value], {})
                return
            raise Unsupported(f"setting attribute {name!r} of {self.describe()}")
        if name in ("__class__", "__dict__"):
            raise Unsupported(f"setting {name} of {self.describe()}")
        if not isinstance(raw, types.MemberDescriptorType) and not keeps_attributes(self.kind):
            stand_in = _without_attributes(self.kind.__name__, name, raw is not None)
            t.fails(object.__setattr__, stand_in, name, None, of=self)
        self.refuse_to_drop(name)
        t.effects.note(self)
        self.stores.pop(name, None) if self.stores.get(name) is DELETED else None
        self.stores[name] = value

    def del_attr(self, t: Tracer, name: str) -> None:
        owner, deleter = look_up(t, self.kind, "__delattr__")
        if is_of_class(deleter, "__delattr__"):
            t.call(bind_attribute(t, self, owner, "__delattr__", deleter), [Constant(name)], {})
            return
        self.remove(t, name)

    def remove(self, t: Tracer, name: str) -> None:
        """``object.__delattr__``."""
        raw = look_up(t, self.kind, name)[1]
        if isinstance(raw, property):
            if raw.fdel is None:
                raise t.raised(AttributeError, f"property {name!r} of {self.kind.__name__!r} object has no deleter")
            t.call(t.wrap_known(raw.fdel), [self], {})
            return
        if is_data_descriptor(t, raw) and not isinstance(raw, types.MemberDescriptorType):
            if isinstance(look_up(t, type(raw), "__delete__")[1], types.FunctionType):
                t.call(t.wrap_known(raw).get_attr(t, "__delete__"), [self], {})
                return
            raise Unsupported(f"deleting attribute {name!r} of {self.describe()}")
        if self.own(t, name) is None:
            self.assume_absent(t, name)
            slot = isinstance(raw, types.MemberDescriptorType)
            text = name if slot else f"{spelled(self.kind)!r} object has no attribute {name!r}"
            raise t.raised(AttributeError, text)
        if self.source is not None and name not in self.stores and has_dict(self.object):
            t.guards.take("HAS_KEY" if name in held_by(self.object) else "NO_KEY", DictSource(self.source), name)
        self.refuse_to_drop(name)
        t.effects.note(self)
        if self.object is None or not self.had(t, name):
            del self.stores[name]
        else:
            self.stores[name] = DELETED

    def refuse_to_drop(self, name: str) -> None:
        """Refuse to take an attribute away, or its value, if the end of that value runs the program's code."""
        if self.object is not None and has_observable_finalizer(held_by(self.object).get(name)):
            raise Unsupported(LETS_GO)

    def had(self, t: Tracer, name: str) -> bool:
        """Whether the object itself has an attribute, before what is noted here is replayed."""
        if name in held_by(self.object):
            return True
        return isinstance(look_up(t, self.kind, name)[1], types.MemberDescriptorType) and hasattr(self.object, name)

    def special(self, t: Tracer, name: str) -> Value | None:
        """A special method, looked up on the class and bound, or None."""
        owner, raw = look_up(t, self.kind, name)
        if owner is None or raw is None:
            return None
        if owner is object and (name == "__hash__" or name in COMPARISON_NAMES.values()):
            return None
        return bind_attribute(t, self, owner, name, raw)

    def call_special(self, t: Tracer, name: str, *args: Value) -> Value | None:
        """The result of a special method; None where the class has none."""
        method = self.special(t, name)
        if method is None:
            if look_up(t, self.kind, name)[0] not in (None, object):
                raise Unsupported(f"{name} of {self.describe()}, which is None")
            return None
        result = t.call(method, list(args), {})
        if isinstance(result, AddressText) and name in ("__repr__", "__str__"):
            return result
        result, wanted = result.realize(), _RESULTS.get(name)
        if wanted is not None:
            self.check_result(name, result, wanted)
        return result

    def check_result(self, name: str, result: Value, wanted: builtins.type) -> None:
        """Python asks special methods for results of one type; what it refuses is left to it."""
        refused = not issubclass(result.type(), wanted)
        if name == "__len__" and isinstance(result, Constant) and not refused:
            refused = not 0 <= result.value <= sys.maxsize
        if refused:
            raise Unsupported(f"{name} of {self.describe()} gives what Python takes for none")

    def need_special(self, t: Tracer, name: str, *args: Value) -> Value:
        result = self.call_special(t, name, *args)
        if result is None:
            raise Unsupported(f"{self.describe()} has no {name} that capture follows")
        return result

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call(self.get_attr(t, name), args, kwargs)

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method = self.special(t, "__call__")
        if method is None:
            raise t.raised(TypeError, f"{spelled(self.kind)!r} object is not callable")
        return t.call(method, args, kwargs)

    def get_item(self, t: Tracer, key: Value) -> Value:
        return self.need_special(t, "__getitem__", key)

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        self.need_special(t, "__setitem__", key, value)

    def del_item(self, t: Tracer, key: Value) -> None:
        self.need_special(t, "__delitem__", key)

    def contains(self, t: Tracer, item: Value) -> Value:
        found = self.call_special(t, "__contains__", item)
        if found is not None:
            return Constant(t.truth(found))
        if not t.has_items(self):
            raise t.raised(TypeError, f"argument of type {spelled(self.kind)!r} is not iterable")
        return super().contains(t, item)

    def iterate(self, t: Tracer) -> Value:
        found = self.call_special(t, "__iter__")
        if found is not None:
            kind = found.realize().type()
            if not hasattr(kind, "__next__"):
                raise t.raised(TypeError, f"iter() returned non-iterator of type {spelled(kind)!r}")
            return found
        if look_up(t, self.kind, "__getitem__")[0] is not None:
            return t.iterate_by_index(self)
        raise t.raised(TypeError, f"{spelled(self.kind)!r} object is not iterable")

    def next(self, t: Tracer) -> Value:
        return self.need_special(t, "__next__")

    def length(self, t: Tracer) -> Value:
        return self.need_special(t, "__len__")

    def truth(self, t: Tracer) -> bool:
        found = self.call_special(t, "__bool__")
        if found is None:
            found = self.call_special(t, "__len__")
        return True if found is None else t.truth(found)

    def binary(self, t: Tracer, operation: Callable, other: Value, inplace: bool) -> Answer:
        name = BINARY_NAMES[operation]
        if inplace:
            found = self.answer(t, f"__i{name}__", other)
            if found is not NotImplemented:
                return found
        return self.answer(t, f"__{name}__", other)

    def reflected(self, t: Tracer, operation: Callable, other: Value) -> Answer:
        return self.answer(t, f"__r{BINARY_NAMES[operation]}__", other)

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if symbol == "!=" and look_up(t, self.kind, "__ne__")[0] is object:
            equal = self.answer(t, "__eq__", other)
            return equal if isinstance(equal, types.NotImplementedType) else Constant(not t.truth(equal))
        return self.answer(t, COMPARISON_NAMES[symbol], other)

    def answer(self, t: Tracer, name: str, other: Value) -> Answer:
        """What a special method says of an operator; that the class has none says as little as ``NotImplemented``."""
        found = self.call_special(t, name, other)
        left_to_other = found is None or (isinstance(found, Constant) and found.value is NotImplemented)
        return NotImplemented if left_to_other else found  # type: ignore[return-value]

    def rebuild(self, r: Rebuilder) -> str:
        # By the builtin class that it derives from: its own ``__new__`` ran when the program made it.
        made = f"{r.constant(builtin_base(self.kind))}.__new__({r.constant(self.kind)}"
        if self.payload is None:
            name = r.remember(self, r.assign(f"{made})"))
        elif type(self.payload).__name__ in ("Tuple", "Constant"):
            name = r.remember(self, r.assign(f"{made}, {r.load(self.payload)})"))
        elif self.payload.type() is frozenset:
            name = r.remember(self, r.assign(f"{made}, {self.payload.ingredients(r)})"))  # type: ignore[attr-defined]
        else:
            name = r.remember(self, r.assign(f"{made})"))
            r.fill_payload(self.payload, name)
        self.write_stores(r, name, r.line)
        return name

    def write_stores(self, r: Rebuilder, name: str, line: Callable[[str], None]) -> None:
        base = threading.local if issubclass(self.kind, threading.local) else object
        for attribute, value in self.stores.items():
            if value is DELETED:
                line(f"{r.constant(base)}.__delattr__({name}, {attribute!r})")
            elif hides(r.t, look_up(r.t, self.kind, attribute)[1]):
                line(f"{r.constant(base)}.__getattribute__({name}, '__dict__')[{attribute!r}] = {r.load(value)}")
            else:
                line(f"{r.constant(base)}.__setattr__({name}, {attribute!r}, {r.load(value)})")

    def replay(self, r: Rebuilder) -> None:
        held = r.load(self)
        self.write_stores(r, held, r.effect)


def is_of_class(method: Any, name: str) -> bool:
    """Whether a class says itself how attributes are set or deleted: by a function, or by a method in C of another
    name (``__setattr__ = dict.__setitem__``)."""
    return isinstance(method, types.FunctionType) or getattr(method, "__name__", name) != name


def keeps_attributes(kind: type) -> bool:
    """Whether instances of a class have attributes beside those that slots hold."""
    return kind.__dictoffset__ != 0 or issubclass(kind, threading.local)


def _without_attributes(kind: str, name: str, in_class: bool) -> Any:
    """An instance of a class of a name, which has an attribute or none, whose instances have no attributes."""
    return type(kind, (), {"__slots__": (), **({name: None} if in_class else {})})()


def _with_slot(kind: type, name: str) -> Any:
    """An instance of a class of the names of another one, with a slot that holds nothing."""
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (), {"__slots__": (name,), **names})()


def has_dict(object: Any) -> bool:
    """Whether an object that existed before has a ``__dict__``, whatever its class makes of attribute access."""
    kind = type(object)
    kept_in_c = issubclass(kind, (threading.local, types.SimpleNamespace))
    return kept_in_c or isinstance(find_in_mro(kind, "__dict__")[1], types.GetSetDescriptorType)


def held_by(object: Any) -> dict[str, Any]:
    """The own attributes of an object that existed before; empty where there is none, or it has no ``__dict__``."""
    return instance_dict(object) if has_dict(object) else {}


class _HashedInstance:
    """A dict key with the program's own hash and equality."""

    def __init__(self, t: Tracer, value: Instance) -> None:
        self.t, self.value = t, value
        self.hash = slot_hash(t.int_of(value.need_special(t, "__hash__")))

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: Any) -> bool:
        theirs = other.value if isinstance(other, _HashedInstance) else other
        if not isinstance(theirs, Value):
            theirs = self.t.wrap_known(theirs)
        return self.value is theirs or self.t.truth(self.t.compare("==", self.value, theirs))


def is_data_descriptor(t: Tracer, raw: Any) -> bool:
    """Whether a class attribute takes precedence over the instance's own."""
    return any(look_up(t, type(raw), name)[0] is not None for name in ("__set__", "__delete__"))


def hides(t: Tracer, raw: Any) -> bool:
    """Whether a class attribute takes precedence over one of the instance's ``__dict__``; a slot has none there."""
    return is_data_descriptor(t, raw) and not isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType))


class FunctionInstance(Instance):
    """An instance of an ``autograd.Function``, good for nothing but what its class is."""

    def rebuild(self, r: Rebuilder) -> str:
        raise Unsupported(f"{self.describe()} that was made in compiled code and leaves it")


class InstanceDict(Value):
    """``instance.__dict__``: a view of the instance's own attributes."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance

    def type(self) -> type:
        return dict

    def names(self, t: Tracer) -> list[str]:
        """Names of all own attributes, in order."""
        instance = self.instance
        before: dict[str, Any] = {}
        if instance.object is not None:
            before = held_by(instance.object)
            t.guards.take("KEYS", instance.step(DictSource), tuple(before))
        names = [n for n in before if instance.stores.get(n) is not DELETED]
        return names + [n for n, v in instance.stores.items() if n not in before and v is not DELETED]

    def name_of(self, t: Tracer, key: Value, *, deleted: bool = False) -> str:
        """The attribute that a key stands for; a slot of that name is another thing.

        ``deleted``: where a descriptor has that name, it would be asked to delete.
        """
        name = t.constant_of(key)
        found = look_up(t, self.instance.kind, name)[1] if isinstance(name, str) else None
        if not isinstance(name, str) or (is_data_descriptor(t, found) and (deleted or not hides(t, found))):
            raise Unsupported(f"{name!r} as a key of the __dict__ of {self.instance.describe()}")
        return name

    def get(self, t: Tracer, key: Value) -> Value | None:
        name = self.name_of(t, key)
        found = self.instance.own(t, name)
        if found is None:
            self.instance.assume_absent(t, name)
        return found

    def get_item(self, t: Tracer, key: Value) -> Value:
        found = self.get(t, key)
        if found is None:
            raise t.raised(KeyError, key)
        return found

    def set_item(self, t: Tracer, key: Value, value: Value) -> None:
        name = self.name_of(t, key)
        self.instance.refuse_to_drop(name)
        t.effects.note(self.instance)
        self.instance.stores[name] = value

    def del_item(self, t: Tracer, key: Value) -> None:
        self.get_item(t, key)
        self.instance.remove(t, self.name_of(t, key, deleted=True))

    def contains(self, t: Tracer, item: Value) -> Value:
        return Constant(self.get(t, item) is not None)

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        return self.as_dict(t).compare(t, symbol, other.as_dict(t) if isinstance(other, InstanceDict) else other)

    def as_dict(self, t: Tracer) -> Value:
        own = {n: self.instance.own(t, n) for n in self.names(t)}
        return t.new_dict({n: v for n, v in own.items() if v is not None})

    def unpack(self, t: Tracer) -> list[Value]:
        return [Constant(n) for n in self.names(t)]

    def iterate(self, t: Tracer) -> Value:
        return self.as_dict(t).iterate(t)

    def length(self, t: Tracer) -> Value:
        return Constant(len(self.names(t)))

    def truth(self, t: Tracer) -> bool:
        return bool(self.names(t))

    def m_get(self, t: Tracer, key: Value, default: Value | None = None) -> Value:
        return self.get(t, key) or default or Constant(None)

    def m_update(self, t: Tracer, /, *others: Value, **more: Value) -> Value:
        for other in others:
            for key, value in t.pairs(other.realize()):
                self.set_item(t, key, value)
        for name, value in more.items():
            self.set_item(t, Constant(name), value)
        return Constant(None)

    def m_pop(self, t: Tracer, key: Value, *default: Value) -> Value:
        found = self.get(t, key)
        if found is None:
            if default:
                return default[0]
            raise t.raised(KeyError, key)
        self.instance.remove(t, self.name_of(t, key))
        return found

    def m_setdefault(self, t: Tracer, key: Value, default: Value) -> Value:
        if (found := self.get(t, key)) is None:
            self.set_item(t, key, default)
            found = default
        return found

    def m_items(self, t: Tracer) -> Value:
        return self.as_dict(t).call_method(t, "items", [], {})

    def m_keys(self, t: Tracer) -> Value:
        return self.as_dict(t).call_method(t, "keys", [], {})

    def m_values(self, t: Tracer) -> Value:
        return self.as_dict(t).call_method(t, "values", [], {})

    def m_copy(self, t: Tracer) -> Value:
        return self.as_dict(t)

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.load(self.instance)}.__dict__")


class Super(Callable_):
    """``super(cls, owner)``; ``owner`` is an instance (a class, in a method of its metaclass) or, in a classmethod, a
    class."""

    def __init__(self, start: type, owner: Value) -> None:
        self.start, self.owner = start, owner

    def type(self) -> type:
        return super

    def get_attr(self, t: Tracer, name: str) -> Value:
        owned = self.owner.object if isinstance(self.owner, Known) else None
        on_class = isinstance(owned, type) and self.start in owned.__mro__
        kind: Any = owned if on_class else self.owner.type()
        mro = kind.__mro__
        t.provenance.bases(kind)
        for base in mro[mro.index(self.start) + 1 :]:
            if defines(t, base, name):
                if base in (torch.Tensor, TensorBase) and hasattr(self.owner, "from_torch"):
                    return self.owner.from_torch(t, name, base.__dict__[name])
                return bind_attribute(t, self.owner, base, name, base.__dict__[name], kind if on_class else None)
        raise t.raised(AttributeError, f"'super' object has no attribute {name!r}")
