"""Control flow on data as single calls: what a plan, or a graph run node by node, calls for ``torch.cond`` and loops.

A branch is a graph module or (in a plan) a plan; either is a function of the operands that returns a sequence of
tensors.  Gradients of loops are ops of Turret's own: each computes the states of its loop again, and goes back over
them, so that nothing of unknown size is kept between forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.torch_compat.operators.ops import HigherOrderOperator

Branch = Callable[..., Sequence[Any]]


class ControlFlow:
    """A higher-order op as a plan calls it: of branches and tensors."""

    tags = (torch.Tag.data_dependent_output,)

    def __init__(self, run: Callable[..., Any]) -> None:
        self._op = run

    def __call__(self, *args: Any) -> Any:
        return self._op(*args)


class _LoopGradient(HigherOrderOperator):
    """An op of Turret's own, which is the same in a plan and outside."""

    def __init__(self, name: str, run: Callable[..., Any]) -> None:
        super().__init__(name)  # type: ignore[no-untyped-call]
        self.run = run

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)


def _cond(predicate: torch.Tensor, if_true: Branch, if_false: Branch, operands: Sequence[Any]) -> Sequence[Any]:
    return (if_true if bool(predicate) else if_false)(*operands)


def _states(
    condition: Branch, body: Branch, carried: Sequence[Any], additional: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """What a loop carries into each of its rounds, and out of the last."""
    states = [tuple(v.clone() for v in carried)]  # what no round replaces must not be the caller's memory
    while bool(condition(*states[-1], *additional)[0]):
        states.append(tuple(body(*states[-1], *additional)))
    return states


def _while_loop(
    condition: Branch, body: Branch, carried: Sequence[Any], additional: Sequence[Any]
) -> tuple[torch.Tensor, ...]:
    state = tuple(v.clone() for v in carried)
    while bool(condition(*state, *additional)[0]):
        state = tuple(body(*state, *additional))
    return state


def _while_loop_gradient(
    condition: Branch,
    body: Branch,
    gradient: Branch,
    carried: Sequence[Any],
    additional: Sequence[Any],
    tangents: Sequence[torch.Tensor],
    totals: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """Gradients of what a loop starts with, then of what each round reads.

    ``gradient``: a round's operands, then gradients of what of its results has one -> gradients of those operands.
    ``totals``: zeros like the gradients of what each round reads.
    """
    found, sums = tuple(tangents), tuple(totals)
    for state in reversed(_states(condition, body, carried, additional)[:-1]):
        made = tuple(gradient(*state, *additional, *found))
        found = made[: len(found)]
        sums = tuple(a + b for a, b in zip(sums, made[len(found) :], strict=True))
    return *(v.clone() for v in found), *sums


def _scan(combine: Branch, start: Sequence[Any], rows: Sequence[Any], additional: Sequence[Any]) -> tuple[Any, ...]:
    """The last state (which may be of nothing), then for each further result of a round all rounds', stacked."""
    state, made = tuple(v.clone() for v in start), []
    for number in range(rows[0].shape[0]):
        results = tuple(combine(*state, *(r[number] for r in rows), *additional))
        state = results[: len(state)]
        made.append(results[len(state) :])
    return *state, *(torch.stack(column) for column in zip(*made, strict=True))


def _scan_gradient(
    combine: Branch | None,
    gradient: Branch,
    start: Sequence[Any],
    rows: Sequence[Any],
    additional: Sequence[Any],
    tangents: Sequence[torch.Tensor],
    row_tangents: Sequence[torch.Tensor],
    totals: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, ...]:
    """Gradients of the start, of the rows, and of what each round reads; ``tangents`` of the last state,
    ``row_tangents`` of the stacked results; else as for ``while_loop``.  Without a state, ``combine`` may be None."""
    count = rows[0].shape[0]
    states = [tuple(start)] * (count if combine is None else 1)
    for number in range(count - len(states)):
        assert combine is not None
        states.append(tuple(combine(*states[-1], *(r[number] for r in rows), *additional))[: len(start)])
    found, sums, columns = tuple(tangents), tuple(totals), []
    for number in reversed(range(count)):
        given = (*states[number], *(r[number] for r in rows), *additional)
        made = tuple(gradient(*given, *found, *(r[number] for r in row_tangents)))
        found, rest = made[: len(found)], made[len(found) :]
        columns.append(rest[: len(rest) - len(sums)])
        sums = tuple(a + b for a, b in zip(sums, rest[len(rest) - len(sums) :], strict=True))
    stacked = (torch.stack(column) for column in zip(*reversed(columns), strict=True))
    return *(v.clone() for v in found), *stacked, *sums


while_loop_gradient = _LoopGradient("turret_while_loop_gradient", _while_loop_gradient)
scan_gradient = _LoopGradient("turret_scan_gradient", _scan_gradient)

CONTROL_FLOW = {
    "higher_order::cond.graph": ControlFlow(_cond),
    "higher_order::while_loop.graph": ControlFlow(_while_loop),
    "higher_order::scan.graph": ControlFlow(_scan),
    "higher_order::turret_while_loop_gradient.graph": ControlFlow(_while_loop_gradient),
    "higher_order::turret_scan_gradient.graph": ControlFlow(_scan_gradient),
}
"""For each op, by the name that a plan has for it, what is called."""
