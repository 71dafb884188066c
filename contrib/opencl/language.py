"""OpenCL C: what torch's dtypes and the loop IR's scalar ops are in it, and the functions that kernels call."""

from __future__ import annotations

import math
import re

import attrs
import torch

from turret.errors import UnsupportedError
from turret.ir import OPS, Expr


@attrs.frozen
class CType:
    """One dtype: the type of a value in a register and of an element in memory; half types live in ``float`` and are
    rounded after each operation, by functions whose names begin with ``half``."""

    value: str
    element: str
    kind: str
    half: str = ""

    def load(self, element: str) -> str:
        """The value of an element."""
        return f"{self.half}_load({element})" if self.half else f"({element} != 0)" if self.kind == "bool" else element

    def pack(self, value: str) -> str:
        """The element that holds a value."""
        return f"{self.half}_pack({value})" if self.half else f"({self.element})({value})"

    def round(self, text: str) -> str:
        """A value computed in a wider register."""
        return f"{self.half}_load({self.half}_pack({text}))" if self.half else text


_INTEGERS = {"int8": "char", "int16": "short", "int32": "int", "int64": "long"}
CTYPES: dict[torch.dtype, CType] = {
    torch.float32: CType("float", "float", "float"),
    torch.float64: CType("double", "double", "float"),
    torch.bfloat16: CType("float", "ushort", "float", "bf16"),
    torch.float16: CType("float", "ushort", "float", "f16"),
    torch.bool: CType("bool", "uchar", "bool"),
    **{getattr(torch, name): CType(word, word, "int") for name, word in _INTEGERS.items()},
    **{getattr(torch, f"u{name}"): CType(f"u{word}", f"u{word}", "int") for name, word in _INTEGERS.items()},
}


def ctype(dtype: torch.dtype) -> CType:
    """The OpenCL side of a dtype."""
    if dtype not in CTYPES:
        raise UnsupportedError(f"OpenCL kernels do not compute with {dtype}")
    return CTYPES[dtype]


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """A literal with exactly the value that torch gives ``value`` in ``dtype``."""
    kind = ctype(dtype)
    if kind.kind == "bool":
        return "true" if value else "false"
    if kind.kind == "int":
        value, bounds = int(value), torch.iinfo(dtype)
        if bounds.bits == 64:
            return "LONG_MIN" if value == -(1 << 63) else f"{value}L" if bounds.min else f"{value}UL"
        return f"({kind.value})({value}L)"
    value = float(value if dtype == torch.float64 else torch.tensor(value, dtype=torch.float64).float().to(dtype))
    if not math.isfinite(value):
        return f"({kind.value})({'-' if value < 0 else ''}{'NAN' if math.isnan(value) else 'INFINITY'})"
    return f"({value.hex()}{'f' if kind.value == 'float' else ''})"


_SAME_NAME = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf erfc"
_COMMON = {
    **{op: f"{{0}} {sign} {{1}}" for op, sign in zip("eq ne lt le gt ge".split(), "== != < <= > >=".split())},
    "where": "{0} ? {1} : {2}",
    "min": "{0} != {0} ? {0} : {0} < {1} ? {0} : {1}",  # NaN is handed on; of two zeros the second
    "max": "{0} != {0} ? {0} : {0} > {1} ? {0} : {1}",
    "sign": "({T})(({0} > 0) - ({0} < 0))",
    "signbit": "{0} < 0",
}
_FLOAT = {
    **_COMMON,
    **{op: f"{op}({{0}})" for op in f"{_SAME_NAME} lgamma floor ceil trunc sqrt isnan isinf signbit".split()},
    **{op: f"{op}({{0}}, {{1}})" for op in "fmod pow atan2 hypot copysign nextafter".split()},
    **{op: f"{{0}} {sign} {{1}}" for op, sign in zip(("add", "sub", "mul", "div"), "+-*/")},
    **{"neg": "-{0}", "abs": "fabs({0})", "square": "{0} * {0}", "round": "rint({0})", "reciprocal": "1 / {0}"},
    **{"rsqrt": "1 / sqrt({0})", "sigmoid": "1 / (1 + exp(-{0}))", "truncdiv": "trunc({0} / {1})"},
    **{op: f"{op}_{{T}}({{0}}, {{1}})" for op in ("floordiv", "mod")},
}
_INTEGER = {
    **_COMMON,
    **{op: f"({{T}})(({{U}}){{0}} {sign} ({{U}}){{1}})" for op, sign in zip(("add", "sub", "mul"), "+-*")},
    **{f"bitwise_{op}": f"({{T}})({{0}} {sign} {{1}})" for op, sign in zip(("and", "or", "xor"), "&|^")},
    **{op: f"{op}_{{T}}({{0}}, {{1}})" for op in "floordiv truncdiv mod fmod pow shl shr".split()},
    **{"neg": "({T})(0 - ({U}){0})", "abs": "({T})({0} < 0 ? 0 - ({U}){0} : ({U}){0})", "bitwise_not": "({T})~{0}"},
    **{"square": "({T})(({U}){0} * ({U}){0})", "isnan": "false", "isinf": "false"},
}
_BOOL = {
    **_COMMON,
    **{f"logical_{op}": f"{{0}} {sign} {{1}}" for op, sign in zip(("and", "or", "xor"), "&|^")},
    **{f"bitwise_{op}": f"{{0}} {sign} {{1}}" for op, sign in zip(("and", "or", "xor"), "&|^")},
    **{op: f"{{0}} {sign} {{1}}" for op, sign in zip("add mul min max sub".split(), "|&&|^")},
    **dict.fromkeys(("logical_not", "bitwise_not"), "!{0}"),
    **dict.fromkeys(("abs", "sign", "square"), "{0}"),
    **{"isnan": "false", "isinf": "false", "signbit": "false", "pow": "{0} | !{1}"},
}
_TABLES = {"float": _FLOAT, "int": _INTEGER, "bool": _BOOL}
_POWERS = {0.5: "{0} == -INFINITY ? INFINITY : sqrt({0} + 0)", 2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}"}
_EXACT_IN_HALF = frozenset("neg abs min max where copysign".split())


