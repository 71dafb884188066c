"""What is done where a fake implementation proves wrong: the call that finds out runs eagerly, and so do later ones.

Memory is planned by what an op's fake implementation foretells.  Those of torch itself are trusted; a user's op may
turn out to return something else, which the executor notices when the op has run.  A plan changes no input (the
epilogue does, after it), so the graph can then run again from its start, with the random numbers it had.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from turret.errors import FakeImplementationError, StageError
from turret.graph.externs import has_true_fake, resolve_op
from turret.plan import Call, Plan

if TYPE_CHECKING:
    from turret.pipeline.graph_compilers.assembly import Assembly

    Executable: TypeAlias = Plan | Assembly


def trusts_fake_implementations(plan: Executable) -> bool:
    """Whether an op is called whose fake implementation nobody answers for: not torch, Turret or a plugin."""
    if not isinstance(plan, Plan):
        return plan.untrusted
    return any(isinstance(step, Call) and not has_true_fake(step.op) for step in plan.steps)


def fallback_on_fake_mismatch(
    function: Callable[..., Any], eager: Callable[..., Any], plan: Executable, report: Callable[[StageError], None]
) -> Callable[..., Any]:
    """``function``, or ``eager`` from the first call on that meets a wrong fake implementation; ``report`` is told."""
    draws = _draws_random_numbers(plan)
    wrong = False

    def call(*args: Any) -> Any:
        nonlocal wrong
        if wrong:
            return eager(*args)
        state = torch.get_rng_state() if draws else None
        try:
            return function(*args)
        except FakeImplementationError as error:
            wrong = True
            report(StageError("runtime", "the program's own op", str(error)))
        if state is not None:
            torch.set_rng_state(state)
        return eager(*args)

    return call


def _draws_random_numbers(plan: Executable) -> bool:
    if not isinstance(plan, Plan):
        return plan.draws
    seeded = torch.Tag.nondeterministic_seeded
    return any(isinstance(step, Call) and seeded in resolve_op(step.op).tags for step in plan.steps)
