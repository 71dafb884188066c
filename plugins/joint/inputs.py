"""Fake inputs of the run: like the example inputs, with memory of their own that they share just where those do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from turret.errors import UnsupportedError
from turret.ir.index import size
from turret.plan import size_text
from turret.plugins.joint.storage import Storage, Tracked, ViewStep
from turret.plugins.joint.tracer import Tracer
from turret.signature import Layout, SyntheticBase

aten = torch.ops.aten


@attrs.define(eq=False)
class AliasGroup:
    """Inputs that lie in one memory.

    ``start`` and ``length`` (in elements) span what they show of it.  The graph gets a flat view of that span as
    one more input as soon as somebody writes to it: ``node``.
    """

    members: tuple[int, ...]
    start: Any
    length: Any
    layouts: tuple[Layout, ...]
    example: torch.Tensor
    node: fx.Node | None = None

    def __call__(self, tracer: Tracer) -> fx.Node:
        """Make the further input."""
        if not isinstance(self.length, int) or any(
            isinstance(v, str) for layout in self.layouts for v in (*layout.shape, *layout.stride, layout.offset)
        ):
            raise UnsupportedError(f"inputs {self.members} share memory, one is mutated, and sizes are dynamic")
        flat = torch.empty(self.length, dtype=self.example.dtype, device=self.example.device)
        self.node = tracer.recorder.placeholder(f"memory_{self.members[0]}", flat)
        return self.node

    @property
    def base(self) -> SyntheticBase:
        """How the further input is made at run time."""
        return SyntheticBase(self.members, self.layouts, self.length)


@attrs.define(eq=False)
class Inputs:
    """``leaves`` are what gradients are taken of; ``values`` what the program is given (the same, except where an
    input is not a leaf in eager)."""

    leaves: list[Any]
    values: list[Any]
    groups: list[AliasGroup]


def storage_length(value: torch.Tensor) -> Any:
    """Elements from the start of a tensor's storage to the end of its last element."""
    length = value.storage_offset() + 1
    for extent, stride in zip(value.shape, value.stride(), strict=True):
        length = length + (extent - 1) * stride
    return length


def make_inputs(tracer: Tracer, examples: Sequence[Any], names: Sequence[str], gradients: bool) -> Inputs:
    """Fresh fake inputs, each with its placeholder.  Call under the fake mode and outside the tracer.

    With ``gradients``, inputs that require one are leaves just where the examples are, so that in-place operations on
    them are allowed or refused as in eager.
    """
    for number, value in enumerate(examples):
        _check(number, value)
    groups = _groups(examples)
    inputs = Inputs([], [], groups)
    member_of = {m: group for group in groups for m in group.members}
    storages: dict[int, tuple[Storage, torch.Tensor]] = {}
    for number, (value, name) in enumerate(zip(examples, names, strict=True)):
        if not isinstance(value, torch.Tensor):
            tracer.recorder.placeholder(name, value)
            inputs.leaves.append(value)
            inputs.values.append(value)
            continue
        group = member_of.get(number)
        if group is not None:
            _add_member(tracer, inputs, group, number, value, name, storages, gradients)
        else:
            _add_lone(tracer, inputs, number, value, name, gradients)
    return inputs


_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)


def _check(number: int, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        if value is not None and not isinstance(value, _NUMBERS):
            raise UnsupportedError(f"input {number} is a {type(value).__name__}; graphs take tensors and numbers")
        return
    if type(value) is not FakeTensor:
        raise UnsupportedError(f"input {number} is a {type(value).__name__}; tensor subclasses are not compiled")
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        raise UnsupportedError(f"input {number} has layout {value.layout}; compiled graphs take strided tensors")


def _groups(examples: Sequence[Any]) -> list[AliasGroup]:
    found: dict[int, list[int]] = {}
    for number, value in enumerate(examples):
        if isinstance(value, torch.Tensor):
            found.setdefault(value.untyped_storage()._cdata, []).append(number)
    return [_group(tuple(members), examples) for members in found.values() if len(members) > 1]


def _group(members: tuple[int, ...], examples: Sequence[Any]) -> AliasGroup:
    values = [examples[m] for m in members]
    start = values[0].storage_offset()
    length = storage_length(values[0])
    for value in values[1:]:
        start = min(start, value.storage_offset())
        length = max(length, storage_length(value))
    layouts = tuple(layout_of(v, start) for v in values)
    return AliasGroup(members, start, length - start, layouts, values[0])


def layout_of(value: torch.Tensor, start: Any = 0) -> Layout:
    """A tensor's layout with its offset relative to ``start`` (in elements)."""
    return Layout(
        tuple(size_text(size(s)) for s in value.shape),
        tuple(size_text(size(s)) for s in value.stride()),
        size_text(size(value.storage_offset() - start)),
    )


def _add_lone(tracer: Tracer, inputs: Inputs, number: int, value: torch.Tensor, name: str, gradients: bool) -> None:
    leaf = _like(value)
    given = _require(value, leaf, gradients)
    node = tracer.recorder.placeholder(name, leaf.detach() if given.requires_grad else leaf)
    storage = Storage(node, given, number)
    tracer.remember(Tracked(given, node, storage))
    inputs.leaves.append(leaf)
    inputs.values.append(given)


def _add_member(
    tracer: Tracer,
    inputs: Inputs,
    group: AliasGroup,
    number: int,
    value: torch.Tensor,
    name: str,
    storages: dict[int, tuple[Storage, torch.Tensor]],
    gradients: bool,
) -> None:
    found = storages.get(id(group))
    if found is None:
        flat = torch.empty(group.start + group.length, dtype=value.dtype, device=value.device)
        found = storages[id(group)] = (Storage(None, None, number, group), flat)
    storage, flat = found
    mixed = flat.dtype != value.dtype or value.is_conj() or value.is_neg()
    leaf = _like(value) if mixed else flat.as_strided(value.shape, value.stride(), value.storage_offset())
    node = tracer.recorder.placeholder(name, leaf)
    leaf = leaf.detach()
    given = _require(value, leaf, gradients)
    layout = (list(value.shape), list(value.stride()), value.storage_offset() - group.start)
    step = ViewStep(aten.as_strided.default, layout)
    tracked = Tracked(given, node, storage, (step,))
    if mixed:
        storage.group = _refuse_mixed
    tracer.remember(tracked)
    inputs.leaves.append(leaf)
    inputs.values.append(given)


def _refuse_mixed(tracer: Tracer) -> fx.Node:
    raise UnsupportedError("inputs share memory as different dtypes and one is mutated")


def _like(value: torch.Tensor) -> torch.Tensor:
    if isinstance(value.storage_offset(), int) and value.storage_offset() == 0:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    else:
        base = torch.empty(storage_length(value), dtype=value.dtype, device=value.device)
        made = base.as_strided(value.shape, value.stride(), value.storage_offset()).detach()
    made = made.conj() if value.is_conj() else made
    return torch._neg_view(made) if value.is_neg() else made


def _require(value: torch.Tensor, made: torch.Tensor, gradients: bool) -> torch.Tensor:
    if not (gradients and value.requires_grad):
        return made
    made.requires_grad_()
    return made if value.is_leaf else _NonLeaf.apply(made)


class _NonLeaf(torch.autograd.Function):
    """Gives its input a ``grad_fn`` without changing its layout (a clone could)."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return _like(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient
