"""Whether two tensors in one storage have an element in common, and what that means for an op that writes."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.graph.fakes.sizes import is_backed, is_dense, same_places, same_sizes
from turret.graph.op_traits import is_mutating_op, size_hint, written_tensors
from turret.torch_compat.trees import pytree

aten = torch.ops.aten

_STEPS = 10_000
"""Steps after which the search for a common place gives up and takes it that there is one."""


class Overlap(enum.Enum):
    """How two tensors in one storage lie to each other."""

    NONE = "none"
    SAME = "same"
    """Element by element in the same places."""
    PARTIAL = "partial"
    """Some places in common, or none that could be told (sizes that are symbols)."""


def overlap(one: torch.Tensor, other: torch.Tensor) -> Overlap:
    """How two tensors lie to each other that are known to be in one storage."""
    if one.dtype == other.dtype and same_sizes(one.shape, other.shape) and same_places(one, other):
        return Overlap.SAME
    numbers = [*one.shape, *one.stride(), one.storage_offset(), *other.shape, *other.stride(), other.storage_offset()]
    if not all(type(number) is int for number in numbers):
        return Overlap.NONE if _follows(one, other) or _follows(other, one) else Overlap.PARTIAL
    if one.numel() == 0 or other.numel() == 0:
        return Overlap.NONE
    return Overlap.PARTIAL if _share_bytes(one, other) else Overlap.NONE


def _share_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of known layouts, in one storage, may have a byte in common."""
    width, other_width = one.element_size(), other.element_size()
    terms = [(stride * width, 1 - extent, 0) for extent, stride in zip(one.shape, one.stride(), strict=True)]
    terms += [(s * other_width, 0, extent - 1) for extent, s in zip(other.shape, other.stride(), strict=True)]
    if width > 1 or other_width > 1:
        terms += [(1, 1 - width, other_width - 1)]
    distance = int(one.storage_offset()) * width - int(other.storage_offset()) * other_width
    terms = sorted((term for term in terms if term[0] and term[1] < term[2]), reverse=True)
    return _is_sum(distance, terms, [_STEPS])


