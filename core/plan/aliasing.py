"""Whether a call's inputs lie in memory as those that a graph was compiled for did.

A graph that writes to an input is right only for the sharing of memory that it was traced with: another input in the
memory written to would have to change as well.  Capture guards on shapes, not on addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.hooks.signature import GraphSignature, Mutation, SyntheticBase
from turret.plan.sizes import Sizes, compile_size, size_reader

_WRITES = (Mutation.IN_GRAPH, Mutation.DATA, Mutation.DATA_AND_METADATA)
Span = tuple[int, int, bool]
"""First byte, one past the last, and whether it is written to."""


def writes_inputs(signature: GraphSignature) -> bool:
    """Whether a graph writes to memory that its inputs lie in."""
    return bool(signature.bases or _written_inputs(signature))


def _written_inputs(signature: GraphSignature) -> frozenset[int]:
    """Inputs that the graph writes to, or its backward."""
    late = frozenset(m.index for m in signature.late_memory if m.written and not m.made)
    return late.union(n for n, info in enumerate(signature.inputs) if info.mutation in _WRITES)


def sharing_check(
    signature: GraphSignature, example_inputs: Sequence[Any], static_inputs: frozenset[int]
) -> Callable[[Sequence[Any]], bool] | None:
    """``check(inputs)``: whether no input overlaps one that is written to except as in the example.

    None where nothing is written to, or everything lies in ``static_inputs``, whose memory is always the same.
    """
    tensors = frozenset(n for n, value in enumerate(example_inputs) if isinstance(value, torch.Tensor))
    joined = frozenset(m for base in signature.bases for m in base.members)
    written = joined | _written_inputs(signature) & tensors
    moving = tensors - static_inputs
    if not written or not moving or len(tensors) < 2:
        return None
    alone = (tensors if written & moving else written | moving) - joined
    spans = tuple((n, n in written, _extent(example_inputs[n])) for n in sorted(alone))
    read_sizes, bases = size_reader(signature), tuple(map(_base_span, signature.bases))

    def check(args: Sequence[Any]) -> bool:
        found: list[Span] = []
        for number, writes, extent in spans:
            value = args[number]
            start = value.data_ptr()
            found.append((start, start + (_bytes(value) if extent is None else extent), writes))
        sizes = read_sizes(args) if bases else {}
        for span_of in bases:
            span = span_of(args, sizes)
            if span is None:
                return False
            found.append(span)
        return _apart(found)

    return check


def fallback_on_alias_mismatch(
    function: Callable[..., Any],
    eager: Callable[..., Any],
    check: Callable[[Sequence[Any]], bool],
    report: Callable[..., None],
) -> Callable[..., Any]:
    """``function`` where ``check`` holds of a call's inputs, else ``eager``; ``report(message=...)`` is told once."""
    told = False

    def call(*args: Any) -> Any:
        nonlocal told
        if check(args):
            return function(*args)
        if not told:
            told = True
            report(message="inputs share memory, one of them written to, in another way than when it was compiled")
        return eager(*args)

    return call


def _apart(spans: list[Span]) -> bool:
    """Whether nothing overlaps a span that is written to."""
    spans.sort()
    reach = written_reach = 0
    for start, end, writes in spans:
        if start == end:
            continue
        if start < (reach if writes else written_reach):
            return False
        reach = max(reach, end)
        if writes:
            written_reach = max(written_reach, end)
    return True


def _extent(value: torch.Tensor) -> int | None:
    """Bytes from a tensor's first element to its last; None where sizes are dynamic."""
    return _bytes(value) if all(type(s) is int for s in (*value.shape, *value.stride())) else None


def _bytes(value: torch.Tensor) -> int:
    last = 1
    for extent, stride in zip(value.shape, value.stride(), strict=True):
        if extent == 0:
            return 0
        last += (extent - 1) * stride
    return last * value.element_size()


def _base_span(base: SyntheticBase) -> Callable[[Sequence[Any], Sizes], Span | None]:
    """``span(inputs, sizes)``: the bytes of a common memory; None where its members do not lie in it as they did."""
    offsets, length = tuple(compile_size(layout.offset) for layout in base.layouts), compile_size(base.length)

    def span(args: Sequence[Any], sizes: Sizes) -> Span | None:
        members = [args[m] for m in base.members]
        width = members[0].element_size()
        start = members[0].data_ptr() - offsets[0](sizes) * width
        for member, offset in zip(members, offsets, strict=True):
            if member.data_ptr() != start + offset(sizes) * width:
                return None
        if base.joined:
            roots = [m._base if m._is_view() else m for m in members]
            if any(root is not roots[0] for root in roots):
                return None
        return start, start + length(sizes) * width, True

    return span
