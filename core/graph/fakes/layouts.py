"""Layouts of results in eager, op by op, where fake implementations say otherwise.

Each rule gives the strides of a result from its shape and the call's arguments.  Elementwise ops have one rule in
common, in ``strides.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from turret.graph.fakes.sizes import contiguous_strides, is_backed, is_broadcast, is_dense, is_empty, same_sizes
from turret.graph.fakes.strides import elementwise_strides
from turret.hooks.devices import uses_host_kernels
from turret.torch_compat.dispatch import DispatchKey, has_kernel_for
from turret.torch_compat.fakes import FakeTensor
from turret.torch_compat.operators.layouts import suggest_memory_format

aten = torch.ops.aten

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def has_layout_rule(func: Any) -> bool:
    """Whether an op has a rule of its own, on some device."""
    return func in _ANYWHERE or func in _ON_CPU


@functools.cache
def asks_for_layout(func: Any) -> bool:
    """Whether results of an op may be laid out otherwise than fake implementations say."""
    return has_layout_rule(func) or func in _MADE_ANEW or _is_elementwise(func)


def in_eagers_layout(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> Any:
    """The fake results of a call, made anew where eager lays them out in another way."""
    if not asks_for_layout(func):
        return out
    if has_layout_rule(func):
        return _by_rule(func, args, out)
    if type(out) is not FakeTensor:
        return out
    make = _MADE_ANEW.get(func)
    if make is not None:
        return make(out, args, kwargs)
    operands = tensors_in(args)[:: -1 if func in _REVERSED else 1]
    strides = _of_operands(out, operands, _has_number_operand(func, args), func)
    return out if strides is None else laid_out(out, strides)


def laid_out(value: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    """A new result like a fake one, with the strides given."""
    if same_sizes(value.stride(), strides):
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors among arguments of an operation, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in tensors_in(v)]
    return []


def _by_rule(func: Any, args: Sequence[Any], out: Any) -> Any:
    rule = _ANYWHERE.get(func)
    if rule is None:
        rule = _ON_CPU[func]
        if not uses_host_kernels(args[0].device):
            return out
    if isinstance(out, torch.Tensor):
        return laid_out(out, rule(out, args))
    parts = [laid_out(v, rule(v, args)) if isinstance(v, torch.Tensor) else v for v in out]
    return getattr(type(out), "_make", type(out))(parts)


def _is_elementwise(func: Any) -> bool:
    if func.namespace == "prims" or func in _TRUSTED:
        return False
    return torch.Tag.pointwise in func.tags or func in _ELEMENTWISE_WITHOUT_TAG


_ELEMENTWISE_WITHOUT_TAG = frozenset(
    (
        *(aten.floor_divide.default, aten.complex.default, aten.polar.default),
        *(aten.mse_loss.default, aten.smooth_l1_loss.default, aten.softplus_backward.default),
        *(aten.threshold_backward.default, aten.elu_backward.default, aten.leaky_relu_backward.default),
        *(aten.hardsigmoid_backward.default, aten.hardtanh_backward.default, aten.hardswish_backward.default),
    )
)

_REVERSED = frozenset((aten.rsub.Tensor, aten.threshold_backward.default, aten.leaky_relu_backward.default))
"""Elementwise ops that eager computes as another one of the operands in reverse."""

_TRUSTED = frozenset((aten.clone.default, aten._to_copy.default, aten.mvlgamma.default))
"""They are elementwise by their tags, and take a memory format or consist of several ops."""


def _of_operands(out: FakeTensor, operands: list[torch.Tensor], number: bool, func: Any) -> tuple[Any, ...] | None:
    """Eager's strides of an elementwise op's new result, or None where the fake implementation's are to be trusted."""
    plain = all(type(t) is FakeTensor and _is_strided(t) and is_backed(t) for t in (out, *operands))
    if not plain or not operands or not out.dim() or func._schema.is_mutable or _is_several_ops(func):
        return None
    if is_empty(out.shape) or not is_broadcast([t.shape for t in operands], out.shape):
        return None
    if func is aten.where.self:
        operands = [operands[0], *_cast_to_one_type(operands[1:])]
    elif uses_host_kernels(out.fake_device):
        operands = _cast_to_one_type(operands)
    return elementwise_strides([*operands, torch.empty(())] if number else operands, out.shape)


