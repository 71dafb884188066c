"""Floats that operations on tensors are given and are symbols: guarded to be such as eager's kernels take.

The check is a guard, so that a graph never computes with what the number becomes in a dtype that does not hold it, nor
raises at a later call, where effects of the lines before would be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from turret.graph.scalar_limits import FloatLimits, float_limits, numbers_given
from turret.plugins.capture.errors import FloatNeeded, Unsupported
from turret.plugins.capture.values.base import Tracer
from turret.torch_compat.dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from turret.plugins.capture.values.floats import ChangingFloat


class FloatsWithinLimits(TorchDispatchMode):
    """Looks at what operations are given while they run on fake tensors."""

    def __init__(self, t: Tracer) -> None:
        super().__init__()
        self.t = t

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        for number in numbers_given(func, args, kwargs):
            if isinstance(number, torch.SymFloat) and (limits := float_limits(func, args, kwargs, number)) is not None:
                self.check(func, number, limits)
        return func(*args, **kwargs)

    def check(self, func: Any, number: torch.SymFloat, limits: FloatLimits) -> None:
        """Take a guard on a number that was found to be within limits; raise ``Unsupported`` where it is not."""
        changing = self.changing(number)
        if changing is None:
            origin = self.origin(number)
            if origin is not None and (not limits.others or torch.finfo(origin).max > limits.high):
                reason = f"a number of the dtype {origin}, which depends on data and {func} may refuse to take"
                raise FloatNeeded(reason) if self.t.policy.changing else Unsupported(reason)
        elif not limits.hold(changing.value):
            raise Unsupported(f"{changing.describe()}, which {func} refuses to take: it is {changing.value}")
        elif not changing.is_drawn:
            self.t.guards.take("SIZES", changing.source, limits.condition())

    def changing(self, number: torch.SymFloat) -> ChangingFloat | None:
        """The float of Python's that a number is."""
        nodes = (n for n in self.t.recorder.floats if n.meta["example_value"].node.expr == number.node.expr)
        return next((self.t.recorder.floats[n] for n in nodes), None)

    def origin(self, number: torch.SymFloat) -> torch.dtype | None:
        """The dtype of the element of a tensor that a number is; None of what Python computes of one.

        Optimizers compute step sizes so, of each parameter's count of steps; these are let pass.
        """
        for node in self.t.recorder.graph.nodes:
            found = node.meta.get("example_value")
            if node.target == "item" and isinstance(found, torch.SymFloat) and found.node.expr == number.node.expr:
                tensor = node.args[0]
                assert isinstance(tensor, fx.Node)
                found_dtype: torch.dtype = tensor.meta["example_value"].dtype
                return found_dtype if not _is_computed(tensor) else None
        return None


def _is_computed(tensor: fx.Node) -> bool:
    """Whether a tensor is arithmetic of Python's on numbers that depend on data, as the graph holds it."""
    return any(isinstance(a, fx.Node) and a.target is torch.full for a in tensor.args)
