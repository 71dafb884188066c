"""The epilogue: mutated inputs get their new values and layouts, and views among the outputs are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from turret.graph.externs import resolve_op
from turret.hooks.signature import (
    AliasKind,
    GraphSignature,
    InputInfo,
    Layout,
    Mutation,
    OutputInfo,
    OutputKind,
    ViewCall,
    ViewCreation,
)
from turret.plan.sizes import Sizes, compile_layout, compile_size, compile_sizes
from turret.plugins.wrap_runtime.derived import DerivedOutputs
from turret.torch_compat.autograd import CreationMeta, preserve_version_counter, set_creation_meta
from turret.torch_compat.operators.ops import copy_each

_FEW = 4
"""From this many on, copies go through one ``_foreach_copy_``, which takes no conjugated or negated targets."""

Writer = Callable[[Sequence[Any], list[Any]], None]
Finisher = Callable[[Sequence[Any], Sequence[Any], Sizes], list[Any]]
Effect = Callable[[Sequence[Any], Sequence[Any], Sizes], None]
Maker = Callable[[Sequence[Any], Sequence[Any], Sizes], Any]
View = Callable[[torch.Tensor, Sizes], torch.Tensor]


def hidden_writes(signature: GraphSignature) -> Writer | None:
    """``write(inputs, results)``: copy new values into inputs where autograd sees nothing of it, or None.

    These are writes under ``no_grad``, and to tensors that need no gradient (running statistics, caches).  Call it with
    gradients off.  A result that is the very input was written in place by the executable: then only the version
    counter moves.  Results that were written are dropped from ``results``.
    """
    pairs = [
        (n, i.updated, i.counted) for n, i in enumerate(signature.inputs) if i.is_hidden_write and i.updated is not None
    ]
    if not pairs:
        return None
    counted = [(n, updated) for n, updated, moves in pairs if moves]
    silent = [(n, updated) for n, updated, moves in pairs if not moves]

    written = tuple(updated for _, updated, _ in pairs)
    at_once: bool | None = None  # the first call tells: dtypes and bits of a graph's inputs stay what they are

    def write(inputs: Sequence[Any], results: list[Any]) -> None:
        nonlocal at_once
        targets, values = [], []
        for number, updated in counted:
            target, value = inputs[number], results[updated]
            if value is target:
                torch.autograd.graph.increment_version(target)
            else:
                targets.append(target)
                values.append(value)
        for number, updated in silent:
            if results[updated] is not inputs[number]:
                targets.append(inputs[number].data)
                values.append(results[updated])
        if at_once is None:
            at_once = not any(map(_is_lazy, targets))
        _copy_each(targets, values, at_once and len(targets) >= _FEW)
        for updated in written:
            results[updated] = None

    return write


def _copy_each(targets: list[Any], values: list[Any], at_once: bool) -> None:
    if at_once:
        copy_each(targets, values)
    else:
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether bits of a tensor may say that its elements are conjugated or negated."""
    return tensor.is_complex() or tensor.is_neg()


def finisher(signature: GraphSignature, derived: DerivedOutputs | None = None) -> Finisher | None:
    """``finish(inputs, results, sizes) -> outputs``: the rest of the epilogue, or None where there is none.

    Inputs whose layout changed, that autograd sees written to, or that were given other memory; then the outputs.
    With ``derived`` outputs, those of each level when what these were derived from is there.
    Call it in the caller's grad mode, so that views and copies are recorded as in eager.
    """
    if derived is not None:
        return _finisher_by_levels(signature, derived)
    effects = [e for n, i in enumerate(signature.inputs) for e in _effects(n, i)]
    replaced = _replacer(signature)
    outputs = signature.outputs
    plain = len(outputs) == len(signature.graph_outputs) and all(
        o.kind is OutputKind.FRESH and o.index == n and not o.leaf for n, o in enumerate(outputs)
    )
    if plain and not effects and replaced is None and signature.grad_enabled_after is None:
        return None
    make_outputs = _outputs_maker((*outputs, *signature.hidden), len(outputs))
    grad_after = signature.grad_enabled_after

    def finish(inputs: Sequence[Any], results: Sequence[Any], sizes: Sizes) -> list[Any]:
        for effect in effects:
            effect(inputs, results, sizes)
        if replaced is not None:
            replaced(inputs, results, sizes)
        made = make_outputs(inputs, results, sizes)
        if grad_after is not None:
            torch.set_grad_enabled(grad_after)
        return made

    return finish


@attrs.frozen(eq=False)
class _Stage:
    """What is done when the outputs of a level have their nodes: effects on inputs, results of the program, and views
    of these."""

    effects: list[Effect] = attrs.field(factory=list)
    makers: list[tuple[int, Maker]] = attrs.field(factory=list)
    views: list[tuple[int, int, View]] = attrs.field(factory=list)

    def run(self, inputs: Sequence[Any], results: Sequence[Any], sizes: Sizes, made: list[Any]) -> None:
        """Do it; results go to their places in ``made``."""
        for effect in self.effects:
            effect(inputs, results, sizes)
        for n, make in self.makers:
            made[n] = make(inputs, results, sizes)
        for n, viewed, view in self.views:
            made[n] = view(made[viewed], sizes)


