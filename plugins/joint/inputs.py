"""Fake inputs of the run: like the example inputs, with memory of their own that they share just where those do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.graph.fakes.sizes import span
from turret.graph.tensor_versions import version_of
from turret.hooks.signature import Layout, SyntheticBase
from turret.ir.index import size_of_inputs
from turret.plan import size_text
from turret.plugins.joint.storage import Storage, Tracked, ViewStep
from turret.plugins.joint.tracer import JointTracer
from turret.torch_compat.fakes import FakeTensor
from turret.torch_compat.operators.ops import neg_view

aten = torch.ops.aten


@attrs.frozen(eq=False)
class InputState:
    """What is known of an input before the run, to be compared with after."""

    layout: tuple
    version: int | None
    grad_fn: Any
    requires_grad: bool
    negated: bool

    @classmethod
    def of(cls, value: torch.Tensor) -> InputState:
        layout = (tuple(value.shape), tuple(value.stride()), value.storage_offset())
        return cls(layout, version_of(value), value.grad_fn, value.requires_grad, value.is_neg())


@attrs.define(eq=False)
class AliasGroup:
    """Inputs that lie in one memory.

    ``start`` and ``length`` (in elements) span what they show of it.  The graph gets a flat view of that span as
    one more input as soon as somebody writes to it: ``node``.  ``joined`` members are views, for autograd as well, of
    the fake memory ``value`` (with the state ``before`` the run), whose gradient is that of ``leaf``.
    """

    members: tuple[int, ...]
    start: Any
    length: Any
    layouts: tuple[Layout, ...]
    examples: tuple[torch.Tensor, ...]
    joined: bool = False
    node: fx.Node | None = None
    leaf: Any = None
    value: Any = None
    before: InputState | None = None

    def __call__(self, tracer: JointTracer) -> fx.Node:
        """Make the further input."""
        flat = torch.empty(self.length, dtype=self.examples[0].dtype, device=self.examples[0].device)
        self.node = tracer.recorder.placeholder(f"memory_{self.members[0]}", flat)
        return self.node

    @property
    def base(self) -> SyntheticBase:
        """How the further input is made at run time."""
        return SyntheticBase(self.members, self.layouts, size_text(size_of_inputs(self.length)), self.joined)

    @property
    def root(self) -> torch.Tensor | None:
        """The tensor that all members are views of (or are), where autograd knows it: no gradient of a leaf goes on."""
        roots = [e._base if e._is_view() else e for e in self.examples]
        first = roots[0]
        apart = any(e._is_view() and e.is_leaf and e.requires_grad for e in self.examples)
        if first is None or apart or any(r is not first for r in roots):
            return None
        return first if all(_plain_view(e) and e.dtype == first.dtype for e in self.examples) else None

    def join(self, gradients: bool) -> None:
        """Make the members views of one fake memory."""
        root = self.root
        assert root is not None  # members are joined where they have one
        flat = torch.empty(self.start + self.length, dtype=root.dtype, device=root.device)
        self.leaf = flat.as_strided((self.length,), (1,), self.start).detach()
        self.value = _require(root, self.leaf, gradients)
        self.joined, self.before = True, InputState.of(self.value)


def _plain_view(value: torch.Tensor) -> bool:
    return not (value.is_conj() or value.is_neg())


@attrs.define(eq=False)
class Inputs:
    """``leaves`` are what gradients are taken of; ``values`` what the program is given (the same, except where an
    input is not a leaf in eager)."""

    leaves: list[Any]
    values: list[Any]
    before: list[InputState | None]
    groups: list[AliasGroup]


def storage_length(value: torch.Tensor) -> Any:
    """Elements from the start of a tensor's storage to the end of its last element."""
    return value.storage_offset() + span(value)


def make_inputs(
    tracer: JointTracer,
    examples: Sequence[Any],
    names: Sequence[str],
    gradients: bool,
    joined: Collection[tuple[int, ...]] = (),
) -> Inputs:
    """Fresh fake inputs, each with its placeholder.  Call under the fake mode and outside the tracer.

    With ``gradients``, inputs that require one are leaves just where the examples are, so that in-place operations on
    them are allowed or refused as in eager.  Members of the groups in ``joined`` are views of one tensor.
    """
    for number, value in enumerate(examples):
        _check(number, value)
    groups = _groups(examples)
    inputs = Inputs([], [], [], groups)
    for group in groups:
        if group.members in joined:
            group.join(gradients)
    member_of = {m: group for group in groups for m in group.members}
    storages: dict[int, tuple[Storage, torch.Tensor]] = {}
    for number, (value, name) in enumerate(zip(examples, names, strict=True)):
        if not isinstance(value, torch.Tensor):
            tracer.recorder.placeholder(name, value)
            inputs.leaves.append(value)
            inputs.values.append(value)
            inputs.before.append(None)
            continue
        shared = member_of.get(number)
        if shared is not None:
            _add_member(tracer, inputs, shared, number, value, name, storages, gradients)
        else:
            _add_lone(tracer, inputs, number, value, name, gradients)
        inputs.before.append(InputState.of(inputs.values[-1]))
    for group in groups:
        if group.joined:
            storage = storages[id(group)][0]
            tracer.remember(Tracked(group.value, tracer.base_of(storage), storage))
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
    """Inputs whose memory overlaps, or may where sizes are dynamic."""
    found: dict[int, list[int]] = {}
    for number, value in enumerate(examples):
        if isinstance(value, torch.Tensor):
            found.setdefault(value.untyped_storage()._cdata, []).append(number)
    parts = [part for members in found.values() if len(members) > 1 for part in _overlapping(members, examples)]
    return [_group(part, examples) for part in parts if len(part) > 1]


