"""Promises about sizes: what ``mark_dynamic`` and ``mark_unbacked`` say must be true of what capture assumed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sympy
import torch

from turret.errors import MarkError
from turret.frames.sources import CallSource, ItemSource, SizeSource, Source
from turret.plugins.capture.values.base import Tracer

_UNBACKED = ("_dynamo_unbacked_indices", "_dynamo_strict_unbacked_indices")


def check_marks(tracer: Tracer) -> None:
    """Raise ``MarkError`` where a marked size is assumed to be one number, to leave the range that was given with the
    mark, or (unbacked) is branched on."""
    recorder = tracer.recorder
    symbols = {b.source: b.expression for b in recorder.bindings if isinstance(b.expression, sympy.Symbol)}
    for item in recorder.inputs:
        if not isinstance(item.real, torch.Tensor) or not item.real.__dict__ or _is_part(item.source):
            continue
        for dimension, mark, reason in _broken(item.real, item.source, symbols, recorder.shape_env):
            raise MarkError(
                f"dimension {dimension} of {item.source} was marked by {mark}, but {reason}; leave the mark away, use "
                "maybe_mark_dynamic, or change the line that needs this size"
            )


def _is_part(source: Source) -> bool:
    """Whether a tensor lies in a wrapper: what marks it is the wrapper's code."""
    return isinstance(source, ItemSource) and isinstance(source.base, CallSource)


def _broken(
    real: torch.Tensor, source: Source, symbols: dict[Source, Any], environment: Any
) -> Iterator[tuple[int, str, str]]:
    """Dimensions of a tensor whose marks are not true, with the mark and the reason; 0 and 1 are constants to all."""
    ranges = {r.dim: (r.min, r.max) for r in getattr(real, "_dynamo_dynamic_range", None) or ()}
    promised = dict.fromkeys(getattr(real, "_dynamo_dynamic_indices", None) or (), "mark_dynamic")
    promised |= dict.fromkeys((n for name in _UNBACKED for n in getattr(real, name, None) or ()), "mark_unbacked")
    for dimension, mark in promised.items():
        symbol = symbols.get(SizeSource(source, dimension, "size"))
        if symbol is None:
            continue
        reasons = [_fixed_to(symbol, environment), _outside(symbol, *ranges.get(dimension, (None, None)), environment)]
        if mark == "mark_unbacked":
            reasons.append(_branch_on(symbol, environment))
        yield from ((dimension, mark, reason) for reason in reasons if reason)


def _fixed_to(symbol: Any, environment: Any) -> str:
    found = environment.replace(symbol)
    return f"the program specialized it to be {found}" if found.is_number else ""


def _outside(symbol: Any, low: int | None, high: int | None, environment: Any) -> str:
    bounds = environment.var_to_range.get(symbol)
    if bounds is not None and low is not None and bounds.lower > max(low, 2):
        return f"not all sizes from {low} satisfy what the program needs: {bounds.lower} or more"
    if bounds is not None and high is not None and bounds.upper < high:
        return f"not all sizes to {high} satisfy what the program needs: {bounds.upper} or less"
    return ""


def _branch_on(symbol: Any, environment: Any) -> str:
    """A guard on a symbol that no equality with another one is."""
    for guard in environment.guards:
        plain = isinstance(guard.expr, sympy.Eq) and all(side.free_symbols for side in guard.expr.args)
        if symbol in guard.expr.free_symbols and not plain:
            return f"the program branches on it (Could not guard on data-dependent expression {guard.expr})"
    return ""
