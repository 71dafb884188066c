"""Level ``faults``: the subject's own plugins broken on purpose: what do Turret and this kit make of it?

A hook that raises, or returns garbage, has to be an error that names the plugin, and by default the program runs
eagerly with a warning that does; kernels that fail have to be an error; kernels that write nothing have to be noticed
by the comparison with eager; a hook that hangs or ends the process has to be found out in time, with the place.
"""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch

from turret.testing.comparison.checker import assert_same
from turret.testing.comparison.outcome import Outcome
from turret.testing.corpus.inputs import inputs_on
from turret.testing.corpus.program import Inputs
from turret.testing.kit.broken import (
    FAULTS,
    broken_device,
    broken_hook,
    drop_launches,
    launch_does_nothing,
    launch_fails,
    load_raises,
)
from turret.testing.kit.isolation import Death
from turret.testing.kit.levels.level import Level, Settings, Symptom, file_text, symptom_of
from turret.testing.kit.subject import Compiler, Subject, hooks_of, not_installed
from turret.testing.kit.workers import worker_for

TIMES = (5.0, 30.0)
"""Seconds that a hook is given that hangs; more where the first were up before it was come to."""

KINDS = {"hangs": "hang", "crashes": "crash"}
"""Faults that end a process, and how."""

Break = Callable[[Any], tuple[Any, list[str]]]


@attrs.frozen
class Fault:
    """One way in which one plugin is broken; ``expect`` says what has to come of it."""

    name: str
    plugin: int
    make: Break
    expect: str


def faults(subject: Subject) -> dict[str, Fault]:
    """All faults of a subject's plugins, by name."""
    found = []
    for number, plugin in enumerate(subject.made):
        prefix = f"{name_of(plugin)}: " if len(subject.made) > 1 else ""
        found += [attrs.evolve(fault, name=prefix + fault.name, plugin=number) for fault in _faults_of(plugin)]
    return {fault.name: fault for fault in found}


def _faults_of(plugin: Any) -> Iterator[Fault]:
    for hook in hooks_of(plugin):
        for name, fault in FAULTS.items():
            make = functools.partial(broken_hook, hook=hook, fault=fault)
            yield Fault(f"{hook} {name}", 0, make, name if name in KINDS else "named")
    if "turret_device" in hooks_of(plugin):
        yield Fault("loading raises", 0, functools.partial(broken_device, change=load_raises), "named")
        yield Fault("launches fail", 0, functools.partial(broken_device, change=launch_fails), "noticed")
        yield Fault("launches do nothing", 0, functools.partial(broken_device, change=launch_does_nothing), "noticed")
    if "turret_codegen" in hooks_of(plugin):
        yield Fault("plans without launches", 0, drop_launches, "noticed")


class Faults(Level):
    """Items are hooks of the plugins with what is wrong with them."""

    name = "faults"
    has_eager = False

    def items(self, subject: Subject, settings: Settings) -> Sequence[str]:
        names = list(faults(subject))
        return names[: settings.counts.get(self.name, len(names))]

    def candidates(self, item: str, subject: Subject, settings: Settings) -> Iterator[Fault]:
        yield faults(subject)[item]

    def try_out(self, candidate: Fault, compiler: Compiler, subject: Subject) -> None:
        status, message = result_of(candidate.name, subject)
        if status in ("wrong", "error"):
            raise AssertionError(message)

    def check(self, item: str, subject: Subject, settings: Settings) -> Outcome:
        status, message = result_of(item, subject)
        source = ""
        if status in ("wrong", "error"):
            source = file_text(self.source(faults(subject)[item]), subject, f"{self.name} {item}", message)
        return Outcome(self.name, item, status, message, source=source)

    def source(self, candidate: Fault) -> str:
        return (
            "from turret.testing.kit.levels.faults import result_of\n\n\n"
            f"def main():\n    status, message = result_of({candidate.name!r}, subject)\n"
            '    assert status in ("right", "skipped"), message\n'
        )


def name_of(plugin: Any) -> str:
    """The name that errors give a plugin."""
    kind = type(plugin)
    is_module = isinstance(plugin, types.ModuleType)
    return plugin.__name__ if is_module else f"{kind.__module__}.{kind.__qualname__}"