def scalar_text(op: str, dtype: torch.dtype, args: list[str], exponent: object = None) -> str:
    """One op of the table ``OPS`` on arguments (names or literals) of a dtype, rounded to it where it is the result."""
    kind = ctype(dtype)
    template = _TABLES[kind.kind].get(op)
    if template is None or (op == "nextafter" and kind.half):
        raise UnsupportedError(f"{op} of {dtype} has no meaning in OpenCL kernels")
    if op == "pow" and kind.kind == "float":
        template = _POWERS.get(exponent, template)
    text = template.format(*args, T=kind.value, U="ulong" if dtype.itemsize == 8 else "uint")
    return text if op in _EXACT_IN_HALF or OPS[op].result == "bool" else kind.round(text)


def combined(kind: str, dtype: torch.dtype, left: str, right: str) -> str:
    """One step of a reduction or a scan; of equal zeros minima and maxima keep the left one."""
    op = {"sum": "add", "prod": "mul", "any": "logical_or", "all": "logical_and"}.get(kind, kind)
    return scalar_text(op, dtype, [right, left] if kind in ("min", "max") else [left, right])


def identity(kind: str, dtype: torch.dtype) -> str:
    """What leaves any other value unchanged in a reduction."""
    least = kind in ("max", "argmax")
    if kind in ("min", "max", "argmin", "argmax") and dtype.is_floating_point:
        return literal(-math.inf if least else math.inf, dtype)
    if kind in ("min", "max", "argmin", "argmax") and dtype != torch.bool:
        return literal(torch.iinfo(dtype).min if least else torch.iinfo(dtype).max, dtype)
    return literal(kind in ("prod", "all", "min", "argmin"), dtype)


