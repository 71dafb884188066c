"""Floats that operations on tensors are given and are symbols: guarded to be such as eager's kernels take.

The check is a guard, so that a graph never computes with what the number becomes in a dtype that does not hold it, nor
raises at a later call, where effects of the lines before would be lost.  Of a number that depends on data the graph
asserts it.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from turret.graph.scalar_limits import FloatLimits, float_limits, numbers_given
from turret.plugins.capture.errors import FloatNeeded, Unsupported
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.domains import require
from turret.plugins.capture.values.symbols import Symbolic
from turret.torch_compat.dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from turret.plugins.capture.values.floats import ChangingFloat


class FloatsWithinLimits(TorchDispatchMode):
    """Looks at what operations are given while they run on fake tensors."""

    def __init__(self, t: Tracer) -> None:
        super().__init__()
        self.t = t
        self.asserted: list[tuple[Any, torch.SymFloat, FloatLimits]] = []

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
            if self.may_exceed(number, limits):
                self.asserted.append((func, number, limits))
        elif not limits.hold(changing.value):
            raise Unsupported(f"{changing.describe()}, which {func} refuses to take: it is {changing.value}")
        elif not changing.is_drawn:
            self.t.guards.take("SIZES", changing.source, limits.condition())

    def assert_limits(self, arguments: list[Value]) -> None:
        """Assert of the numbers of data among the arguments of a call what was found that it needs."""
        for func, number, limits in self.asserted:
            value = next((v for v in arguments if _is_symbol_of(v, number)), None)
            if value is None or (self.t.recorder.open_regions and not self.t.recorder.in_side()):
                reason = f"a number that depends on data and {func} may refuse to take"
                raise FloatNeeded(reason) if self.t.policy.changing else Unsupported(reason)
            low, high = Constant(limits.low), Constant(limits.high)
            held = self.t.binary(operator.and_, self.t.compare(">=", value, low), self.t.compare("<=", value, high))
            if limits.others:
                for sign, other in (("==", Constant(math.inf)), ("==", Constant(-math.inf)), ("!=", value)):
                    held = self.t.binary(operator.or_, held, self.t.compare(sign, value, other))
            require(self.t, held, f"a number that {func} refuses to take")

    def changing(self, number: torch.SymFloat) -> ChangingFloat | None:
        """The float of Python's that a number is."""
        nodes = (n for n in self.t.recorder.floats if n.meta["example_value"].node.expr == number.node.expr)
        return next((self.t.recorder.floats[n] for n in nodes), None)

    def may_exceed(self, number: torch.SymFloat, limits: FloatLimits) -> bool:
        """Whether a number of data may lie beyond limits; the step sizes of optimizers do not."""
        if self.t.call_stack.in_optimizer():
            return False
        origin = self.origin(number)
        return origin is None or not limits.others or torch.finfo(origin).max > limits.high

    def origin(self, number: torch.SymFloat) -> torch.dtype | None:
        """The dtype of the element of a tensor that a number is; None of what is computed of one."""
        for node in self.t.recorder.graph.nodes:
            found = node.meta.get("example_value")
            if node.target == "item" and isinstance(found, torch.SymFloat) and found.node.expr == number.node.expr:
                tensor = node.args[0]
                assert isinstance(tensor, fx.Node)
                found_dtype: torch.dtype = tensor.meta["example_value"].dtype
                return found_dtype
        return None


def _is_symbol_of(value: Value, number: torch.SymFloat) -> bool:
    return isinstance(value, Symbolic) and value.type() is float and value.number.node.expr == number.node.expr