def _follows(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether ``second`` begins where ``first`` has ended, for all sizes."""
    if first.dtype != second.dtype:
        return False
    end = first.storage_offset() + 1
    for extent, stride in zip(first.shape, first.stride(), strict=True):
        end = end + (extent - 1) * stride
    gap = second.storage_offset() - end
    return gap >= 0 if isinstance(gap, int) else bool(sympy.expand(gap.node.expr).is_nonnegative)


def refused_by_eager(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether ATen's own check finds that a write to ``one`` would be half a write to ``other``.

    It looks at tensors without gaps alone.  Sizes that are symbols are taken for those of the example: a graph that
    eager refuses then runs eagerly.
    """
    dense = is_dense(one.shape, one.stride()) and is_dense(other.shape, other.stride())
    if not dense or overlap(one, other) is not Overlap.PARTIAL:
        return False
    (start, end), (other_start, other_end) = map(_span, (one, other))
    return max(start, other_start) < min(end, other_end)


def memory_refusal(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why eager refuses a call of an op of ATen's that writes, for where its arguments lie; None where it does not.

    Found by calls of eager's ops on such arguments; sizes that are symbols are taken for those of the example.
    """
    if not _checks_memory(op):
        return None
    written = [v for v in written_tensors(op, args, kwargs) if _is_placed(v)]
    if op not in _WRITE_WHERE_SEVERAL_LIE and any(map(_is_expanded, written)):
        return f"{op} writes to a tensor several of whose elements are one place in memory"
    if op in _TAKE_WHAT_THEY_WRITE or not written:
        return None
    given = pytree.tree_leaves((args, dict(kwargs)))
    read = [v for v in given if _is_placed(v) and all(v is not target for target in written)]
    if any(_refuses(op, target, value) for target in written for value in read):
        return f"{op} writes to memory that another of its arguments shares"
    return None


def _refuses(op: Any, target: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether an op does not write to a tensor where it reads another, which may lie in the same memory."""
    if target.untyped_storage()._cdata != value.untyped_storage()._cdata:
        return False
    return refused_by_eager(target, value) or (op in _TAKE_NOTHING_THAT_THEY_WRITE and _are_one(target, value))


@functools.cache
def _checks_memory(op: Any) -> bool:
    """Whether eager looks where the arguments of a call of an op lie; of ops with results given, some do not."""
    if not is_mutating_op(op) or op.namespace != "aten" or any(_is_written_list(a) for a in op._schema.arguments):
        return False
    with_results = not op._schema.arguments[0].is_write
    return not with_results or torch.Tag.pointwise in op.tags or op in _CHECKED_WITH_RESULTS


def _is_placed(value: Any) -> bool:
    """Whether an argument is a tensor of which the sizes at hand say where it lies, and not data."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    return is_backed(value) and not free_unbacked_symbols(value.storage_offset())


def _are_one(one: torch.Tensor, other: torch.Tensor) -> bool:
    return is_dense(one.shape, one.stride()) and overlap(one, other) is Overlap.SAME


def _is_written_list(argument: Any) -> bool:
    return argument.is_write and str(argument.type) != "Tensor"


def _is_expanded(value: torch.Tensor) -> bool:
    pairs = zip(value.shape, value.stride(), strict=True)
    return any(type(stride) is int and stride == 0 and size_hint(size, 2) > 1 for size, stride in pairs)


CHANGE_LAYOUTS = frozenset(
    getattr(packet, overload)
    for packet in (
        aten._resize_output_,
        aten.resize_,
        aten.resize_as_,
        aten.as_strided_,
        aten.squeeze_,
        aten.swapaxes_,
        aten.swapdims_,
        aten.t_,
        aten.transpose_,
        aten.unsqueeze_,
        aten.set_,
    )
    for overload in packet.overloads()
)
"""Ops whose schemas say that they write, where the tensor alone changes and no element of it."""

_WRITE_WHERE_SEVERAL_LIE = CHANGE_LAYOUTS | {
    aten._native_batch_norm_legit.default,
    aten._index_put_impl_.default,
    aten.addmv_.default,
    aten.baddbmm_.default,
    aten.conj_physical_.default,
    aten.fill_.Scalar,
    aten.index_put_.default,
    aten.masked_fill_.Scalar,
    aten.masked_fill_.Tensor,
    aten.native_batch_norm.default,
    aten.threshold_.default,
    aten.tril_.default,
    aten.triu_.default,
    aten.zero_.default,
}
"""Ops that eager runs on expanded tensors."""

_TAKE_WHAT_THEY_WRITE = CHANGE_LAYOUTS | {
    aten._native_batch_norm_legit.default,
    aten.addbmm_.default,
    aten.addmm_.default,
    aten.addmv_.default,
    aten.baddbmm_.default,
    aten.ldexp.out,
    aten.masked_fill_.Scalar,
    aten.masked_fill_.Tensor,
    aten.masked_scatter_.default,
    aten.mvlgamma.out,
    aten.native_batch_norm.default,
}
"""Ops that eager runs where what they write to is a part of another argument."""

_TAKE_NOTHING_THAT_THEY_WRITE = frozenset(
    (
        aten.gather.out,
        aten.index_add.out,
        aten.index_add_.default,
        aten.index_copy.out,
        aten.index_copy_.default,
        aten._index_put_impl_.default,
        aten.index_put_.default,
        aten.index_reduce.out,
        aten.index_reduce_.default,
        aten.index_select.out,
        aten.put_.default,
        aten.scatter_.reduce,
        aten.scatter_.src,
        aten.scatter_add_.default,
        aten.scatter_reduce_.two,
        aten.take.out,
    )
)
"""Ops that eager does not run where what they write to is another argument."""

_CHECKED_WITH_RESULTS = frozenset(
    (
        aten.cumprod.out,
        aten.cumsum.out,
        aten.gather.out,
        aten.gelu.out,
        aten.hardshrink.out,
        aten.index_select.out,
        aten.logcumsumexp.out,
        aten.max.dim_max,
        aten.min.dim_min,
        aten.scatter.reduce_out,
        aten.scatter.src_out,
        aten.scatter_add.out,
        aten.scatter_reduce.two_out,
        aten.softplus.out,
        aten.softshrink.out,
        aten.sort.values,
        aten.sort.values_stable,
        aten.take.out,
        aten.topk.values,
        aten.where.self_out,
    )
)
"""Of the ops that are given tensors to write results to, those whose memory eager checks beside the elementwise."""


def _span(dense: torch.Tensor) -> tuple[int, int]:
    """Where a tensor without gaps begins and ends, in bytes of its storage."""
    start = size_hint(dense.storage_offset(), 0)
    count = math.prod(map(size_hint, dense.shape))
    return start * dense.element_size(), (start + count) * dense.element_size()


def _is_sum(target: int, terms: Sequence[tuple[int, int, int]], steps: list[int]) -> bool:
    """Whether ``target`` is a sum of a multiple of each stride, from its least factor to its greatest.

    The strides come largest first: what the smaller ones can reach leaves few factors to try for each.
    """
    steps[0] -= 1
    if not terms or steps[0] < 0:
        return target == 0 or steps[0] < 0
    (stride, least, greatest), rest = terms[0], terms[1:]
    low = sum(s * factor for s, factor, _ in rest)
    high = sum(s * factor for s, _, factor in rest)
    first, last = max(least, -((high - target) // stride)), min(greatest, (target - low) // stride)
    return any(_is_sum(target - factor * stride, rest, steps) for factor in range(first, last + 1))


def sharing(values: Sequence[Any], storages: Sequence[Any]) -> list[tuple[int, int, Overlap]]:
    """Pairs of tensors among ``values`` that have an element in common; ``storages`` say which memory each lies in."""
    found: dict[int, list[int]] = {}
    pairs: list[tuple[int, int, Overlap]] = []
    for number, storage in enumerate(storages):
        if storage is None:
            continue
        for other in found.setdefault(id(storage), []):
            how = overlap(values[other], values[number])
            if how is not Overlap.NONE:
                pairs.append((other, number, how))
        found[id(storage)].append(number)
    return pairs
