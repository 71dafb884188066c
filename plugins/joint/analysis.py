"""What a program does to its inputs and what its outputs are, seen by running it once on fake tensors.

The run is eager (autograd, version counters, views and all), so nothing is inferred: an input was mutated if
its version moved, an output aliases an input if it lies in its storage, gradients are needed where eager
would record a graph.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch

from turret.errors import UnsupportedError
from turret.ir.index import size
from turret.ir.program import SizeSource
from turret.plan import size_text
from turret.plugins.joint.inputs import AliasGroup, alias_groups, fresh
from turret.products import CapturedGraph
from turret.signature import Layout, Mutation, OutputKind


@attrs.frozen(eq=False)
class SeenInput:
    """What happened to one input; ``layout`` (after the run) where its metadata changed."""

    mutation: Mutation
    tracked: bool
    requires_grad: bool
    layout: Layout | None = None


@attrs.frozen(eq=False)
class SeenOutput:
    """What one output is; ``source`` is the input it aliases or the first output of its memory group."""

    kind: OutputKind
    requires_grad: bool = False
    source: int = 0
    layout: Layout | None = None
    stride: tuple[Any, ...] | None = None
    dtype: str | None = None
    value: Any = None


@attrs.frozen(eq=False)
class Analysis:
    """The whole picture; ``aliased`` are the groups of inputs sharing memory of which one is mutated."""

    inputs: tuple[SeenInput, ...]
    outputs: tuple[SeenOutput, ...]
    training: bool
    aliased: tuple[AliasGroup, ...]
    symbols: dict[str, SizeSource]


def layout_of(value: torch.Tensor, start: Any = 0) -> Layout:
    """A tensor's layout with its offset relative to ``start`` (in elements)."""
    return Layout(
        tuple(size_text(size(s)) for s in value.shape),
        tuple(size_text(size(s)) for s in value.stride()),
        size_text(size(value.storage_offset() - start)),
    )


def size_symbols(values: tuple[Any, ...]) -> dict[str, SizeSource]:
    """Where each size symbol can be read from the inputs at run time."""
    symbols: dict[str, SizeSource] = {}

    def note(value: Any, source: SizeSource) -> None:
        expression = size(value) if isinstance(value, int | torch.SymInt) else None
        if expression is not None and getattr(expression, "is_Symbol", False):
            symbols.setdefault(expression.name, source)

    for number, value in enumerate(values):
        if isinstance(value, torch.SymInt):
            note(value, SizeSource(number, None))
    for number, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            for dimension, extent in enumerate(value.shape):
                note(extent, SizeSource(number, dimension))
    for number, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            for dimension, stride in enumerate(value.stride()):
                note(stride, SizeSource(number, dimension, "stride"))
            note(value.storage_offset(), SizeSource(number, None, "offset"))
    return symbols


