"""What each scalar op of the loop IR is in C++, for float, integer and bool arguments.

Templates use ``{0}``, ``{1}``, ``{2}`` for the arguments (names or literals), ``{f}`` for the suffix of libm's
functions (``f`` for float), ``{T}`` for the value type and ``{U}`` for its unsigned twin.
"""

from __future__ import annotations

from turret.errors import UnsupportedError
from turret.graph.scalar_ops import COMBINED_BY
from turret.ir.emit.op_texts import OpTexts
from turret.ir.expr import OPS, Expr
from turret.plugins.codegen.cpp.emission.dtypes import CType, ctype
from turret.plugins.codegen.cpp.emission.libmvec import VECTOR_MATH
from turret.plugins.codegen.cpp.emission.prelude import PARTS

_COMPARISONS = {
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
}

_CHOICES = {"where": "{0} ? {1} : {2}", "min": "min_of<{T}>({0}, {1})", "max": "max_of<{T}>({0}, {1})"}

_FLOAT = {
    **_COMPARISONS,
    **_CHOICES,
    **{name: f"{name}{{f}}({', '.join(f'{{{n}}}' for n in range(OPS[name].arity))})" for name in VECTOR_MATH},
    # Some vectors are 1.0000001: programs take the root of 1 - cos(x) ** 2.
    **{name: f"at_most_one({name}{{f}}({{0}}))" for name in ("sin", "cos")},
    "hypot": "at_least_either<{T}>(hypot{f}({0}, {1}), __builtin_fabs{f}({0}), __builtin_fabs{f}({1}))",
    "pow": "power_of<{T}>({0}, {1}, pow{f}(__builtin_fabs{f}({0}), {1}), __builtin_trunc{f}({1}), "
    "__builtin_trunc{f}({1} * ({T})0.5), __builtin_copysign{f}(({T})1, {0}))",
    "neg": "-{0}",
    "abs": "__builtin_fabs{f}({0})",
    "sign": "sign_of<{T}>({0})",
    "square": "{0} * {0}",
    "isnan": "{0} != {0}",
    "isinf": "__builtin_fabs{f}({0}) == __builtin_inf{f}()",
    "signbit": "bits_of<{I}>({0}) < 0",
    "sqrt": "__builtin_sqrt{f}({0})",
    "rsqrt": "1 / __builtin_sqrt{f}({0})",
    "reciprocal": "1 / {0}",
    "sigmoid": "1 / (1 + exp{f}(-{0}))",
    "lgamma": "lgamma_of({0})",
    "floor": "__builtin_floor{f}({0})",
    "ceil": "__builtin_ceil{f}({0})",
    "trunc": "__builtin_trunc{f}({0})",
    "round": "__builtin_rint{f}({0})",
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "floordiv": "float_floordiv<{T}>({0}, {1}, fmod{f}({0}, {1}))",
    "truncdiv": "__builtin_trunc{f}({0} / {1})",
    "mod": "float_mod({0}, {1})",
    "fmod": "fmod{f}({0}, {1})",
    "copysign": "__builtin_copysign{f}({0}, {1})",
    "nextafter": "nextafter{f}({0}, {1})",
}

_INTEGER = {
    **_COMPARISONS,
    **_CHOICES,
    "neg": "({T})-{0}",
    "abs": "({T})({0} < 0 ? -{0} : {0})",
    "sign": "sign_of<{T}>({0})",
    "square": "({T})({0} * {0})",
    "bitwise_not": "({T})~{0}",
    "isnan": "false",
    "isinf": "false",
    "signbit": "{0} < 0",
    "add": "({T})({0} + {1})",
    "sub": "({T})({0} - {1})",
    "mul": "({T})({0} * {1})",
    "floordiv": "int_floordiv<{T}>({0}, {1})",
    "truncdiv": "int_truncdiv<{T}>({0}, {1})",
    "mod": "int_mod<{T}>({0}, {1})",
    "fmod": "int_fmod<{T}>({0}, {1})",
    "pow": "int_pow<{T}>({0}, {1})",
    "bitwise_and": "({T})({0} & {1})",
    "bitwise_or": "({T})({0} | {1})",
    "bitwise_xor": "({T})({0} ^ {1})",
    "shl": "shift_left<{T}, {U}>({0}, {1})",
    "shr": "shift_right<{T}, {U}>({0}, {1})",
}

