"""The few guards that tell the compiled codes of one function apart, for calls that are known to be of their kind.

A guard that never failed in the warm-up told nothing apart: no call came to another compiled code because of it.  Of
what a guard that failed looks at, all compiled codes keep all their guards, each with what it expects there.  Guards of
tensors that are arguments are kept besides, for kernels are written for their shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turret.frames.guards import Guard, GuardSet
from turret.frames.sources import BaseItemSource, ItemSource, LocalSource, SizeSource, Source, ValueSource

_OF_SHAPES = ("TENSOR", "SIZES")


def few_guards(sets: Sequence[GuardSet], failed: Iterable[Guard]) -> list[GuardSet]:
    """Of the guards of each compiled code of a function those that are enough to choose among them.

    ``failed``: the guards, of any of them, at which calls have failed so far.
    """
    told_apart = set(map(_subject, failed))
    made = []
    for guards in sets:
        kept = (g for g in guards.guards if _subject(g) in told_apart or _is_of_arguments_shapes(g))
        made.append(GuardSet(tuple(kept), guards.parameters))
    return made


def _subject(guard: Guard) -> tuple[Source | None, tuple[Source, ...]]:
    """What a guard looks at, whatever it asks of it."""
    return guard.source, guard.others


def _is_of_arguments_shapes(guard: Guard) -> bool:
    sources = [guard.source, *guard.others]
    return guard.kind in _OF_SHAPES and all(source is not None and _is_argument(source) for source in sources)


def _is_argument(source: Source) -> bool:
    """Whether a source is an argument, or lies in containers that are one."""
    first, *others = source.steps()
    inside = (ItemSource, BaseItemSource, ValueSource, SizeSource)
    return isinstance(first, LocalSource) and all(isinstance(step, inside) for step in others)