def _stages(signature: GraphSignature, levels: Sequence[int]) -> list[_Stage]:
    """A stage for each level, and one behind the last."""
    stages = [_Stage() for _ in range(max(levels) + 2)]
    for n, info in enumerate(signature.inputs):
        stages[0 if info.updated is None else levels[info.updated]].effects.extend(_effects(n, info))
    replace = _replacer(signature)
    if replace is not None:
        stages[-1].effects.append(replace)
    shown = {v.index for v in signature.visible if not v.is_input}
    infos = (*signature.outputs, *signature.hidden)
    of_output: list[int] = []
    for n in range(len(infos)):
        viewed = signature.viewed(n)
        if viewed.kind in (OutputKind.FRESH, OutputKind.ALIAS_OF_INTERMEDIATE):
            of_output.append(levels[viewed.index])
        else:
            of_output.append(0 if n in shown else -1)
        if infos[n].kind is not OutputKind.VIEW_OF_OUTPUT:
            stages[of_output[n]].makers.append((n, _maker(infos[n])))
    for n, viewed_output, view in _views_of_outputs(infos):
        stages[of_output[n]].views.append((n, viewed_output, view))
    return stages


def _finisher_by_levels(signature: GraphSignature, derived: DerivedOutputs) -> Finisher:
    first, *above, last = _stages(signature, derived.levels)
    count, repeated = len(signature.outputs) + len(signature.hidden), _repeated(signature.outputs)
    grad_after = signature.grad_enabled_after

    def finish(inputs: Sequence[Any], results: Sequence[Any], sizes: Sizes) -> list[Any]:
        made: list[Any] = [None] * count
        first.run(inputs, results, sizes, made)
        for level, stage in enumerate(above, 1):
            derived.attach(level, results, inputs, made)
            stage.run(inputs, results, sizes, made)
        last.run(inputs, results, sizes, made)
        for number, other in repeated:
            made[number] = made[other]
        if grad_after is not None:
            torch.set_grad_enabled(grad_after)
        return made[: len(signature.outputs)]

    return finish


def _replacer(signature: GraphSignature) -> Effect | None:
    """What gives inputs other memory; None where none is given any."""
    replaced = [(n, _maker(i.replaced_by)) for n, i in enumerate(signature.inputs) if i.replaced_by is not None]
    if not replaced:
        return None

    def replace(inputs: Sequence[Any], results: Sequence[Any], sizes: Sizes) -> None:
        for number, make in replaced:
            memory = make(inputs, results, sizes)
            with torch.no_grad():
                inputs[number].set_(memory)

    return replace


def _outputs_maker(infos: Sequence[OutputInfo], shown: int) -> Finisher:
    """What makes the first ``shown`` of some outputs, of which some view others or are the same."""
    makers, views, repeated = tuple(map(_maker, infos)), _views_of_outputs(infos), _repeated(infos)
    if not views and not repeated:
        return lambda inputs, results, sizes: [make(inputs, results, sizes) for make in makers]

    def make_all(inputs: Sequence[Any], results: Sequence[Any], sizes: Sizes) -> list[Any]:
        made = [make(inputs, results, sizes) for make in makers]
        for number, viewed, view in views:
            made[number] = view(made[viewed], sizes)
        for number, first in repeated:
            made[number] = made[first]
        return made[:shown]

    return make_all


def _views_of_outputs(infos: Sequence[OutputInfo]) -> tuple[tuple[int, int, View], ...]:
    """Outputs that view others, each behind what it views."""
    left = {n: o for n, o in enumerate(infos) if o.kind is OutputKind.VIEW_OF_OUTPUT}
    found = []
    while left:
        ready = [n for n, o in left.items() if o.index not in left]
        found += [(n, left[n].index, _viewer(left[n])) for n in ready]
        left = {n: o for n, o in left.items() if n not in ready}
    return tuple(found)


def _repeated(infos: Sequence[OutputInfo]) -> tuple[tuple[int, int], ...]:
    return tuple((n, o.index) for n, o in enumerate(infos) if o.kind is OutputKind.IS_OUTPUT)


def _effects(number: int, info: InputInfo) -> list[Effect]:
    effects: list[Effect] = []
    if info.mutation is Mutation.IN_GRAPH:
        effects.append(lambda inputs, results, sizes: torch.autograd.graph.increment_version(inputs[number]))
    if info.layout is not None:
        effects.append(_layout_effect(number, info))
    if info.updated is not None and not info.is_hidden_write:
        effects.append(_write_effect(number, info))
    if info.requires_grad_after is not None:
        effects.append(lambda inputs, results, sizes: inputs[number].requires_grad_(info.requires_grad_after))
    return effects


