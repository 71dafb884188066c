"""A compile unit: captured code and the guards under which it stands for a frame."""

from __future__ import annotations

import functools
import itertools
import types
import weakref
from collections.abc import Callable
from typing import Any

import attrs

from turret.errors import CaptureError
from turret.frames import frame_hook, guard_tree
from turret.frames.guards import Guard, GuardSet
from turret.hooks.context import CompileContext
from turret.storage.source_lines import show_lines

_numbers = itertools.count()


@attrs.define(eq=False, weakref_slot=True)
class Unit:
    """Captured code and the guards under which it stands for the frame; ``run`` is None to run it as Python."""

    guards: GuardSet
    check: Callable[..., bool]
    run: Callable | None
    source: str = ""
    references: tuple[weakref.ref, ...] = ()
    """What the unit holds for, and does not keep alive."""
    is_empty: bool = False
    """Whether the frame, with all that it calls, computes with no tensors."""
    steady: bool = True
    """Whether its guards hold after it has run as they did before, whatever it changes."""

    def __str__(self) -> str:
        return f"{self.guards}\n{self.source}"

    def may_hold(self) -> bool:
        """Whether all that the unit holds for is still there."""
        return all(reference() is not None for reference in self.references)


def make_unit(guards: GuardSet, check: Callable[..., bool], run: Callable | None, source: str, steady: bool) -> Unit:
    """A unit; where its check is in Python because the native one is still being built, that follows."""
    unit = Unit(guards, check, run, source, guards.references(), steady=steady)
    if isinstance(check, types.FunctionType):
        guard_tree.when_built(functools.partial(_check_natively, weakref.ref(unit)))
    return unit


def _check_natively(unit: weakref.ref[Unit]) -> None:
    if (made := unit()) is not None:
        made.check = made.guards.compile()


def filtered(context: CompileContext, guards: tuple[Guard, ...], function: Any, arguments: tuple) -> tuple[Guard, ...]:
    """Guards that all guard filters keep."""
    hook = context.hooks.turret_guard_filter
    if not hook.get_hookimpls():
        return guards
    from turret.frames.guard_entries import guard_entries

    entries = guard_entries(guards, function, arguments)
    kept = list(guards)
    for answer in hook(context=context, guards=entries):
        if len(answer) != len(guards):
            raise CaptureError(f"a guard filter answered for {len(answer)} guards, it was given {len(guards)}")
        kept = [g for g, keep in zip(guards, answer, strict=True) if keep and g in kept]
    return tuple(kept)


def load_source(text: str, scope: dict[str, Any], function: types.FunctionType) -> types.FunctionType:
    """The rebuilt code as a function, which the frame hook leaves alone."""
    name = f"<turret {function.__qualname__} {next(_numbers)}>"
    exec(compile(text, name, "exec"), scope)
    made = scope["compiled"]
    show_lines(made, text)
    frame_hook.load().mark(made.__code__, frame_hook.FrameKind.SKIP)
    return made