_BOOL = {
    **_COMPARISONS,
    "where": "({0} & {1}) | (!{0} & {2})",
    "logical_not": "!{0}",
    "bitwise_not": "!{0}",
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
    "isnan": "false",
    "isinf": "false",
    "signbit": "false",
    "pow": "{0} | !{1}",
}

_FLOAT32 = {
    "exp": "exp_float({0})",
    "sigmoid": "1 / (1 + exp_float(-{0}))",
    "tanh": "tanh_float({0})",
    "erf": "erf_float({0})",
    "log10": "(float)(log((double){0}) * 0.43429448190325182)",
}
"""Values in ``float`` registers: functions that the prelude has written out, and one whose vectors give 2.0000002 of
100 (glibc 2.36), where programs ask for the next integer above."""

TEXTS = OpTexts(
    "C++",
    {"float32": _FLOAT32, "float": _FLOAT, "int": _INTEGER, "bool": _BOOL},
    {("nextafter", "half"): "cast to float32 first"},
    PARTS,
)

_POWERS = {
    0.5: "{0} == -__builtin_inf{f}() ? __builtin_inf{f}() : __builtin_sqrt{f}({0} + 0.0{f})",
    1.0: "{0}",
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    4.0: "({0} * {0}) * ({0} * {0})",
    -1.0: "1 / {0}",
    -2.0: "1 / ({0} * {0})",
}
"""Exponents whose powers are products: eager computes them so, but for the fourth, which is ten times as fast and 1.5
units in the last place off at most.  Square roots differ from ``pow`` at -0.0 and -inf, which is spelt out because
compilers take the bare root for them in vector loops."""


def scalar_text(expr: Expr, args: list[str]) -> str:
    """The C++ expression of one op of the table ``OPS`` (``masked`` apart)."""
    dtype = expr.args[-1].dtype
    where = ctype(dtype)
    template = TEXTS.template(expr.op, dtype, *_kinds(where))
    if expr.op == "pow" and where.is_float and expr.args[1].op == "const":
        template = _POWERS.get(expr.args[1].payload, template)
    text = template.format(
        *args,
        T=where.value,
        U=f"uint{max(where.bits, 8)}_t",
        I=f"int{where.register_bytes * 8}_t",
        f=where.suffix,
    )
    return text if OPS[expr.op].exact_in_half or expr.dtype != dtype else where.round(text)


def _kinds(where: CType) -> list[str]:
    """The tables to look an op up in, the narrowest first."""
    return ["half"] * bool(where.half) + ["float32"] * (where.suffix == "f") + [where.kind]


def bitcast_text(value: str, source: CType, target: CType) -> str:
    """The bits of ``value`` as another dtype of the same width."""
    bits = source.pack(value) if source.half or source.kind == "bool" else value
    if target.half or target.kind == "bool":
        return target.load(f"bits_of<{target.element}>({bits})")
    return f"bits_of<{target.value}>({bits})"


def combine_text(kind: str, where: CType, left: str, right: str) -> str:
    """One step of a reduction or scan."""
    if kind in ("any", "all") and where.kind != "bool":
        raise UnsupportedError(f"reduction {kind} of {where.value}; it is defined for bool")
    if kind in ("min", "max"):
        left, right = right, left  # of two zeros they take the second; eager's rows keep the first
    return TEXTS.template(COMBINED_BY[kind], where.value, where.kind).format(left, right, T=where.value, f=where.suffix)


_COSTS = {"cheap": (1, 1), "divide": (4, 4), "transcendental": (10, 16)}
"""By the cost of the op: of one argument, and of two."""
_OWN_COSTS = {
    "sigmoid": 16,
    **dict.fromkeys(["floordiv", "mod", "fmod", "lgamma", "nextafter"], 30),
    "random": 40,
    "const": 0,
}
"""Where the text costs something else than the op: longer ones, and functions that have no vectors here."""


def op_cost(expr: Expr) -> int:
    """Rough cost of one node on one element, in vector additions."""
    info = OPS.get(expr.op)
    return _OWN_COSTS.get(expr.op, 1 if info is None else _COSTS[info.cost][info.arity > 1])
