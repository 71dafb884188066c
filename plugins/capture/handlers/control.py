"""``torch.cond``, ``while_loop``, ``scan`` and ``map``: branches become graphs, all one call of the higher-order op.

``associative_scan`` needs none of its own: it is the sequence of batched calls of its function that eager makes.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

import torch

from turret.plugins.capture.branches.graphs import BranchGraphs, as_tensors
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.structures import Structure, flatten
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.programs.control_flow import (
    bypassing_wrapper,
    generic_associative_scan,
    map_function,
    scan_function,
    while_loop_function,
    wrap_function,
)


def _same(name: str, one: Items[Any], other: Items[Any]) -> None:
    """Refuse results that differ in number, shape or dtype."""
    if len(one) != len(other) or any(
        a.fake.dtype != b.fake.dtype or tuple(a.fake.shape) != tuple(b.fake.shape)
        for a, b in zip(one, other, strict=False)
    ):
        raise Unsupported(f"torch.{name} whose results differ in number, shape or dtype")


@registry.function(torch.cond, torch.ops.higher_order.cond)
def cond(t: Tracer, pred: Value, true_fn: Value, false_fn: Value, operands: Value | None = None) -> Value:
    """``torch.cond``; a predicate that is known takes its branch alone."""
    pred = pred.realize()
    args = [] if operands is None else operands.realize().unpack(t)
    if not isinstance(pred, Tensor):
        return t.call(true_fn if t.truth(pred) else false_fn, args, {})
    branches = BranchGraphs(t, "cond")
    for branch in (true_fn, false_fn):
        branches.trace(branch, args)
    examples = branches.either()
    if branches.structures[0] != branches.structures[1]:
        raise Unsupported("torch.cond whose results differ in structure")
    modules, lifted = branches.close(), branches.lifted()
    results = branches.results(examples)
    operator = torch.ops.higher_order.cond
    arguments = (t.recorder.argument(pred)[0], *modules, tuple(map(t.recorder.node_here, lifted)))
    found = t.recorder.unpacked(t.recorder.record("call_function", operator, arguments, {}, results), results)
    return branches.structures[0].build(t, iter(found.unpack(t)))


@registry.function(while_loop_function, torch.ops.higher_order.while_loop)
def while_loop(
    t: Tracer, cond_fn: Value, body_fn: Value, carried_inputs: Value, additional_inputs: Value | None = None
) -> Value:
    """``while_loop`` over tensors."""
    carried, structure = flatten(t, carried_inputs)
    values = as_tensors(carried, "while_loop that carries something else than tensors")
    extra = [] if additional_inputs is None else additional_inputs.realize().unpack(t)
    branches = BranchGraphs(t, "while_loop", values)
    branches.conditions = (0,)
    branches.trace(cond_fn, extra, structure)
    branches.trace(body_fn, extra, structure)
    _same("while_loop", branches.outputs[1], values)
    modules = branches.close()
    results = branches.results([v.fake for v in branches.outputs[1]], values)
    starts = tuple(t.recorder.argument(v)[0] for v in values)
    arguments = (*modules, starts, tuple(map(t.recorder.node_here, branches.lifted())))
    node = t.recorder.record("call_function", torch.ops.higher_order.while_loop, arguments, {}, results)
    return structure.build(t, iter(t.recorder.unpacked(node, results).unpack(t)))


@registry.function(scan_function)
def scan(
    t: Tracer, combine_fn: Value, init: Value, xs: Value, *, dim: Value | None = None, reverse: Value | None = None
) -> Value:
    """``scan`` over one dimension of tensors: over the first, and results moved back.

    The function is given the state as ``init`` has it, and may return as many tensors in another structure.
    """
    starts, carried = flatten(t, init)
    columns, given = flatten(t, xs)
    if not columns:
        return t.new_tuple([init, t.new_list([])])
    values, rows = _scanned(starts), _scanned(columns)
    number, backwards = 0 if dim is None else t.constant_of(dim), reverse is not None and t.truth(reverse)
    if type(number) is not int or not all(-v.fake.dim() <= number < v.fake.dim() for v in rows):
        raise Unsupported(f"scan over dimension {number}")
    number %= rows[0].fake.dim()
    moved = [_moved(t, v, number, 0) for v in rows]
    if backwards:
        moved = _flipped(t, moved)
    shape, found = _scan(t, combine_fn, values, _scanned(moved), [], Structure(tuple, (carried, given)))
    if shape.kind not in (tuple, list) or len(shape.children) != 2 or shape.children[0].leaves != len(values):
        raise Unsupported("scan whose function returns something else than a state of as many tensors and a row")
    ends, outputs = found[: len(values)], found[len(values) :]
    if backwards:
        outputs = _flipped(t, outputs)
    tensors = as_tensors(outputs, "scan of something else than tensors")
    outputs = [_moved(t, v, 0, number) if number < v.fake.dim() else v for v in tensors]
    return Structure(tuple, shape.children).build(t, iter([*ends, *outputs]))


def _scanned(values: Items[Value]) -> list[Tensor]:
    if not values:
        raise Unsupported("scan of something else than tensors")
    return as_tensors(values, "scan of something else than tensors")


def _flipped(t: Tracer, rows: list[Value]) -> list[Value]:
    return [t.recorder.call_method("flip", [v, Constant(0)], {}) for v in rows]


@registry.function(torch.ops.higher_order.scan)
def scan_op(t: Tracer, combine_fn: Value, init: Value, xs: Value, additional_inputs: Value) -> Value:
    """The op itself: of lists of tensors, whose first dimension is the one scanned; its results are flat."""
    values, rows = (_scanned(sequence.realize().unpack(t)) for sequence in (init, xs))
    flat = flatten(t, t.new_tuple([*values, *rows]))[1]
    shape, found = _scan(t, combine_fn, values, rows, additional_inputs.realize().unpack(t), flat)
    if shape.kind not in (tuple, list):
        raise Unsupported("the operator scan over a function whose results are no sequence")
    return t.new_tuple(found)


def _scan(
    t: Tracer, combine: Value, values: list[Tensor], rows: list[Tensor], extra: list[Value], given: Structure
) -> tuple[Structure, list[Value]]:
    """A call of ``scan``, over the first dimension; ``given``: how its function takes state and row.

    Returns the structure of the function's results, and the last state with the stacked results.
    """
    length = _length("scan", rows)
    branches = BranchGraphs(t, "scan", [*values, *(_row(t, v) for v in rows)])
    branches.trace(combine, extra, given)
    outputs, count = [v.fake for v in branches.outputs[0]], len(values)
    _same("scan", branches.outputs[0][:count], values)
    modules = branches.close()
    results = branches.results([*outputs[:count], *_stacked(length, outputs[count:])], [*values, *rows])
    starts, columns = ([t.recorder.argument(v)[0] for v in part] for part in (values, rows))
    arguments = (*modules, starts, columns, tuple(map(t.recorder.node_here, branches.lifted())))
    node = t.recorder.record("call_function", torch.ops.higher_order.scan, arguments, {}, results)
    return branches.structures[0], t.recorder.unpacked(node, results).unpack(t)


@registry.function(map_function)
def map_rows(t: Tracer, f: Value, xs: Value, *args: Value) -> Value:
    """``map`` over the first dimension of all tensors in ``xs``."""
    columns, given = flatten(t, xs)
    shape, found = _map(t, f, columns, list(args), Structure(tuple, (given,)))
    return shape.build(t, iter(found))


@registry.function(torch.ops.higher_order.map_impl)
def map_op(t: Tracer, f: Value, xs: Value, pos_args: Value) -> Value:
    """The op itself: of a list of tensors."""
    columns, given = flatten(t, t.new_tuple(xs.realize().unpack(t)))
    shape, found = _map(t, f, columns, pos_args.realize().unpack(t), given)
    return shape.build(t, iter(found))


def _map(
    t: Tracer, f: Value, columns: list[Value], extra: list[Value], given: Structure
) -> tuple[Structure, list[Value]]:
    """A call of ``map_impl``; returns the structure of the function's results, and these for all rows, stacked."""
    rows = as_tensors(columns, "map over something else than tensors")
    if not rows:
        raise Unsupported("map over something else than tensors")
    length = _length("map", rows)
    branches = BranchGraphs(t, "map", [_row(t, v) for v in rows])
    branches.trace(f, extra, given)
    modules = branches.close()
    results = branches.results(_stacked(length, [v.fake for v in branches.outputs[0]]), rows)
    arguments = (
        *modules,
        [t.recorder.argument(v)[0] for v in rows],
        tuple(map(t.recorder.node_here, branches.lifted())),
    )
    node = t.recorder.record("call_function", torch.ops.higher_order.map_impl, arguments, {}, results)
    return branches.structures[0], t.recorder.unpacked(node, results).unpack(t)