def _cast_to_one_type(operands: list[torch.Tensor]) -> list[torch.Tensor]:
    """Operands as the CPU casts them beforehand; those with gaps or overlaps come out of that in another layout."""
    common = functools.reduce(torch.promote_types, [t.dtype for t in operands])
    as_they_are = [t.dtype == common or is_dense(t.shape, t.stride()) for t in operands]
    return [t if kept else torch.empty_like(t) for t, kept in zip(operands, as_they_are, strict=True)]


def _has_number_operand(func: Any, args: Sequence[Any]) -> bool:
    """Whether an elementwise op makes an operand without dimensions of a number."""
    if len(args) < 2:
        return False
    name = func._overloadname.lower()
    named = "scalar" in name and name != "tensor_scalar"  # powers by a number have one operand
    first, second = (isinstance(a, int | float | complex) for a in args[:2])
    return (first and named) or (second and (named or str(func._schema.arguments[1].type) == "Tensor"))


def _is_several_ops(func: Any) -> bool:
    return has_kernel_for(func.name(), DispatchKey.CompositeImplicitAutograd)


def dense_format(value: torch.Tensor) -> torch.memory_format:
    """The memory format that a tensor lies in, or that is suggested where it has gaps."""
    wanted = _CHANNELS_LAST.get(value.dim())
    # A tensor can lie channels-last and not be taken to: strides of dimensions of extent 1 speak against it.
    if wanted is not None and not value.is_contiguous() and value.is_contiguous(memory_format=wanted):
        return wanted
    return suggest_memory_format(value)


