"""Exceptions, and the tracebacks of those that are raised while capturing."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

from turret.frames.sources import AttrSource, Source
from turret.plugins.capture.errors import NOWHERE, Raised, Unsupported
from turret.plugins.capture.python.places import traceback_entry
from turret.plugins.capture.values.base import Constant, Lazy, Rebuilder, Tracer, Value, spelled
from turret.plugins.capture.values.classes import METHODS_IN_C, builtin_base, look_up
from turret.plugins.capture.values.functions import Handler
from turret.plugins.capture.values.objects import DELETED, Instance

_OF_PROGRAM = (types.FunctionType, staticmethod)
"""What ``__new__`` and ``__init__`` of a class are that are not written in C."""
_FIELDS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_TOLD = frozenset(
    ("errno", "strerror", "filename", "filename2", "msg", "lineno", "encoding", "object", "start", "end", "reason")
)
"""Fields that the text of an exception tells."""
_LOOK_AT_FRAMES = frozenset({"tb_frame", "walk_tb"})
"""Names by which a program gets at the frames of a traceback."""


class Traceback(Value):
    """An entry of a traceback: a place in the code of a frame, and the entries of the frames that it called."""

    def __init__(self, code: types.CodeType, module: str, offset: int, line: int, inner: Value) -> None:
        self.code, self.module, self.offset, self.line, self.inner = code, module, offset, line, inner

    def type(self) -> type:
        return types.TracebackType

    def key(self, t: Tracer) -> Any:
        return self

    def truth(self, t: Tracer) -> bool:
        return True

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "tb_next":
            return self.inner
        if name == "tb_lineno":
            return Constant(self.line)
        if name == "tb_frame":
            raise self.without_frames()
        return super().get_attr(t, name)

    def without_frames(self) -> Unsupported:
        return Unsupported("a frame of a traceback, which compiled code does not have", step=NOWHERE)

    def rebuild(self, r: Rebuilder) -> str:
        if any(not _LOOK_AT_FRAMES.isdisjoint(code.co_names) for code in r.t.provenance.codes):
            raise self.without_frames()
        place = f"{r.constant(self.code)}, {self.module!r}, {self.offset}, {self.line}"
        return r.assign(f"{r.constant(traceback_entry)}({place}, {r.load(self.inner)})")


class ExceptionInstance(Instance):
    """An exception; ``args`` as given to its class.

    Of one that existed before, what the frame has not ``changed`` is what the object itself says.
    """

    def __init__(self, kind: type, args: list[Value], object: Any = None, source: Source | None = None) -> None:
        super().__init__(kind, object, source)
        self.args = args
        self.created_with = args
        """What ``__new__`` written in C was given."""
        self.initialized_with: list[Value] | None = args
        """What ``__init__`` written in C was given, which makes fields of it; None before it is called."""
        self.cause: Value | None = None
        self.context: Value | None = None
        self.raised = False
        """Without a context it has the exception that the frame's caller handles, which is known when the code runs."""
        self.settled = False
        """Whether its context is found, until it is raised again; one thrown into a generator has no caller's."""
        self.suppressed = False
        """``__suppress_context__``: set by ``raise ... from``."""
        self.trace: Value | None = None
        """``__traceback__``: another value each time that the exception goes through a frame."""
        self.is_traced = False
        """Whether the traceback of one from before names the next instruction that raises it already."""
        self.changed: set[str] = set()
        """Of one that existed before: attributes of every exception that were set."""

    def change(self, t: Tracer, *names: str) -> None:
        """Attributes that every exception has are about to be set."""
        if self.object is not None:
            t.effects.note(self)
            self.changed.update(names)

    def has_no_context(self) -> bool:
        return self.context is None if self.is_known("__context__") else self.object.__context__ is None

    def is_known(self, name: str) -> bool:
        """Whether capture knows such an attribute, in place of the object."""
        return self.object is None or name in self.changed

    def follow(self, t: Tracer, handled: Value | None) -> None:
        """Raised while ``handled`` is: that is its context from now on, and nothing that it is the context of."""
        if handled is None or handled is self:
            return
        link: Any = handled
        seen: set[int] = set()
        while isinstance(link, ExceptionInstance) and link.context is not None and id(link) not in seen:
            seen.add(id(link))
            if link.context is self:
                link.change(t, "__context__")
                link.context = None
            link = link.context
        if self.object is not None and isinstance(link, ExceptionInstance) and not link.is_known("__context__"):
            raise Unsupported("an exception from before, raised while another one is handled that may come from it")
        self.context = handled

    def find_context(self, t: Tracer, handled: Value | None) -> None:
        """It is raised while ``handled`` is, or nothing that the frame knows of."""
        if not self.settled:
            self.change(t, "__context__")
            self.follow(t, handled)
            self.raised = True
        self.settled = True

    def go_through(self, t: Tracer, code: types.CodeType, module: str, offset: int, line: int) -> None:
        """An instruction of a frame raises it, or called what raised it."""
        if self.is_traced:
            self.is_traced = False
            return
        inner = self.traceback(t)
        self.change(t, "__traceback__")
        self.trace = Traceback(code, module, offset, line, inner)

    def traceback(self, t: Tracer) -> Value:
        """``__traceback__``."""
        if self.is_known("__traceback__"):
            return self.trace or Constant(None)
        return Lazy(t, self.object.__traceback__, self.step(AttrSource, "__traceback__"))

    def describe(self) -> str:
        said = ", ".join(str(a.value) if isinstance(a, Constant) else a.describe() for a in self.args)
        return f"{self.kind.__name__}({said})"

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "args":
            return t.new_tuple(list(self.args))
        if name in ("__cause__", "__context__") and (found := self.linked(name)) is not None:
            return found
        if name == "__suppress_context__" and self.is_known(name):
            return Constant(self.suppressed)
        if name == "__traceback__":
            return self.traceback(t).realize()
        if name == "__suppress_context__":
            raise Unsupported(f"{name} of an exception")
        if name == "with_traceback":
            return Handler(name, self.with_traceback)
        found = self.field(t, name)
        return super().get_attr(t, name) if found is None else found

    def field(self, t: Tracer, name: str) -> Value | None:
        """What the interpreter keeps beside the arguments, as ``errno`` of an ``OSError``; None for another attribute,
        and of an exception from before."""
        if self.object is not None or name[:2] == "__":
            return None
        owner, raw = look_up(t, self.kind, name)
        if not isinstance(raw, _FIELDS) or owner.__module__ != "builtins":
            return None
        if name in self.stores:
            return None if self.stores[name] is DELETED else self.stores[name]
        return self.initial_field(t, name)

    def initial_field(self, t: Tracer, name: str) -> Value:
        """What the class written in C makes of the arguments that it was given."""
        base = builtin_base(self.kind)
        created = {object(): value for value in self.created_with}
        initialized = {object(): value for value in self.initialized_with or ()}
        if hasattr(self.kind, "__del__"):  # it would run at the end of another one
            raise Unsupported(f"{name} of an exception")
        try:
            made = base.__new__(self.kind, *created)
            if self.initialized_with is not None:
                base.__init__(made, *initialized)  # type: ignore[misc]
        except Exception:
            raise Unsupported(f"{name} of an exception") from None
        return _in_place_of(t, getattr(made, name), created | initialized)

    def text(self, t: Tracer, method: str) -> Value:
        """``__str__`` or ``__repr__`` of the class written in C."""
        if self.object is not None and issubclass(self.kind, OSError):
            raise Unsupported(f"{method} of an exception from before, which may have the name of a file")
        told = [name for name in self.stores if name in _TOLD] if self.object is None else []
        given = [self.created_with, self.initialized_with, self.args]
        parts = [Constant(None) if values is None else t.new_tuple(values) for values in given]
        fields = [Constant(None) if self.stores[name] is DELETED else self.stores[name] for name in told]
        return t.fold(functools.partial(_text, self.kind, method, told), [*parts, *fields], {})

    def note_attribute(self, t: Tracer, owner: Value, name: str) -> None:
        """It says that ``owner`` has no attribute of a name, unless it says of another one already."""
        if not issubclass(self.kind, AttributeError):
            return
        if self.object is None:
            if "name" not in self.stores and "obj" not in self.stores:
                self.stores.update(name=Constant(name), obj=owner)
        elif all(t.is_none(self.get_attr(t, field)) for field in ("name", "obj")):
            self.store(t, "name", Constant(name))
            self.store(t, "obj", owner)

    def linked(self, name: str) -> Value | None:
        """``__cause__`` or ``__context__``; None where only the object itself knows it."""
        if name == "__context__" and self.raised and self.context is None:
            raise Unsupported("__context__ of an exception, which may be one that the caller handles")
        if not self.is_known(name):
            return None
        return (self.cause if name == "__cause__" else self.context) or Constant(None)

    def with_traceback(self, t: Tracer, trace: Value) -> Value:
        self.set_attr(t, "__traceback__", trace)
        return self

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        if name == "__cause__":
            self.set_cause(t, value)
        elif name == "__context__":
            self.change(t, name)
            self.context = None if t.is_none(value) else value
        elif name == "__suppress_context__":
            self.change(t, name)
            self.suppressed = t.truth(value)
        elif name == "__traceback__":
            self.change(t, name)
            self.trace = _trace(t, value)
        elif name == "args":
            self.change(t, name)
            self.args = value.unpack(t)
        else:
            super().set_attr(t, name, value)

    def set_cause(self, t: Tracer, cause: Value) -> None:
        """``raise self from cause``, as far as the exception goes."""
        self.change(t, "__cause__", "__suppress_context__")
        self.cause, self.suppressed = None if t.is_none(cause) else cause, True

    def rebuild(self, r: Rebuilder) -> str:
        made = r.constant(self.kind)
        args = "".join(", " + r.load(v) for v in self.created_with)
        if any(isinstance(look_up(r.t, self.kind, n)[1], _OF_PROGRAM) for n in ("__new__", "__init__")):
            base = r.constant(builtin_base(self.kind))
            name = r.assign(f"{base}.__new__({made}{args})")
            if self.initialized_with is not None:
                args = "".join(", " + r.load(v) for v in self.initialized_with)
                r.line(f"{base}.__init__({name}{args})")
        else:
            name = r.assign(f"{made}({args[2:]})")
        r.remember(self, name)
        self.write_stores(r, name, r.line)
        changed = {"__suppress_context__"} if self.suppressed else set()
        last = self.created_with if self.initialized_with is None else self.initialized_with
        if self.args is not last:
            changed.add("args")
        for attribute, value in (("__cause__", self.cause), ("__traceback__", self.trace)):
            changed |= set() if value is None else {attribute}
        if self.raised or self.context is not None:
            changed.add("__context__")
        self.write_changed(r, name, r.line, changed)
        return name

    def replay(self, r: Rebuilder) -> None:
        super().replay(r)
        self.write_changed(r, r.load(self), r.effect, self.changed)

    def write_changed(self, r: Rebuilder, name: str, line: Callable[[str], None], changed: set[str]) -> None:
        """Write lines that set some of the attributes that every exception has."""
        for attribute, value in (("__cause__", self.cause), ("__traceback__", self.trace)):
            if attribute in changed:
                line(f"{name}.{attribute} = {r.load(value or Constant(None))}")
        if "args" in changed:
            line(f"{name}.args = {r.load(r.t.new_tuple(list(self.args)))}")
        if "__context__" in changed:
            ours = self.context is not None or not self.raised
            handled = f"{r.constant(sys.exc_info)}()[1]"  # by the caller
            line(f"{name}.__context__ = {r.load(self.context or Constant(None)) if ours else handled}")
        if "__suppress_context__" in changed:  # which giving it a cause has set
            line(f"{name}.__suppress_context__ = {self.suppressed}")


