"""What each scalar op of the loop IR is in Triton, for float, integer and bool arguments.

Templates use ``{0}``, ``{1}``, ``{2}`` for the arguments (names, or typed scalars), ``{T}`` for the register type and
``{bits}`` for its width.  Functions come from CUDA's libdevice where Triton's own are approximate: kernels are as
exact as eager's, and where memory is the limit that costs nothing.
"""

from __future__ import annotations

from turret.ir.emit.op_texts import OpTexts
from turret.ir.expr import OPS, Expr
from turret.plugins.codegen.triton.emission.prelude import SOURCES
from turret.plugins.codegen.triton.tiles.dtypes import TritonType, triton_type

_LIBDEVICE = [
    "exp",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "lgamma",
    "trunc",
    "rsqrt",
]

_COMPARISONS = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
}

_FLOAT = {
    **_COMPARISONS,
    **{name: f"libdevice.{name}({{0}})" for name in _LIBDEVICE},
    "exp2": "{exp2}",
    "where": "tl.where({0}, {1}, {2})",
    "min": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "max": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "neg": "{0} * -1.0",  # Triton's minus is 0 - x, which loses the sign of zero
    "abs": "tl.abs({0})",
    "sign": "({0} > 0).to({T}) - ({0} < 0).to({T})",
    "square": "{0} * {0}",
    "isnan": "{0} != {0}",
    "isinf": 'tl.abs({0}) == float("inf")',
    "signbit": "{0}.to(tl.int{bits}, bitcast=True) < 0",
    "sqrt": "{sqrt}({0})",
    "reciprocal": "{one_over}",
    "sigmoid": "{sigmoid}",
    "floor": "tl.floor({0})",
    "ceil": "tl.ceil({0})",
    "round": "libdevice.rint({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{quotient}",
    "floordiv": "float_floordiv({0}, {1}, {quotient})",
    "truncdiv": "libdevice.trunc({quotient})",
    "mod": "float_mod({0}, {1})",
    "fmod": "libdevice.fmod({0}, {1})",
    "pow": "{power}",
    "atan2": "libdevice.atan2({0}, {1})",
    "hypot": "{hypot}",
    "copysign": "libdevice.copysign({0}, {1})",
    "nextafter": "libdevice.nextafter({0}, {1})",
}

_PRECISE = {
    32: {
        "sqrt": "tl.sqrt_rn",
        "quotient": "tl.div_rn({0}, {1})",
        "one_over": "tl.div_rn(1.0, {0})",
        "sigmoid": "tl.div_rn(1.0, 1.0 + libdevice.exp({0} * -1.0))",
        "exp2": "float_exp2({0})",
        "hypot": "float_hypot({0}, {1})",
        "power": "float_pow({0}, {1})",
    },
    64: {
        "sqrt": "tl.sqrt",
        "quotient": "{0} / {1}",
        "one_over": "1.0 / {0}",
        "sigmoid": "1.0 / (1.0 + libdevice.exp({0} * -1.0))",
        "exp2": "libdevice.exp2({0})",
        "hypot": "libdevice.hypot({0}, {1})",
        "power": "libdevice.pow({0}, {1})",
    },
}
"""Operations by width: those rounded correctly where Triton's plain float32 division and root are approximate, and what
libdevice has approximate or without numbers below the normal ones for float32 alone."""

_APPROXIMATE = {
    "exp": "tl.exp({0})",
    "exp2": "tl.exp2({0})",
    "sqrt": "tl.sqrt({0})",
    "reciprocal": "1.0 / {0}",
    "sigmoid": "libdevice.fast_dividef(1.0, 1.0 + libdevice.fast_expf({0} * -1.0))",
    "div": "{0} / {1}",
}
"""What kernels over half types use: some units in the last place of float32, far below a half's, and where a chain of
such operations would be slower than memory, several times as fast.  The sigmoid gives zero for what is below the
least normal number (2**-126, at -87.3): scaling such results would double its instructions."""

_INTEGER = {
    **_COMPARISONS,
    "where": "tl.where({0}, {1}, {2})",
    "min": "tl.minimum({0}, {1})",
    "max": "tl.maximum({0}, {1})",
    "neg": "0 - {0}",
    "abs": "tl.abs({0})",
    "sign": "({0} > 0).to({T}) - ({0} < 0).to({T})",
    "square": "{0} * {0}",
    "bitwise_not": "~{0}",
    "isnan": "{0} != {0}",
    "isinf": "{0} != {0}",
    "signbit": "{0} < 0",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "floordiv": "floor_div({0}, {1})",
    "truncdiv": "{0} // {1}",
    "mod": "floor_mod({0}, {1})",
    "fmod": "{0} % {1}",
    "pow": "int_pow({0}, {1})",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "shl": "tl.where(({1} < 0) | ({1} >= {bits}), {0} ^ {0}, {0} << ({1} & ({bits} - 1)))",
    "shr": "{0} >> tl.where(({1} < 0) | ({1} >= {bits}), {bits} - 1, {1})",
}

