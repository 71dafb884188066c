"""Graphs that switch settings of torch which kernels look at when they run, cut where they do.

What decides how a kernel computes (determinism, precisions of products, which library) is no argument of an op that a
trace could record.  Each section of such a graph is compiled, and runs, under the settings and modes that eager would
run its calls under; in between they are switched for real, and an error brings back those of the beginning.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
from torch import fx

from turret.frames.trace_modes import SETTERS, ModeValues, mode_values, restore_modes
from turret.hooks.products import CapturedGraph
from turret.pipeline.sections.sections import Section, Trial, calls_of, join, section
from turret.torch_compat import settings
from turret.torch_compat.modes import set_grad_enabled


@attrs.frozen
class Switch:
    """What is called between two sections: setters of settings as the graph has them, then those of other modes."""

    calls: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...]

    def __call__(self) -> None:
        for setter, arguments in self.calls:
            setter(*arguments)


@attrs.frozen
class SettingsSections:
    """``sections`` with the switch ahead of each, and ``last`` behind them all."""

    sections: list[Section]
    switches: list[Switch]
    last: Switch

    def compiled(self, compile: Callable[[CapturedGraph], Callable[..., Any]]) -> list[Callable[..., Any]]:
        """The functions of the sections, each compiled under the modes that it runs under."""
        before = mode_values()
        try:
            return [self._compiled(*part, compile) for part in zip(self.sections, self.switches, strict=True)]
        finally:
            restore_modes(before)

    def _compiled(
        self, part: Section, switch: Switch, compile: Callable[[CapturedGraph], Callable[..., Any]]
    ) -> Callable[..., Any]:
        switch()
        modes = mode_values()
        try:
            return compile(part.graph)
        finally:
            restore_modes(modes)

    def join(self, captured: CapturedGraph, functions: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
        """The whole graph as a function of its flat inputs, of the functions of its sections."""
        ahead = [_after(switch, function) for switch, function in zip(self.switches, functions, strict=True)]
        joined, last = join(captured, self.sections, ahead), self.last

        def run(*inputs: Any) -> tuple[Any, ...]:
            before = mode_values()
            try:
                found: tuple[Any, ...] = joined(*inputs)
                last()
            except BaseException:
                restore_modes(before)
                raise
            return found

        return run


def _after(switch: Switch, function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        switch()
        return function(*args)

    return run


def cut(captured: CapturedGraph) -> SettingsSections | None:
    """A graph that switches settings, in sections; None where it cannot be cut at one of them."""
    calls, trial = calls_of(captured), Trial(captured)
    if not trial.try_out():
        return None
    changing = [k for k, value in trial.before.items() if any(trial.modes[c][k] != value for c in trial.changed)]
    sections: list[Section] = []
    switches: list[Switch] = []
    end = 0
    for start, stop in _between_setters(calls):
        if not trial.may_cut(start, calls):
            return None
        modes = trial.modes[calls[start - 1]] if start else trial.before
        (gradients,) = modes[set_grad_enabled, ()]
        sections.append(section(attrs.evolve(captured, grad_enabled=gradients), trial, calls[start:stop]))
        switches.append(_switch(calls[end:start], modes, changing))
        end = stop
    return SettingsSections(sections, switches, _switch(calls[end:], trial.modes[calls[-1]], changing))


def _between_setters(calls: Sequence[fx.Node]) -> Iterator[tuple[int, int]]:
    """Where stretches of calls begin and end that switch no settings, and do more than to switch other modes."""
    for switches, stretch in itertools.groupby(range(len(calls)), lambda n: calls[n].target in settings.setters):
        places = list(stretch)
        if not switches and any(calls[n].target not in SETTERS for n in places):
            yield places[0], places[-1] + 1


def _switch(calls: Sequence[fx.Node], modes: ModeValues, changing: Sequence[Any]) -> Switch:
    """What sets the settings that some calls set, and makes the modes that change in the graph what they are then."""
    setters = [(call.target, call.args) for call in calls if call.target in settings.setters]
    return Switch((*setters, *((setter, (*lead, *modes[setter, lead])) for setter, lead in changing)))