def analyse(captured: CapturedGraph) -> Analysis:
    """Run the captured module on fresh fake inputs and describe what it did."""
    with captured.fake_mode, torch.random.fork_rng(devices=[]):
        values = fresh(captured.example_inputs, gradients=True)
        before = [_state(v) for v in values]
        try:
            outputs = captured.module(*values)
        except Exception as error:
            raise UnsupportedError(
                f"the graph does not run on fake tensors: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(outputs, (list, tuple)):
        raise UnsupportedError(f"the captured graph returned {type(outputs).__name__}, expected a tuple")
    if any(isinstance(o, (list, tuple, dict)) for o in outputs):
        raise UnsupportedError("the captured graph returned a nested structure, expected flat outputs")
    seen_inputs = tuple(_input(n, v, b) for n, (v, b) in enumerate(zip(values, before, strict=True)))
    seen_outputs = _outputs(list(outputs), values)
    mutated = {n for n, s in enumerate(seen_inputs) if s.mutation is not Mutation.NONE}
    wants = any(o.requires_grad and o.kind is not OutputKind.ALIAS_OF_INPUT for o in seen_outputs)
    wants = wants or any(s.tracked for s in seen_inputs)
    return Analysis(
        inputs=seen_inputs,
        outputs=seen_outputs,
        training=captured.grad_enabled and not captured.inference_mode and wants,
        aliased=tuple(g for g in alias_groups(captured.example_inputs) if mutated & set(g.members)),
        symbols=size_symbols(captured.example_inputs),
    )


def _state(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    version = None if value.is_inference() else value._version
    layout = (tuple(value.shape), tuple(value.stride()), value.storage_offset())
    return version, layout, value.grad_fn, value.requires_grad, value.untyped_storage()._cdata


def _input(number: int, value: Any, before: Any) -> SeenInput:
    if before is None:
        return SeenInput(Mutation.NONE, False, False)
    version, layout, node, required, storage = before
    if value.untyped_storage()._cdata != storage:
        raise UnsupportedError(f"input {number} was given other memory (set_)")
    moved = layout != (tuple(value.shape), tuple(value.stride()), value.storage_offset())
    written = version is not None and value._version != version
    if written and moved:
        # Metadata operations move the version too; only a graph of writes would tell them apart, so the data is
        # taken to have changed.
        kind = Mutation.DATA_AND_METADATA
    else:
        kind = Mutation.DATA if written else Mutation.METADATA if moved else Mutation.NONE
    tracked = kind is not Mutation.NONE and value.grad_fn is not node
    if value.requires_grad != required and not tracked:
        raise UnsupportedError(f"input {number} had requires_grad changed to {value.requires_grad}")
    return SeenInput(kind, tracked, required, layout_of(value) if moved else None)


def _outputs(outputs: list[Any], inputs: list[Any]) -> tuple[SeenOutput, ...]:
    storages = {
        v.untyped_storage()._cdata: n for n, v in reversed(list(enumerate(inputs))) if isinstance(v, torch.Tensor)
    }
    identities = {id(v): n for n, v in reversed(list(enumerate(inputs))) if isinstance(v, torch.Tensor)}
    sharing: dict[int, list[int]] = {}
    repeated = _repeated(outputs)
    for number, value in enumerate(outputs):
        if number in repeated:
            continue
        if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata not in storages:
            sharing.setdefault(value.untyped_storage()._cdata, []).append(number)
    for group in sharing.values():
        if len({(outputs[n].dtype, outputs[n].is_conj(), outputs[n].is_neg()) for n in group}) > 1:
            raise UnsupportedError(f"outputs {group} share memory as different dtypes")
    return tuple(
        SeenOutput(OutputKind.IS_OUTPUT, source=repeated[n])
        if n in repeated
        else _output(n, v, inputs, storages, identities, sharing)
        for n, v in enumerate(outputs)
    )


def _repeated(outputs: list[Any]) -> dict[int, int]:
    """Outputs that are the same tensor object as an earlier one, with that one."""
    first: dict[int, int] = {}
    return {
        n: first[id(v)]
        for n, v in enumerate(outputs)
        if isinstance(v, torch.Tensor) and first.setdefault(id(v), n) != n
    }


def _output(
    number: int,
    value: Any,
    inputs: list[Any],
    storages: dict[int, int],
    identities: dict[int, int],
    sharing: dict[int, list[int]],
) -> SeenOutput:
    if isinstance(value, torch.SymInt):
        return SeenOutput(OutputKind.SIZE, value=size_text(size(value)))
    if value is None or isinstance(value, bool | int | float | str):
        return SeenOutput(OutputKind.CONSTANT, value=value)
    if not isinstance(value, torch.Tensor):
        raise UnsupportedError(f"output {number} is a {type(value).__name__}")
    if value.layout != torch.strided:
        raise UnsupportedError(f"output {number} has layout {value.layout}")
    if id(value) in identities:
        return SeenOutput(OutputKind.IS_INPUT, value.requires_grad, identities[id(value)])
    storage = value.untyped_storage()._cdata
    if storage in storages:
        source = storages[storage]
        return _view_of_input(number, value, source, inputs[source])
    group = sharing[storage]
    if len(group) > 1:
        if value.requires_grad and _overlaps(value):
            raise UnsupportedError(f"output {number} shares memory with another output and overlaps itself")
        return SeenOutput(OutputKind.ALIAS_OF_INTERMEDIATE, value.requires_grad, group[0], layout_of(value))
    return SeenOutput(OutputKind.FRESH, value.requires_grad, stride=tuple(value.stride()))


def _view_of_input(number: int, value: torch.Tensor, source: int, viewed: torch.Tensor) -> SeenOutput:
    """An output in the memory of an input; its view is rebuilt by strides at run time."""
    if value.is_conj() or viewed.is_conj() or value.is_neg() != viewed.is_neg():
        raise UnsupportedError(f"output {number} is a lazy conjugate or negative view of input {source}")
    if value.requires_grad and (_overlaps(viewed) or _overlaps(value)):
        # The gradient of a view by strides shares out what overlapping elements get; other views add it up.
        raise UnsupportedError(f"output {number} is a differentiable view of input {source}, which overlaps itself")
    kind = OutputKind.ALIAS_OF_INPUT
    if value.dtype == viewed.dtype:
        return SeenOutput(kind, value.requires_grad, source, layout_of(value, viewed.storage_offset()))
    if value.dtype.is_complex == viewed.dtype.is_complex and value.itemsize != viewed.itemsize:
        raise UnsupportedError(f"output {number} views input {source} as a dtype of another width")
    start = viewed.storage_offset() * viewed.itemsize // value.itemsize
    dtype = str(value.dtype).removeprefix("torch.")
    return SeenOutput(kind, value.requires_grad, source, layout_of(value, start), dtype=dtype)


def _overlaps(value: torch.Tensor) -> bool:
    """Whether elements of a tensor may share memory: strides that do not step over the dimensions inside."""
    dims = sorted(
        (s, e) for e, s in zip(value.shape, value.stride(), strict=True) if not (isinstance(e, int) and e == 1)
    )
    if any(isinstance(e, int) and e == 0 for _, e in dims):
        return False
    reach: Any = 0
    for stride, extent in dims:
        if bool(stride <= reach):
            return True
        reach = reach + stride * (extent - 1)
    return False
