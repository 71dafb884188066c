"""Comparing sizes without asking the shape environment, which turns a question into a guard (``guarded_...`` do)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from turret.graph.op_traits import size_hint
from turret.torch_compat.sizes import of_sizes


def same_size(one: Any, other: Any) -> bool:
    """Whether two sizes are written the same, products multiplied out."""
    if type(one) is int and type(other) is int:
        return one == other
    if type(one) is int or type(other) is int:
        return False
    first, second = one.node.expr, other.node.expr
    return bool(first == second or sympy.expand(_stepless(first)) == sympy.expand(_stepless(second)))


def _stepless(expression: sympy.Expr) -> sympy.Expr:
    """``Max(1, n)`` as ``n``: so fake tensors write the step over a dimension that may be empty, and then there are no
    elements to step over."""
    return expression.replace(
        lambda e: isinstance(e, of_sizes.Max | sympy.Max) and len(e.args) == 2 and sympy.S.One in e.args,
        lambda e: e.args[1] if e.args[0] == 1 else e.args[0],
    )


def same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes or strides are written the same."""
    return len(one) == len(other) and all(map(same_size, one, other))


def is_backed(value: torch.Tensor) -> bool:
    """Whether no size and no stride depends on data, so that each has a value for the sizes at hand."""
    return not any(isinstance(n, torch.SymInt) and free_unbacked_symbols(n) for n in (*value.shape, *value.stride()))


def is_empty(shape: Sequence[Any]) -> bool:
    """Whether a dimension has extent 0, whatever the symbols are."""
    return any(type(extent) is int and extent == 0 for extent in shape)


def is_broadcast(shapes: Sequence[Sequence[Any]], to: Sequence[Any]) -> bool:
    """Whether shapes broadcast to another, each extent of it that of one of them.

    Extents that are written alike are the same.  Of a symbol beside another extent the sizes at hand decide, which
    becomes a guard.
    """
    found = [type(extent) is int and extent == 1 for extent in to]
    for shape in shapes:
        for dim, extent in enumerate(shape, len(to) - len(shape)):
            if dim < 0:
                return False
            written_one = type(extent) is int and extent == 1
            if same_size(extent, to[dim]) or (not written_one and extent == to[dim]):
                found[dim] = True
            elif not written_one:
                return False
    return all(found)


def same_places(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether strides and offset are written the same."""
    return same_sizes(one.stride(), other.stride()) and same_sizes((one.storage_offset(),), (other.storage_offset(),))


def same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether strides and offset are written the same, and memory means the same: both negated, both conjugated."""
    return one is other or (
        same_places(one, other) and one.is_neg() == other.is_neg() and one.is_conj() == other.is_conj()
    )


def is_apart(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether no two elements can be one place in memory: strides step over the dimensions inside."""
    reach: Any = 0
    for stride, extent in sorted(zip(strides, shape, strict=True), key=lambda d: size_hint(d[0])):
        if isinstance(extent, int) and extent == 1:
            continue
        if not all(isinstance(v, int) for v in (stride, extent, reach)):
            return is_dense(shape, strides)
        if stride <= reach:
            return bool(extent == 0)
        reach = reach + stride * (extent - 1)
    return True


def guarded_apart(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """As ``is_apart``; where symbols leave it open, the answer for the sizes at hand, which becomes a guard."""
    if is_apart(shape, strides):
        return True
    numbers = [n for n in (*shape, *strides) if isinstance(n, torch.SymInt)]
    if not numbers:
        return False
    if any(map(free_unbacked_symbols, numbers)):
        return _is_part_of_dense(shape, strides)
    reach: Any = 0
    for stride, extent in sorted(zip(strides, shape, strict=True), key=lambda d: size_hint(d[0])):
        if isinstance(extent, int) and extent == 1:
            continue
        if not stride > reach:
            return False
        reach = reach + stride * (extent - 1)
    return True


def _is_part_of_dense(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether each stride is that of the next dimension inside times a number that the size of that is known not to
    exceed, as of parts of a tensor without gaps."""
    environment = next(n.node.shape_env for n in (*shape, *strides) if isinstance(n, torch.SymInt))
    steps = [(sympy.factor(_stepless(sympy.sympify(_expression(s)))), n) for s, n in zip(strides, shape, strict=True)]
    steps = [step for step in steps if not (isinstance(step[1], int) and step[1] == 1)]
    steps.sort(key=lambda step: _rank(step[0]))
    if any(step == 0 for step, _ in steps):
        return False
    for (inner, extent), (outer, _) in itertools.pairwise(steps):
        ratio = sympy.cancel(outer / inner)
        if not ratio.is_polynomial() or sympy.denom(ratio) != 1:
            return False
        most = environment.create_symintnode(ratio, hint=None)
        if not any(_is_known_within(n, most) for n in (extent, _without_subtrahends(extent))):
            return False
    return True


def _is_known_within(extent: Any, most: Any) -> bool:
    """Whether a size is known, or was asserted, not to exceed another.

    A symbol found to be equal to another keeps what was asserted of it before under its old name, which the shape
    environment does not look at.
    """
    within = extent <= most
    if statically_known_true(within) or not isinstance(within, torch.SymBool):
        return statically_known_true(within)
    environment = within.node.shape_env
    asserted = itertools.chain.from_iterable(environment.deferred_runtime_asserts.values())
    return any(environment.replace(a.expr) == within.node.expr for a in asserted)


def _without_subtrahends(extent: Any) -> Any:
    """What a difference of sizes does not exceed."""
    if not isinstance(extent, torch.SymInt):
        return extent
    environment = extent.node.shape_env
    kept = []
    for term in sympy.Add.make_args(sympy.expand(extent.node.expr)):
        size = -term
        subtracted = size.is_Symbol and statically_known_true(environment.create_symintnode(size, hint=None) >= 0)
        kept += [] if subtracted else [term]
    return environment.create_symintnode(sympy.Add(*kept), hint=None)


def _rank(step: sympy.Expr) -> tuple[int, Any]:
    """Where a stride stands among others that divide each other: by its symbols, then by its number."""
    number, symbols = step.as_coeff_Mul()
    return 0 if symbols == 1 else len(sympy.Mul.make_args(symbols)), number


def _expression(number: Any) -> Any:
    return number.node.expr if isinstance(number, torch.SymInt) else number


def is_dense(shape: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether the elements fill one block of memory, each in a place of its own."""
    if is_empty(shape):
        return True
    expected: Any = 1
    left = [d for d in zip(strides, shape, strict=True) if not (isinstance(d[1], int) and d[1] == 1)]
    while left:
        # From the innermost dimension on; symbols are not sorted, since nobody knows which is larger.
        found = next((number for number, (stride, _) in enumerate(left) if same_size(stride, expected)), None)
        if found is None:
            return False
        expected = expected * left.pop(found)[1]
    return True


def contiguous_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Row-major strides of a shape."""
    strides: list[Any] = []
    step: Any = 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent if not isinstance(extent, int) or extent > 1 else step
    return tuple(reversed(strides))


def span(value: torch.Tensor) -> Any:
    """How many elements lie from the first of a tensor to its last, gaps included."""
    if is_empty(value.shape):
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(value.shape, value.stride(), strict=True))
