"""Pointwise ops.

Dtypes follow eager: a result's dtype is that of the fake value; values are computed in it (half types in
float32), and comparisons in the dtype to which their operands promote.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from turret.graph.dtypes import HALF, compute_dtype
from turret.graph.op_set import resolve
from turret.graph.scalar_ops import ScalarOp
from turret.hooks.devices import HOST, uses_host_kernels
from turret.ir import OPS, Expr, Index, call, cast, constant
from turret.ir.lowering import Builder, Lowering, Number, TensorValue
from turret.plugins.lowerings.registry import lowering
from turret.torch_compat.operators.layouts import TypePromotion, elementwise_dtypes

Operand: TypeAlias = TensorValue | Number


def promoted(b: Builder) -> torch.dtype:
    """The dtype to which the node's tensor and number operands promote."""
    operands: list[Any] = [a.meta["val"] if isinstance(a, fx.Node) else a for a in b.node.args]
    operands = [o for o in operands if isinstance(o, torch.Tensor | int | float | bool | torch.SymInt | torch.SymFloat)]
    _, dtype = elementwise_dtypes(*operands, type_promotion_kind=TypePromotion.DEFAULT)
    return dtype


def is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point


# ---------------------------------------------------------------- what follows from the table of scalar ops


def element(op: str, *args: Expr) -> Expr:
    """A scalar op on promoted operands, as ATen has it for their dtype: of bools the op that stands for it there."""
    info = OPS[op]
    if info.on_bool and args[0].dtype == torch.bool:
        return call(info.on_bool, *args)
    if info.arity == 1 and info.result == "same" and not info.takes(args[0].dtype):
        return args[0]  # integers, which ATen does not promote here: they are rounded already
    return call(op, *args)


def _plain(op: ScalarOp) -> Lowering:
    def lower(b: Builder, *operands: Operand) -> TensorValue:
        dtype = promoted(b) if op.result == "bool" else None
        return b.pointwise(functools.partial(element, op.name), *operands, dtype=dtype)

    return lower


def plain_lowerings() -> dict[Any, Lowering]:
    """``OpOverload -> lowering`` of the ATen ops that the table names, by the table alone."""
    found = {resolve(name): _plain(op) for op in OPS.values() for name in op.aten}
    found.pop(None, None)
    return found


# ---------------------------------------------------------------- one operand


@lowering("abs")
def absolute(b: Builder, x: TensorValue) -> TensorValue:
    return b.pointwise(lambda v: v if v.dtype in (torch.bool, torch.uint8) else call("abs", v), x)


@lowering("sign")
def sign(b: Builder, x: TensorValue) -> TensorValue:
    return b.pointwise(lambda v: v if v.dtype == torch.bool else call("sign", v), x)


@lowering("relu")
def relu(b: Builder, x: TensorValue) -> TensorValue:
    return b.pointwise(lambda v: call("max", constant(0, v.dtype), v), x)


@lowering("logical_not")
def logical_not(b: Builder, x: TensorValue) -> TensorValue:
    return b.pointwise(lambda v: call("logical_not", v), x, dtype=torch.bool)


@lowering("isnan")
def isnan(b: Builder, x: TensorValue) -> TensorValue:
    return _float_test(b, x, "isnan")


@lowering("isinf")
def isinf(b: Builder, x: TensorValue) -> TensorValue:
    return _float_test(b, x, "isinf")


def _float_test(b: Builder, x: TensorValue, op: str) -> TensorValue:
    inner = compute_dtype(x.dtype)
    return b.pointwise(lambda v: call(op, v) if is_float(inner) else constant(False, torch.bool), x, dtype=inner)


@lowering("signbit")
def signbit(b: Builder, x: TensorValue) -> TensorValue:
    inner = compute_dtype(x.dtype)
    if inner == torch.bool:
        return b.pointwise(lambda v: constant(False, torch.bool), x)
    return b.pointwise(
        lambda v: call("signbit", v) if is_float(inner) else call("lt", v, constant(0, inner)), x, dtype=inner
    )


@lowering("clone", "lift_fresh_copy")
def clone(b: Builder, x: TensorValue, memory_format: Any = None) -> TensorValue:
    return b.pointwise(lambda v: v, x, dtype=x.dtype)


