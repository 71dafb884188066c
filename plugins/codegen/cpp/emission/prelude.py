"""The C++ that kernels call: conversions, arithmetic with torch's semantics, vector math, threading.

A unit carries only the parts that its kernels mention (``prelude_for``), because every line costs compile time.
No standard C++ header is used.
"""

from __future__ import annotations

import re

import torch

from turret.plugins.codegen.cpp.emission import libmvec
from turret.plugins.codegen.cpp.emission.dtypes import ctype
from turret.plugins.codegen.cpp.emission.vector_math import VECTOR_MATH_PARTS, transpose_part

HEADER = f"""\
#include <stdint.h>
{libmvec.HEADER}\
#if defined(__GNUC__) && !defined(__clang__)
#define BRIEFLY __attribute__((optimize("O1")))  // for code that runs once
#else
#define BRIEFLY
#endif
#define INLINE static inline __attribute__((always_inline))
"""

_SCALAR_MATH = {
    "fmodf": "float, float",
    "fmod": "double, double",
    "lgammaf_r": "float, int*",
    "lgamma_r": "double, int*",
    "nextafterf": "float, float",
    "nextafter": "double, double",
}
"""Functions of the C library without vectors: their arguments."""


BLAS_PRODUCTS = {torch.float32: "blas_sgemm", torch.float64: "blas_dgemm"}
"""The pointer to BLAS's product of matrices, by their dtype."""


def _blas() -> dict[str, str]:
    """Pointers to functions of BLAS, which the loader fills in; of sizes it reads as many bits as its build has."""
    size = "const int64_t*"
    table = {}
    for dtype, name in BLAS_PRODUCTS.items():
        kind = ctype(dtype).element
        matrix = f"const {kind}*, {size}"
        types = f"const char*, const char*, {size}, {size}, {size}, const {kind}*, {matrix}, {matrix}"
        types = f"{types}, const {kind}*, {kind}*, {size}"
        table[name] = f'extern "C" {{ __attribute__((weak)) void (*{name})({types}) = nullptr; }}'
    return table


