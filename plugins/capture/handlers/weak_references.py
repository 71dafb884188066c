"""``weakref.ref`` in compiled code: a new reference to what existed before, which outlives the call, or to a result."""

from __future__ import annotations

import weakref

from turret.plugins.capture.errors import NOWHERE, NotConstant, Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Answer, Rebuilder, Tracer, Value
from turret.plugins.capture.values.functions import Callable_, Cell, Function, Known
from turret.plugins.capture.values.objects import Instance


class WeakReference(Callable_):
    """A reference that the program made while it was captured."""

    def __init__(self, referent: Value) -> None:
        self.referent = referent

    def type(self) -> type:
        return weakref.ref

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if isinstance(other, WeakReference):  # equal where the referents are, as long as both are alive
            return t.compare(symbol, self.followed(t), other.followed(t))
        return self.not_implemented_unless(other, weakref.ref)

    def constant(self) -> weakref.ref:
        """That of a class, which hashes and compares by the class."""
        known = self.referent.object if isinstance(self.referent, Known) else None
        if isinstance(known, type) and type(known).__hash__ is type.__hash__ and type(known).__eq__ is type.__eq__:
            return weakref.ref(known)
        raise NotConstant(self)

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.followed(t)

    def followed(self, t: Tracer) -> Value:
        """The referent, alive as long as the caller holds it, or a variable."""
        made_here = self.referent.source is None
        if made_here and not any(_is_in(v, self.referent) for frame in t.call_stack.frames for v in frame.locals):
            raise Unsupported("following a weak reference to what no variable holds, and may be gone", step=NOWHERE)
        known = getattr(self.referent, "object", None)
        if not made_here and known is not None:
            t.call_stack.check_held(known)
            t.effects.check_held(known)
        return self.referent

    def rebuild(self, r: Rebuilder) -> str:
        if self.referent.source is None and r.t.call_stack.break_at is not None:
            raise Unsupported("a graph break beside a weak reference to what the frame made", step=NOWHERE)
        if r.t.call_stack.break_at is not None:  # compiled code holds what it was loaded from until the rest has run
            r.t.effects.check_held(getattr(self.referent, "object", None))
        return r.assign(f"{r.constant(weakref.ref)}({r.load(self.referent)})")


def _is_in(variable: Value | None, value: Value) -> bool:
    held = variable.content if isinstance(variable, Cell) else variable
    return held is not None and held.realize() is value


def refused(reason: str, *values: Value) -> Unsupported:
    """That the library's own code is not followed; not even at a break, where an object of the frame's own has its end
    when nothing of the program holds it any more: compiled code holds it for longer, or not as long."""
    made_here = any(isinstance(v.realize(), Instance) and v.realize().source is None for v in values)
    return Unsupported(reason, step=NOWHERE if made_here else None)


def _refused(t: Tracer, function: Function, args: list[Value], kwargs: dict[str, Value]) -> None:
    if function.object.__qualname__ not in registry.followed:
        raise refused(f"a call of weakref.{function.object.__qualname__}", *args, *kwargs.values())


registry.module("weakref")(_refused)


@registry.function(weakref.proxy)
def new_proxy(t: Tracer, referent: Value, *callback: Value) -> Value:
    raise refused("a new weakref.proxy", referent)


registry.followed |= {f"WeakValueDictionary.{name}" for name in ("__getitem__", "__contains__", "get")}


@registry.kind(weakref.ref)
def ref(t: Tracer, referent: Value, callback: Value | None = None) -> Value:
    referent = referent.realize()
    if callback is not None and not t.is_none(callback):
        raise refused("a weak reference with a callback", referent)
    if referent.is_constant() and referent.source is None:
        raise Unsupported(f"a weak reference to {referent.describe()}")
    if not referent.type().__weakrefoffset__:  # classes written in C take references without an attribute for them
        raise t.raised(TypeError, f"cannot create weak reference to {referent.type().__name__!r} object")
    if isinstance(referent, Instance):
        referent.weakly_held = True
    return WeakReference(referent)
