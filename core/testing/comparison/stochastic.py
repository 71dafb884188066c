"""How far rounding may move a result: eager runs in which every inexact operation is perturbed at random.

A compiler may reorder sums, contract multiply-add and keep half-precision intermediates in float32; each such
freedom changes an operation's result by a few units in the last place.  Running the same function eagerly with
every inexact ATen operation moved by that much (Monte-Carlo arithmetic, after Parker) shows, element by
element, what such a change can do to the outputs and gradients: where sums cancel the spread is wide, where they
do not it is narrow, and where a branch flips it shows that too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from turret.graph.dtypes import HALF
from turret.graph.op_traits import is_random_op
from turret.graph.scalar_ops import aten_ops
from turret.torch_compat.dispatch import TorchDispatchMode
from turret.torch_compat.trees import pytree

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
    ["add", "frac", "mul", "rsub", "square", "sub", "true_divide"]
    + [name for name, op in aten_ops().items() if op.cost != "cheap"]
)
"""Operations that round once: moving the result is all that rounding can do.

Any other one (sums, products of matrices, norms, and formulas of several operations such as ``cross`` or ``lerp``)
rounds inside, where terms may cancel, so its operands are moved as well.  ``_log_softmax`` is moved by the rounding of
its operand too: eager's kernel for half types rounds the row's maximum plus the logarithm before it subtracts.
"""

_WIDENED = HALF
"""Operands of these dtypes are moved for every operation: a compiler may round an intermediate for one reader (what
is saved for the backward) and keep it in float32 for another (the kernel that it is made in)."""


_BY_PATH = frozenset(
    """
    clamp clamp_max clamp_min cosh elu_backward fmod gelu gelu_backward hardshrink_backward hardswish_backward
    hardtanh_backward logit_backward maximum minimum remainder sinh softshrink softshrink_backward
    """.split()  # noqa: SIM905
)
"""Elementwise operations whose CPU kernels have a vector path and a scalar one that differ at some points.