def blank_exception(t: Tracer, kind: type, args: list[Value]) -> ExceptionInstance:
    """A new exception before ``__init__``, of the class that ``OSError`` chooses by the number of the error."""
    if issubclass(kind, UnicodeError) and kind is not UnicodeError:
        raise Unsupported(f"making a {kind.__name__}")
    if issubclass(kind, OSError) and len(args) > 2:
        raise Unsupported(f"a {kind.__name__} with the name of a file")
    if kind is OSError and len(args) == 2:
        kind = type(OSError(t.constant_of(args[0]), ""))
    made = ExceptionInstance(kind, list(args))
    init = look_up(t, kind, "__init__")[1]
    if isinstance(init, types.FunctionType):
        made.initialized_with = None
        if issubclass(kind, OSError) and look_up(t, kind, "__new__")[1] is OSError.__new__:
            made.args = []  # it leaves them to its ``__init__``
    return made


def _text(
    kind: type, method: str, names: list[str], created: tuple, initialized: tuple | None, args: tuple, *fields: Any
) -> str:
    """``str`` or ``repr`` of an exception, by the method of the class written in C."""
    base = builtin_base(kind)
    made = base.__new__(kind, *created)
    if initialized is not None:
        base.__init__(made, *initialized)  # type: ignore[misc]
    made.args = args
    for name, value in zip(names, fields, strict=True):
        object.__setattr__(made, name, value)
    return getattr(base, method)(made)