def _layout_effect(number: int, info: InputInfo) -> Effect:
    assert info.layout is not None
    layout, tracked = compile_layout(info.layout), info.tracked

    def change(inputs: Sequence[Any], results: Sequence[Any], sizes: Sizes) -> None:
        target = inputs[number]
        shape, stride, offset = layout(sizes)
        # What was saved for the backward lies in the same memory, which holds what it held.
        counted = () if target.is_inference() else (target,)
        with torch.set_grad_enabled(tracked), preserve_version_counter(counted):
            start = target.storage_offset() + offset
            _ensure_memory(target, shape, stride, start)
            target.as_strided_(shape, stride, start)

    return change


def _ensure_memory(target: torch.Tensor, shape: Sequence[int], stride: Sequence[int], start: int) -> None:
    """Enlarge a tensor's memory where a layout reaches past its end: ``resize_`` asked for more."""
    if 0 in shape:
        return
    end = start + 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
    memory = target.untyped_storage()
    if memory.nbytes() < end * target.element_size():
        memory.resize_(end * target.element_size())


def _write_effect(number: int, info: InputInfo) -> Effect:
    updated, tracked, counted = info.updated, info.tracked, info.counted
    assert updated is not None

    def write(inputs: Sequence[Any], results: Sequence[Any], sizes: Sizes) -> None:
        target, value = inputs[number], results[updated]
        with torch.set_grad_enabled(tracked):
            if value is target:
                torch.autograd.graph.increment_version(target)
            else:
                (target if counted else target.data).copy_(value)

    return write


def _maker(info: OutputInfo) -> Maker:
    """A function that makes one output of the user's program."""
    index = info.index
    if info.kind is OutputKind.FRESH:
        if info.leaf:
            return lambda inputs, results, sizes: results[index].detach().requires_grad_()
        return lambda inputs, results, sizes: results[index]
    if info.kind is OutputKind.CONSTANT:
        value = info.value
        return lambda inputs, results, sizes: value
    if info.kind in (OutputKind.IS_OUTPUT, OutputKind.VIEW_OF_OUTPUT):
        return lambda inputs, results, sizes: None
    if info.kind is OutputKind.SIZE:
        if info.value is None:
            return lambda inputs, results, sizes: results[index]
        assert isinstance(info.value, int | str)
        size = compile_size(info.value)
        return lambda inputs, results, sizes: size(sizes)
    if info.kind is OutputKind.IS_INPUT:
        return lambda inputs, results, sizes: inputs[index]
    view = _viewer(info)
    if info.kind is OutputKind.ALIAS_OF_INPUT:
        return lambda inputs, results, sizes: view(inputs[index], sizes)
    return lambda inputs, results, sizes: view(results[index], sizes)


def _viewer(info: OutputInfo) -> View:
    """A view of a base as the program returned it, with or without a way for gradients back to the base.

    Autograd counts, records and refuses writes to it as it does those to eager's.
    """
    if info.steps is not None:
        make = _by_steps(info.steps)
    else:
        assert info.layout is not None
        make = _by_layout(info.layout)
    if info.alias is not AliasKind.VIEW:
        own = torch.Tensor.detach if info.alias is AliasKind.DETACHED else _data
        return lambda base, sizes: own(make(base, sizes)).requires_grad_(info.leaf)
    made = _created(info.creation, make)
    if info.creation is ViewCreation.NO_GRAD or (info.requires_grad and not info.leaf):
        return made
    leaf = info.leaf

    def detached(base: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        view = made(base.detach() if base.requires_grad else base, sizes)
        return view.requires_grad_() if leaf else view

    return detached


def _data(value: torch.Tensor) -> torch.Tensor:
    return value.data


def _created(creation: ViewCreation | None, view: View) -> View:
    """``view``, made in the mode that eager's was made in, or by an op of the kind that made eager's."""
    if creation is None:
        return view
    if creation is not ViewCreation.MULTI_OUTPUT:
        return torch.set_grad_enabled(creation is ViewCreation.GRAD)(view)

    def of_several(base: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        made = view(base, sizes)
        if not made.is_inference():  # made in inference mode, it is no view to autograd
            set_creation_meta(made, CreationMeta.MULTI_OUTPUT_NODE)
        return made

    return of_several


def _by_layout(layout: Layout) -> View:
    compiled = compile_layout(layout)

    def view(base: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        shape, stride, offset = compiled(sizes)
        return base.as_strided(shape, stride, base.storage_offset() + offset)

    return view


def _by_steps(steps: Sequence[ViewCall]) -> View:
    calls = tuple((resolve_op(s.op), tuple(map(_argument, s.args))) for s in steps)

    def view(base: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        for op, arguments in calls:
            base = op(base, *(a(sizes) for a in arguments))
        return base

    return view


def _argument(value: Any) -> Callable[[Sizes], Any]:
    return compile_sizes(value) if isinstance(value, tuple) else compile_size(value)
