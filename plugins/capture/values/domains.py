"""Operands for which an operation on numbers of data raises: the graph asserts that they are none of these.

Python computes such an operation where the program has it, and raises even if nobody reads the result; the graph
computes what is read.  A call for which an assertion fails runs as Python, which raises what the program does.
"""

from __future__ import annotations

import operator
import sys

from turret.plugins.capture.values.base import Constant, Tracer, Value

_TOO_LARGE = 2.0**62
_MOST_DOUBLINGS = 1023
"""The exponent of the largest power of two that is a float."""


def require(t: Tracer, condition: Value, reason: str) -> None:
    """Assert a condition on unbacked symbols, except where the program may not come by: in the branch of a ``cond``."""
    if not t.recorder.open_regions or t.recorder.in_side():
        t.assume(condition, reason)


def require_whole(t: Tracer, number: Value) -> None:
    """Assert that a float becomes an int that 64 bits hold: that it is finite, and not too large."""
    size = t.recorder.call(abs, [number], {})
    require(t, t.compare("<", size, Constant(_TOO_LARGE)), "a float that no 64-bit integer holds becomes an int")


def require_made(t: Tracer, number: Value) -> None:
    """Assert nothing of a float but that it can be computed: what computes it raises as Python does."""
    same, other = t.compare("==", number, number), t.compare("!=", number, number)
    require(t, t.binary(operator.or_, same, other), "a number that is none")


def require_finite_power(t: Tracer, base: Value, exponent: float) -> None:
    """Assert that ``abs(base) ** exponent`` is a float: Python raises where that of a finite base would be infinite."""
    size = t.recorder.call(abs, [base], {})
    most = 2.0 ** min(_MOST_DOUBLINGS, _MOST_DOUBLINGS / exponent)
    small, infinite = t.compare("<", size, Constant(most)), t.compare(">", size, Constant(sys.float_info.max))
    holds = t.binary(operator.or_, t.binary(operator.or_, small, infinite), t.compare("!=", size, size))
    require(t, holds, "a power that is no float any more")


def require_divisor(t: Tracer, number: Value) -> None:
    require(t, t.compare("!=", number, Constant(0)), "a division by zero")