PARTS: dict[str, str] = {
    **libmvec.PARTS,
    **{name: f'extern "C" {of.split(",")[0]} {name}({of}) noexcept;' for name, of in _SCALAR_MATH.items()},
    **_blas(),
    "bits_of": """\
template <class To, class From> INLINE To bits_of(From value) { return __builtin_bit_cast(To, value); }""",
    **VECTOR_MATH_PARTS,
    "fill_tile": transpose_part(),
    "bf16_load": """\
INLINE float bf16_load(uint16_t x) { return bits_of<float>((uint32_t)x << 16); }""",
    "bf16_pack": """\
INLINE uint16_t bf16_pack(float x) { return (uint16_t)(bits_of<uint32_t>(x) >> 16); }""",
    "bf16_round": """\
INLINE float bf16_round(float x) {  // to nearest, ties to even
  const uint32_t bits = bits_of<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
  return bits_of<float>(x != x ? 0x7fc00000u : rounded);
}""",
    "bf16_narrow": """\
INLINE uint16_t bf16_narrow(float x) {  // pack(round(x))
  const uint32_t bits = bits_of<uint32_t>(x), is_nan = (0x7f800000u - (bits & 0x7fffffffu)) >> 31;
  return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16 | (0u - is_nan & 0x7fc0u));
}""",
    "f16_narrow": """\
INLINE uint16_t f16_narrow(float x) {  // pack(round(x))
  const uint32_t sign = bits_of<uint32_t>(x) >> 16 & 0x8000u, magnitude = bits_of<uint32_t>(x) & 0x7fffffffu;
  const uint32_t is_nan = (0x7f800000u - magnitude) >> 31;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t tiny = bits_of<uint32_t>(bits_of<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t is_tiny = 0u - ((magnitude - 0x38800000u) >> 31);
  const uint32_t finite = (tiny & is_tiny) | (normal & ~is_tiny);
  const uint32_t bounded = finite < 0x7c00u ? finite : 0x7c00u;
  return (uint16_t)(sign | bounded | is_nan << 9);
}""",
    "f16_load": """\
INLINE float f16_load(uint16_t x) {
  const uint32_t magnitude = (uint32_t)(x & 0x7fffu) << 13;
  const float finite = bits_of<float>(magnitude) * 0x1p112f;  // moves the exponent's bias, makes subnormals normal
  const uint32_t bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : bits_of<uint32_t>(finite);
  return bits_of<float>(bits | (uint32_t)(x & 0x8000u) << 16);
}""",
    "f16_round": """\
INLINE float f16_round(float x) {  // to nearest, ties to even; stays in float
  const uint32_t sign = bits_of<uint32_t>(x) & 0x80000000u, magnitude = bits_of<uint32_t>(x) & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u)) & 0xffffe000u;
  const float absolute = bits_of<float>(magnitude);
  const uint32_t tiny = bits_of<uint32_t>((absolute + 0.5f) - 0.5f);  // 0.5's last place is the least subnormal
  const uint32_t finite = magnitude < 0x38800000u ? tiny : normal;
  const uint32_t bounded = finite >= 0x47800000u ? 0x7f800000u : finite;
  return bits_of<float>(sign | (x != x ? 0x7fc00000u : bounded));
}""",
    "f16_pack": """\
INLINE uint16_t f16_pack(float x) {  // x fits the format; without comparisons, which would keep loops from vectorising
  const uint32_t sign = bits_of<uint32_t>(x) >> 16 & 0x8000u, magnitude = bits_of<uint32_t>(x) & 0x7fffffffu;
  const uint32_t scaled = bits_of<uint32_t>(bits_of<float>(magnitude) * 0x1p-112f) >> 13;
  const uint32_t bounded = scaled < 0x7c00u ? scaled : 0x7c00u, is_nan = (0x7f800000u - magnitude) >> 31;
  return (uint16_t)(sign | bounded | is_nan << 9);
}""",
    "to_int32": """\
// What x86 gives: the least integer where x does not fit.  By the magnitude, as GCC (12.2 seen, with AVX-512) takes
// ``(float)(int)x`` for the truncated x, which is -0.0 for -0.5.
template <class F> INLINE int32_t to_int32(F x) {
  const F magnitude = x < 0 ? -x : x + (F)0;
  const int32_t whole = magnitude < (F)2147483648.0 ? (int32_t)magnitude : INT32_MIN;
  return x < 0 ? -whole : whole;
}""",
    "to_int64": """\
template <class F> INLINE int64_t to_int64(F x) {  // as to_int32
  const F magnitude = x < 0 ? -x : x + (F)0;
  const int64_t whole = magnitude < (F)9223372036854775808.0 ? (int64_t)magnitude : INT64_MIN;
  return x < 0 ? -whole : whole;
}""",
    "to_uint64": """\
template <class F> INLINE uint64_t to_uint64(F x) {
  const F half = (F)9223372036854775808.0;
  return x < half ? (uint64_t)to_int64(x) : (uint64_t)to_int64(x - half) ^ 0x8000000000000000ull;
}""",
    "sign_of": """\
template <class T> INLINE T sign_of(T x) { return (T)((T)(x > 0) - (T)(x < 0)); }""",
    "at_most_one": """\
template <class F> INLINE F at_most_one(F x) { return x > 1 ? (F)1 : x < -1 ? (F)-1 : x; }""",
    "at_least_either": """\
template <class F> INLINE F at_least_either(F hypot, F a, F b) {
  // Some vectors are a unit less than one of the two, and of a 0 not the other: x / hypot(x, y) was beyond 1.
  const F larger = a < b ? b : a, smaller = a < b ? a : b;
  return smaller == 0 || hypot < larger ? larger : hypot;
}""",
    "power_of": """\
template <class F> INLINE F power_of(F base, F exponent, F of_size, F truncated, F of_half, F sign) {
  // Vectors hand negative bases on to the scalar function, which rounds otherwise: (-x) ** 4 was not x ** 4.
  const bool whole = truncated == exponent, odd = whole & (of_half != exponent * (F)0.5);
  const bool undefined = !whole & (base < 0) & (base > -(F)__builtin_inf());
  // A factor and no choice: a call that only one way of a branch needs is moved there, where it has no vectors.
  return of_size * (undefined ? (F)__builtin_nan("") : odd ? sign : (F)1);
}""",
    "min_of": """\
template <class T> INLINE T min_of(T a, T b) {  // hands NaN on; of two zeros the second
  const T smaller = a < b ? a : b;
  return a != a ? a : smaller;
}""",
    "max_of": """\
template <class T> INLINE T max_of(T a, T b) {
  const T larger = a > b ? a : b;
  return a != a ? a : larger;
}""",
    "float_mod": """\
INLINE float float_mod(float a, float b) {
  const float rest = fmodf(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}
INLINE double float_mod(double a, double b) {
  const double rest = fmod(a, b);
  return rest != 0 && (b < 0) != (rest < 0) ? rest + b : rest;
}""",
    "float_floordiv": """\
template <class F> INLINE F float_floordiv(F a, F b, F rest) {  // rest is fmod(a, b)
  const F shifted = (a - rest) / b;
  const F quotient = rest != 0 && (b < 0) != (rest < 0) ? shifted - 1 : shifted;
  const F down = __builtin_floor(quotient);
  const F rounded = quotient - down > (F)0.5 ? down + 1 : down;
  const F zero = __builtin_copysign((F)0, a / b);
  return b == 0 ? a / b : quotient != 0 ? rounded : zero;
}""",
    "int_truncdiv": """\
template <class T> INLINE T int_truncdiv(T a, T b) {  // b = 0 gives a, and is reported by the caller
  const bool plain = b != 0 && b != (T)-1;
  const T quotient = (T)(a / (plain ? b : (T)1));
  return b == (T)-1 && (T)-1 < (T)0 ? (T)(0 - a) : (T)-1 > (T)0 && b == (T)-1 ? (T)(a == b) : quotient;
}""",
    "int_fmod": """\
template <class T> INLINE T int_fmod(T a, T b) { return (T)(a - int_truncdiv(a, b) * b); }""",
    "int_floordiv": """\
template <class T> INLINE T int_floordiv(T a, T b) {
  const T quotient = int_truncdiv(a, b), rest = (T)(a - quotient * b);
  return (T)(quotient - (T)(rest != 0 && (rest < 0) != (b < 0)));
}""",
    "int_mod": """\
template <class T> INLINE T int_mod(T a, T b) {
  const T rest = int_fmod(a, b);
  return (T)(rest + (rest != 0 && (rest < 0) != (b < 0) ? b : (T)0));
}""",
    "int_pow": """\
template <class T> INLINE T int_pow(T base, T exponent) {
  if ((T)-1 < (T)0 && exponent < 0) return (T)(base == 1 ? 1 : base == (T)-1 ? (exponent & 1 ? -1 : 1) : 0);
  T result = 1;
  for (; exponent; exponent = (T)(exponent >> 1), base = (T)(base * base)) {
    if (exponent & 1) result = (T)(result * base);
  }
  return result;
}""",
    "shift_left": """\
template <class T, class U> INLINE T shift_left(T a, T b) {
  const bool fits = (U)b < (U)(8 * sizeof(T));
  return fits ? (T)((U)a << (fits ? b : 0)) : (T)0;
}""",
    "shift_right": """\
template <class T, class U> INLINE T shift_right(T a, T b) {
  const U most = (U)(8 * sizeof(T) - 1);
  const T shifted = (T)(a >> ((U)b < most ? (U)b : most));
  return (T)-1 > (T)0 && (U)b > most ? (T)0 : shifted;
}""",
    "lgamma_of": """\
INLINE float lgamma_of(float x) { int sign; return lgammaf_r(x, &sign); }
INLINE double lgamma_of(double x) { int sign; return lgamma_r(x, &sign); }""",
    "philox": """\
struct Words { uint32_t w0, w1, w2, w3; };
INLINE Words philox(uint64_t key, uint64_t counter, uint64_t stream) {  // Philox4x32-10
  uint32_t c0 = (uint32_t)counter, c1 = counter >> 32, c2 = (uint32_t)stream, c3 = stream >> 32;
  uint32_t k0 = (uint32_t)key, k1 = key >> 32;
#pragma GCC unroll 10
  for (int round = 0; round < 10; round++) {
    const uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ k0, c1 = (uint32_t)b, c2 = (uint32_t)(a >> 32) ^ c3 ^ k1, c3 = (uint32_t)a;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}""",
    "random_bits": """\
INLINE int64_t random_bits(Words w) { return w.w0; }""",
    "random_uniform": """\
INLINE float random_uniform(Words w, int bits) {
  return (float)(int32_t)(w.w0 >> (32 - bits)) * (1.0f / (1 << bits));
}""",
    "random_wide": """\
INLINE double random_wide(uint32_t high, uint32_t low, int add) {
  return (double)((((int64_t)high << 21) | (low >> 11)) + add) * 0x1p-53;
}""",
    "random_uniform_double": """\
INLINE double random_uniform_double(Words w) { return random_wide(w.w0, w.w1, 0); }""",
    "random_normal": """\
INLINE float random_normal(Words w) {  // Box-Muller
  const float radius = (float)(int32_t)((w.w0 >> 8) + 1) * 0x1p-24f, angle = (float)(int32_t)(w.w1 >> 8) * 0x1p-24f;
  return __builtin_sqrtf(-2.0f * logf(radius)) * cosf(6.283185307179586f * angle);
}""",
    "random_normal_double": """\
INLINE double random_normal_double(Words w) {
  const double radius = random_wide(w.w0, w.w1, 1), angle = random_wide(w.w2, w.w3, 0);
  return __builtin_sqrt(-2.0 * log(radius)) * cos(6.283185307179586 * angle);
}""",
    "floor_div": """\
INLINE int64_t floor_div(int64_t a, int64_t b) {  // a size that depends on data may be 0: then no loop asks for this
  return b == 0 ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
}""",
    "floor_mod": """\
INLINE int64_t floor_mod(int64_t a, int64_t b) { return a - floor_div(a, b) * b; }""",
    "least": """\
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }""",
    "most": """\
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }""",
    "no_bits": """\
INLINE int64_t no_bits() {  // zero, which compilers do not know
  int64_t zero = 0;
  __asm__("" : "+r"(zero));
  return zero;
}""",
    "fold_lanes": """\
template <int lanes, class T, class F> INLINE T fold_lanes(T* values, F combine) {  // pairwise
  if constexpr (lanes == 1) {
    return values[0];
  } else {
#pragma omp simd
    for (int i = 0; i < lanes / 2; i++) values[i] = combine(values[i], values[i + lanes / 2]);
    return fold_lanes<lanes / 2>(values, combine);
  }
}""",
    "chunk_step": """\
INLINE int64_t chunk_step(int64_t count, int64_t chunks, int64_t unit) {  // whole units, at most `chunks` chunks
  const int64_t step = ((count > 1 ? count : 1) + chunks - 1) / chunks;
  return (step + unit - 1) / unit * unit;
}""",
    "team": """\
INLINE int team(int threads, int64_t tasks, int64_t work) {  // threads worth their start, work in element operations
  const int64_t worth = 1 + work / 65536;
  const int64_t wanted = worth < tasks ? worth : tasks;
  return wanted < 1 ? 1 : wanted < threads ? (int)wanted : threads;
}""",
    "status": """\
INLINE int64_t status(int64_t error) { return error & 1 ? 1 : error & 8 ? 8 : error; }""",
    "out_of_bounds": """\
static __attribute__((noinline)) int64_t* out_of_bounds(int64_t index, const int64_t* extent, int64_t* report) {
  if (!__atomic_exchange_n(report, 1, __ATOMIC_RELAXED)) report[1] = extent[2], report[2] = index;
  report[4] = 0;
  return report + 4;  // to read or write instead
}""",
    "checked_place": """\
template <class T> INLINE T* checked_place(T* first, int64_t index, const int64_t* extent, int64_t* report) {
  return index >= extent[0] && index < extent[1] ? first + index : (T*)out_of_bounds(index, extent, report);
}""",
    "checked_tile": """\
INLINE bool checked_tile(
  int64_t corner, int64_t step, int64_t rows, int64_t columns, const int64_t* extent, int64_t* report
) {
  const int64_t far = (columns - 1) * step, last = corner + (rows - 1) + (far > 0 ? far : 0);
  const int64_t first = corner + (far < 0 ? far : 0), wrong = first < extent[0] ? first : last;
  if (rows < 1 || columns < 1 || (first >= extent[0] && last < extent[1])) return true;
  out_of_bounds(wrong, extent, report);
  return false;
}""",
    "allocate": """\
extern "C" void* aligned_alloc(__SIZE_TYPE__, __SIZE_TYPE__) noexcept;
extern "C" void free(void*) noexcept;
template <class T> INLINE T* allocate(int64_t count) {
  T* memory = (T*)aligned_alloc(64, ((__SIZE_TYPE__)count * sizeof(T) + 64) / 64 * 64);
  if (!memory) __builtin_trap();
  return memory;
}""",
}

_WORD = re.compile(r"[A-Za-z_]\w*")


def prelude_for(source: str) -> str:
    """The header, and the parts that ``source`` or another part that it needs mentions, in a fixed order."""
    needed: set[str] = set()
    pending = [source]
    while pending:
        for word in _WORD.findall(pending.pop()):
            if word in PARTS and word not in needed:
                needed.add(word)
                pending.append(PARTS[word])
    # ``bits_of`` and the prototypes come first; the parts below mention only earlier ones.
    return HEADER + "\n".join(text for name, text in PARTS.items() if name in needed) + "\n"