@lowering("prims.convert_element_type")
def convert_element_type(b: Builder, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    """A conversion: its rounding may go at the end of a decomposition, as that of any op; a program's own is kept.

    What it does to an operand, a tensor without dimensions beside one of a half type, decides what is computed.
    """
    asked_for = dtype in HALF and b.node.meta.get("original_aten") is torch.ops.aten._to_copy.default
    return b.pointwise(lambda v: cast(v, dtype, exact=asked_for or not x.shape), x, dtype=x.dtype)


@lowering("_to_copy")
def to_copy(b: Builder, x: TensorValue, **kwargs: Any) -> Any:
    if b.result.device != x.device or kwargs.get("layout") not in (None, torch.strided) or x.dtype.is_complex:
        return NotImplemented
    return b.pointwise(lambda v: cast(v, b.result.dtype, exact=True), x, dtype=x.dtype)


# ---------------------------------------------------------------- two operands


@lowering("add.Tensor", "add.Scalar")
def add(b: Builder, x: Operand, y: Operand, alpha: Number = 1) -> TensorValue:
    def body(v: Expr, w: Expr) -> Expr:
        if v.dtype == torch.bool:
            return call("logical_or", v, w if alpha == 1 else call("logical_and", w, b.number(alpha, torch.bool)))
        return call("add", v, _scaled(b, w, alpha))

    return b.pointwise(body, x, y)


@lowering("sub.Tensor", "sub.Scalar")
def sub(b: Builder, x: Operand, y: Operand, alpha: Number = 1) -> TensorValue:
    return b.pointwise(lambda v, w: call("sub", v, _scaled(b, w, alpha)), x, y)


def _scaled(b: Builder, value: Expr, alpha: Number) -> Expr:
    """``alpha * value``; kernels of the CPU have ``alpha`` in the dtype of the result, of half types too."""
    if alpha == 1:
        return value
    rounds = uses_host_kernels(b.result.device)
    return call("mul", value, b.promoted_operand(alpha, (), b.result.dtype) if rounds else b.number(alpha, value.dtype))


def _with_scalar(b: Builder, function: Callable[[Expr, Expr], Expr], x: Operand, y: Operand) -> TensorValue:
    """Like ``pointwise``, but the second operand, where it is a scalar, is not rounded to a half type first.

    So do eager's kernels of products and quotients; all others round it, and a first operand is always rounded.
    """
    dtype = b.result.dtype
    take = b.operand if _is_scalar(y) else b.promoted_operand
    inner = compute_dtype(dtype) if _is_scalar(y) else dtype

    def body(index: Sequence[Index]) -> Expr:
        return function(b.promoted_operand(x, index, dtype), take(y, index, inner))

    return b.define(b.result, body)


def _is_scalar(value: Operand) -> bool:
    """Whether this is a number, or a tensor without dimensions in the host's memory."""
    return not isinstance(value, TensorValue) or (not value.shape and value.device.type == HOST.type)


@lowering("mul.Tensor", "mul.Scalar")
def mul(b: Builder, x: Operand, y: Operand) -> TensorValue:
    if not isinstance(x, TensorValue):
        x, y = y, x
    return _with_scalar(b, functools.partial(element, "mul"), x, y)


@lowering("div.Tensor", "div.Scalar")
def div(b: Builder, x: Operand, y: Operand) -> TensorValue:
    return _with_scalar(b, lambda v, w: call("div", v, w), x, y)


@lowering("div.Tensor_mode", "div.Scalar_mode")
def div_mode(b: Builder, x: Operand, y: Operand, rounding_mode: str | None = None) -> TensorValue:
    if rounding_mode is None:
        return div(b, x, y)
    if rounding_mode == "floor":
        return _with_scalar(b, lambda v, w: call("floordiv", v, w), x, y)

    dtype = b.result.dtype

    def truncated(v: Expr, w: Expr) -> Expr:
        if not is_float(v.dtype):
            return call("truncdiv", v, w)
        quotient = call("div", v, w)
        if dtype in HALF and not _is_scalar(y):  # eager rounds the quotient of two tensors, then truncates
            quotient = cast(cast(quotient, dtype, exact=True), v.dtype)
        return call("trunc", quotient)

    return _with_scalar(b, truncated, x, y)


@lowering("nextafter")
def nextafter(b: Builder, x: Operand, y: Operand) -> TensorValue:
    """The neighbour of a half is not its neighbour in float32: those stay whole."""
    if b.result.dtype in HALF:
        return NotImplemented
    return b.pointwise(lambda v, w: call("nextafter", v, w), x, y)


def _ignoring_nan(op: str) -> Callable[[Builder, Operand, Operand], TensorValue]:
    def body(v: Expr, w: Expr) -> Expr:
        if not is_float(v.dtype):
            return element(op, v, w)
        best = call(op, w, v)  # of two zeros the first
        return call("where", call("isnan", v), w, call("where", call("isnan", w), v, best))

    return lambda b, x, y: b.pointwise(body, x, y)


lowering("fmax")(_ignoring_nan("max"))
lowering("fmin")(_ignoring_nan("min"))


@lowering("pow.Tensor_Scalar")
def power_scalar(b: Builder, x: TensorValue, exponent: Number) -> TensorValue:
    """Exponents that eager computes by multiplication and square roots are done likewise.

    Eager's float16 on the CPU has no square roots here, which shows at zeros and infinities.
    """
    rooted = not (x.dtype == torch.float16 and uses_host_kernels(x.device))

    def body(v: Expr, rounded: Expr) -> Expr:
        one = constant(1, v.dtype)
        if exponent == 2:
            return call("mul", v, v)
        if exponent == 3:
            return call("mul", call("mul", v, v), v)
        if is_float(v.dtype):
            if exponent == 0.5 and rooted:
                return call("sqrt", v)
            if exponent == -0.5 and rooted:
                return call("div", one, call("sqrt", v))
            if exponent == -1:
                return call("div", one, v)
            if exponent == -2:
                return call("div", one, call("mul", v, v))
        return call("pow", v, rounded)

    return b.pointwise(body, x, exponent)


# ---------------------------------------------------------------- logic


def _logical(op: str) -> Callable[[Builder, Operand, Operand], TensorValue]:
    def lower(b: Builder, x: Operand, y: Operand) -> TensorValue:
        # Operands are promoted before they are true or false: what is too little for the common dtype is false.
        truth = lambda v: cast(v, torch.bool)  # noqa: E731
        return b.pointwise(lambda v, w: call(op, truth(v), truth(w)), x, y, dtype=promoted(b))

    return lower


for _name in ("logical_and", "logical_or", "logical_xor"):
    lowering(_name)(_logical(_name))


# ---------------------------------------------------------------- choice


@lowering("where.self")
def where(b: Builder, condition: TensorValue, x: Operand, y: Operand) -> TensorValue:
    dtype = b.result.dtype

    def body(index: Any) -> Expr:
        chosen = cast(condition.load_broadcast(index), torch.bool)
        return call("where", chosen, b.operand(x, index, dtype), b.operand(y, index, dtype))

    return b.define(b.result, body)


@lowering("clamp", "clamp.Tensor")
def clamp(b: Builder, x: TensorValue, low: Operand | None = None, high: Operand | None = None) -> TensorValue:
    bounds = [o for o in (low, high) if o is not None]
    nan_is_no_bound = len(bounds) == 1 and not isinstance(bounds[0], TensorValue) and _ignores_nan_as_only_bound()

    def held(op: str, v: Expr, limit: Expr, bound: Operand | None) -> Expr:
        best = _extreme(op, v, limit, bound)
        return call("where", call("isnan", limit), v, best) if nan_is_no_bound and _may_be_nan(limit) else best

    def body(v: Expr, *limits: Expr) -> Expr:
        rest = list(limits)
        if low is not None:
            v = held("max", v, rest.pop(0), low)
        return v if high is None else held("min", v, rest.pop(0), high)

    return b.pointwise(body, x, *[_limit(o, b.result.dtype) for o in bounds])


def _extreme(op: str, v: Expr, limit: Expr, bound: Operand | None) -> Expr:
    """Of two zeros, of which ``op`` takes the second, eager takes a tensor's limit but not a number."""
    return call(op, v, limit) if isinstance(bound, TensorValue) else call(op, limit, v)


def _limit(value: Operand, dtype: torch.dtype) -> Operand:
    """An infinite bound of an integer clamp as the integer that bounds all."""
    if isinstance(value, float) and math.isinf(value) and not is_float(dtype):
        return torch.iinfo(dtype).max if value > 0 else torch.iinfo(dtype).min
    return value


def _may_be_nan(value: Expr) -> bool:
    return is_float(value.dtype) and (value.op != "const" or math.isnan(value.payload))


@functools.cache
def _ignores_nan_as_only_bound() -> bool:
    """Whether ``torch.clamp(x, min=nan)`` is ``x``, as up to torch 2.11; later versions give NaN for every element.

    Two bounds of which one is NaN, a tensor of NaN, and ``clamp_min`` and ``clamp_max`` give NaN in all versions.
    """
    return not torch.clamp(torch.zeros(1, device=HOST), min=math.nan).isnan().item()


@lowering("clamp_min", "clamp_min.Tensor")
def clamp_min(b: Builder, x: TensorValue, low: Operand) -> TensorValue:
    return b.pointwise(lambda v, limit: _extreme("max", v, limit, low), x, _limit(low, b.result.dtype))


@lowering("clamp_max", "clamp_max.Tensor")
def clamp_max(b: Builder, x: TensorValue, high: Operand) -> TensorValue:
    return b.pointwise(lambda v, limit: _extreme("min", v, limit, high), x, _limit(high, b.result.dtype))
