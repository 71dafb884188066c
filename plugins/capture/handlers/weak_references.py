"""``weakref.ref`` in compiled code: a new reference to what existed before, which outlives the call, or to a result."""

from __future__ import annotations

import weakref

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Answer, Rebuilder, Tracer, Value
from turret.plugins.capture.values.functions import Callable_


class WeakReference(Callable_):
    """A reference that the program made while it was captured."""

    def __init__(self, referent: Value) -> None:
        self.referent = referent

    def type(self) -> type:
        return weakref.ref

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if isinstance(other, WeakReference):  # equal where the referents are, as long as both are alive
            return t.compare(symbol, self.followed(), other.followed())
        return self.not_implemented_unless(other, weakref.ref)

    def key(self, t: Tracer) -> object:
        raise Unsupported("a weak reference as a dict key or set member")

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.followed()

    def followed(self) -> Value:
        """The referent, alive as long as the caller holds it."""
        if self.referent.source is None:
            raise Unsupported("following a weak reference to what was made in compiled code, and may be gone")
        return self.referent

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(weakref.ref)}({r.load(self.referent)})")


registry.followed |= {f"WeakValueDictionary.{name}" for name in ("__getitem__", "__contains__", "get")}


@registry.kind(weakref.ref)
def ref(t: Tracer, referent: Value, callback: Value | None = None) -> Value:
    if callback is not None and not t.is_none(callback):
        raise Unsupported("a weak reference with a callback")
    referent = referent.realize()
    if referent.is_constant() and referent.source is None:
        raise Unsupported(f"a weak reference to {referent.describe()}")
    if not hasattr(referent.type(), "__weakref__"):
        raise t.raised(TypeError, f"cannot create weak reference to {referent.type().__name__!r} object")
    return WeakReference(referent)
