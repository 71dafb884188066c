"""Which graph outputs were computed of tensors that the caller sees, and may ask for the gradients of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch

from turret.graph.autograd.gradient_hooks import has_hook
from turret.hooks.signature import AliasKind, GraphSignature, Mutation, OutputKind, Visible
from turret.plugins.joint.histories import computed_of
from turret.plugins.joint.outputs import ForwardOutputs

_MOST_EDGES = 2048
"""So many pairs of a result and what it was computed of are edges of autograd's graph in each call; of more of them (a
thousand states of a loop) each result leads to the nearest."""


def with_visible(signature: GraphSignature, forward: ForwardOutputs) -> GraphSignature:
    """The signature of a graph whose results are collected, with what of them was computed of what.

    Not where a backward cannot end there: where inputs share memory, or an output lies in that of an input without
    being a view of it.
    """
    numbers = [n for n, o in enumerate(forward.described) if o.differentiable]
    if signature.bases or not signature.grad_enabled or any(forward.described[n].view_of is not None for n in numbers):
        return signature
    candidates = list(_candidates(signature))
    tensors = [_tensor(forward, v) for v in candidates]
    outputs = [forward.tensors[n] for n in numbers]
    found = computed_of(outputs, tensors) if candidates else []
    nearest = sum(map(len, found)) > _MOST_EDGES
    if nearest:
        found = computed_of(outputs, tensors, nearest)
    used = sorted({k for sources in found for k in sources})
    if not used:
        return signature
    for n, sources in zip(numbers, found, strict=True):
        forward.described[n] = attrs.evolve(forward.described[n], computed_of=tuple(map(used.index, sources)))
    visible = tuple(attrs.evolve(candidates[k], is_uncut=has_hook(tensors[k].grad_fn)) for k in used)
    return attrs.evolve(signature, graph_outputs=tuple(forward.described), visible=visible, nearest=nearest)


def uncut(signature: GraphSignature) -> GraphSignature:
    """The signature of a graph with one backward alone, which does more than to give gradients in tensors."""
    return attrs.evolve(signature, visible=tuple(attrs.evolve(v, is_uncut=True) for v in signature.visible))


def visible_tensors(signature: GraphSignature, forward: ForwardOutputs, stops: Sequence[int]) -> list[torch.Tensor]:
    """The traced tensors of some of the visible ones."""
    return [_tensor(forward, signature.visible[n]) for n in stops]


def _tensor(forward: ForwardOutputs, visible: Visible) -> Any:
    return forward.inputs.values[visible.index] if visible.is_input else forward.results[visible.index]


def _candidates(signature: GraphSignature) -> Iterator[Visible]:
    for n, info in enumerate(signature.inputs):
        if info.tracked and info.updated is not None and info.requires_grad_after is None:
            yield Visible(n, is_input=True, graph_output=info.updated)
    for n, output in enumerate(signature.outputs):
        viewed = signature.viewed(n)
        if not output.requires_grad or output.leaf or viewed.leaf or viewed.alias is not AliasKind.VIEW:
            continue
        if viewed.kind in (OutputKind.FRESH, OutputKind.ALIAS_OF_INTERMEDIATE):
            yield Visible(n, graph_output=viewed.index)
        elif viewed.kind is OutputKind.ALIAS_OF_INPUT and _is_as_it_was(signature, viewed.index):
            yield Visible(n)


def _is_as_it_was(signature: GraphSignature, number: int) -> bool:
    info = signature.inputs[number]
    return info.mutation is Mutation.NONE and info.replaced_by is None and info.requires_grad_after is None
