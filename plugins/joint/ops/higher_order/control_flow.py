"""``torch.cond``, ``while_loop``, ``scan`` and ``map`` as single calls of the graph, their branches traced to graphs.

Where gradients flow, the call is one node of autograd's, whose backward is one call again: of the gradients of the
branches (``branches.trace_gradient``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from turret.errors import UnsupportedError
from turret.graph.fakes.either import either_of
from turret.graph.fakes.sizes import same_sizes
from turret.graph.ops.control_flow import scan_gradient, while_loop_gradient
from turret.plugins.joint.interpreter import CapturedRun
from turret.plugins.joint.ops.higher_order.branches import empty_like, trace_branch, trace_gradient, untraced
from turret.plugins.joint.tracer import JointTracer

aten = torch.ops.aten


def cond(run: CapturedRun, predicate: Any, true_branch: Any, false_branch: Any, operands: Sequence[Any] = ()) -> Any:
    """One call of ``torch.cond`` over traced branches, which may not mutate."""
    if isinstance(predicate, bool):
        return run.inline(true_branch if predicate else false_branch, operands)
    tracer, modules = run.tracer, (true_branch, false_branch)
    first, second = (trace_branch(run, module, operands) for module in modules)
    results, unknown = _either(tracer, first.results, second.results)
    given = _Nodes(tracer)
    condition, values = given(predicate), given(tuple(operands))

    def call() -> tuple:
        nodes = [tracer.recorder.submodule(branch.module) for branch in (first, second)]
        return _record(tracer, torch.ops.higher_order.cond, (condition, *nodes, values), results, unknown)

    wanted = _wanted(operands)
    if not wanted:
        return call()
    differentiable = _floats(results)
    gradients = [trace_gradient(run, module, operands, wanted, differentiable) for module in modules]

    def pull(tangents: list[torch.Tensor]) -> tuple:
        nodes = [tracer.recorder.submodule(module) for module in gradients]
        arguments = (condition, *nodes, (*values, *given(tuple(tangents))))
        return _record(tracer, torch.ops.higher_order.cond, arguments, [operands[n] for n in wanted])

    return _Call.apply(call, pull, wanted, differentiable, *operands)


def while_loop(
    run: CapturedRun, condition: Any, body: Any, carried: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    """One call of ``while_loop`` over a traced condition and body."""
    tracer, operands = run.tracer, (*carried, *additional)
    test, step = (trace_branch(run, module, operands) for module in (condition, body))
    _check_same("while_loop", step.results, list(carried))
    given = _Nodes(tracer)
    starts, rest = given(tuple(carried)), given(tuple(additional))

    def call() -> tuple:
        nodes = [tracer.recorder.submodule(branch.module) for branch in (test, step)]
        return _record(tracer, torch.ops.higher_order.while_loop, (*nodes, starts, rest), step.results)

    wanted = _wanted(operands)
    if not wanted:
        return call()
    states = _floats(carried)
    read = [n for n in wanted if n >= len(carried)]
    gradient = trace_gradient(run, body, _requiring(operands, states), [*states, *read], states)

    def pull(tangents: list[torch.Tensor]) -> tuple:
        nodes = [tracer.recorder.submodule(module) for module in (test.module, step.module, gradient)]
        totals = given(tuple(_zeros(operands[n]) for n in read))
        arguments = (*nodes, starts, rest, given(tuple(tangents)), totals)
        return _record(tracer, while_loop_gradient, arguments, [operands[n] for n in (*states, *read)])

    return _Call.apply(call, pull, [*states, *read], states, *operands)


def scan(
    run: CapturedRun, combine: Any, start: Sequence[Any], rows: Sequence[Any], additional: Sequence[Any] = ()
) -> Any:
    """One call of ``scan`` over the first dimension of ``rows``."""
    tracer = run.tracer
    with untraced():
        slices = [r.detach()[0] for r in rows]
    operands, inside = (*start, *rows, *additional), (*start, *slices, *additional)
    count, length = len(start), rows[0].shape[0]
    step = trace_branch(run, combine, inside)
    _check_same("scan", step.results[:count], list(start))
    given = _Nodes(tracer)
    starts, columns, rest = given(tuple(start)), given(tuple(rows)), given(tuple(additional))
    with untraced(), torch.no_grad():
        stacked = [torch.empty((length, *v.shape), dtype=v.dtype, device=v.device) for v in step.results[count:]]
    results = [*step.results[:count], *stacked]

    def call() -> tuple:
        node = tracer.recorder.submodule(step.module)
        return _record(tracer, torch.ops.higher_order.scan, (node, starts, columns, rest), results)

    wanted = _wanted(operands)
    if not wanted:
        return call()
    states, end = _floats(start), count + len(rows)
    read_rows = [n for n in wanted if count <= n < end]
    read = [n for n in wanted if n >= end]
    differentiable = _floats(results)
    gradient = trace_gradient(
        run, combine, _requiring(inside, [*states, *read_rows]), [*states, *read_rows, *read], differentiable
    )

    def pull(tangents: list[torch.Tensor]) -> tuple:
        again = tracer.recorder.submodule(step.module) if count else None  # which only computes states
        nodes = (again, tracer.recorder.submodule(gradient))
        totals = given(tuple(_zeros(operands[n]) for n in read))
        found = given(tuple(tangents))
        arguments = (*nodes, starts, columns, rest, found[: len(states)], found[len(states) :], totals)
        return _record(tracer, scan_gradient, arguments, [operands[n] for n in (*states, *read_rows, *read)])

    return _Call.apply(call, pull, [*states, *read_rows, *read], differentiable, *operands)


def map_rows(run: CapturedRun, function: Any, rows: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    """A ``scan`` without a state.  Rounds stay a loop: their number is no part of what is compiled, and a function may
    do anything in a round that it may do in a branch."""
    return scan(run, function, (), rows, additional)


class _Call(torch.autograd.Function):
    """A call with a gradient: ``pull`` makes gradients of the operands ``wanted`` from those of the results
    ``differentiable``."""

    @staticmethod
    def forward(
        ctx: Any, call: Callable, pull: Callable, wanted: list[int], differentiable: list[int], *operands: Any
    ) -> tuple:
        ctx.pull, ctx.wanted, ctx.differentiable, ctx.count = pull, wanted, differentiable, len(operands)
        ctx.saves_tensors = True
        return call()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple:
        found: list[Any] = [None] * ctx.count
        for number, value in zip(ctx.wanted, ctx.pull([gradients[n] for n in ctx.differentiable]), strict=True):
            found[number] = value
        return None, None, None, None, *found


class _Nodes:
    """Nodes of values as they are when asked for."""

    def __init__(self, tracer: JointTracer) -> None:
        self.tracer = tracer

    def __call__(self, values: Any) -> Any:
        return self.tracer.nodes(values, [])


def _record(
    tracer: JointTracer, op: Any, arguments: tuple, like: Sequence[Any], unknown: Sequence[sympy.Symbol] = ()
) -> tuple:
    """Record a call with results of the layouts of ``like``, of whose sizes the call gives those ``unknown``."""
    with untraced(), torch.no_grad():
        results = tuple(empty_like(v) for v in like)
    node = tracer.recorder.call(op, arguments, {}, results)
    tracer.numbers.bind(node, tracer.numbers.places(results, set(unknown)))
    tracer.track_results(node, results, results)
    return results


def _wanted(operands: Sequence[Any]) -> list[int]:
    """Operands that gradients are wanted of."""
    if not torch.is_grad_enabled():
        return []
    return [n for n, v in enumerate(operands) if isinstance(v, torch.Tensor) and v.requires_grad]


def _floats(values: Sequence[Any]) -> list[int]:
    return [
        n for n, v in enumerate(values) if isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex())
    ]


def _requiring(operands: Sequence[Any], numbers: Sequence[int]) -> list[Any]:
    """Operands, those of these numbers as tensors that require gradients: a loop hands on gradients of its states."""
    with untraced(), torch.enable_grad():
        return [empty_like(v).requires_grad_() if n in numbers else v for n, v in enumerate(operands)]


def _zeros(value: torch.Tensor) -> torch.Tensor:
    return torch.zeros(value.shape, dtype=value.dtype, device=value.device)


def _either(
    tracer: JointTracer, one: Sequence[Any], other: Sequence[Any]
) -> tuple[list[torch.Tensor | None], list[sympy.Symbol]]:
    """What stands for the results of the branch that runs, and the symbols of sizes by which they differ."""
    unknown: list[sympy.Symbol] = []

    def size() -> torch.SymInt:
        made = tracer.numbers.unknown_size()
        unknown.append(made.node.expr)
        return made

    with untraced(), torch.no_grad():
        found = [
            either_of(a, b, size)
            for a, b in zip(one, other, strict=False)
            if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)
        ]
    if len(found) < max(len(one), len(other)) or any(value is None for value in found):
        raise UnsupportedError("torch.cond whose results differ in number, rank, dtype, or in sizes and strides")
    return found, unknown


def _check_same(name: str, one: Sequence[Any], other: Sequence[Any]) -> None:
    same = len(one) == len(other) and all(
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.dtype == b.dtype
        and same_sizes(a.shape, b.shape)
        for a, b in zip(one, other, strict=False)
    )
    if not same:
        raise UnsupportedError(f"torch.{name} whose results differ in number, shape or dtype")
