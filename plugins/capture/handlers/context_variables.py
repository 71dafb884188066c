"""``contextvars.ContextVar`` in compiled code: read under guards; what stays set is set behind the graph."""

from __future__ import annotations

import contextvars
from typing import Any

from turret.frames.sources import AttrSource, CallSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Lazy, Opaque, Rebuilder, Tracer, Value

_METHODS = ("get", "set", "reset")


class ContextVariable(Opaque):
    """A variable that existed before the call, and what it holds now in the frame."""

    def __init__(self, object: contextvars.ContextVar, source: Source) -> None:
        super().__init__(object, source)
        self.is_read = False
        self.was_set = False
        """Whether it held something in the caller's context, once it was read."""
        self.content: Value | None = None
        """What it holds, once it was read or set; None for nothing."""
        self.steps: list[Value] = []
        """What was set, and which tokens from before it was reset to, in order, but for what it took back."""

    def get_attr(self, t: Tracer, name: str) -> Value:
        self.pin(t)
        if name == "name":
            return Constant(self.object.name)
        return super().get_attr(t, name)

    def has_method(self, t: Tracer, name: str) -> bool:
        return name in _METHODS or super().has_method(t, name)

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        self.pin(t)
        return Value.call_method(self, t, name, args, kwargs)

    def read(self, t: Tracer) -> Value | None:
        """What it holds; that of the caller's context is guarded where the program looks at it."""
        if self.is_read or self.steps:
            return self.content
        self.is_read, self.was_set = True, lookups.is_set_in_context(self.object)
        t.guards.take("CALL", self.place(), (lookups.is_set_in_context, self.was_set))
        if self.was_set:
            self.content = self.found(t)
        return self.content

    def place(self) -> Source:
        assert self.source is not None
        return self.source

    def found(self, t: Tracer) -> Value:
        """What ``get()`` gives in the caller's context."""
        return Lazy(t, self.object.get(), CallSource(self.place(), lookups.content_of_context_variable))

    def m_get(self, t: Tracer, default: Value | None = None, /) -> Value:
        held = self.read(t)
        if held is not None:
            return held
        if default is not None:
            return default
        if not lookups.has_default(self.object):
            raise t.raised(LookupError, self)
        if not self.is_read or self.was_set:
            raise Unsupported("the default of a context variable that was reset")
        return self.found(t)

    def m_set(self, t: Tracer, value: Value, /) -> Value:
        token = ContextToken(self, self.read(t), value)
        t.effects.note(self)
        self.content = value
        self.steps.append(token)
        return token

    def m_reset(self, t: Tracer, token: Value, /) -> Value:
        token = token.realize()
        if isinstance(token, ContextToken):
            self.take_back(t, token)
        elif isinstance(token, TokenFromBefore):
            t.effects.note(self)
            self.steps.append(ContextReset(self, token))
            self.content = token.old_value(t, self)
        else:
            raise t.raised(TypeError, f"expected an instance of Token, got {t.text(repr, [token], {}).constant()}")
        return Constant(None)

    def take_back(self, t: Tracer, token: ContextToken) -> None:
        """Undo the latest step of the frame's own."""
        if not self.steps or self.steps[-1] is not token:
            raise Unsupported("a context variable that is reset in another order than it was set")
        t.effects.note(self)
        self.steps.pop()
        self.content, token.is_used = token.before, True
        if not self.steps and t.effects.changed.get(id(self)) is self:
            del t.effects.changed[id(self)]
            self.mutated = False

    def replay(self, r: Rebuilder) -> None:
        for step in self.steps:
            r.load(step)


class ContextToken(Value):
    """What setting a variable returns: where it is loaded, the variable is set."""

    def __init__(self, variable: ContextVariable, before: Value | None, content: Value) -> None:
        """``before``: what the variable held; None for nothing."""
        self.variable, self.before, self.content = variable, before, content
        self.is_used = False

    def type(self) -> type:
        return contextvars.Token

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "var":
            return self.variable
        if name == "old_value":
            return t.wrap_known(contextvars.Token.MISSING) if self.before is None else self.before
        return super().get_attr(t, name)

    def truth(self, t: Tracer) -> bool:
        return True

    def rebuild(self, r: Rebuilder) -> str:
        if self.is_used:
            raise Unsupported("the token of a context variable that was reset, and that outlives the frame")
        _load_earlier(r, self.variable, self)
        return r.assign(f"{r.load(self.variable)}.set({r.load(self.content)})")


class ContextReset(Value):
    """A reset by a token from before the call: made where it is loaded."""

    def __init__(self, variable: ContextVariable, token: TokenFromBefore) -> None:
        self.variable, self.token = variable, token

    def rebuild(self, r: Rebuilder) -> str:
        _load_earlier(r, self.variable, self)
        return r.assign(f"{r.load(self.variable)}.reset({r.load(self.token)})")


def _load_earlier(r: Rebuilder, variable: ContextVariable, step: Value) -> None:
    for earlier in variable.steps:
        if earlier is step:
            break
        r.load(earlier)


class TokenFromBefore(Opaque):
    """A token that setting a variable returned before the call, or ahead of a graph break."""

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name in ("var", "old_value"):
            assert self.source is not None
            return Lazy(t, getattr(self.object, name), AttrSource(self.source, name))
        return super().get_attr(t, name)

    def old_value(self, t: Tracer, variable: ContextVariable) -> Value | None:
        """What its variable held then, which is ``variable``; None for nothing."""
        assert self.source is not None
        found = lookups.variable_to_reset(self.object)
        t.guards.take("CALL", self.source, (lookups.variable_to_reset, found))
        if found is not variable.object or any(
            isinstance(s, ContextReset) and s.token is self for s in variable.steps[:-1]
        ):
            raise Unsupported("a reset of a context variable by a token that was used, or is another's")
        held = self.object.old_value
        place = AttrSource(self.source, "old_value")
        if held is contextvars.Token.MISSING:
            t.guards.take("ID", place, held)
            return None
        return Lazy(t, held, place)


def _variable(t: Tracer, object: Any, source: Source) -> Value:
    made = ContextVariable(object, source)
    made.pin(t)
    return made


registry.wrappers[contextvars.ContextVar] = _variable
registry.wrappers[contextvars.Token] = lambda t, object, source: TokenFromBefore(object, source)
