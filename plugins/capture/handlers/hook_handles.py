"""``RemovableHandle``, which hooks of modules are taken away by: each takes the next number of a count of torch's.

The count is another one at each call, and nothing but the handle and the hook's place in a dict depends on it.
"""

from __future__ import annotations

from typing import Any

from torch.utils.hooks import RemovableHandle

from turret.frames.sources import AttrSource, BoundSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import polyfills
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Answer, Constant, Rebuilder, Tracer, Value

_COUNT = AttrSource(BoundSource("RemovableHandle", RemovableHandle), "next_id")


class HookNumber(Value):
    """An int that no hook had before: so many behind the count at the beginning of the call."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead

    def type(self) -> type:
        return int

    def key(self, t: Tracer) -> Any:
        return ("hook", self.ahead)  # equal to no key that is a number

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if symbol in ("==", "!=") and isinstance(other, HookNumber):
            return Constant((self.ahead == other.ahead) == (symbol == "=="))
        raise Unsupported(f"a comparison of {self.describe()}")

    def describe(self) -> str:
        return "the number of a new hook"

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.source(_COUNT)} + {self.ahead}")


@registry.kind(RemovableHandle)
def new_handle(t: Tracer, hooks_dict: Value, *, extra_dict: Value | None = None) -> Value:
    kind: Any = t.wrap_known(RemovableHandle)
    stored = t.effects.attribute(kind, "next_id")
    if stored is not None and not isinstance(stored, HookNumber):
        raise Unsupported("a hook behind a change of RemovableHandle.next_id")
    number = stored or HookNumber(0)
    made = t.blank(RemovableHandle, [])
    t.call(t.wrap_known(polyfills.fill_handle), [made, number, hooks_dict, extra_dict or Constant(None)], {})
    kind.set_attr(t, "next_id", HookNumber(number.ahead + 1))
    return made
