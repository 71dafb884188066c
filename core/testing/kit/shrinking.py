"""Shrinks a failing program: fewer statements, outputs and inputs, plainer inputs, while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import torch

from turret.testing.comparison.observe import observe
from turret.testing.corpus.program import InputSpec, Program, Step, StorageSpec


def shrink(program: Program, fails: Callable[[Program], bool], *, attempts: int = 200) -> Program:
    """The smallest program found that eager takes and for which ``fails`` is still true.

    ``fails`` is called at most ``attempts`` times; ``program`` itself is taken to fail.
    """
    left = attempts
    progress = True
    while progress:
        progress = False
        for candidate in _smaller(program):
            if left <= 0:
                return program
            if not _valid(candidate):
                continue
            left -= 1
            if fails(candidate):
                program = candidate
                progress = True
                break
    return program


def _valid(program: Program) -> bool:
    if not program.outputs and not any(not step.results for step in program.steps):
        return False
    defined = set(program.names)
    for step in program.steps:
        if not defined.issuperset(step.args):
            return False
        defined.update(step.results)
    if not defined.issuperset(program.outputs):
        return False
    try:
        inputs = program.build_inputs()
    except RuntimeError:
        return False
    return observe(program.calling(program.function()), inputs, program.backward).error is None


def _smaller(program: Program) -> Iterator[Program]:
    """Candidates, the ones that remove most first."""
    yield from _halves(program)
    yield from _without_outputs(program)
    yield from _without_steps(program)
    yield from _without_inputs(program)
    yield from _simpler(program)
    yield from _simpler_inputs(program)


def _halves(program: Program) -> Iterator[Program]:
    """The first part of the program, returning what it made last."""
    for count in (len(program.steps) // 2, len(program.steps) - 1):
        if not 0 < count < len(program.steps):
            continue
        steps = program.steps[:count]
        made = {name for step in steps for name in step.results} | set(program.names)
        outputs = tuple(name for name in program.outputs if name in made)
        yield prune(attrs.evolve(program, steps=steps, outputs=outputs or steps[-1].results))


def _without_outputs(program: Program) -> Iterator[Program]:
    for index in range(len(program.outputs)):
        outputs = program.outputs[:index] + program.outputs[index + 1 :]
        yield prune(attrs.evolve(program, outputs=outputs))


def prune(program: Program) -> Program:
    """Drop statements whose results nobody uses and that write to nothing."""
    needed = set(program.outputs)
    kept: list[Step] = []
    for step in reversed(program.steps):
        if not step.results or needed.intersection(step.results):
            kept.append(step)
            needed.update(step.args)
    return attrs.evolve(program, steps=tuple(reversed(kept)))


def _without_steps(program: Program) -> Iterator[Program]:
    """Without one statement, those who used its results reading one of its operands instead."""
    for index in reversed(range(len(program.steps))):
        step = program.steps[index]
        rest = program.steps[:index] + program.steps[index + 1 :]
        if not step.results:
            yield attrs.evolve(program, steps=rest)
        for argument in dict.fromkeys(step.args):
            renamed = {name: argument for name in step.results}
            steps = tuple(attrs.evolve(s, args=_rename(s.args, renamed)) for s in rest)
            yield prune(attrs.evolve(program, steps=steps, outputs=_rename(program.outputs, renamed)))


def _rename(names: tuple[str, ...], renamed: dict[str, str]) -> tuple[str, ...]:
    return tuple(renamed.get(name, name) for name in names)


def _without_inputs(program: Program) -> Iterator[Program]:
    used = {name for step in program.steps for name in step.args} | set(program.outputs)
    idle = [spec for spec in program.inputs if spec.name not in used]
    if len(idle) > 1:
        yield attrs.evolve(program, inputs=tuple(spec for spec in program.inputs if spec not in idle))
    for spec in idle:
        yield attrs.evolve(program, inputs=tuple(other for other in program.inputs if other is not spec))
    for number in program.numbers:
        if number.name not in used:
            yield attrs.evolve(program, numbers=tuple(other for other in program.numbers if other is not number))


def _simpler(program: Program) -> Iterator[Program]:
    if program.setting:
        yield attrs.evolve(program, setting="")
    yield from _fewer_layouts(program)
    if any(step.context for step in program.steps):
        yield attrs.evolve(program, steps=tuple(attrs.evolve(step, context="") for step in program.steps))
    if program.backward != "none":
        yield attrs.evolve(program, backward="none")
    if program.backward in ("first", "expanded", "results"):
        yield attrs.evolve(program, backward="all")


def _fewer_layouts(program: Program) -> Iterator[Program]:
    """Without one of the layouts, with sizes that stay, with a number that does, or with smaller numbers."""
    for index in range(1, program.layouts):
        numbers = tuple(
            attrs.evolve(n, values=tuple(v for k, v in enumerate(n.values) if k != index)) for n in program.numbers
        )
        resized = tuple(sizes for k, sizes in enumerate(program.resized) if k != index - 1)
        yield attrs.evolve(program, numbers=numbers, resized=resized)
    if program.resized and any(program.resized):
        yield attrs.evolve(program, resized=((),) * len(program.resized))
    for position, number in enumerate(program.numbers):
        for index, value in enumerate(number.values):
            for simpler in dict.fromkeys((number.values[0], 0, 1, -1)):
                if simpler != value and (abs(simpler) < abs(value) or (index and simpler == number.values[0])):
                    values = _replaced(number.values, index, simpler)
                    yield attrs.evolve(
                        program, numbers=_replaced(program.numbers, position, attrs.evolve(number, values=values))
                    )


def _simpler_inputs(program: Program) -> Iterator[Program]:
    for index, storage in enumerate(program.storages):
        for simpler in _simpler_storages(storage):
            yield attrs.evolve(program, storages=_replaced(program.storages, index, simpler))
    for index, spec in enumerate(program.inputs):
        stride, numel = _contiguous(spec.shape)
        plain = InputSpec(spec.name, len(program.storages), spec.shape, stride)
        storage = program.storages[spec.storage]
        alone = sum(other.storage == spec.storage for other in program.inputs) == 1
        if spec.lazy:
            yield attrs.evolve(program, inputs=_replaced(program.inputs, index, attrs.evolve(spec, lazy="")))
        if alone and (spec.stride, spec.offset) == (stride, 0):
            continue
        yield attrs.evolve(
            program,
            inputs=_replaced(program.inputs, index, plain),
            storages=(*program.storages, attrs.evolve(storage, numel=numel)),
        )


def _simpler_storages(storage: StorageSpec) -> Iterator[StorageSpec]:
    if storage.computed:
        yield attrs.evolve(storage, computed=False)
    if storage.requires_grad:
        yield attrs.evolve(storage, requires_grad=False, computed=False)
    if storage.dtype.is_floating_point:
        if storage.dtype != torch.float32:
            yield attrs.evolve(storage, dtype=torch.float32)
        if storage.fill != "grid":
            yield attrs.evolve(storage, fill="grid")


def _replaced(items: tuple, index: int, item: object) -> tuple:
    return (*items[:index], item, *items[index + 1 :])


def _contiguous(shape: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    stride: list[int] = []
    numel = 1
    for size in reversed(shape):
        stride.append(max(numel, 1))
        numel *= size
    return tuple(reversed(stride)), numel
