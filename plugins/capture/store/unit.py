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
from turret.frames.filtering.guard_audit import AuditedCheck, GuardAudit
from turret.frames.guards import Guard, GuardCheck, GuardSet
from turret.hooks.context import CompileContext
from turret.plugins.capture.python.places import shown_in_program
from turret.storage.source_lines import show_lines

_numbers = itertools.count()


@attrs.define(eq=False, weakref_slot=True)
class CompileUnit:
    """Captured code and the guards under which it stands for the frame; ``run`` is None to run it as Python."""

    guards: GuardSet
    check: GuardCheck
    run: Callable | None
    source: str = ""
    references: tuple[weakref.ref, ...] = ()
    """What the unit holds for, and does not keep alive."""
    is_empty: bool = False
    """Whether the frame, with all that it calls, computes with no tensors."""
    steady: bool = True
    """Whether its guards hold after it has run as they did before, whatever it changes."""
    failed_before: frozenset[int] = frozenset()
    """The numbers of guards at which calls failed before the check was the one that it is."""

    def __str__(self) -> str:
        return f"{self.guards}\n{self.source}"

    def failed(self) -> list[Guard]:
        """The guards at which calls have failed."""
        guards = self.checked_guards().guards
        return [guards[number] for number in sorted({*self.failed_before, *self.check.failed()})]

    def checked_guards(self) -> GuardSet:
        """The guards that are checked: those that audits found to be needed are among them."""
        return self.check.kept if isinstance(self.check, AuditedCheck) else self.guards

    def may_hold(self) -> bool:
        """Whether all that the unit holds for is still there."""
        return all(reference() is not None for reference in self.references)


def make_unit(
    guards: FilteredGuards, run: Callable | None, source: str, steady: bool, audit: GuardAudit | None
) -> CompileUnit:
    """A unit; where its check is in Python because the native one is still being built, that follows."""
    kept, check = guards.kept, guards.check
    unit = CompileUnit(kept, check, run, source, kept.references(), steady=steady)
    if audit is not None and guards.dropped.guards:
        unit.check = audit.watch(kept, check, guards.dropped)
    elif isinstance(check, types.FunctionType):
        guard_tree.when_built(functools.partial(_check_natively, weakref.ref(unit)))
    return unit


def _check_natively(unit: weakref.ref[CompileUnit]) -> None:
    if (made := unit()) is not None:
        made.failed_before, made.check = frozenset(made.check.failed()), guard_tree.check_of(made.guards)


@attrs.frozen(eq=False)
class FilteredGuards:
    """The guards of a unit that all filters keep, their check, and the guards that some filter drops."""

    kept: GuardSet
    check: GuardCheck
    dropped: GuardSet


def filtered(
    context: CompileContext, guards: tuple[Guard, ...], function: Any, arguments: tuple, audit: GuardAudit | None
) -> FilteredGuards:
    """Guards by what the guard filters say of them; what an audit has shown to be needed is kept."""
    answers = _answers(context, guards, function, arguments)
    kept: list[Guard] = []
    dropped: list[Guard] = []
    for number, guard in enumerate(guards):
        keep = all(answer[number] for answer in answers) or (audit is not None and audit.keeps(guard))
        (kept if keep else dropped).append(guard)
    made = GuardSet(tuple(kept), len(arguments))
    return FilteredGuards(made, guard_tree.check_of(made), GuardSet(tuple(dropped), len(arguments)))


def _answers(context: CompileContext, guards: tuple[Guard, ...], function: Any, arguments: tuple) -> list[list[bool]]:
    """What each guard filter says: for each guard whether to keep it."""
    hook = context.hooks.turret_guard_filter
    if not hook.get_hookimpls():
        return []
    from turret.frames.filtering.guard_entries import guard_entries

    answers = hook(context=context, guards=guard_entries(guards, function, arguments))
    for answer in answers:
        if len(answer) != len(guards):
            raise CaptureError(f"a guard filter answered for {len(answer)} guards, it was given {len(guards)}")
    return answers


def load_source(text: str, scope: dict[str, Any], function: types.FunctionType) -> types.FunctionType:
    """The rebuilt code as a function, which the frame hook leaves alone.

    What it calls may look at its frame: that has the name and the module of the frame that it stands for.
    """
    name = f"<turret {function.__qualname__} {next(_numbers)}>"
    if "__name__" in function.__globals__:  # of a module that is None, no warning would be given
        scope["__name__"] = function.__globals__["__name__"]
    exec(compile(text, name, "exec"), scope)
    made, code = scope["compiled"], function.__code__
    scope["__unit__"] = function.__qualname__
    show_lines(made, text)
    plain = made.__code__.replace(co_name=code.co_name, co_qualname=code.co_qualname)
    made.__code__ = shown_in_program(plain, text, code)
    if made.__code__ is not plain:  # what it calls may warn
        scope["__warningregistry__"] = function.__globals__.setdefault("__warningregistry__", {})
    frame_hook.load().mark(made.__code__, frame_hook.FrameKind.SKIP)
    return made