def _row_major(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    return contiguous_strides(out.shape)


def _row_major_of_complex(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """Of complex numbers, eager copies the real parts of a result into a new one."""
    return contiguous_strides(out.shape) if args[0].is_complex() else out.stride()


def _normalized(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    return _strides_in(dense_format(args[0]), out.shape)


def _suggested(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    return _strides_in(suggest_memory_format(args[0]), out.shape)


def _like_first(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """As ``empty_like`` of the first argument, if the result has its shape."""
    first = args[0]
    if not same_sizes(out.shape, first.shape):
        return out.stride()
    dense = not is_empty(first.shape) and is_dense(first.shape, first.stride())
    return first.stride() if dense else torch.empty_like(first).stride()


def _like_dense_first(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    first = args[0]
    return first.stride() if not is_empty(out.shape) and is_dense(first.shape, first.stride()) else out.stride()


def _like_second(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """As ``empty_like`` of the second argument, of which this is the gradient."""
    return _like_first(out, args[1:])


def _suggested_by_second(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    return _suggested(out, args[1:])


def _complex_like_first(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """As ``empty_like`` of complex numbers, else elementwise."""
    if args[0].is_complex():
        return _like_first(out, args)
    if is_empty(out.shape) or not all(map(is_backed, (out, args[0]))):
        return out.stride()
    return elementwise_strides([args[0]], out.shape)


def _of_halves(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """``glu``: elementwise of both halves of the argument, whose strides are its own."""
    half = args[0].as_strided(out.shape, args[0].stride())
    return out.stride() if is_empty(out.shape) or not is_backed(half) else elementwise_strides([half, half], out.shape)


def _with_itself(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """As an elementwise op of two operands, both of them the first argument."""
    if is_empty(out.shape) or not all(map(is_backed, (out, args[0]))):
        return out.stride()
    return elementwise_strides([args[0], args[0]], out.shape)


def _scaled(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """``ldexp``: the first argument times a row-major power of two of the second."""
    if is_empty(out.shape) or not all(map(is_backed, (out, *args))):
        return out.stride()
    return elementwise_strides([args[0], torch.empty(args[1].shape)], out.shape)


def _of_second_and_a_number(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """``binary_cross_entropy_with_logits``: what is not reduced lies as the target, or as ``1 - target``."""
    target: torch.Tensor = args[1]
    if not same_sizes(out.shape, target.shape) or is_empty(out.shape) or not all(map(is_backed, (out, target))):
        return out.stride()
    if is_dense(target.shape, target.stride()):
        return target.stride()
    return elementwise_strides([target, torch.empty(())], out.shape)


def _rotated(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """``rot90``: a half turn is laid out like its argument, quarter turns like that with both dimensions swapped."""
    source, turns = args[0], (args[1] if len(args) > 1 else 1) % 4
    if turns == 0:
        return contiguous_strides(out.shape)
    strides = list(_like_first(source, args))
    if turns != 2:
        one, other = args[2] if len(args) > 2 else (0, 1)
        strides[one], strides[other] = strides[other], strides[one]
    return strides


def _added_to_product(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """``addr``: elementwise of the first argument and of both vectors, even where it is multiplied by nothing."""
    first, column, row = args[:3]
    if is_empty(out.shape) or not all(map(is_backed, (out, first, column, row))):
        return out.stride()
    return elementwise_strides([v.expand(out.shape) for v in (first, column.unsqueeze(1), row)], out.shape)


def _pooled_3d(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """As ``_suggested``; volumes without a batch dimension are taken for a batch of one."""
    if args[0].dim() == 5 or out.dim() != 4:
        return _suggested(out, args)
    source = args[0]
    reach = max(stride * extent for stride, extent in zip(source.stride(), source.shape, strict=True))
    batch = source.as_strided((1, *source.shape), (reach, *source.stride()))
    return _strides_in(dense_format(batch), (1, *out.shape))[1:]


def _indexed(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    """``source[indices]``: an elementwise op of the source, repeated along what is indexed, and of the indices."""
    source, indices = args[0], [*args[1], *[None] * (args[0].dim() - len(args[1]))]
    given = [i for i in indices if i is not None]
    masks = any(i.dtype in (torch.bool, torch.uint8) for i in given)
    if masks or is_empty(out.shape) or not all(map(is_backed, (out, source, *given))):
        return out.stride()
    at = [d for d, i in enumerate(indices) if i is not None]
    if at != list(range(at[0], at[-1] + 1)):
        # Indices apart from each other: the dimensions that they make come first.
        source = source.permute(*at, *(d for d in range(source.dim()) if d not in at))
        at = list(range(len(at)))
    shape = torch.broadcast_shapes(*(i.shape for i in given))
    before, after = at[0], source.dim() - at[-1] - 1
    strides = (*source.stride()[:before], *[0] * len(shape), *source.stride()[at[-1] + 1 :])
    expanded = [i.expand(shape)[(None,) * before + (...,) + (None,) * after] for i in given]
    if not uses_host_kernels(out.device) and any(i.stride() != expanded[0].stride() for i in expanded):
        expanded = [i.contiguous() for i in expanded]
    return elementwise_strides([source.as_strided(out.shape, strides), *expanded], out.shape)


def _strides_in(memory_format: torch.memory_format, shape: Sequence[Any]) -> Sequence[Any]:
    """Strides of a dense tensor in a memory format; row-major for other than four or five dimensions."""
    if memory_format is not _CHANNELS_LAST.get(len(shape)):
        return contiguous_strides(shape)
    *outer, last = contiguous_strides((shape[0], *shape[2:], shape[1]))
    return (outer[0], last, *outer[1:])


_Rule = Callable[[torch.Tensor, Sequence[Any]], Sequence[Any]]

_ANYWHERE: dict[Any, _Rule] = {
    aten.masked_fill.Scalar: _row_major,
    aten.masked_fill.Tensor: _row_major,
    aten.pow.Scalar: _row_major,
    aten.rrelu_with_noise.default: _row_major,
    aten.isin.Tensor_Tensor: _row_major,
    aten.isin.Tensor_Scalar: _row_major,
    aten.im2col.default: _row_major,
    aten.index.Tensor: _indexed,
    aten.addr.default: _added_to_product,
    aten.ldexp.Tensor: _scaled,
    aten.normal.Tensor_Tensor: _row_major,
    aten.nll_loss2d_forward.default: _row_major,
    aten.angle.default: _row_major_of_complex,
    aten.binary_cross_entropy.default: _like_first,
    aten.hardtanh.default: _like_first,
    aten.nan_to_num.default: _like_first,
    aten.threshold.default: _with_itself,
    aten.tril.default: _row_major,
    aten.triu.default: _row_major,
    aten._log_softmax.default: _row_major,
    aten.index_add.default: _row_major,
    aten.index_copy.default: _row_major,
    aten.diag_embed.default: _row_major,
    aten.renorm.default: _row_major,
    aten.rot90.default: _rotated,
    aten.huber_loss.default: _like_first,
    aten.binary_cross_entropy_with_logits.default: _of_second_and_a_number,
    aten.deg2rad.default: _like_first,
    aten.rad2deg.default: _like_first,
    aten.frexp.Tensor: _like_first,
    aten._prelu_kernel.default: _like_first,
    aten.upsample_nearest2d.default: _suggested,
    aten._upsample_nearest_exact2d.default: _suggested,
    aten.upsample_bilinear2d.default: _suggested,
    aten._upsample_bilinear2d_aa.default: _suggested,
    aten.upsample_bicubic2d.default: _suggested,
    aten._upsample_bicubic2d_aa.default: _suggested,
    aten.upsample_nearest2d.vec: _suggested,
    aten._upsample_nearest_exact2d.vec: _suggested,
    aten.upsample_bilinear2d.vec: _suggested,
    aten._upsample_bilinear2d_aa.vec: _suggested,
    aten.upsample_bicubic2d.vec: _suggested,
    aten._upsample_bicubic2d_aa.vec: _suggested,
    aten.native_layer_norm.default: _row_major,
    aten.sort.default: _like_first,
    aten.sort.stable: _like_first,
    aten.index_fill.int_Scalar: _like_first,
    aten.index_fill.int_Tensor: _like_first,
    aten.fill.Scalar: _like_first,
    aten.fill.Tensor: _like_first,
    aten.index_put.default: _like_first,
    aten._unsafe_index_put.default: _like_first,
    aten._unsafe_masked_index_put_accumulate.default: _like_first,
    aten.uniform.default: _like_first,
    aten.exponential.default: _like_first,
    aten.native_dropout.default: _like_dense_first,
    aten._conj_physical.default: _like_first,
    aten.conj_physical.default: _complex_like_first,
    aten.abs.default: _complex_like_first,
    aten.glu.default: _of_halves,
    aten.glu_backward.default: _row_major,
    aten._softmax_backward_data.default: _row_major,
    aten._log_softmax_backward_data.default: _row_major,
    aten.mse_loss_backward.default: _row_major,
    aten.smooth_l1_loss_backward.default: _row_major,
    aten.huber_loss_backward.default: _row_major,
    aten.grid_sampler_2d.default: _row_major,
    aten.binary_cross_entropy_backward.default: _like_second,
    aten.nll_loss2d_backward.default: _like_second,
    aten.reflection_pad3d_backward.default: _like_second,
}


def _transformed(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    return _of_transform(out, args[0].stride(), args[1], False)


def _transformed_from_real(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    return _of_transform(out, args[0].stride(), args[1], True)


def _transformed_to_real(out: torch.Tensor, args: Sequence[Any]) -> Sequence[Any]:
    value, (*others, last) = args[0], args[1]
    between = _of_transform(value, value.stride(), others, False) if others else value.stride()
    return _of_transform(out, between, [last], True)


def _of_transform(out: torch.Tensor, strides: Sequence[Any], dims: Sequence[int], last_stays: bool) -> Sequence[Any]:
    """Strides of a Fourier transform along ``dims`` as MKL is called: what is transformed lies innermost, both the rest
    and ``dims``, but for the last of a transform from or to real numbers, in the order in which the input lies."""
    if not dims or not torch.backends.mkl.is_available() or is_empty(out.shape):
        return out.stride()
    transformed = [dim % out.dim() for dim in dims]
    rest = _partitioned(out.dim(), transformed)
    last = transformed[-1:] if last_stays else []
    inner = transformed[:-1] if last_stays else transformed
    order = [*_outermost_first(rest, strides), *_outermost_first(inner, strides), *last]
    by_order = contiguous_strides([out.shape[dim] for dim in order])
    return [by_order[order.index(dim)] for dim in range(out.dim())]


def _partitioned(count: int, out: Sequence[int]) -> list[int]:
    """The dimensions that are not ``out``, as ``std::partition`` leaves them: where strides are equal, their order
    decides of the strides of dimensions of size 1."""
    kept = list(range(count))
    first, last = 0, count
    while True:
        while first < last and kept[first] not in out:
            first += 1
        while first < last and kept[last - 1] in out:
            last -= 1
        if first >= last:
            return kept[:first]
        kept[first], kept[last - 1] = kept[last - 1], kept[first]


def _outermost_first(dims: Sequence[int], strides: Sequence[Any]) -> list[int]:
    return sorted(dims, key=lambda dim: strides[dim], reverse=True)


_ON_CPU: dict[Any, _Rule] = {
    aten._fft_c2c.default: _transformed,
    aten._fft_r2c.default: _transformed_from_real,
    aten._fft_c2r.default: _transformed_to_real,
    aten.log_sigmoid_forward.default: _row_major,
    aten.log_sigmoid_backward.default: _like_first,
    aten.replication_pad2d_backward.default: _suggested_by_second,
    aten.replication_pad3d_backward.default: _suggested_by_second,
    aten.native_batch_norm.default: _normalized,
    aten._native_batch_norm_legit.default: _normalized,
    aten._native_batch_norm_legit.no_stats: _normalized,
    aten._native_batch_norm_legit_no_training.default: _normalized,
    aten._batch_norm_with_update.default: _normalized,
    aten._batch_norm_no_update.default: _normalized,
    aten.native_group_norm.default: _suggested,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _like_first,
    aten.channel_shuffle.default: _suggested,
    aten.native_channel_shuffle.default: _suggested,
    aten.upsample_nearest1d.default: _row_major,
    aten._upsample_nearest_exact1d.default: _row_major,
    aten.upsample_nearest3d.default: _suggested,
    aten._upsample_nearest_exact3d.default: _suggested,
    aten.max_pool3d_with_indices.default: _pooled_3d,
    aten.max_unpool2d.default: _suggested,
    aten.reflection_pad3d.default: _suggested,
    aten.replication_pad3d.default: _suggested,
}


def _flipped(out: FakeTensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    dense = _is_backed(args[0]) and is_dense(out.shape, args[0].stride())
    return laid_out(out, args[0].stride()) if dense else out


def _rolled(out: FakeTensor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
    if uses_host_kernels(out.fake_device) and _is_backed(out):
        return out if out.numel() == 0 else _rolled_on_cpu(*args, **kwargs)
    return out


def _rolled_on_cpu(value: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """A rolled tensor as the CPU makes it: one dimension after the other, each from two pieces."""
    if not dims:
        return _rolled_on_cpu(value.reshape(-1), shifts, (0,)).view(value.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        start = -shift % value.shape[dim]
        pieces = value.narrow(dim, start, value.shape[dim] - start), value.narrow(dim, 0, start)
        value = torch.cat(pieces, dim)
    return value


def _is_backed(value: FakeTensor) -> bool:
    return value.constant is None and _is_strided(value) and is_backed(value)


def _is_strided(value: torch.Tensor) -> bool:
    return value.layout is torch.strided and not value.is_conj() and not value.is_neg()


_MADE_ANEW: dict[Any, Callable[[FakeTensor, Sequence[Any], Mapping[str, Any]], torch.Tensor]] = {
    aten.flip.default: _flipped,
    aten.roll.default: _rolled,
}
"""What gives an op's result eager's layout, of the fake one and the arguments."""
