"""Ints that no graph can be given, for they need more than 64 bits, and that were seen to change from call to call."""

from __future__ import annotations

from typing import Any

from turret.frames.sources import Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Opaque, Tracer


class BigInt(Opaque):
    """Such an int: it is handed around, and what needs to know it breaks the graph."""

    source: Source

    def __init__(self, t: Tracer, object: int, source: Source) -> None:
        super().__init__(object, source)
        t.policy.big_ints.add(source)
        t.guards.take("TYPE", source, int)

    def key(self, t: Tracer) -> Any:
        raise Unsupported(f"{self.describe()} as a dict key or set member")

    def describe(self) -> str:
        return f"the int {self.source}, which changes and is too large for a graph"
