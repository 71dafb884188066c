"""Pointwise operations: unary, binary with broadcasting and promotion, scalars, conversions, selection."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from turret.testing.corpus.builder import Builder, Declined
from turret.testing.corpus.operations.registry import both, is_float, is_integer, is_number, operation

_UNARY_FLOAT = {
    "sin": "torch.sin({0})", "cos": "torch.cos({0})", "tanh": "torch.tanh({0})", "sigmoid": "torch.sigmoid({0})",
    "exp": "torch.exp({0})", "exp2": "torch.exp2({0})", "expm1": "torch.expm1({0})", "erf": "torch.erf({0})",
    "erfc": "torch.erfc({0})", "log_abs": "torch.log({0}.abs() + 1)", "log1p": "torch.log1p({0}.abs())",
    "log2": "torch.log2({0}.abs() + 0.5)", "sqrt": "torch.sqrt({0}.abs())", "rsqrt": "torch.rsqrt({0}.abs() + 0.5)",
    "atan": "torch.atan({0})", "asinh": "torch.asinh({0})", "cosh": "torch.cosh({0})", "sinh": "torch.sinh({0})",
    "reciprocal": "torch.reciprocal({0}.abs() + 1)", "lgamma": "torch.lgamma({0}.abs() + 1)",
    "nan_to_num": "torch.nan_to_num({0})", "frac": "torch.frac({0})", "trunc": "torch.trunc({0})",
    "floor": "torch.floor({0})", "ceil": "torch.ceil({0})", "round": "torch.round({0})",
    "logit": "torch.logit({0}, eps=1e-3)", "acos": "torch.acos({0}.clamp(-0.9, 0.9))", "tan": "torch.tan({0} / 4)",
}  # fmt: skip

_ACTIVATION = {
    "relu": "F.relu({0})", "gelu": "F.gelu({0})", "gelu_tanh": "F.gelu({0}, approximate='tanh')",
    "silu": "F.silu({0})", "mish": "F.mish({0})", "softplus": "F.softplus({0})", "elu": "F.elu({0})",
    "selu": "F.selu({0})", "leaky_relu": "F.leaky_relu({0}, 0.2)", "hardswish": "F.hardswish({0})",
    "hardtanh": "F.hardtanh({0})", "hardsigmoid": "F.hardsigmoid({0})", "logsigmoid": "F.logsigmoid({0})",
    "relu6": "F.relu6({0})", "softsign": "F.softsign({0})", "celu": "F.celu({0}, 0.5)",
    "tanhshrink": "F.tanhshrink({0})", "softshrink": "F.softshrink({0}, 0.3)", "threshold": "F.threshold({0}, 0.1, -1)",
}  # fmt: skip

_UNARY_ANY = {
    "logical_not": "torch.logical_not({0})", "isnan": "torch.isnan({0})", "isfinite": "torch.isfinite({0})",
    "isinf": "torch.isinf({0})", "positive_mask": "{0} > 0", "nonzero_mask": "{0} != 0", "clone": "{0}.clone()",
    "zero_test": "torch.eq({0}, 0)",
}  # fmt: skip

_UNARY_NUMBER = {
    "neg": "-{0}", "abs": "torch.abs({0})", "square": "torch.square({0})", "sign": "torch.sign({0})",
    "double": "{0} + {0}", "integer_to_float_sin": "torch.sin({0})", "cube": "{0} ** 3", "rsub": "1 - {0}",
    "signbit": "torch.signbit({0}.nan_to_num())",
}  # fmt: skip

_BINARY_ANY = {
    "add": "torch.add({0}, {1})", "mul": "torch.mul({0}, {1})", "eq": "torch.eq({0}, {1})", "ne": "{0} != {1}",
    "maximum": "torch.maximum({0}, {1})", "minimum": "torch.minimum({0}, {1})",
    "logical_and": "torch.logical_and({0}, {1})", "logical_or": "torch.logical_or({0}, {1})",
    "logical_xor": "torch.logical_xor({0}, {1})", "true_divide": "{0} / ({1} * {1} + 1)",
}  # fmt: skip

_BINARY_NUMBER = {
    "sub": "torch.sub({0}, {1})", "sub_alpha": "torch.sub({0}, {1}, alpha=2)", "lt": "{0} < {1}", "le": "{0} <= {1}",
    "gt": "torch.gt({0}, {1})", "ge": "{0} >= {1}", "add_alpha": "torch.add({0}, {1}, alpha=3)",
    "squared_difference": "({0} - {1}) ** 2", "rsub_tensor": "torch.rsub({0}, {1})",
}  # fmt: skip

_BINARY_FLOAT = {
    "atan2": "torch.atan2({0}, {1})", "div_floor": "torch.div({0}, {1}.abs() + 1, rounding_mode='floor')",
    "div_trunc": "torch.div({0}, {1}.abs() + 1, rounding_mode='trunc')", "fmod": "torch.fmod({0}, {1}.abs() + 1)",
    "remainder": "torch.remainder({0}, {1}.abs() + 1)", "hypot": "torch.hypot({0}, {1})",
    "fmax": "torch.fmax({0}, {1})", "fmin": "torch.fmin({0}, {1})", "copysign": "torch.copysign({0}, {1}.nan_to_num())",
    "xlogy": "torch.xlogy({0}, {1}.abs() + 0.5)", "pow_tensor": "torch.pow({0}.abs() + 0.5, torch.tanh({1}))",
    "logaddexp": "torch.logaddexp({0}, {1})",
}  # fmt: skip

_BINARY_INTEGER = {
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}",
}  # fmt: skip

_BY_SCALAR = {
    "add_scalar": "{0} + SCALAR", "mul_scalar": "{0} * SCALAR", "sub_scalar": "{0} - SCALAR",
    "div_scalar": "{0} / 3", "floor_div_scalar": "{0} // 2", "mod_scalar": "{0} % 3", "lt_scalar": "{0} < SCALAR",
    "rdiv_scalar": "2.5 / ({0}.abs() + 1)", "clamp": "torch.clamp({0}, -1, 1)", "clamp_min": "{0}.clamp(min=SCALAR)",
    "clamp_max": "{0}.clamp(max=SCALAR)", "pow_scalar": "torch.pow({0}, 2)", 
    "scalar_tensor": "{0} * torch.tensor(SCALAR)",
}  # fmt: skip


def _unary(name: str, template: str, accept: Callable[[Tensor], bool]) -> None:
    operation(name, "pointwise")(lambda b: b.step(name, template, b.pick(accept)))


for _name, _template in {**_UNARY_FLOAT, **_ACTIVATION}.items():
    _unary(_name, _template, is_float)
for _name, _template in _UNARY_ANY.items():
    _unary(_name, _template, lambda t: True)
for _name, _template in _UNARY_NUMBER.items():
    _unary(_name, _template, is_number)


def _binary(
    name: str, template: str, accept: Callable[[Tensor], bool], accept_dtype: Callable[[torch.dtype], bool]
) -> None:
    def draw(b: Builder) -> object:
        first = b.pick(accept)
        second = b.partner(first, accept_dtype)
        operands = (first, second) if b.chance(70) else (second, first)
        return b.step(name, template, *operands)

    operation(name, "pointwise")(draw)


for _name, _template in _BINARY_ANY.items():
    _binary(_name, _template, lambda t: True, lambda d: True)
for _name, _template in _BINARY_NUMBER.items():
    _binary(_name, _template, is_number, lambda d: d != torch.bool)
for _name, _template in _BINARY_FLOAT.items():
    _binary(_name, _template, is_float, lambda d: d.is_floating_point)
for _name, _template in _BINARY_INTEGER.items():
    _binary(_name, _template, is_integer, lambda d: not d.is_floating_point)


def _by_scalar(name: str, template: str) -> None:
    def draw(b: Builder) -> object:
        operand = b.pick(is_number)
        scalar = b.scalar(floating=b.chance(60))
        return b.step(name, template.replace("SCALAR", scalar), operand)

    operation(name, "pointwise")(draw)


for _name, _template in _BY_SCALAR.items():
    _by_scalar(_name, _template)


@operation("size_scalar", "pointwise")
def _size_scalar(b: Builder) -> object:
    """Multiply by a size read from a tensor: a Python number that the program computes."""
    operand = b.pick(is_number)
    other = b.pick(lambda t: t.dim() > 0)
    (size,) = b.step("size", "{0}.shape[-1]", other)
    return b.step("size_scalar", "{0} * {1}", operand, size)


@operation("to_dtype", "pointwise")
def _to_dtype(b: Builder) -> object:
    return b.step("to_dtype", f"{{0}}.to({b.dtype()})", b.pick())


@operation("float_method", "pointwise")
def _float_method(b: Builder) -> object:
    return b.step("float_method", "{0}." + b.choice(("float()", "double()", "long()", "bool()", "int()")), b.pick())


@operation("type_as", "pointwise")
def _type_as(b: Builder) -> object:
    return b.step("type_as", "{0}.type_as({1})", b.pick(), b.pick())


@operation("where", "pointwise")
def _where(b: Builder) -> object:
    first = b.pick()
    condition = b.partner(first, lambda d: d == torch.bool)
    return b.step("where", "torch.where({0}, {1}, {2})", condition, first, b.partner(first))


@operation("where_scalar", "pointwise")
def _where_scalar(b: Builder) -> object:
    operand = b.pick(is_number)
    return b.step("where_scalar", f"torch.where({{0}} > 0, {{0}}, {b.scalar(True)})", operand)


@operation("masked_fill", "pointwise")
def _masked_fill(b: Builder) -> object:
    operand = b.pick(is_number)
    mask = b.partner(operand, lambda d: d == torch.bool)
    return b.step("masked_fill", f"{{0}}.masked_fill({{1}}, {b.scalar(False)})", operand, mask)


@operation("lerp", "pointwise")
def _lerp(b: Builder) -> object:
    start = b.pick(is_float)
    return b.step("lerp", "torch.lerp({0}, {1}, 0.3)", start, b.like(start))


@operation("addcmul", "pointwise")
def _addcmul(b: Builder) -> object:
    base = b.pick(is_float)
    return b.step("addcmul", "torch.addcmul({0}, {1}, {2}, value=0.5)", base, b.like(base), b.like(base))


@operation("addcdiv", "pointwise")
def _addcdiv(b: Builder) -> object:
    base = b.pick(is_float)
    return b.step("addcdiv", "torch.addcdiv({0}, {1}, {2}.abs() + 1)", base, b.like(base), b.like(base))


@operation("shift", "pointwise")
def _shift(b: Builder) -> object:
    operand = b.pick(both(is_integer, is_number))
    return b.step("shift", b.choice(("{0} << 1", "{0} >> 1")), operand)


@operation("prelu", "pointwise")
def _prelu(b: Builder) -> object:
    operand = b.pick(both(is_float, lambda t: t.dim() >= 2))
    channels = b[operand].shape[1]
    if not channels:
        raise Declined
    weight = b.new_input((channels,), b[operand].dtype)
    return b.step("prelu", "F.prelu({0}, {1})", operand, weight)
