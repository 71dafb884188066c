"""Calls with a symbolic index, or into a symbolic size: the index is made to count from the start beforehand.

What is lowered then never meets a negative index or one past the end.  Where all symbols are backed, guards decide
whether the index counts from the end and which end it passes: the same ones that the shape of the result takes.

Unbacked symbols can have no guards.  A fake implementation would make a size of its own for every such slice, and
nobody would know that two of them are one; here equal indices into equal sizes give one number, computed by the host,
and all shapes are written in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_false, statically_known_true

from turret.errors import UnsupportedError
from turret.graph.ops.host_scalars import bound_of_slice, end_of_slice, position_of_element
from turret.plugins.joint.tracer import JointTracer, Rule

aten = torch.ops.aten


def with_known_indices(rule: Rule, func: Any) -> Rule:
    """``rule`` for calls of ``func`` whose indices count from the start; symbolic ones that may not are made to."""
    settle = _SETTLERS.get(func)
    if settle is None:
        return rule
    names = [a.name for a in func._schema.arguments]

    def call(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        asked = (*(given.get(name) for name in ("start", "end", "index")), *_shape(given))
        if any(isinstance(v, torch.SymInt) for v in asked):
            settle(tracer, given)
            return rule(tracer, func, tuple(given[name] for name in names[: len(given)] if name in given), {})
        return rule(tracer, func, args, kwargs)

    return call


def indexes_by_data(args: tuple) -> bool:
    """Whether a tensor is indexed by a tuple of numbers and slices, and one of the numbers depends on data."""
    if not isinstance(args[0], torch.Tensor) or not isinstance(args[1], tuple):
        return False
    plain = all(p is None or p is Ellipsis or isinstance(p, int | torch.SymInt | slice) for p in args[1])
    return plain and any(isinstance(p, torch.SymInt) and bool(free_unbacked_symbols(p)) for p in args[1])


def _settle_slice(tracer: JointTracer, given: dict[str, Any]) -> None:
    extent = _extent(given)
    start, end = given.get("start"), given.get("end")
    start = 0 if start is None else _bound(tracer, start, extent)
    end = extent if end is None or statically_known_true(end == sys.maxsize) else _bound(tracer, end, extent)
    if not guard_or_false(end >= start):
        backed = _are_backed(start, end)
        end = start if backed else tracer.numbers.compute(end_of_slice, end, start, least=start, most=extent)
    given |= {"start": start, "end": end, "step": given.get("step", 1)}


def _settle_element(tracer: JointTracer, given: dict[str, Any]) -> None:
    extent, index = _extent(given), given["index"]
    if _are_backed(index, extent):
        if not -extent <= index < extent:  # fake implementations of some versions of torch let symbols pass
            raise UnsupportedError(f"eager refuses to select the element {index} of {extent}")
        given["index"] = index + extent if index < 0 else index
        return
    if not guard_or_false(index >= 0):
        index = tracer.numbers.compute(position_of_element, index, extent)
    tracer.numbers.assume(index >= 0, "index out of range")
    tracer.numbers.assume(index < extent, "index out of range")
    given["index"] = index


def _are_backed(*numbers: Any) -> bool:
    """Whether a comparison of the numbers has an answer now, which a guard keeps."""
    return not any(isinstance(n, torch.SymInt) and free_unbacked_symbols(n) for n in numbers)


def _extent(given: dict[str, Any]) -> Any:
    """The size that the indices go into."""
    given.setdefault("dim", 0)
    return _shape(given)[given["dim"]]


def _shape(given: dict[str, Any]) -> Any:
    return given["input_sizes"] if "input_sizes" in given else given["self"].shape


def _bound(tracer: JointTracer, index: Any, extent: Any) -> Any:
    if _are_backed(index, extent):
        position = position_of_element(index, extent)
        return 0 if position < 0 else extent if position > extent else position
    if guard_or_false(torch.sym_not(index < 0)) and guard_or_false(index <= extent):
        return index
    return tracer.numbers.compute(bound_of_slice, index, extent, least=0, most=extent)


_SETTLERS: dict[Any, Callable[[Any, dict[str, Any]], None]] = {
    aten.slice.Tensor: _settle_slice,
    aten.slice_backward.default: _settle_slice,
    aten.slice_scatter.default: _settle_slice,
    aten.select.int: _settle_element,
    aten.select_backward.default: _settle_element,
    aten.select_scatter.default: _settle_element,
}