_BOOL = {
    "eq": "{0} == {1}",
    "ne": "{0} ^ {1}",
    "lt": "({0} ^ True) & {1}",
    "le": "({0} ^ True) | {1}",
    "gt": "{0} & ({1} ^ True)",
    "ge": "{0} | ({1} ^ True)",
    "where": "tl.where({0}, {1}, {2})",
    "logical_not": "{0} ^ True",
    "bitwise_not": "{0} ^ True",
    "logical_and": "{0} & {1}",
    "logical_or": "{0} | {1}",
    "logical_xor": "{0} ^ {1}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "bitwise_xor": "{0} ^ {1}",
    "add": "{0} | {1}",
    "mul": "{0} & {1}",
    "min": "{0} & {1}",
    "max": "{0} | {1}",
    "sub": "{0} ^ {1}",
    "abs": "{0}",
    "sign": "{0}",
    "square": "{0}",
    "isnan": "{0} ^ {0}",
    "isinf": "{0} ^ {0}",
    "signbit": "{0} ^ {0}",
    "pow": "{0} | ({1} ^ True)",
}

TEXTS = OpTexts(
    "Triton",
    {"approximate": _APPROXIMATE, "float": _FLOAT, "int": _INTEGER, "bool": _BOOL},
    {("nextafter", "half"): "cast to float32 first"},
    SOURCES,
)

_POWERS = {
    0.5: "{sqrt}({0})",
    1.0: "{0}",
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    4.0: "({0} * {0}) * ({0} * {0})",
    -0.5: "libdevice.rsqrt({0})",
    -1.0: "{one_over}",
    -2.0: "{one_over_square}",
}
"""Exponents that eager PyTorch does not compute by ``pow`` either, and the fourth power."""


def scalar_text(expr: Expr, args: list[str], half: bool = False) -> str:
    """The Triton expression of one op of the table ``OPS`` (``masked`` apart).

    ``half``: the kernel's inputs and outputs are all of half types."""
    dtype = expr.args[-1].dtype
    where = triton_type(dtype)
    narrow = ["half"] * where.is_half + ["approximate"] * (half and where.is_float and where.bits <= 32)
    template = TEXTS.template(expr.op, dtype, *narrow, where.kind)
    if expr.op == "pow" and where.is_float and expr.args[1].op == "const":
        template = _POWERS.get(expr.args[1].payload, template)
    bits = 32 if where.is_half else where.bits
    words: dict[str, object] = {"T": where.register, "bits": bits}
    if where.is_float:
        precise = _PRECISE[bits]
        square = f"({args[0]} * {args[0]})"
        words["one_over_square"] = precise["one_over"].format(square)
        words |= {name: text.format(*args) for name, text in precise.items() if "{1}" not in text or len(args) > 1}
    text = template.format(*args, **words)
    return text if OPS[expr.op].exact_in_half or expr.dtype != dtype else where.round(text)


def cast_text(value: str, source: TritonType, target: TritonType) -> str:
    """``value`` of one dtype converted to another as ``Tensor.to`` does."""
    if target.kind == "bool":
        return value if source.kind == "bool" else f"{value} != 0"
    if target.is_float:
        if target.is_half:
            if source.element == target.element:
                return value
            through = value if source.register == "tl.float32" else f"{value}.to(tl.float32)"
            return target.round(through)
        return value if source.register == target.register else f"{value}.to({target.register})"
    if source.is_float and target.bits < 32:
        return f"{value}.to(tl.int32).to({target.register})"  # as CUDA narrows: by way of a whole word
    if source.is_float and target.kind == "uint":
        return f"{value}.to(tl.int64).to({target.register})"
    return value if source.register == target.register else f"{value}.to({target.register})"


def bitcast_text(value: str, source: TritonType, target: TritonType) -> str:
    """The bits of ``value`` as another dtype of the same width."""
    element = f"{value}.to({source.element})" if source.is_half else value
    if source.kind == "bool":
        element = f"{value}.to(tl.int8)"
    if target.kind == "bool":
        return f"({element}.to(tl.int8, bitcast=True) != 0)"
    text = f"{element}.to({target.element}, bitcast=True)"
    return f"{text}.to({target.register})" if target.is_half else text


_COMBINE = {
    "sum": ("{0} + {1}", "add_of"),
    "prod": ("{0} * {1}", "mul_of"),
    "min": ("tl.minimum({0}, {1})", "min_of"),
    "max": ("tl.maximum({0}, {1})", "max_of"),
    "any": ("tl.maximum({0}, {1})", "max_of"),
    "all": ("tl.minimum({0}, {1})", "min_of"),
}


def combine_text(kind: str, is_float: bool, left: str, right: str) -> str:
    """One step of a reduction or scan over accumulators."""
    if is_float and kind in ("min", "max"):
        return _FLOAT[kind].format(left, right)
    return _COMBINE[kind][0].format(left, right)


def combine_function(kind: str, is_float: bool) -> str:
    """Name of the function that combines two accumulators (see the prelude)."""
    if is_float and kind in ("min", "max"):
        return f"{kind}_nan"
    return _COMBINE[kind][1]