@registry.function(torch.ops.higher_order.associative_scan)
def associative_scan_op(t: Tracer, combine_fn: Value, xs: Value, additional_inputs: Value) -> Value:
    """What eager runs for it: a call for each of about ``2 * log2(length)`` steps, over all pairs of a step at once."""
    run = t.made(generic_associative_scan)
    return t.call(run, [combine_fn, xs], {"additional_inputs": additional_inputs})


@registry.function(wrap_function)
def wrap(t: Tracer, /, func: Value, *args: Value, **kwargs: Value) -> Value:
    """The operator that calls its function, and marks a graph for torch's own compiler."""
    return t.call(func, list(args), kwargs)


@registry.function(bypassing_wrapper)
def call_wrapped(t: Tracer, /, wrapper_fn: Value, inner_fn: Value, *args: Value, **kwargs: Value) -> Value:
    """The operator that calls what a function makes of another one."""
    return t.call(t.call(wrapper_fn, [inner_fn], {}), list(args), kwargs)


def _length(name: str, rows: Items[Tensor]) -> Any:
    """The length of the first dimension, the same in all."""
    fakes = [v.fake for v in rows]
    if any(f.dim() == 0 for f in fakes):
        raise Unsupported(f"{name} over a tensor without dimensions")
    length = fakes[0].shape[0]
    if any(f.shape[0] != length for f in fakes) or length == 0:
        raise Unsupported(f"{name} of tensors of different lengths, or of length 0")
    return length


def _stacked(length: Any, fakes: Items[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty((length, *f.shape), dtype=f.dtype, device=f.device) for f in fakes]


def _moved(t: Tracer, value: Value, start: int, end: int) -> Value:
    return value if start == end else t.recorder.call(torch.movedim, [value, Constant(start), Constant(end)], {})


def _row(t: Tracer, value: Tensor) -> Tensor:
    """One row of a tensor, as an example: no part of the graph."""
    fake = value.fake
    with torch.no_grad():
        row = torch.empty_strided(fake.shape[1:], fake.stride()[1:], dtype=fake.dtype, device=fake.device)
    row.requires_grad_(fake.requires_grad)
    return Tensor(value.node, row)
