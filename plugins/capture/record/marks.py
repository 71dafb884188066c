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
    ranges = {r.dim: (r.min, r.max) for r in _marked(real, "_dynamo_dynamic_range")}
    promised = dict.fromkeys(_marked(real, "_dynamo_dynamic_indices"), "mark_dynamic")
    promised |= dict.fromkeys([n for name in _UNBACKED for n in _marked(real, name)], "mark_unbacked")
    for dimension, mark in promised.items():
        symbol = symbols.get(SizeSource(source, dimension, "size"))
        if symbol is None:
            continue  # 0 and 1 are constants everywhere
        found = environment.replace(symbol)
        if found.is_number:
            yield dimension, mark, f"the program specialized it to be {found}"
        if mark == "mark_unbacked" and (branch := _branch_on(symbol, environment)) is not None:
            yield dimension, mark, f"the program branches on it (Could not guard on data-dependent expression {branch})"
        bounds = environment.var_to_range.get(symbol)
        if bounds is not None and dimension in ranges:
            yield from ((dimension, mark, reason) for reason in _narrower(bounds, *ranges[dimension]))


def _marked(real: torch.Tensor, attribute: str) -> Any:
    """What marks have left on a tensor under a name."""
    return getattr(real, attribute, None) or ()


def _narrower(bounds: Any, low: int | None, high: int | None) -> Iterator[str]:
    """Where the sizes that are left do not reach to the ends of those that were promised."""
    if low is not None and bounds.lower > max(low, 2):
        yield f"not all sizes from {low} satisfy what the program needs: {bounds.lower} or more"
    if high is not None and bounds.upper < high:
        yield f"not all sizes to {high} satisfy what the program needs: {bounds.upper} or less"


def _branch_on(symbol: Any, environment: Any) -> Any:
    """A guard on a symbol that no equality with another one is."""
    for guard in environment.guards:
        plain = isinstance(guard.expr, sympy.Eq) and all(side.free_symbols for side in guard.expr.args)
        if symbol in guard.expr.free_symbols and not plain:
            return guard.expr
    return None
