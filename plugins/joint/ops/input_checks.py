"""Calls that eager refuses although torch's shape functions let them pass.

A kernel made of such a call would read past the end of a tensor, or give a result where eager gives an error.  Here the
trace refuses it, the graph runs eagerly, and eager's own error is what the program sees.  Sizes that are symbols are
guarded on.  ``tests/op_db/refused.py`` found them: it calls each operation of torch's own table with one tensor of a
wrong size, dtype or number of dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_false

from turret.errors import UnsupportedError
from turret.graph.dtypes import HALF, INTEGERS
from turret.graph.fakes.sizes import guarded_apart, is_dense, is_empty
from turret.hooks.devices import HOST, uses_host_kernels
from turret.torch_compat.operators.checks import require, require_implemented, require_index

aten = torch.ops.aten
Rule = Callable[..., Any]
Given = dict[str, Any]
Check = Callable[[Given], None]
_MASKS = (torch.bool, torch.uint8)


def with_checks(rule: Rule, func: Any) -> Rule:
    """``rule`` for calls of ``func`` that eager accepts; raises ``UnsupportedError`` for others."""
    checks = _CHECKS.get(func)
    if checks is None:
        return rule
    arguments = func._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    names = [a.name for a in arguments]

    def call(tracer: Any, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        given = defaults | dict(zip(names, args, strict=False)) | kwargs
        try:
            for check in checks:
                check(given)
        except (RuntimeError, IndexError) as error:
            raise UnsupportedError(f"eager refuses this call of {func}: {error}") from error
        return rule(tracer, func, args, kwargs)

    return call


# ---------------------------------------------------------------- shapes


def _same_shape(found: Sequence[Any], wanted: Sequence[Any], what: str) -> None:
    message = f"{what} has the shape {tuple(found)}, expected {tuple(wanted)}"
    require(len(found) == len(wanted), lambda: message)
    for size, other in zip(found, wanted, strict=True):
        require(size == other, lambda: message)


def _fills(part: Callable[[Given], Sequence[Any]]) -> Check:
    """What is written over a part of a tensor has that part's shape."""

    def check(given: Given) -> None:
        _same_shape(given["src"].shape, part(given), "what is written over a part of a tensor")

    return check


def _slice(given: Given) -> Sequence[Any]:
    return aten.slice.Tensor(given["self"], *(given[name] for name in ("dim", "start", "end", "step"))).shape


def _element(given: Given) -> Sequence[Any]:
    return aten.select.int(given["self"], given["dim"], given["index"]).shape


def _diagonal(given: Given) -> Sequence[Any]:
    return aten.diagonal.default(given["self"], *(given[name] for name in ("offset", "dim1", "dim2"))).shape


