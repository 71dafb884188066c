"""``grad_fn`` of a tensor: that there is one.  A graph's results have others than eager's, so nothing else is told."""

from __future__ import annotations

from typing import Any

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Rebuilder, Tracer, Value


class GradientFunction(Value):
    """What autograd is to call for a tensor of the graph."""

    def __init__(self, tensor: Value, object: Any, step: int) -> None:
        """``object``: that of the fake tensor; ``step``: of the root frame, where a break gives the real one."""
        self.tensor, self.object, self.step = tensor, object, step

    def describe(self) -> str:
        return f"grad_fn of {self.tensor.describe()}"

    def unknown(self, what: str) -> Unsupported:
        return Unsupported(f"{what} {self.describe()}", step=self.step)

    def type(self) -> type:
        raise self.unknown("the class of")

    def key(self, t: Tracer) -> Any:
        raise self.unknown("the hash of")

    def truth(self, t: Tracer) -> bool:
        return True

    def get_attr(self, t: Tracer, name: str) -> Value:
        raise self.unknown(f"attribute {name!r} of")

    def rebuild(self, r: Rebuilder) -> str:
        raise self.unknown("a result or a graph break beside")
