"""Whether the processes of a group compile the same collectives: they would wait for one another for ever, otherwise.

Each process leaves, in the store that the processes share, the collectives of its first, second, ... executable that
talks in a group, and compares them with what others have left.  Nobody waits: the last one to compile sees all.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from turret.errors import warn
from turret.plan.plan import Call

if TYPE_CHECKING:
    from turret.hooks.products import BoxedCallable

_NAMESPACE = "_c10d_functional::"
_counted: tuple[Any, Counter[str]] = (None, Counter())
"""The store that was used last, and how many executables of this process talk in each group."""


def check_collectives(function: BoxedCallable) -> None:
    """Warn where another process has compiled other collectives in place of those of an executable."""
    groups = collectives_of(getattr(function, "plan", None))
    if not groups or not torch.distributed.is_initialized():
        return
    from turret.torch_compat.distributed import group_place, shared_store

    global _counted
    store = shared_store()
    if _counted[0] is not store:
        _counted = store, Counter()
    for group, names in groups.items():
        rank, size = group_place(group)
        number = _counted[1][group]
        _counted[1][group] += 1
        keys = [f"turret/{group}/{number}/{other}" for other in range(size)]
        store.set(keys[rank], " ".join(names))
        for other, key in enumerate(keys):
            if other == rank or not store.check([key]):
                continue
            theirs = store.get(key).decode().split()
            if theirs != names:
                warn(_difference(group, rank, names, other, theirs))


def collectives_of(plan: Any) -> dict[str, list[str]]:
    """Names of the collectives that a plan starts, in order, by the group that they talk in."""
    found: dict[str, list[str]] = {}
    for step in () if plan is None else plan.steps:
        if isinstance(step, Call) and step.op.startswith(_NAMESPACE) and "::wait_tensor" not in step.op:
            group = next((a for a in reversed(step.args) if isinstance(a, str)), None)
            if group is not None:
                found.setdefault(group, []).append(step.op.removeprefix(_NAMESPACE).partition(".")[0])
    return found


def _difference(group: str, rank: int, names: list[str], other: int, theirs: list[str]) -> str:
    at = next((n for n, pair in enumerate(zip(names, theirs, strict=False)) if pair[0] != pair[1]), None)
    at = min(len(names), len(theirs)) if at is None else at
    mine, their = (f"{v[at]}" if at < len(v) else "nothing more" for v in (names, theirs))
    return (
        f"Turret: processes of the group {group!r} compiled other collectives: collective {at} of a graph is {mine} in "
        f"process {rank} and {their} in process {other}; where these graphs run together they wait for one another for "
        "ever. Have all processes take the same branches and sizes"
    )