def _overlapping(members: list[int], examples: Sequence[Any]) -> list[tuple[int, ...]]:
    """Inputs in one storage, those with bytes between the first and the last of each other together."""
    spans = {m: _span(examples[m]) for m in members}
    if not all(isinstance(v, int) for span in spans.values() for v in span):
        return [tuple(members)]
    parts: list[list[int]] = []
    reach = -1
    for member in sorted(members, key=lambda m: spans[m]):
        start, end = spans[member]
        if not parts or start >= reach:
            parts.append([])
        parts[-1].append(member)
        reach = max(reach, end)
    return [tuple(sorted(part)) for part in parts]


def _span(value: torch.Tensor) -> tuple[Any, Any]:
    width = value.element_size()
    return value.storage_offset() * width, storage_length(value) * width


def _group(members: tuple[int, ...], examples: Sequence[Any]) -> AliasGroup:
    values = [examples[m] for m in members]
    start = values[0].storage_offset()
    length = storage_length(values[0])
    for value in values[1:]:
        start = min(start, value.storage_offset())
        length = max(length, storage_length(value))
    layouts = tuple(layout_of(v, start) for v in values)
    return AliasGroup(members, start, length - start, layouts, tuple(values))


def layout_of(value: torch.Tensor, start: Any = 0) -> Layout:
    """A tensor's layout with its offset relative to ``start`` (in elements)."""
    return Layout(
        tuple(size_text(size_of_inputs(s)) for s in value.shape),
        tuple(size_text(size_of_inputs(s)) for s in value.stride()),
        size_text(size_of_inputs(value.storage_offset() - start)),
    )


def _add_lone(
    tracer: JointTracer, inputs: Inputs, number: int, value: torch.Tensor, name: str, gradients: bool
) -> None:
    leaf = _as_view(value, _like(value))
    given = _require(value, leaf, gradients)
    node = tracer.recorder.placeholder(name, _not_negated(tracer.alias(leaf) if given.requires_grad else leaf))
    storage = Storage(node, given, number)
    tracer.remember(Tracked(given, node, storage, diverged=given.is_neg()))
    inputs.leaves.append(leaf)
    inputs.values.append(given)


def _add_member(
    tracer: JointTracer,
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
        found = storages[id(group)] = (Storage(None, group.value, number, group), flat)
    storage, flat = found
    mixed = flat.dtype != value.dtype or value.is_conj() or value.is_neg()
    leaf = _like(value) if mixed else flat.as_strided(value.shape, value.stride(), value.storage_offset())
    node = tracer.recorder.placeholder(name, _not_negated(leaf))
    leaf = _as_view(value, leaf.detach())
    if group.joined:
        given = group.value.as_strided(value.shape, value.stride(), value.storage_offset())
    else:
        given = _require(value, leaf, gradients)
    layout = (list(value.shape), list(value.stride()), value.storage_offset() - group.start)
    step = ViewStep(aten.as_strided.default, layout)
    tracked = Tracked(given, node, storage, (step,), diverged=given.is_neg())
    if mixed:
        storage.group = _refuse_mixed
    tracer.remember(tracked)
    inputs.leaves.append(leaf)
    inputs.values.append(given)


def _refuse_mixed(tracer: JointTracer) -> fx.Node:
    raise UnsupportedError("inputs share memory as different dtypes and one is mutated")


def _like(value: torch.Tensor) -> torch.Tensor:
    if isinstance(value.storage_offset(), int) and value.storage_offset() == 0:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    else:
        base = torch.empty(storage_length(value), dtype=value.dtype, device=value.device)
        made = base.as_strided(value.shape, value.stride(), value.storage_offset()).detach()
    made = made.conj() if value.is_conj() else made
    return neg_view(made) if value.is_neg() else made


def _not_negated(value: torch.Tensor) -> torch.Tensor:
    """What the graph takes for an input: the runtime copies those whose memory holds the negative of their values."""
    return neg_view(value) if value.is_neg() else value


def _as_view(value: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """``made``, as a view of other memory if ``value`` is one and yet a leaf that requires a gradient.

    A view made under ``no_grad`` requires a gradient if the tensor does that it is, in the end, a view of.
    """
    return aten.alias.default(made) if value._is_view() and value.is_leaf and value.requires_grad else made


def _require(value: torch.Tensor, made: torch.Tensor, gradients: bool) -> torch.Tensor:
    if not (gradients and value.requires_grad):
        return made
    made.requires_grad_()
    if value.is_leaf:
        return made
    with torch.enable_grad():
        return _NonLeaf.apply(made)


class _NonLeaf(torch.autograd.Function):
    """Gives its input a ``grad_fn`` without changing its layout (a clone could); no gradient stays none."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return _like(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        return gradient
