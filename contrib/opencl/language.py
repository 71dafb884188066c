"""OpenCL C: torch's dtypes and the loop IR's scalar ops in it, and the functions that kernels call."""

from __future__ import annotations

import re

import torch

from turret.ir.emit.c_emitter import CType
from turret.ir.emit.op_texts import OpTexts

CTYPES: dict[torch.dtype, CType] = {
    torch.float32: CType("float", "float", 32, "float", "f"),
    torch.float64: CType("double", "double", 64, "float"),
    torch.bfloat16: CType("float", "ushort", 16, "float", "f", "bf16"),
    torch.float16: CType("float", "ushort", 16, "float", "f", "f16"),
    torch.bool: CType("bool", "uchar", 8, "bool"),
}
for _bits, _word in ((8, "char"), (16, "short"), (32, "int"), (64, "long")):
    CTYPES[getattr(torch, f"int{_bits}")] = CType(_word, _word, _bits, "int")
    CTYPES[getattr(torch, f"uint{_bits}")] = CType(f"u{_word}", f"u{_word}", _bits, "uint")


def _table(text: str) -> dict[str, str]:
    """Lines of ``ops: template``; a ``@`` stands for the op, and what is in brackets is for one op each."""
    found = {}
    for ops, template in (line.split(": ", 1) for line in text.split("\n") if line):
        choices = re.search(r"\[(.+?)\]", template)
        for number, op in enumerate(ops.split()):
            plain = template.replace(choices[0], choices[1].split()[number]) if choices else template
            found[op] = plain.replace("@", op)
    return found


_COMMON = """
eq ne lt le gt ge: {0} [== != < <= > >=] {1}
where: {0} ? {1} : {2}
min max: {0} != {0} ? {0} : {0} [< >] {1} ? {0} : {1}
sign: ({T})(({0} > 0) - ({0} < 0))
signbit: {0} < 0
isnan isinf: false"""
_FLOAT = """
exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh: @({0})
erf erfc lgamma floor ceil trunc sqrt isnan isinf signbit: @({0})
fmod pow atan2 hypot copysign nextafter: @({0}, {1})
add sub mul div: {0} [+ - * /] {1}
floordiv mod: @_{T}({0}, {1})
neg abs square round: [-{0} fabs({0}) {0}*{0} rint({0})]
rsqrt reciprocal sigmoid truncdiv: [1/sqrt({0}) 1/{0} 1/(1+exp(-{0})) trunc({0}/{1})]"""
_INTEGER = """
add sub mul: ({T})(({U}){0} [+ - *] ({U}){1})
square neg: ({T})([({U}){0}*({U}){0} 0-({U}){0}])
bitwise_and bitwise_or bitwise_xor: ({T})({0} [& | ^] {1})
bitwise_not: ({T})~{0}
abs: ({T})({0} < 0 ? 0 - ({U}){0} : ({U}){0})
floordiv truncdiv mod fmod pow shl shr: @_{T}({0}, {1})"""
_BOOL = """
logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor: {0} [& | ^ & | ^] {1}
add mul min max sub: {0} [| & & | ^] {1}
logical_not bitwise_not: !{0}
abs sign square: {0}
signbit: false
pow: {0} | !{1}"""
_OWN = {"float": _FLOAT, "int": _INTEGER, "bool": _BOOL}
_MISSING = {("nextafter", "half"): "cast to float32 first"}
TEXTS = OpTexts("OpenCL", {kind: _table(_COMMON + own) for kind, own in _OWN.items()}, _MISSING, {})
_POWERS = {0.5: "{0} == -INFINITY ? INFINITY : sqrt({0} + 0)", 2.0: "{0} * {0}", 3.0: "{0} * {0} * {0}"}


def op_text(op: str, where: CType, args: list[str], constant: float | None = None) -> str:
    """A scalar op on values of one type, not rounded yet."""
    template = TEXTS.template(op, where.half or where.value, *["half"] * bool(where.half), where.kind)
    if op == "pow" and where.is_float and constant is not None:
        template = _POWERS.get(constant, template)
    return template.format(*args, T=where.value, U="ulong" if where.bits == 64 else "uint")


def bitcast_text(value: str, source: CType, target: CType) -> str:
    """The bits of a value as another type."""
    return target.load(f"as_{target.element}({source.pack(value)})")


