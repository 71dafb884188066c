"""Operands for which an operation on numbers of data raises: the graph asserts that they are none of these.

Python computes such an operation where the program has it, and raises even if nobody reads the result; the graph
computes what is read.  A call for which an assertion fails runs as Python, which raises what the program does.
"""

from __future__ import annotations

from turret.plugins.capture.values.base import Constant, Tracer, Value

_TOO_LARGE = 2.0**62


def require(t: Tracer, condition: Value, reason: str) -> None:
    """Assert a condition on unbacked symbols, except where the program may not come by: in the branch of a ``cond``."""
    if not t.recorder.open_regions or t.recorder.in_side():
        t.assume(condition, reason)


def require_whole(t: Tracer, number: Value) -> None:
    """Assert that a float becomes an int that 64 bits hold: that it is finite, and not too large."""
    size = t.recorder.call(abs, [number], {})
    require(t, t.compare("<", size, Constant(_TOO_LARGE)), "a float that no 64-bit integer holds becomes an int")


def require_divisor(t: Tracer, number: Value) -> None:
    require(t, t.compare("!=", number, Constant(0)), "a division by zero")
