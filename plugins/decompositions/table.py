"""The decomposition table of a target: torch's entries for ops outside the op set, then Turret's own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from turret.graph.op_set import core_ops, resolve
from turret.graph.scalar_ops import when_changed
from turret.hooks.devices import uses_host_kernels
from turret.plugins.decompositions import creation, movement, norms, pointwise, prims, reductions  # noqa: F401
from turret.plugins.decompositions.nn import activations, batch_norm, convolutions, losses, normalization  # noqa: F401
from turret.plugins.decompositions.randoms import RANDOM
from turret.plugins.decompositions.registry import OWN
from turret.torch_compat.operators.decompositions import torch_table
from turret.torch_compat.operators.ops import OpOverload


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


NOT_TORCHS = _words(
    """
    special_bessel_j0 special_bessel_j1 special_spherical_bessel_j0 special_i0e special_i1 special_i1e special_erfcx
    special_log_ndtr special_ndtri special_zeta special_zeta.self_scalar special_zeta.other_scalar
    normal.float_float normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor log_normal cauchy geometric
    exponential uniform frexp.Tensor resize_as item is_complex is_same_size lift lift_fresh lift_fresh_copy
    """
)
"""Ops whose decomposition in torch ends in primitives that no code generator has; they stay whole."""

_ROUNDED_BY_EAGER = _words(
    """
    linspace linspace.Tensor_Tensor linspace.Tensor_Scalar linspace.Scalar_Tensor
    logspace logspace.Tensor_Tensor logspace.Tensor_Scalar logspace.Scalar_Tensor
    """
)
"""Ops whose points eager's kernels round in a way of their own: the middle of ``linspace(-1, 1, 7)`` is not 0."""

_WHOLE_ON_CPU = _words(
    """
    reflection_pad1d reflection_pad2d reflection_pad3d reflection_pad1d_backward reflection_pad2d_backward
    reflection_pad3d_backward replication_pad1d replication_pad2d replication_pad3d
    """
)
"""Torch's decompositions that compute an index for every element, dimension by dimension, where eager copies rows."""

_CHECKED_BY_EAGER = _words("max_unpool2d max_unpool3d multi_margin_loss multilabel_margin_loss_forward")
"""Ops whose decomposition in torch takes dtypes and positions out of the data that eager's kernels refuse: it writes to
them without a check, or counts what stands behind the end of a row of labels."""

_MOVEMENT = _words(
    """
    slice_backward select_backward diagonal_backward unfold_backward repeat roll rot90 stack block_diag
    pixel_shuffle pixel_unshuffle channel_shuffle diag_embed narrow_copy new_empty zeros ones masked_fill.Scalar
    masked_fill.Tensor meshgrid meshgrid.indexing fill.Scalar fill.Tensor zero eye eye.m tril triu take
    """
)
"""Torch's decompositions that only move or fill values and so are right for complex tensors too."""


@functools.lru_cache(maxsize=4)
def decomposition_table(fallback_random: bool = False) -> Mapping[Any, Callable]:
    """``OpOverload -> function`` for every op outside the core op set that can be written in terms of it.

    With ``fallback_random`` the random ops keep eager's own.  A function returns ``NotImplemented`` to keep one
    call whole (a complex dtype, a move between devices).
    """
    whole = _resolved(NOT_TORCHS | _ROUNDED_BY_EAGER | _CHECKED_BY_EAGER)
    excluded = whole | set(core_ops()) | _resolved(RANDOM)
    movement_ops, whole_on_cpu = _resolved(_MOVEMENT), _resolved(_WHOLE_ON_CPU)
    table: dict[Any, Callable] = {}
    for op, function in torch_table.items():
        if isinstance(op, OpOverload) and op not in excluded and not _is_mutable(op):
            function = not_on_cpu(function) if op in whole_on_cpu else function
            table[op] = function if op in movement_ops else real_only(function)
    for name, entry in OWN.items():
        overload = resolve(name)
        if overload is not None:
            function = on_cpu(entry.function, torch_table[overload]) if entry.on_cpu else entry.function
            table[overload] = function if entry.any_dtype else real_only(function)
    if not fallback_random:
        table.update({resolve(name): function for name, function in RANDOM.items() if resolve(name) is not None})
    return table


def _resolved(names: Iterable[str]) -> set[Any]:
    return {resolve(name) for name in names}


when_changed(decomposition_table.cache_clear)


def _is_mutable(op: OpOverload) -> bool:
    """In-place and out variants never reach a functional graph."""
    return op._schema.is_mutable


def real_only(function: Callable) -> Callable:
    """``function``, except that a call with a complex tensor or dtype stays whole."""

    @functools.wraps(function)
    def decompose(*args: Any, **kwargs: Any) -> Any:
        if _any_complex(args) or _any_complex(kwargs.values()):
            return NotImplemented
        return function(*args, **kwargs)

    return decompose


def not_on_cpu(function: Callable) -> Callable:
    """``function``, except that a call whose first tensor is on the CPU stays whole."""

    @functools.wraps(function)
    def decompose(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return NotImplemented if uses_host_kernels(x.device) else function(x, *args, **kwargs)

    return decompose


def on_cpu(function: Callable, elsewhere: Callable) -> Callable:
    """``function`` for a call whose first tensor is on the CPU, ``elsewhere`` for others."""

    @functools.wraps(function)
    def decompose(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (function if uses_host_kernels(x.device) else elsewhere)(x, *args, **kwargs)

    return decompose


def _any_complex(values: Any) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_complex():
                return True
        elif (
            isinstance(value, complex)
            or (isinstance(value, torch.dtype) and value.is_complex)
            or (isinstance(value, (list, tuple)) and _any_complex(value))
        ):
            return True
    return False