``gelu`` of infinity, gradients at NaN, the sign of zeros, remainders of quotients past the dtype's precision: which
path an element takes depends on its place in memory and on the width of the machine's vectors, so either will do.
"""

_BY_ORDER = frozenset(["var_mean", "std_mean"])
"""Reductions whose mean is infinite or NaN by the place that an infinity has in the row: eager updates a running mean,
which an infinity turns into NaN at the next element."""

_SIGNS = frozenset(["copysign", "signbit"])
"""Operations that read the sign of a NaN."""


class Perturbed(TorchDispatchMode):
    """While active, moves each inexact result (and the operands of longer formulas) by up to ``ULPS`` epsilons.

    ``seed`` picks the sample; torch's own random state is left alone.  Of three samples that follow each other one
    runs the operations of ``_BY_PATH`` as they are, one on the kernels' scalar path, and one on their vector path.
    Six samples move each element by itself and the next six move equal elements alike, as an operation does that
    rounds: the variance of equal elements is 0 in some runs and not in others, and never is with the former.  One of
    twelve moves nothing, and differs in paths and orders alone: in no other is a mean 0 that is so as a sum over a
    count, and a rounding of the running mean in eager.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self._path = (None, _on_scalar_path, _on_vector_path)[seed % 3]
        self._sums = seed % 2 == 0
        self._alike = seed // 6 % 2 == 1
        self._moves = seed % 12 != 4

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[-1].rstrip("_")
        args = self._as_promised(name, args)
        if func._schema.is_mutable and self._sums:
            args = self._apart(args, kwargs.get("out"))
        if func is torch.ops.aten.view.dtype and args[0].is_floating_point() and not args[1].is_floating_point:
            return self._bits(*args)
        if name in _EXACT or _is_view(func):
            return self._by_path(name, func, args, kwargs)
        args, kwargs = self._move_operands(func, args, kwargs, _WIDENED if name in _ELEMENTARY else None)
        result = self._by_path(name, func, args, kwargs)
        result = self._as_other_kernels(_Call(name, func, args, kwargs), result)
        if func._schema.is_mutable:
            self._move_written(result)
            return result
        return pytree.tree_map_only(Tensor, self._move, result)

    def _as_other_kernels(self, call: _Call, result: Any) -> Any:
        """The result as another formula or another order of its sums has it, before it is moved."""
        if self._alike and not call.func._schema.is_mutable:
            result = _with_equal_errors(call, _more_exact(call, result) if self._sums else result)
        if call.name == "_log_softmax":
            row = call.args[0]
            result = result + (self._move(row) - row).nan_to_num(0, 0, 0)  # not of infinities
        if call.name in _BY_ORDER and self._sums:
            result = (result[0], _plain_mean(call))
        return result

    def _as_promised(self, name: str, args: tuple) -> tuple:
        """The arguments with other values where what an operation makes of those given is not promised."""
        if name in _SIGNS:
            args = tuple(self._signed(a) if isinstance(a, Tensor) else a for a in args)
        return args

    def _move_written(self, result: Any) -> None:
        """Move what an operation wrote to, in place."""
        for tensor in pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.is_floating_point():
                tensor.copy_(self._move(tensor))

    @staticmethod
    def _apart(args: tuple, out: Tensor | None) -> tuple:
        """The arguments with copies of what shares memory with the one that is written to, and is not all of it.

        That is ``out``, or the first.  No order of the writes and the reads is promised.
        """
        target, others = (args[0], args[1:]) if out is None else (out, args)
        if not isinstance(target, Tensor):
            return args
        memory = target.untyped_storage()._cdata

        def copied(value: Tensor) -> Tensor:
            same = value.shape == target.shape and value.stride() == target.stride()
            elsewhere = value.untyped_storage()._cdata != memory or (same and value.data_ptr() == target.data_ptr())
            return value if elsewhere else value.clone()

        apart = tuple(pytree.tree_map_only(Tensor, copied, other) for other in others)
        return apart if out is not None else (target, *apart)

    def _bits(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        """The bits of floats; those of a NaN, which no operation promises, are all set, or all but the sign."""
        bits, nan = value.view(dtype), value.isnan()
        if bits.shape != nan.shape or not nan.any():
            return bits
        return torch.where(nan, -1 if self._sums else torch.iinfo(dtype).max, bits)

    def _signed(self, value: Tensor) -> Tensor:
        """Values with the sign of NaNs, which no operation promises either, all set or none."""
        if not value.is_floating_point():
            return value
        return torch.where(value.isnan(), torch.full_like(value, -torch.nan if self._sums else torch.nan), value)

    def _by_path(self, name: str, func: Any, args: tuple, kwargs: dict) -> Any:
        result = func(*args, **kwargs)
        if self._path is None or name not in _BY_PATH or func._schema.is_mutable or not result.dim():
            return result
        path, shape = self._path, result.shape
        args, kwargs = pytree.tree_map_only(
            Tensor, lambda t: path(t.expand(shape).reshape(-1)) if t.dim() else t, (args, kwargs)
        )
        return result.copy_(func(*args, **kwargs)[: result.numel()].view(shape))

    def _move_operands(
        self, func: Any, args: tuple, kwargs: dict, dtypes: frozenset[torch.dtype] | None
    ) -> tuple[tuple, dict]:
        """The arguments with the operands of ``dtypes`` (None: of all) moved, but those that the op writes to."""
        written = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        names = [a.name for a in func._schema.arguments]

        def moved(name: str, value: Any) -> Any:
            if name in written:
                return value
            return pytree.tree_map_only(
                Tensor, lambda t: self._move(t) if dtypes is None or t.dtype in dtypes else t, value
            )

        return tuple(moved(n, a) for n, a in zip(names, args, strict=False)), {
            k: moved(k, v) for k, v in kwargs.items()
        }

    def _move(self, tensor: Tensor) -> Tensor:
        """A copy of ``tensor`` in its own layout, each element moved; other than real floats pass as they are."""
        if not self._moves or not tensor.is_floating_point() or not tensor.numel():
            return tensor
        epsilon = torch.finfo(tensor.dtype).eps
        noise = self._noise(tensor).mul_(2).sub_(1)
        scale = 1.0 + noise.to(torch.float64) * (ULPS * epsilon)
        return torch.empty_like(tensor).copy_(tensor.to(torch.float64) * scale)

    def _noise(self, tensor: Tensor) -> Tensor:
        """Numbers from 0 to 1 of the tensor's shape."""
        if not self._alike:
            return torch.rand(tensor.shape, generator=self._generator).to(tensor.device)
        scale, phase = torch.rand(2, generator=self._generator, dtype=torch.float64).tolist()
        mixed = tensor.to(torch.float64).nan_to_num(0.0, 0.0, 0.0).mul((1.0 + scale) * 1e4).add_(phase).sin_()
        return mixed.mul_(1e4).frac_().abs_()


def _is_view(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _on_scalar_path(row: Tensor) -> Tensor:
    """The row with gaps between its elements, which kernels do not load as vectors."""
    return torch.stack([row, row], 1)[:, 0]


def _on_vector_path(row: Tensor) -> Tensor:
    """The row filled up to whole vectors of any machine."""
    return torch.cat([row, row.new_ones(-row.numel() % 256)])


def _plain_mean(call: _Call) -> Tensor:
    """The mean of a ``var_mean`` or ``std_mean`` call as a sum over a count."""
    named = call.named
    x = named["self"]
    return x.mean(named.get("dim") or list(range(x.dim())), named.get("keepdim", False))


@attrs.frozen
class _Call:
    """One operation of an eager run, with the operands that it was given."""

    name: str
    func: Any
    args: tuple
    kwargs: dict

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by their names in the schema."""
        return {a.name: v for a, v in zip(self.func._schema.arguments, self.args, strict=False)} | self.kwargs


def _with_equal_errors(call: _Call, result: Any) -> Any:
    """The result as other kernels and other orders of operations may have it where equal elements err alike."""
    for names, freedom in _FREEDOMS:
        if call.name in names:
            result = freedom(call, result)
    return result


def _more_exact(call: _Call, result: Any) -> Any:
    """A result of which every step is made in float64, then rounded to the dtype that eager has it in.

    What eager errs by itself is no bound for others: it adds up a row one by one where that lies across memory, rounds
    each step of some formulas to a half type, and keeps a product of many factors at the least number of the type,
    which each further one rounds to itself.  Operands are rounded first where a dtype was asked for.  What draws
    numbers, or has no kernel for float64, is left as it is.
    """
    if is_random_op(call.func):
        return result
    kwargs = {name: value for name, value in call.kwargs.items() if name != "dtype"}
    asked = call.kwargs.get("dtype")

    def widened(operand: Tensor) -> Tensor:
        if not operand.is_floating_point():
            return operand
        return (operand if asked is None else operand.to(asked)).double()

    args, kwargs = pytree.tree_map_only(Tensor, widened, (call.args, kwargs))
    try:
        wide = call.func(*args, **kwargs)
    except (RuntimeError, TypeError):
        return result
    leaves, structure = pytree.tree_flatten(result)
    return pytree.tree_unflatten(map(_rounded, leaves, pytree.tree_leaves(wide)), structure)


def _rounded(value: Any, wide: Any) -> Any:
    """A number of float64 in the dtype and layout of ``value``, where that is of floats."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return torch.empty_like(value).copy_(wide)


def _two_pass(call: _Call, result: Tensor) -> Tensor:
    """A ``var`` or ``std`` of doubles as a sum over a count of the squares of what is apart from the mean.

    Eager updates it element by element however they lie (60 roundings at 1,089 quarters), in a dtype that no other
    is wider than.
    """
    if result.dtype != torch.float64:
        return result
    named = call.named
    x, dim, correction = named["self"], named.get("dim") or None, named.get("correction")
    mean = x.mean(dim, keepdim=True)
    squares = (x - mean).square().sum(dim, keepdim=named.get("keepdim", False))
    count = x.numel() // max(mean.numel(), 1)
    variance = squares / max(count - (1 if correction is None else correction), 0)
    return variance.sqrt() if call.name == "std" else variance


def _beside_pole(call: _Call, result: Tensor) -> Tensor:
    """A tangent has any value, of any sign, within what rounding does to the angle."""
    angle = call.args[0]
    return torch.where(angle.cos().abs() <= ULPS * torch.finfo(angle.dtype).eps * angle.abs(), torch.inf, result)


def _finite_gradients(call: _Call, result: tuple) -> tuple:
    """Gradients of norms: which elements of a row with an infinity are infinite and which NaN, the formula decides."""
    return tuple(v if v is None else torch.where(v.isfinite(), v, 0.0) for v in result)


def _centred(call: _Call, result: tuple) -> tuple:
    """Norms: elements that equal their mean become zeros or roundings of the mean, by the order that it is summed
    in."""
    value = result[0]
    if not value.numel() or not value.is_floating_point():
        return result
    rounding = 4 * torch.finfo(value.dtype).eps * value.abs().amax().nan_to_num(posinf=0.0).clamp(min=1)
    return (torch.where(value.abs() <= rounding, 0, value).to(value.dtype), *result[1:])


def _underflown(call: _Call, result: Tensor | tuple) -> Tensor | tuple:
    """Results near zero that are below the normal numbers in one kernel and zero in another."""
    if isinstance(result, tuple):
        return (_flushed(result[0], call.args[0]), *result[1:])
    return _flushed(result, call.args[0])


def _small_product(call: _Call, result: Tensor) -> Tensor:
    """Products that are too small for a half type: a compiler may keep them in float32, where they are not 0."""
    if result.dtype not in _WIDENED:
        return result
    return _flushed(result, functools.reduce(torch.logical_and, map(torch.as_tensor, call.args)))


def _flushed(value: Tensor, operand: Tensor) -> Tensor:
    """Zeros of an operand that is none as the least number above them, numbers below the normal ones as zeros."""
    info = torch.finfo(value.dtype)
    least = torch.where((value == 0) & (operand != 0), info.tiny * info.eps, value)
    return torch.where((value != 0) & (value.abs() < info.tiny), 0.0, least).to(value.dtype)


def _not_overflown(call: _Call, result: Tensor) -> Tensor:
    """A half result with the largest numbers for infinities of finite operands: kept in float32, they are none."""
    if result.dtype not in _WIDENED:
        return result
    finite = functools.reduce(torch.logical_and, (torch.as_tensor(o).isfinite() for o in call.args))
    return torch.where(result.isinf() & finite, torch.finfo(result.dtype).max * result.sign(), result)


_FREEDOMS: tuple[tuple[frozenset[str], Callable[[_Call, Any], Any]], ...] = (
    (frozenset(["std", "var"]), _two_pass),
    (frozenset(["tan"]), _beside_pole),
    (
        frozenset(["native_layer_norm_backward", "native_group_norm_backward", "native_batch_norm_backward"]),
        _finite_gradients,
    ),
    (
        frozenset(["native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit"]),
        _centred,
    ),
    (
        frozenset(["mish", "silu", "sigmoid", "softplus", "exp", "exp2", "erfc", "gelu", "log_sigmoid_forward"]),
        _underflown,
    ),
    (frozenset(["mul", "square"]), _small_product),
    (_ELEMENTARY, _not_overflown),
)
"""What the results of operations may also be, in the order that it is applied in."""