_HEADER = """\
#pragma OPENCL FP_CONTRACT OFF
#define WORDS(address) ((__global const ulong*)(address))
#define BUFFER(T, n) (__global T*)WORDS(WORDS(frame)[0])[places[n]]
#define SIZE(n) (long)WORDS(WORDS(frame)[1])[places[n]]
float bf16_load(ushort x) { return as_float((uint)x << 16); }
ushort bf16_pack(float x) { return x != x ? 0x7fc0 : (as_uint(x) + 0x7fffu + (as_uint(x) >> 16 & 1u)) >> 16; }
float bf16_round(float x) { return bf16_load(bf16_pack(x)); }
float f16_load(ushort x) { return vload_half(0, (const __private half*)&x); }
ushort f16_pack(float x) { ushort bits; vstore_half_rte(x, 0, (__private half*)&bits); return bits; }
float f16_round(float x) { return f16_load(f16_pack(x)); }
int to_int32(double x) { return x >= -0x1p31 && x < 0x1p31 ? (int)x : INT_MIN; }
long to_int64(double x) { return x >= -0x1p63 && x < 0x1p63 ? (long)x : LONG_MIN; }
ulong to_uint64(double x) { return x < 0x1p63 ? (ulong)to_int64(x) : (ulong)to_int64(x - 0x1p63) ^ LONG_MIN; }
long floor_div(long a, long b) { return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0)); }
long floor_mod(long a, long b) { return a - floor_div(a, b) * b; }
long least(long a, long b) { return a < b ? a : b; }
long most(long a, long b) { return a > b ? a : b; }
uint4 philox(ulong key, ulong counter, ulong stream) {
  uint4 c = (uint4)((uint)counter, (uint)(counter >> 32), (uint)stream, (uint)(stream >> 32));
  uint k0 = (uint)key, k1 = (uint)(key >> 32);
  for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const ulong a = c.x * 0xD2511F53ul, b = c.z * 0xCD9E8D57ul;
    c = (uint4)((uint)(b >> 32) ^ c.y ^ k0, (uint)b, (uint)(a >> 32) ^ c.w ^ k1, (uint)a);
  }
  return c;
}
long random_bits(uint4 w) { return w.x; }
float random_uniform(uint4 w, int digits) { return (float)(w.x >> (32 - digits)) * (1.0f / (1 << digits)); }
double wide(uint high, uint low, int more) { return (double)((((long)high << 21) | (low >> 11)) + more) * 0x1p-53; }
double random_uniform_double(uint4 w) { return wide(w.x, w.y, 0); }
double box_muller(double r, double angle) { return sqrt(-2 * log(r)) * cos(6.283185307179586 * angle); }
double random_normal_double(uint4 w) { return box_muller(wide(w.x, w.y, 1), wide(w.z, w.w, 0)); }
float random_normal(uint4 w) { return box_muller(((w.x >> 8) + 1) * 0x1p-24, (w.y >> 8) * 0x1p-24); }
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
_MAIN = """\
__kernel void turret(ulong frame, ulong steps, ulong count) {
  volatile __global int* const report = (volatile __global int*)WORDS(frame)[2];
  for (ulong n = 0; n < count && !*report; n++) {
    __global const long* const step = (__global const long*)WORDS(steps)[n];
    int error = 0;
    switch (*step) { CASES }
    if (error) atomic_or(report, error);
  }
}
"""


def program(functions: dict[str, str]) -> str:
    """What kernels call (of a type only where it is mentioned), the kernels as functions, and one kernel that runs
    ``count`` of them: it compiles in less time than many.  ``frame`` has the addresses of slots, sizes and a word for
    errors; ``steps`` those of steps, each the number of a function and its places.
    """
    body, parts = "".join(functions.values()), [_HEADER]
    for name in sorted(set(re.findall(r"\b(?:floordiv|truncdiv|f?mod|pow|shl|shr)_([a-z]+)\(", body))):
        text = _FLOAT_FUNCTIONS if name in ("float", "double") else _INTEGER_FUNCTIONS
        wide = "ulong" if name.endswith("long") else "uint"
        parts.append(re.sub(r"\bU\b", wide, re.sub(r"_T\b", f"_{name}", re.sub(r"\bT\b", name, text))))
    parts += [text for name, text in TEXTS.functions.items() if name in body]
    cases = "".join(f"case {number}: error = {name}(frame, step + 1); break;" for number, name in enumerate(functions))
    return "".join([*parts, body, _MAIN.replace("CASES", cases)])
