"""Callables: Python functions, closures, bound methods, builtin functions, classes, modules of Python, partials."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from turret.frames.descriptions import name_of
from turret.frames.sources import AttrSource, ItemSource, Source, WeakSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.facts.fingerprints import PLAIN
from turret.plugins.capture.python import lookups
from turret.plugins.capture.values.base import Answer, Constant, Rebuilder, Tracer, Value, refuse_to_drop


class Cell(Value):
    """A closure cell; ``content`` is None where it is empty."""

    def __init__(self, content: Value | None = None, cell: Any = None, source: Source | None = None) -> None:
        self.content, self.cell, self.source = content, cell, source

    def type(self) -> type:
        return types.CellType

    def contents(self) -> list[Value | None]:
        return [self.content]

    def get(self, t: Tracer) -> Value | None:
        return self.content

    def set(self, t: Tracer, value: Value | None) -> None:
        refuse_to_drop(self, [self.content])
        t.effects.note(self)
        self.content = value

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "cell_contents":
            if self.content is None:
                raise t.raised(ValueError, "Cell is empty")
            return self.content
        return super().get_attr(t, name)

    def rebuild(self, r: Rebuilder) -> str:
        name = self.make(r)
        self.fill(r)
        return name

    def make(self, r: Rebuilder) -> str:
        """Write the line that makes it, without its content."""
        return r.remember(self, r.assign(f"{r.constant(types.CellType)}()"))

    def fill(self, r: Rebuilder) -> None:
        """Write the line that gives it its content."""
        if self.content is not None:
            r.line(f"{r.load(self)}.cell_contents = {r.load(self.content)}")

    def replay(self, r: Rebuilder) -> None:
        held = r.load(self)
        if self.content is None:
            r.effect(f"del {held}.cell_contents")
        else:
            r.effect(f"{held}.cell_contents = {r.load(self.content)}")


class Callable_(Value):
    """Base of what is always true and hashes by identity."""

    def truth(self, t: Tracer) -> bool:
        return True

    def key(self, t: Tracer) -> Any:
        return self


class Known(Callable_):
    """An object known by identity that existed before: a function, a class, a module, a builtin."""

    def __init__(self, object: Any, source: Source | None = None) -> None:
        self.object, self.source = object, source

    def type(self) -> type:
        return type(self.object)

    def constant(self) -> Any:
        return self.object

    def key(self, t: Tracer) -> Any:
        return self.object

    def describe(self) -> str:
        name = name_of(self.object)
        module = getattr(self.object, "__module__", None)
        return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else str(name)

    def found(self, t: Tracer, name: str) -> Any:
        """An attribute that the object has now; raises ``AttributeError`` in the program where it has none."""
        try:
            return getattr(self.object, name)
        except AttributeError as error:
            t.provenance.absent(self.object, name)
            raise t.raised_from(error) from None

    def child(self, t: Tracer, name: str, found: Any) -> Value:
        """An attribute of the object; guarded where a program may well change it."""
        if self.source is None or t.trusted(self.object):
            t.provenance.attribute(self.object, name, found)
            return t.wrap_known(found)
        return t.wrap(found, AttrSource(self.source, name))

    def rebuild(self, r: Rebuilder) -> str:
        return r.source(self.source) if isinstance(self.source, WeakSource) else r.constant(self.object)


_OF_CALLS = frozenset({"__code__", "__defaults__", "__kwdefaults__"})
"""Attributes of a function that decide what its calls do."""


class Function(Known):
    """A Python function that existed before."""

    def get_attr(self, t: Tracer, name: str) -> Value:
        stored = t.effects.attribute(self, name)
        if stored is not None:
            return stored
        found = self.found(t, name)
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return self.child(t, name, found)
        if name == "__get__":
            return binder(self)
        if name == "__wrapped__":
            return t.wrap(found, AttrSource(self.source, name)) if self.source is not None else t.wrap_known(found)
        return self.child(t, name, found)

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        if name in _OF_CALLS:
            raise Unsupported(f"setting {name} of {self.describe()}")
        t.effects.set_attribute(self, name, value)

    def cells(self, t: Tracer) -> list[Cell]:
        """The closure, each cell by the identity that it has."""
        base = None if self.source is None else AttrSource(self.source, "__closure__")
        return [
            t.wrap_cell(cell, None if base is None else ItemSource(base, number))
            for number, cell in enumerate(self.object.__closure__ or ())
        ]

    def note_code(self, t: Tracer) -> None:
        """Take its code for a fact."""
        t.provenance.code(self.object)

    def note_defaults(self, t: Tracer) -> None:
        """Take the tuple of its defaults for a fact."""
        t.provenance.defaults(self.object)

    def default(self, t: Tracer, name: str, key: Any, value: Any) -> Value:
        """A default of a parameter; those in a tuple, which is taken for a fact, change with it."""
        if self.source is None or (name == "__defaults__" and type(value) in PLAIN):
            return t.wrap_known(value)
        return t.wrap(value, ItemSource(AttrSource(self.source, name), key))

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call_function(self, args, kwargs)

    def replay(self, r: Rebuilder) -> None:
        r.replay_attributes(self)


class LocalFunction(Function):
    """A Python function of which another one may be there on the next call, with the same code and another closure.

    What the program takes from it is guarded at its place, like the parts of any object; it is assumed to be the same
    one only where the program depends on which it is.
    """

    source: Source

    def __init__(self, t: Tracer, object: Any, source: Source) -> None:
        super().__init__(object, source)
        self.t, self.is_pinned = t, False
        t.guards.take("TYPE", source, types.FunctionType)
        t.guards.take("ID", AttrSource(source, "__code__"), object.__code__)
        t.guards.take("ID", AttrSource(source, "__globals__"), object.__globals__)
        t.guards.take("KEYS", AttrSource(source, "__dict__"), tuple(object.__dict__))

    def constant(self) -> Any:
        """The function, assumed to be the same one on every call."""
        if not self.is_pinned:
            self.is_pinned = True
            self.t.guards.take("IS", self.source, others=(WeakSource(str(self.source), self.object),))
        return self.object

    def is_constant(self) -> bool:
        return False

    def key(self, t: Tracer) -> Any:
        return self.constant()

    def child(self, t: Tracer, name: str, found: Any) -> Value:
        return t.wrap(found, AttrSource(self.source, name))

    def note_code(self, t: Tracer) -> None:
        """Nothing: the code of whichever function is there is guarded at its place."""

    def note_defaults(self, t: Tracer) -> None:
        """Nothing: defaults are guarded where they are used."""

    def default(self, t: Tracer, name: str, key: Any, value: Any) -> Value:
        defaults = AttrSource(self.source, name)
        t.guards.take("LENGTH", defaults, len(getattr(self.object, name)))
        return t.wrap(value, ItemSource(defaults, key))

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        self.constant()
        super().set_attr(t, name, value)

    def rebuild(self, r: Rebuilder) -> str:
        return r.source(self.source)


_OF_FUNCTIONS = frozenset(dir(types.FunctionType))
_NAMES = frozenset({"__name__", "__qualname__", "__module__", "__doc__", "__type_params__"}) & _OF_FUNCTIONS
"""Of the attributes that every function has, those that a call of it knows nothing of."""


class NestedFunction(Callable_):
    """A function that the program made while it was captured."""

    def __init__(
        self,
        code: types.CodeType,
        scope: dict[str, Any],
        scope_source: Source | None,
        defaults: list[Value],
        keyword_defaults: dict[str, Value],
        closure: list[Cell],
        qualified_name: str | None = None,
    ) -> None:
        self.code, self.scope, self.scope_source = code, scope, scope_source
        self.defaults, self.keyword_defaults, self.closure = defaults, keyword_defaults, closure
        self.qualified_name = qualified_name or code.co_qualname
        self.attributes: dict[str, Value] = {}
        self.annotations: Value | None = None
        """A dict; None for none so far."""

    def type(self) -> type:
        return types.FunctionType

    def describe(self) -> str:
        return f"function {self.code.co_name}"

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if name in _NAMES:
            return Constant(self.names()[name])
        if name == "__code__":
            return t.wrap_known(self.code)
        if name == "__defaults__":
            return t.new_tuple(list(self.defaults)) if self.defaults else Constant(None)
        if name == "__closure__":
            return t.new_tuple(list(self.closure)) if self.closure else Constant(None)
        if name == "__dict__":
            return t.new_dict({n: v for n, v in self.attributes.items() if n not in _OF_FUNCTIONS})
        if name == "__annotations__":
            self.annotations = self.annotations or t.new_dict({})
            return self.annotations
        if name == "__get__":
            return binder(self)
        if hasattr(types.FunctionType, name):
            raise Unsupported(f"attribute {name!r} of a new function")
        raise t.raised(AttributeError, f"'function' object has no attribute {name!r}")

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        if name == "__annotations__" and value.realize().type() is dict:
            self.annotations = value.realize()
            return
        if name in _OF_FUNCTIONS and name not in _NAMES:
            raise Unsupported(f"setting {name} of a new function")
        self.attributes[name] = value

    def names(self) -> dict[str, Any]:
        """What the function says of itself."""
        constants = self.code.co_consts
        return {
            "__name__": self.code.co_name,
            "__qualname__": self.qualified_name,
            "__module__": self.scope.get("__name__"),
            "__doc__": constants[0] if constants and isinstance(constants[0], str) else None,
            "__type_params__": (),  # of one that is generic they are set
        }

    def signature(self, t: Tracer) -> inspect.Signature:
        """``inspect.signature`` of the function, whose defaults and annotations have to be constants."""
        if "__wrapped__" in self.attributes or "__signature__" in self.attributes:
            raise Unsupported("inspect.signature of a new function that stands for another")
        cells = tuple(types.CellType() for _ in self.code.co_freevars)
        made = types.FunctionType(self.code, self.scope, None, tuple(map(t.constant_of, self.defaults)) or None, cells)
        made.__kwdefaults__ = {n: t.constant_of(v) for n, v in self.keyword_defaults.items()}
        made.__annotations__ = {} if self.annotations is None else t.constant_of(self.annotations)
        return inspect.signature(made)

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call_function(self, args, kwargs)

    def rebuild(self, r: Rebuilder) -> str:
        name = r.fresh()
        new = [c for c in self.closure if c.source is None and id(c) not in r.names]
        for cell in new:  # what is in them may lead back here
            cell.make(r)
        closure = "".join(r.load(c) + "," for c in self.closure)
        defaults = "".join(r.load(v) + "," for v in self.defaults)
        r.line(
            f"{name} = {r.constant(types.FunctionType)}({r.constant(self.code)}, {r.constant(self.scope)}, "
            f"{self.code.co_name!r}, {f'({defaults})' if defaults else None}, {f'({closure})' if closure else None})"
        )
        r.remember(self, name)
        for cell in new:
            cell.fill(r)
        if self.keyword_defaults:
            pairs = ", ".join(f"{k!r}: {r.load(v)}" for k, v in self.keyword_defaults.items())
            r.line(f"{name}.__kwdefaults__ = {{{pairs}}}")
        if self.qualified_name != self.code.co_name:
            r.line(f"{name}.__qualname__ = {self.qualified_name!r}")
        if self.annotations is not None:
            r.line(f"{name}.__annotations__ = {r.load(self.annotations)}")
        for attribute, value in self.attributes.items():
            r.line(f"{name}.{attribute} = {r.load(value)}")
        return name


class Method(Callable_):
    """A Python function bound to a value."""

    def __init__(self, function: Value, owner: Value, source: Source | None = None) -> None:
        self.function, self.owner, self.source = function, owner, source

    def type(self) -> type:
        return types.MethodType

    def describe(self) -> str:
        return f"method {self.function.describe()}"

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.function
        if name == "__class__":
            return t.wrap_known(types.MethodType)
        if name == "__call__":
            return self
        return self.function.get_attr(t, name)

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if symbol not in ("==", "!="):
            return NotImplemented
        if not isinstance(other, Method):
            return self.not_implemented_unless(other, types.MethodType)
        same = t.is_same(self.function, other.function) and t.is_same(self.owner, other.owner)
        return Constant(same == (symbol == "=="))

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call(self.function, [self.owner, *args], kwargs)

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(types.MethodType)}({r.load(self.function)}, {r.load(self.owner)})")


def binder(function: Value) -> Handler:
    """``function.__get__``."""

    def bind(t: Tracer, owner: Value, kind: Value | None = None) -> Value:
        return function if t.is_none(owner) and kind is not None else Method(function, owner)

    return Handler("__get__ of a function", bind)


_COMPARED_BY_OWNER = (types.BuiltinFunctionType, types.MethodType, types.MethodWrapperType)
"""Classes of bound methods, which are equal where their owners and functions are."""


class Builtin(Known):
    """A function written in C, or one of torch's that goes to the graph."""

    def get_attr(self, t: Tracer, name: str) -> Value:
        try:
            return t.wrap_known(getattr(self.object, name))
        except AttributeError as error:
            raise t.raised_from(error) from None

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if symbol in ("==", "!=") and isinstance(other, Builtin):  # ``Tensor.shape.__get__`` is another one each time
            return Constant((self.object == other.object) == (symbol == "=="))
        return self.not_implemented_unless(other, *_COMPARED_BY_OWNER)

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call_builtin(self.object, args, kwargs)


