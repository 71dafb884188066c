"""What a branch on data leaves where its sides have no one value: one of two objects, as a flag of the graph says.

It is handed around as it is, into containers, attributes and what the frame returns.  An instruction that needs the
object itself is followed twice, for either of them, as the sides of another branch on the same flag.
"""

from __future__ import annotations

from turret.plugins.capture.errors import NOWHERE
from turret.plugins.capture.values.base import Rebuilder, Tracer, Unread, Value
from turret.plugins.capture.values.tensors import Tensor


class Split(BaseException):
    """The instruction under way needs an object that data decide on; no error of an operation."""

    def __init__(self, value: Undecided) -> None:
        super().__init__()
        self.value = value


class Undecided(Unread):
    """``one`` where the flag is true, else ``other``."""

    def __init__(self, t: Tracer, flag: Tensor, one: Value, other: Value) -> None:
        super().__init__("", NOWHERE)
        self.tracer, self.source = t, None  # type: ignore[assignment]
        self.flag, self.one, self.other = flag, one, other
        t.flags.append(flag)

    def chosen(self, flag_is_true: bool) -> Value:
        return self.one if flag_is_true else self.other

    def realize(self) -> Value:
        known = self.tracer.decided.get(id(self.flag))
        if known is None:
            raise Split(self)
        return self.chosen(known).realize()

    def describe(self) -> str:
        return f"{self.one.describe()} or {self.other.describe()}, as data decide"

    def leaves(self) -> list[Value]:
        """All objects that it may be."""
        return [*leaves_of(self.one), *leaves_of(self.other)]

    def rebuild(self, r: Rebuilder) -> str:
        flag, one, other = map(r.load, (self.flag, self.one, self.other))
        return r.assign(f"{one} if {flag} else {other}")


def leaves_of(value: Value) -> list[Value]:
    """All objects that a value may be."""
    return value.leaves() if isinstance(value, Undecided) else [value]
