"""How far rounding may move a result: eager runs in which every inexact operation is perturbed at random.

A compiler may reorder sums, contract multiply-add and keep half-precision intermediates in float32; each such
freedom changes an operation's result by a few units in the last place.  Running the same function eagerly with
every inexact ATen operation moved by that much (Monte-Carlo arithmetic, after Parker) shows, element by
element, what such a change can do to the outputs and gradients: where sums cancel the spread is wide, where they
do not it is narrow, and where a branch flips it shows that too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

ULPS = 2.0
"""Largest relative move of one result, in units of the dtype's machine epsilon."""

_EXACT = frozenset(
    """
    _local_scalar_dense _reshape_alias _to_copy _unsafe_view abs alias all amax amin any arange argmax argmin
    argsort as_strided as_strided_scatter bitwise_and bitwise_not bitwise_or bitwise_xor cat ceil clamp
    clamp_max clamp_min clone constant_pad_nd copy detach diagonal diagonal_scatter embedding empty empty_like
    empty_strided eq expand eye fill flip floor full full_like gather ge gt heaviside index index_copy
    index_fill index_select isfinite isinf isnan le lift_fresh logical_and logical_not logical_or logical_xor lt
    masked_fill masked_scatter max max_pool2d_with_indices maximum min minimum narrow ne neg new_empty
    new_empty_strided new_full new_ones new_zeros nonzero ones ones_like permute reflection_pad1d
    reflection_pad2d relu repeat replication_pad1d replication_pad2d roll round scalar_tensor scatter select
    select_scatter sgn sign signbit slice slice_scatter sort split split_with_sizes squeeze stack t
    threshold_backward topk transpose tril triu trunc unbind unfold unsqueeze upsample_nearest1d
    upsample_nearest2d view view_as where zero zeros zeros_like
    """.split()  # noqa: SIM905
)
"""Operations whose result every correct implementation gives to the bit, its operands being equal."""

_ELEMENTARY = frozenset(
    """
    acos acosh add asin asinh atan atan2 atanh cos cosh div erf erfc exp exp2 expm1 fmod frac
    hypot lgamma log log10 log1p log2 mul pow reciprocal remainder rsqrt rsub sigmoid sin sinh sqrt square
    sub tan tanh true_divide
    """.split()  # noqa: SIM905
)
"""Operations that round once: moving the result is all that rounding can do.

Any other one (sums, products of matrices, norms, and formulas of several operations such as ``cross`` or ``lerp``)
rounds inside, where terms may cancel, so its operands are moved as well.
"""


_BY_WIDTH = frozenset(["gelu"])
"""Operations whose float32 kernels on a CPU differ by the width of a call: ``gelu(inf)`` is inf by itself, and NaN
among others.  Every other sample computes them in float64, whose kernel is one."""


class Perturbed(TorchDispatchMode):
    """While active, moves each inexact result (and the operands of longer formulas) by up to ``ULPS`` epsilons.

    ``seed`` picks the sample; torch's own random state is left alone.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self._widens = seed % 2 == 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[-1].rstrip("_")
        if name in _EXACT or _is_view(func):
            return func(*args, **kwargs)
        if name not in _ELEMENTARY:
            args, kwargs = self._move_operands(func, args, kwargs)
        result = self._by_width(func, args, kwargs) if name in _BY_WIDTH else func(*args, **kwargs)
        if func._schema.is_mutable:
            for tensor in pytree.tree_leaves(result):
                if isinstance(tensor, Tensor) and tensor.is_floating_point():
                    tensor.copy_(self._move(tensor))
            return result
        return pytree.tree_map_only(Tensor, self._move, result)

    def _by_width(self, func: Any, args: tuple, kwargs: dict) -> Tensor:
        (x, *rest) = args
        if not self._widens or func._schema.is_mutable:
            return func(x, *rest, **kwargs)
        return torch.empty_like(x).copy_(func(x.to(torch.float64), *rest, **kwargs))

    def _move_operands(self, func: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        written = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        names = [a.name for a in func._schema.arguments]
        moved = [a if names[i] in written else pytree.tree_map_only(Tensor, self._move, a) for i, a in enumerate(args)]
        return tuple(moved), {
            k: v if k in written else pytree.tree_map_only(Tensor, self._move, v) for k, v in kwargs.items()
        }

    def _move(self, tensor: Tensor) -> Tensor:
        """A copy of ``tensor`` in its own layout, each element moved; other than real floats pass as they are."""
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor
        epsilon = torch.finfo(tensor.dtype).eps
        noise = torch.rand(tensor.shape, generator=self._generator).mul_(2).sub_(1)
        scale = 1.0 + noise.to(torch.float64) * (ULPS * epsilon)
        return torch.empty_like(tensor).copy_(tensor.to(torch.float64) * scale)


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