class Partial(Callable_):
    """``functools.partial``."""

    def __init__(
        self,
        function: Value,
        args: list[Value],
        kwargs: dict[str, Value],
        source: Source | None = None,
        object: functools.partial | None = None,
    ) -> None:
        """``object``: the one that existed before, which may have attributes of its own (``functools.wraps``)."""
        self.function, self.args, self.kwargs, self.source, self.object = function, args, kwargs, source, object
        self.own: Value | None = None
        """Its ``__dict__``, once it was asked for."""

    def type(self) -> type:
        return functools.partial

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "func":
            return self.function
        if name == "args":
            return t.new_tuple(list(self.args))
        if name == "keywords":
            return t.new_dict(dict(self.kwargs))
        if name == "__dict__":
            return self.attributes(t)
        own = self.attributes(t)
        if t.truth(own.contains(t, Constant(name))):
            return own.get_item(t, Constant(name))
        if name == "__doc__":
            return Constant(functools.partial.__doc__)
        if name == "__module__":
            return Constant(functools.partial.__module__)
        if name == "__call__":
            return Handler("functools.partial.__call__", lambda t, /, *args, **kwargs: self.call(t, list(args), kwargs))
        return super().get_attr(t, name)

    def attributes(self, t: Tracer) -> Value:
        """Its ``__dict__``."""
        if self.own is None:
            if self.object is None or self.source is None:
                self.own = t.new_dict({})
            else:
                self.own = t.wrap(vars(self.object), AttrSource(self.source, "__dict__")).realize()
        assert self.own is not None
        return self.own

    def is_flattened(self, t: Tracer) -> bool:
        """Whether a partial of this one is one of what it calls: nobody has asked for its ``__dict__``."""
        if self.own is not None or self.object is None or self.source is None:
            return self.own is None or not t.truth(self.own)
        found = lookups.is_flattened(self.object)
        t.guards.take("CALL", self.source, (lookups.is_flattened, found))
        return found

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        if name in _OF_PARTIALS:
            raise Unsupported(f"setting {name!r} of a partial")
        self.attributes(t).set_item(t, Constant(name), value)

    def del_attr(self, t: Tracer, name: str) -> None:
        if name in _OF_PARTIALS:
            raise Unsupported(f"deleting {name!r} of a partial")
        own = self.attributes(t)
        if not t.truth(own.contains(t, Constant(name))):
            raise t.raised(AttributeError, f"'functools.partial' object has no attribute {name!r}")
        own.del_item(t, Constant(name))

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call(self.function, [*self.args, *args], {**self.kwargs, **kwargs})

    def rebuild(self, r: Rebuilder) -> str:
        args = "".join(", " + r.load(v) for v in self.args)
        kwargs = "".join(f", {k}={r.load(v)}" for k, v in self.kwargs.items())
        name = r.assign(f"{r.constant(functools.partial)}({r.load(self.function)}{args}{kwargs})")
        if self.own is not None and self.source is None:
            r.remember(self, name)
            r.line(f"{name}.__dict__ = {r.load(self.own)}")
        return name


_OF_PARTIALS = frozenset({"func", "args", "keywords", "__dict__", "__class__"})


def called_as(t: Tracer, function: Value) -> str:
    """A function as the interpreter's errors name one that is called."""
    name = t.constant_of(function.get_attr(t, "__qualname__"))
    module = t.constant_of(function.get_attr(t, "__module__"))
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


class Handler(Callable_):
    """A callable of the interpreter's own: what a descriptor or a special attribute stands for."""

    def __init__(self, name: str, function: Callable[..., Value]) -> None:
        self.name, self.function = name, function

    def type(self) -> type:
        return types.BuiltinFunctionType

    def describe(self) -> str:
        return self.name

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.function(t, *args, **kwargs)