def probe(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A program with a library call, kernels and gradients."""
    return torch.softmax(torch.relu(x @ w) + 1, -1) * torch.sin(x).sum()


def probe_inputs(device: str, call: int) -> Inputs:
    """Arguments of the probe."""
    generator = torch.Generator().manual_seed(call)
    leaves = tuple(torch.randn(shape, generator=generator).requires_grad_() for shape in ((4, 8), (8, 8)))
    return inputs_on(device, Inputs(leaves, leaves))


def result_of(name: str, subject: Subject) -> tuple[Any, str]:
    """Status and message of one fault."""
    fault = faults(subject)[name]
    if fault.expect in KINDS:
        return _in_a_process(fault, subject)
    tried = {policy: Attempt.of(fault, subject, policy) for policy in ("raise", "fallback")}
    if not any(attempt.asked for attempt in tried.values()):
        return "skipped", "the probe does not come to it"
    if fault.expect == "noticed":
        return _noticed(tried["raise"])
    return _named(name_of(subject.made[fault.plugin]), **{f"by_{k}": attempt for k, attempt in tried.items()})


@attrs.frozen
class Attempt:
    """The probe through a broken plugin: what was wrong, what was warned of, and whether the fault was met."""

    symptom: Symptom | None
    warned: str
    asked: bool

    @classmethod
    def of(cls, fault: Fault, subject: Subject, policy: str) -> Attempt:
        """Compile the probe under a failure policy, and compare."""
        import turret

        plugin, asked = fault.make(subject.made[fault.plugin])
        others = [*subject.made[: fault.plugin], *subject.made[fault.plugin + 1 :]]
        plugins = [*not_installed(others), plugin]
        options = {"cache": False, **subject.options, "on_error": policy}
        turret.reset()

        def attempt() -> None:
            compiled = turret.compile(probe, plugins=plugins, options=options)
            assert_same(probe, compiled, functools.partial(probe_inputs, subject.device))

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = symptom_of(attempt)
        turret.reset()
        return cls(found, "\n".join(str(w.message) for w in caught), bool(asked))


def _noticed(attempt: Attempt) -> tuple[str, str]:
    if attempt.symptom is None:
        return "wrong", "no difference was seen though no kernel did its work"
    return "right", f"noticed: {attempt.symptom.message}"


def _named(plugin: str, by_raise: Attempt, by_fallback: Attempt) -> tuple[str, str]:
    """An error or a right result under one policy, and eager with a warning, or the same error, under the other."""
    for attempt in (by_raise, by_fallback):
        if attempt.symptom is not None and attempt.symptom.status == "wrong":
            return "wrong", f"a wrong result, silently: {attempt.symptom.message}"
    found, later = by_raise.symptom, by_fallback.symptom
    if found is not None and plugin not in found.message:
        return "error", f"the error does not name {plugin}: {found.message}"
    if later is not None:
        known = found is not None and plugin in later.message and "PluginError" in later.message
        return ("right", later.message) if known else ("error", f"no way back to eager: {later.message}")
    if found is None and plugin not in by_raise.warned:
        return "right", "of no effect, and the result is right"
    if plugin not in by_fallback.warned:
        return "error", f"runs eagerly without a warning that names {plugin}: {by_fallback.warned or 'none at all'}"
    return "right", by_fallback.warned.partition("\n")[0]


def _in_a_process(fault: Fault, subject: Subject) -> tuple[str, str]:
    """A fault that ends a process, in one of its own."""
    if not all(isinstance(given, str) for given in subject.plugins):
        return "skipped", "runs in a process of its own, which takes plugins by name"
    hook, _, what = fault.name.rpartition(": ")[2].rpartition(" ")
    answer: Any = None
    for time in TIMES:
        answer = _met(fault, subject, time)
        if not isinstance(answer, Death):
            return ("skipped", "the probe does not come to it") if answer == "not asked" else ("error", str(answer))
        if answer.kind == KINDS[what] and FAULTS[what].__name__ in answer.printed:
            return "right", f"found out: {answer.reason}, in {hook}"
    return "error", f"found out as a {answer.kind}, not in {hook}: {answer.printed}"


def _met(fault: Fault, subject: Subject, time: float) -> Any:
    """What a worker answers that meets a fault, or its death."""
    facts = {"plugins": list(subject.plugins), "device": subject.device, "options": dict(subject.options)}
    worker = worker_for(facts, time)
    try:
        worker.ask({"do": "prepare"})
        return worker.ask({"do": "fault", "item": fault.name})
    finally:
        worker.close()


def meet(name: str, subject: Subject) -> str:
    """In a worker: run the probe through a plugin that hangs or crashes; comes back only where it was not met."""
    attempt = Attempt.of(faults(subject)[name], subject, "raise")
    return f"it came back: {attempt.symptom}" if attempt.asked else "not asked"