def _in_place_of(t: Tracer, held: Any, values: dict[Any, Value]) -> Value:
    """The value for what an exception holds that was made of objects in place of ``values``."""
    if type(held) is tuple:
        return t.new_tuple([_in_place_of(t, v, values) for v in held])
    return values[held] if type(held) is object else t.made(held)


def kept_fields(error: BaseException) -> dict[str, Any]:
    """Fields of an exception, as ``name`` of a ``NameError``, that its arguments do not give it."""
    base = builtin_base(type(error))
    try:
        plain: Any = base(*error.args)
    except Exception:
        plain = None
    kinds = [kind for kind in base.__mro__ if kind not in (BaseException, BaseExceptionGroup, object)]
    raw = {name: field for kind in reversed(kinds) for name, field in vars(kind).items() if isinstance(field, _FIELDS)}
    held = {name: _read(error, field) for name, field in raw.items() if name[:2] != "__"}
    return {name: value for name, value in held.items() if value is not (plain and _read(plain, raw[name]))}


def _read(error: BaseException, field: Any) -> Any:
    try:
        return field.__get__(error)
    except (AttributeError, TypeError):  # nothing, or nothing yet
        return None


def _add_note(t: Tracer, error: Value, note: Value) -> Value:
    """``BaseException.add_note``."""
    if not issubclass(note.realize().type(), str):
        raise t.raised(TypeError, f"note must be a str, not {spelled(note.realize().type())!r}")
    try:
        held = error.get_attr(t, "__notes__").realize()
    except Raised as raised:
        if not issubclass(raised.value.type(), AttributeError):
            raise
        error.set_attr(t, "__notes__", t.new_list([note]))
        return Constant(None)
    if not issubclass(held.type(), list):
        raise t.raised(TypeError, "Cannot add note: __notes__ is not a list")
    return held.call_method(t, "append", [note], {})


METHODS_IN_C[BaseException] = {"add_note": _add_note}


def caught(value: Value) -> ExceptionInstance:
    """An exception that is being handled."""
    value = value.realize()
    if not isinstance(value, ExceptionInstance):
        raise Unsupported(f"{value.describe()}, an exception whose class hides what it is")
    return value


def traceback_of(trace: types.TracebackType | None) -> Value | None:
    """The traceback of what a function raised that was called while capturing, as far as it is the program's."""
    if trace is None:
        return None
    inner, frame = traceback_of(trace.tb_next), trace.tb_frame
    module = frame.f_globals.get("__name__", "__main__")
    if module.partition(".")[0] == "turret":
        return inner
    return Traceback(frame.f_code, module, trace.tb_lasti, trace.tb_lineno, inner or Constant(None))


def _trace(t: Tracer, value: Value) -> Value | None:
    """What is set as a traceback."""
    if t.is_none(value):
        return None
    if value.realize().type() is not types.TracebackType:
        raise Unsupported(f"{value.describe()} as the traceback of an exception")
    return value
