"""What programs assert of numbers that depend on data: conditions that the graph checks when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental import symbolic_shapes

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.handlers.builtins import FUNCTIONS, function
from turret.plugins.capture.values.base import Constant, Value
from turret.plugins.capture.values.tensors import Symbolic

if TYPE_CHECKING:
    from turret.plugins.capture.interpreter.tracer import Tracer

aten = torch.ops.aten
_NO_MESSAGE = "Expected cond to be True, but got False"


def assume(t: Tracer, condition: Value, message: str) -> bool:
    """Assert a condition: on numbers that depend on data by a node of the graph, on others by a guard."""
    condition = condition.realize()
    if not isinstance(condition, Symbolic):
        return t.truth(condition)
    number = condition.number
    if isinstance(number, torch.SymBool) and not condition.is_known():
        try:
            torch._check(number, lambda: message)
        except RuntimeError as error:
            raise Unsupported(f"an assertion that no data can fulfil: {error}") from error
        t.record("call_function", aten._assert_scalar.default, (t.node_here(condition.node), message), {}, None)
        return True
    return t.truth(condition)


@function(torch._check)
def check(t: Tracer, cond: Value, message: Value | None = None) -> Value:
    text = _NO_MESSAGE
    if message is not None and not t.is_none(message):
        made = t.call(message, [], {}).realize()
        if not isinstance(made, Constant):
            raise Unsupported("a message that is not known before the graph runs")
        text = str(made.value)
    if not assume(t, cond, text):
        raise t.raised(RuntimeError, Constant(text))
    return Constant(None)


@function(symbolic_shapes.expect_true)
def expect_true(t: Tracer, cond: Value, *_: Value, **__: Value) -> Value:
    return Constant(assume(t, cond, _NO_MESSAGE))


def _is_size(t: Tracer, i: Value, message: Value | None = None, max: Value | None = None) -> Value:
    """The number is a size: not negative, and at most ``max``."""
    check(t, t.compare(">=", i, Constant(0)), message)
    if max is not None and not t.is_none(max):
        check(t, t.compare("<=", i, max), message)
    i = i.realize()
    if isinstance(i, Symbolic) and not i.is_known():
        t.call_graph(aten.sym_constrain_range_for_size.default, [i], {})
    return Constant(None)


def _alternatives(name: str) -> list[Any]:
    """A function of torch under the names that versions of it have, and what their decorators wrap."""
    found = getattr(torch, name, None)
    return [f for f in (found, getattr(found, "__wrapped__", None)) if f is not None]


for _function in _alternatives("_check_is_size"):
    FUNCTIONS[_function] = _is_size
