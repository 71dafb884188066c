"""Writes of tensors to elements and slices that depend on data: the sizes of both sides are unbacked symbols.

Up to torch 2.11 the write asks whether they are equal, which nobody knows; it is told by an assertion before.
"""

from __future__ import annotations

import operator

from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.sequences import Slice, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.torch_compat.operators.checks import require


def has_unknown_bound(key: Value) -> bool:
    """Whether an index has a slice with a bound that depends on data, and nothing else than slices and numbers."""
    parts = [v.realize() for v in (key.items if type(key) is Tuple else [key])]
    if not all(isinstance(v, (Slice, Constant, Symbolic)) for v in parts):
        return False
    bounds = [b.realize() for v in parts if isinstance(v, Slice) for b in v.parts]
    return any(isinstance(b, Symbolic) and not b.is_known() for b in bounds)


def copy_into(t: Tracer, part: Value, value: Value) -> None:
    """``part.copy_(value)``, where sizes that may differ are those of one shape; a 1 stands for any size."""
    wanted, given = (list(v.realize().fake.shape) for v in (part, value))  # type: ignore[attr-defined]
    for dim in range(-min(len(wanted), len(given)), 0):
        if isinstance(given[dim], int) and (given[dim] == 1 or isinstance(wanted[dim], int)):
            continue
        sizes = [v.realize().call_method(t, "size", [Constant(dim)], {}) for v in (part, value)]
        t.call(t.wrap_known(require), [t.call(t.wrap_known(operator.eq), sizes, {})], {})
    t.recorder.call_method("copy_", [part, value], {})