def cast_text(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """A value converted as ``Tensor.to`` does; floats outside of an integer's range give what x86 gives."""
    before, after = ctype(source), ctype(target)
    if after.kind == "bool":
        return f"{value} != 0"
    if after.kind == "float":
        text = f"({after.value}){value}"
        return text if before.half == after.half and before.kind == "float" else after.round(text)
    if before.kind != "float":
        return f"({after.value}){value}"
    wide = after.value if after.value == "ulong" else "long" if after.value in ("long", "uint", "uchar", "ushort") else "int"
    return f"({after.value})to_{wide}({value})"


def bitcast_text(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """The bits of a value as another dtype of the same width."""
    return ctype(target).load(f"as_{ctype(target).element}({ctype(source).pack(value)})")


def divides_by_constant(expr: Expr) -> bool:
    return expr.args[1].op == "const"


_HEADER = """\
#pragma OPENCL FP_CONTRACT OFF
#define PLACE(n) ((__global const long*)places)[n]
#define BUFFER(T, n) (__global T*)((__global const ulong*)((__global const ulong*)frame)[0])[PLACE(n)]
#define SIZE(n) ((__global const long*)((__global const ulong*)frame)[1])[PLACE(n)]
#define REPORT(e) if (e) atomic_or((volatile __global int*)((__global const ulong*)frame)[2], e)
float bf16_load(ushort x) { return as_float((uint)x << 16); }
ushort bf16_pack(float x) {
  const uint bits = as_uint(x);
  return x != x ? 0x7fc0 : (ushort)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
float f16_load(ushort x) { return vload_half(0, (const __private half*)&x); }
ushort f16_pack(float x) { ushort bits; vstore_half_rte(x, 0, (__private half*)&bits); return bits; }
int to_int(double x) { return x >= -0x1p31 && x < 0x1p31 ? (int)x : INT_MIN; }
long to_long(double x) { return x >= -0x1p63 && x < 0x1p63 ? (long)x : LONG_MIN; }
ulong to_ulong(double x) { return x < 0x1p63 ? (ulong)to_long(x) : (ulong)to_long(x - 0x1p63) ^ (ulong)LONG_MIN; }
long floor_div(long a, long b) { return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0)); }
long floor_mod(long a, long b) { return a - floor_div(a, b) * b; }
uint4 philox(ulong key, ulong counter, ulong stream) {
  uint4 c = (uint4)((uint)counter, (uint)(counter >> 32), (uint)stream, (uint)(stream >> 32));
  for (uint round = 0, k0 = (uint)key, k1 = (uint)(key >> 32); round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const ulong a = c.x * 0xD2511F53ul, b = c.z * 0xCD9E8D57ul;
    c = (uint4)((uint)(b >> 32) ^ c.y ^ k0, (uint)b, (uint)(a >> 32) ^ c.w ^ k1, (uint)a);
  }
  return c;
}
double wide(uint high, uint low, int more) { return (double)((((long)high << 21) | (low >> 11)) + more) * 0x1p-53; }
double normal_double(uint4 w) {
  return sqrt(-2.0 * log(wide(w.x, w.y, 1))) * cos(6.283185307179586 * wide(w.z, w.w, 0));
}
float normal_float(uint4 w) {
  return sqrt(-2.0f * log((float)((w.x >> 8) + 1) * 0x1p-24f)) * cos(6.283185307179586f * ((float)(w.y >> 8) * 0x1p-24f));
}
"""
_FLOAT_FUNCTIONS = """\
T mod_T(T a, T b) { const T r = fmod(a, b); return r != 0 && (b < 0) != (r < 0) ? r + b : r; }
T floordiv_T(T a, T b) {
  if (b == 0) return a / b;
  const T rest = fmod(a, b), q = (a - rest) / b - (rest != 0 && (b < 0) != (rest < 0)), down = floor(q);
  return q == 0 ? copysign((T)0, a / b) : q - down > (T)0.5 ? down + 1 : down;
}
"""
_INTEGER_FUNCTIONS = """\
T truncdiv_T(T a, T b) { return b == 0 ? a : (T)-1 < (T)0 && b == (T)-1 ? (T)(0 - (U)a) : (T)(a / b); }
T fmod_T(T a, T b) { return (T)((U)a - (U)truncdiv_T(a, b) * (U)b); }
T mod_T(T a, T b) { const T r = fmod_T(a, b); return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r; }
T floordiv_T(T a, T b) { const T r = fmod_T(a, b); return (T)(truncdiv_T(a, b) - (r != 0 && (r < 0) != (b < 0))); }
T pow_T(T a, T b) {
  if (b < 0) return (T)(a == 1 ? 1 : a == (T)-1 ? (b & 1 ? -1 : 1) : 0);
  U r = 1;
  for (U base = (U)a; b; b >>= 1, base *= base) r *= b & 1 ? base : 1;
  return (T)r;
}
T shl_T(T a, T b) { return (U)b < 8 * sizeof(T) ? (T)((U)a << b) : (T)0; }
T shr_T(T a, T b) { return (U)b < 8 * sizeof(T) ? (T)(a >> b) : (T)(a < 0 ? -1 : 0); }
"""


def prelude(body: str) -> str:
    """What the kernels of a program call: functions of a type only where one of them is mentioned."""
    types = sorted(set(re.findall(r"\b(?:floordiv|truncdiv|f?mod|pow|shl|shr)_([a-z]+)\(", body)))
    parts = [_HEADER]
    for name in types:
        text = _FLOAT_FUNCTIONS if name in ("float", "double") else _INTEGER_FUNCTIONS
        wide = "ulong" if name.endswith("long") else "uint"
        parts.append(re.sub(r"\bU\b", wide, re.sub(r"_T\b", f"_{name}", re.sub(r"\bT\b", name, text))))
    return "".join(parts)
