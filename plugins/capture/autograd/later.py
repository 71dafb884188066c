"""Functions that run later than they are traced (a backward, a gradient hook): they may change nothing from before."""

from __future__ import annotations

from typing import Any

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Lazy, Tracer, Value


class Unchanged:
    """What there is when the trace of such a function begins.

    A change that the trace makes to it would be made once and now, and not each time that the function runs: to objects
    of the program, to those that the frames made so far, to the memory of tensors.
    """

    def __init__(self, t: Tracer, *held: Value) -> None:
        """``held``: values that the function may reach beside those in variables of the frames."""
        self.t, self.outer = t, t.effects.watched
        variables = (v for f in t.call_stack.frames for v in (*f.locals, *f.stack))
        t.effects.watched = self.outer | _reachable([*held, *variables])
        self.count = t.effects.count
        self.versions = [(v.fake, t.recorder.versions.of(v.fake)) for v in t.recorder.by_fake.values()]

    def check(self, what: str, hint: str = "") -> None:
        """Raise ``Unsupported`` where any of it has changed; ``what`` is the function, for people."""
        self.t.effects.watched = self.outer
        written = any(self.t.recorder.versions.of(fake) != version for fake, version in self.versions)
        if written or self.t.effects.count != self.count:
            raise Unsupported(f"{what} that {'writes to a tensor' if written else 'changes what'} existed before", hint)


def _reachable(pending: list[Any]) -> dict[int, Value]:
    """All values that these hold and that were looked at, by id."""
    found: dict[int, Value] = {}
    while pending:
        value = pending.pop()
        if type(value) in (list, tuple):
            pending += value
        elif type(value) is dict:
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, Lazy):
            pending.append(value.made)
        elif isinstance(value, Value) and id(value) not in found:
            found[id(value)] = value
            pending += [part for name, part in vars(value).items() if name not in _REAL]
    return found


_REAL = frozenset(("cell", "fake", "object", "real", "scope", "value"))
"""Attributes of values that hold the program's own objects, which are noted when they change."""