def _is_of_data(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and bool(free_unbacked_symbols(size))


def _not_cut_away(given: Given) -> None:
    """``constant_pad_nd``: negative padding cuts off no more than there is, before anything is added."""
    sizes, pad = given["self"].shape, given["pad"]
    for number in range(len(pad) // 2):
        left = sizes[len(sizes) - 1 - number]
        for amount in pad[2 * number : 2 * number + 2]:
            of_data = _is_of_data(amount)
            if of_data or amount < 0:
                left = left + (torch.sym_min(amount, 0) if of_data else amount)
                require(left >= 0, lambda: f"padding of {tuple(pad)} cuts more than {tuple(sizes)} has")


def _no_negative_power_of_integers(given: Given) -> None:
    tensor, exponent = given["self"], given["exponent"]
    if isinstance(exponent, (int, torch.SymInt)) and not tensor.is_floating_point() and not tensor.is_complex():
        require(exponent >= 0, lambda: "integers to negative integer powers")


def _draws_from_a_range(given: Given) -> None:
    """``uniform_``: its ends, and how far they lie apart, are numbers of the dtype, in order."""
    low, high, dtype = given["from"], given["to"], given["self"].dtype
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and dtype.is_floating_point:
        largest = torch.finfo(dtype).max
        require(low <= high, lambda: f"a range from {low} to {high}")
        require(max(abs(low), abs(high), high - low) <= largest, lambda: f"{low} to {high} in {dtype}")


def _beta_is_not_negative(given: Given) -> None:
    require(given["beta"] >= 0, lambda: f"beta is {given['beta']}")


def _divisible_by_alpha(given: Given) -> None:
    """Kernels are given the reciprocal as a float32, if not as a float64, and refuse what overflows."""
    alpha = given["alpha"]
    require(alpha != 0, lambda: "alpha cannot be 0 for CELU")
    if given["self"].dtype != torch.float64:
        least = 1 / torch.finfo(torch.float32).max
        require(abs(alpha) >= least, lambda: "value cannot be converted to type float without overflow")


def _has_elements(given: Given) -> None:
    """``pixel_unshuffle`` of nothing is what it was given, and of both shuffles of nothing there is no gradient."""
    if is_empty(given["self"].shape):
        raise UnsupportedError("a pixel shuffle of a tensor without elements")


def _has_a_largest(given: Given) -> None:
    """The largest, smallest, middle or most frequent one is chosen among elements."""
    sizes = given["self"].shape
    chosen = sizes if given.get("dim") is None or not sizes else (sizes[given["dim"]],)
    for extent in chosen:  # where data decide, the graph asks
        require(extent != 0, lambda: f"{tuple(sizes)} has no elements to choose from")


def _has_the_dimension(given: Given) -> None:
    """Shape functions of sorts and scans look at no dimension, and where nobody reads the result, no kernel does."""
    rank = max(1, given["self"].dim())
    require_index(-rank <= given["dim"] < rank, lambda: f"dimension {given['dim']} of a tensor of {rank}")


def _keeps_dimensions_of_data(given: Given) -> None:
    """``squeeze``: of a dimension whose extent depends on data it is assumed that it stays, and the graph asks."""
    sizes, dims = given["self"].shape, given.get("dim")
    chosen = range(len(sizes)) if dims is None else [dims] if isinstance(dims, int) else dims
    for dim in chosen if sizes else ():
        if _is_of_data(extent := sizes[dim]):
            require(extent != 1, lambda: f"{tuple(sizes)} has a dimension of extent 1 that was not there at capture")


def _has_elements_to_sample(given: Given) -> None:
    """Where nobody looks at indices, as in resizing images, there are elements; where data decide, the graph asks."""
    for size, index in zip(given["self"].shape, given["indices"], strict=False):
        if index is not None and isinstance(size, torch.SymInt) and not is_empty(index.shape):
            require(size != 0, lambda: f"{tuple(given['self'].shape)} has no elements to sample")


def _have_elements(given: Given) -> None:
    """Dimensions that are indexed have elements, or no index asks for one."""
    chosen = [(i, n) for i, n in zip(given["indices"], given["self"].shape, strict=False) if i is not None]
    for index, size in chosen:
        empty = isinstance(size, int) and size == 0 and index.dtype in (torch.int64, torch.int32)
        if empty and not any(isinstance(n, int) and n == 0 for n in index.shape):
            require_index(False, lambda: "an index into a dimension of size 0")


def _values_fit(given: Given) -> None:
    """What is written to elements chosen by index tensors broadcasts to them."""
    chosen = [i for i in given["indices"] if i is not None]
    if any(i.dtype in _MASKS for i in chosen):
        return  # how many elements those choose is known when the graph runs, by a call that checks
    found = aten.index.Tensor(given["self"], given["indices"]).shape
    values = given["values"].shape
    message = f"values of the shape {tuple(values)} do not broadcast to the elements chosen, {tuple(found)}"
    require(len(values) <= len(found), lambda: message)
    for size, other in zip(reversed(values), reversed(found), strict=False):
        if not guard_or_false(size == 1):
            require(size == other, lambda: message)


def _masks_fit(given: Given) -> None:
    """A mask among the indices has the sizes of the dimensions that it stands for."""
    sizes, dim = given["self"].shape, 0
    for index in given["indices"]:
        if index is None or index.dtype not in _MASKS:
            dim += 1
            continue
        if not any(map(_is_of_data, (*sizes, *index.shape))):
            _same_shape(index.shape, sizes[dim : dim + index.dim()], "a mask")
        dim += index.dim()


def _within_memory(given: Given) -> None:
    """``as_strided``: the elements lie in the tensor's memory."""
    tensor, sizes, strides = given["self"], given["size"], given["stride"]
    offset = tensor.storage_offset() if given["storage_offset"] is None else given["storage_offset"]
    memory = tensor.untyped_storage().nbytes()
    for number in (*sizes, *strides, offset):
        require(number >= 0, lambda: "a negative size, stride or offset")
    # Where data decide whether there are elements, the graph asks as if there were some.
    if all(_is_of_data(n) or n != 0 for n in sizes):
        last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        require((last + 1) * tensor.element_size() <= memory, lambda: f"the element {last} lies outside of memory")


def _without_gaps(given: Given) -> None:
    """``as_strided_scatter``: Turret's own writes to a copy of the tensor's elements."""
    if not is_dense(given["self"].shape, given["self"].stride()):
        raise UnsupportedError("as_strided_scatter of a tensor that leaves gaps in its memory, or overlaps")


def _lies_apart(given: Given) -> None:
    """``slice_scatter`` and its kin: eager writes to a copy that overlaps as its source does, but for a stride of 0."""
    shape, strides = given["self"].shape, given["self"].stride()
    expanded = any(type(s) is int and s == 0 for s in strides)
    if not expanded and not guarded_apart(shape, strides):
        raise UnsupportedError("a scatter into a tensor of which elements share a place in memory")


def _slices_fit(given: Given) -> None:
    """``index_add``: the source has the tensor's shape, but for a slice for each index."""
    tensor, source, index = given["self"], given["source"], given["index"]
    require(index.dim() <= 1, lambda: "the index has more than one dimension")
    wanted = list(tensor.shape)
    if wanted:
        wanted[given["dim"]] = index.numel()
    _same_shape(source.shape, wanted, "the source")


def _copies_fit(given: Given) -> None:
    """``index_copy``: a slice of the source for each index, each of the shape of the tensor's own slices."""
    tensor, source, index, dim = given["self"], given["source"], given["index"], given["dim"]
    require(index.dim() <= 1, lambda: "the index has more than one dimension")
    _same_shape(_without(source.shape, dim), _without(tensor.shape, dim), "a slice of the source")
    _same_shape([index.numel()], [source.shape[dim] if source.dim() else 1], "the index")


def _without(shape: Sequence[Any], dim: int) -> Sequence[Any]:
    """The sizes of a slice along ``dim``; a scalar is its own slice."""
    return [size for at, size in enumerate(shape) if at != dim % len(shape)]


def _alpha_fits(given: Given) -> None:
    """``index_add``: an integer type has the number that the source is multiplied by."""
    alpha, dtype = given["alpha"], given["self"].dtype
    if isinstance(alpha, int | float) and not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool:
        ends = torch.iinfo(dtype)
        require(ends.min <= alpha <= ends.max, lambda: f"{dtype} does not have the number {alpha}")


def _target_within(given: Given) -> None:
    """The loss has the shape of the input, to which the target broadcasts."""
    _same_shape(torch.broadcast_shapes(given["self"].shape, given["target"].shape), given["self"].shape, "the loss")


def _dimensions(name: str, *allowed: int) -> Check:
    def check(given: Given) -> None:
        count = allowed[0] if given[name] is None else given[name].dim()
        require(count in allowed, lambda: f"{name} has {count} dimensions, expected {allowed}")

    return check


# ---------------------------------------------------------------- dtypes


def _one_dtype(*names: str) -> Check:
    """Tensors have one dtype (those that are given)."""

    def check(given: Given) -> None:
        found = {name: given[name].dtype for name in names if given[name] is not None}
        require(len(set(found.values())) <= 1, lambda: f"expected one dtype, found {found}")

    return check


def _parameters(*names: str) -> Check:
    """Parameters and statistics of a norm on the CPU have the input's dtype, or float32 beside a half type."""

    def check(given: Given) -> None:
        if not uses_host_kernels(given["input"].device):
            return  # kernels of other devices take more
        _one_dtype(*names)(given)
        dtype = given["input"].dtype
        found = {given[name].dtype for name in names if given[name] is not None} - {dtype}
        mixed = found == {torch.float32} and dtype in HALF
        require(mixed or not found, lambda: f"parameters of {found} beside an input of {dtype}")

    return check


def _dtypes(name: str, allowed: Iterable[torch.dtype]) -> Check:
    allowed = frozenset(allowed)

    def check(given: Given) -> None:
        dtype = given[name].dtype
        require_index(dtype in allowed, lambda: f"{name} has the dtype {dtype}, expected one of {set(allowed)}")

    return check


def _is_bool(value: Any) -> bool:
    """Whether a value is a bool, one that data give among them, or a tensor of bools."""
    return isinstance(value, (bool, torch.SymBool)) or (isinstance(value, Tensor) and value.dtype == torch.bool)


def _alpha_is_none_of_bools(given: Given) -> None:
    """A factor that is a bool is for bools alone."""
    operands = [given["self"], given["other"]]
    bools = all(map(_is_bool, operands))
    require(bools or not _is_bool(given["alpha"]), lambda: "alpha is a bool, and the result is not")


def _not_bool(*names: str) -> Check:
    def check(given: Given) -> None:
        for name in names:
            require(not _is_bool(given[name]), lambda name=name: f"{name} is a bool, or a tensor of bools")

    return check


def _on_cpu(*refused: torch.dtype, of: str = "self") -> Check:
    """Dtypes that eager's kernels for the CPU are not made for, where loops would compute something."""

    def check(given: Given) -> None:
        tensor = given[of]
        wrong = isinstance(tensor, Tensor) and uses_host_kernels(tensor.device) and tensor.dtype in refused
        require_implemented(not wrong, lambda: f"not implemented for {tensor.dtype} on the CPU")

    return check


def _not_bools_alone(*names: str) -> Check:
    """On the CPU, one of the operands is no bool: the others are converted to its type."""

    def check(given: Given) -> None:
        values = [given[name] for name in names if given[name] is not None]
        bools = all(map(_is_bool, values))
        on_cpu = all(uses_host_kernels(v.device) for v in values if isinstance(v, Tensor))
        require_implemented(not (bools and on_cpu), lambda: f"not implemented for bools alone, as {names}")

    return check


def _between_two_bools(given: Given) -> None:
    """``clamp`` with one tensor is a maximum or a minimum, which bools have."""
    if given["min"] is not None and given["max"] is not None:
        _not_bools_alone("self", "min", "max")(given)


def _not_a_range_of_bools(given: Given) -> None:
    device = torch.device(given["device"]) if given["device"] is not None else HOST
    wrong = given["dtype"] == torch.bool and uses_host_kernels(device)
    require_implemented(not wrong, lambda: "a range of bools is not implemented on the CPU")


def _is_countable(given: Given) -> None:
    """``arange``: 64 bits hold the number of elements, of floats that data give, too."""
    start, step = given.get("start", 0), given.get("step", 1)
    if any(isinstance(number, torch.SymFloat) for number in (start, given["end"], step)):
        require(abs(given["end"] - start) < abs(step) * 2.0**62, lambda: "a range of more elements than 64 bits count")


_COMPLEX = (torch.complex64, torch.complex128)
_NO_INTEGERS = (_on_cpu(torch.bool, *INTEGERS),)
_NO_BOOLS = (_on_cpu(torch.bool),)
_BATCH_NORM = (
    _on_cpu(torch.bool, *INTEGERS, of="input"),
    _parameters("weight", "bias", "running_mean", "running_var"),
    _dimensions("running_mean", 1),
    _dimensions("running_var", 1),
)
_LONG = _dtypes("index", (torch.int64,))
_INTEGER = _dtypes("index", (torch.int32, torch.int64))
_WRITTEN = (_one_dtype("self", "values"), _have_elements, _values_fit, _masks_fit)
_PUT = (_one_dtype("self", "source"), _LONG)
_COPIED = (*_PUT, _copies_fit)
_ADDED = (_one_dtype("self", "source"), _INTEGER, _slices_fit, _alpha_fits)

_CHOOSING = (
    aten.max.default,
    aten.min.default,
    aten.max.dim,
    aten.min.dim,
    aten.median.dim,
    aten.nanmedian.dim,
    aten.mode.default,
)
_CHECKS: dict[Any, tuple[Check, ...]] = {
    aten.slice_scatter.default: (_lies_apart, _fills(_slice)),
    aten.select_scatter.default: (_lies_apart, _fills(_element)),
    aten.diagonal_scatter.default: (_lies_apart, _fills(_diagonal)),
    aten.as_strided.default: (_within_memory,),
    aten.as_strided_scatter.default: (_without_gaps, _within_memory, _fills(lambda given: given["size"])),
    aten.index_put.default: _WRITTEN,
    aten.index_put_.default: _WRITTEN,
    aten._unsafe_index_put.default: _WRITTEN,
    aten.index_add.default: _ADDED,
    aten.index_add_.default: _ADDED,
    aten.index_copy.default: _COPIED,
    aten.index_copy_.default: _COPIED,
    aten.put.default: _PUT,
    aten.put_.default: _PUT,
    aten.index_fill.int_Scalar: (_LONG,),
    aten.index_fill.int_Tensor: (_LONG,),
    aten.index_fill_.int_Scalar: (_LONG,),
    aten.index_fill_.int_Tensor: (_LONG,),
    aten.index_select.default: (_INTEGER, _dimensions("index", 0, 1)),
    aten.addmv.default: (_dimensions("self", 0, 1), _dimensions("vec", 1), _one_dtype("mat", "vec")),
    aten.soft_margin_loss.default: (_target_within, *_NO_INTEGERS),
    aten.linalg_cross.default: (_one_dtype("self", "other"),),
    aten.heaviside.default: (_one_dtype("self", "values"),),
    aten.nll_loss_forward.default: (_one_dtype("self", "weight"), _not_bool("target"), *_NO_INTEGERS),
    aten.nll_loss2d_forward.default: (_one_dtype("self", "weight"), _not_bool("target"), *_NO_INTEGERS),
    aten.binary_cross_entropy.default: (_one_dtype("self", "target"), *_NO_INTEGERS),
    aten.native_layer_norm.default: (_parameters("weight", "bias"),),
    aten.native_group_norm.default: (_parameters("weight", "bias"),),
    aten.native_batch_norm.default: _BATCH_NORM,
    aten._native_batch_norm_legit.default: _BATCH_NORM,
    aten._native_batch_norm_legit.no_stats: (_BATCH_NORM[0], _parameters("weight", "bias")),
    aten._native_batch_norm_legit_no_training.default: _BATCH_NORM,
    aten._batch_norm_no_update.default: _BATCH_NORM,
    aten._batch_norm_with_update.default: _BATCH_NORM,
    **dict.fromkeys((aten.add.Tensor, aten.add_.Tensor, aten.add.Scalar), (_alpha_is_none_of_bools,)),
    **dict.fromkeys(
        (aten.sub.Tensor, aten.sub_.Tensor, aten.rsub.Scalar), (_not_bool("self", "other"), _alpha_is_none_of_bools)
    ),
    aten.constant_pad_nd.default: (_not_cut_away,),
    aten.index.Tensor: (_have_elements,),
    aten._unsafe_index.Tensor: (_has_elements_to_sample,),
    **dict.fromkeys(
        (aten.sort.default, aten.sort.stable, aten.cummax.default, aten.cummin.default), (_has_the_dimension,)
    ),
    **dict.fromkeys((aten.softmax.int, aten.log_softmax.int, aten._softmax.default), (_has_the_dimension,)),
    aten._log_softmax.default: (_has_the_dimension,),
    aten.neg.default: (_not_bool("self"),),
    aten.relu.default: (_not_bool("self"),),
    aten.argmax.default: (_not_bool("self"),),
    aten.argmin.default: (_not_bool("self"),),
    **dict.fromkeys(_CHOOSING, (_has_a_largest,)),
    **dict.fromkeys((aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims), (_keeps_dimensions_of_data,)),
    aten.bitwise_not.default: (_on_cpu(torch.float32, torch.float64, *HALF),),
    aten.avg_pool3d.default: (_on_cpu(*HALF),),
    aten.bmm.default: _NO_BOOLS,
    aten._trilinear.default: (_on_cpu(torch.bool, of="i1"),),
    aten._prelu_kernel.default: _NO_INTEGERS,
    aten.pixel_shuffle.default: (_has_elements,),
    aten.pixel_unshuffle.default: (_has_elements,),
    aten.pow.Tensor_Scalar: (_no_negative_power_of_integers,),
    aten.pow_.Scalar: (_no_negative_power_of_integers,),
    aten.pow.Tensor_Tensor: (_not_bools_alone("self", "exponent"),),
}
"""By op, what its arguments must be."""

_NEAREST = tuple(
    getattr(aten, f"{name}nearest{exact}{rank}d").default
    for exact, name in (("", "upsample_"), ("_exact", "_upsample_"))
    for rank in (1, 2, 3)
)
_FLOATING = (
    aten.frac, aten.logaddexp, aten.logaddexp2, aten._softmax, aten._log_softmax, aten.adaptive_max_pool2d,
    aten.adaptive_max_pool3d, aten.hardswish, aten.max_unpool2d, aten.max_unpool3d, aten.glu, aten.elu,
    aten.silu, aten.hardsigmoid, aten.log_sigmoid_forward, aten.mish, aten.hardshrink, aten.gelu, aten.smooth_l1_loss,
    aten.softplus, aten.mse_loss, aten.huber_loss, aten.celu, aten.leaky_relu,
)  # fmt: skip
_NUMERIC = (aten.abs, aten.ceil, aten.floor, aten.trunc, aten.round, aten.threshold, aten.trace)

for _packet in _FLOATING:
    _CHECKS[_packet.default] = (*_CHECKS.get(_packet.default, ()), *_NO_INTEGERS)
for _packet in _NUMERIC:
    _CHECKS[_packet.default] = (*_CHECKS.get(_packet.default, ()), *_NO_BOOLS)
for _op in _NEAREST:
    _refused = (dtype for dtype in (torch.bool, *INTEGERS, *_COMPLEX) if dtype != torch.uint8)
    _CHECKS[_op] = (_on_cpu(*_refused),)
_CHECKS[aten.celu.default] = (*_CHECKS[aten.celu.default], _divisible_by_alpha)
_CHECKS[aten.smooth_l1_loss.default] = (*_CHECKS[aten.smooth_l1_loss.default], _beta_is_not_negative)
_CHECKS[aten.uniform.default] = _CHECKS[aten.uniform_.default] = (_draws_from_a_range,)
_CHECKS[aten.round.decimals] = _NO_INTEGERS
_CHECKS[aten.lerp.Scalar] = _CHECKS[aten.lerp.Tensor] = _NO_INTEGERS
_CHECKS[aten.im2col.default] = _CHECKS[aten.col2im.default] = (_on_cpu(*INTEGERS),)
_CHECKS[aten.clamp.default] = (_not_bools_alone("self", "min", "max"),)
_CHECKS[aten.clamp.Tensor] = (_between_two_bools,)
_CHECKS[aten.clamp_min.default] = (_not_bools_alone("self", "min"),)
_CHECKS[aten.clamp_max.default] = (_not_bools_alone("self", "max"),)
for _op in (aten.arange.default, aten.arange.start, aten.arange.start_step):
    _CHECKS[_op] = (_not_a_range_of_bools, _is_countable)
_CHECKS[aten.bucketize.Tensor] = (_not_bools_alone("self", "boundaries"),)
_CHECKS[aten.searchsorted.Tensor] = (_not_bools_alone("self", "sorted_sequence"),)
