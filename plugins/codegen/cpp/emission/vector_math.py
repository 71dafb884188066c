"""Float32 functions written out in the prelude, because a call of libmvec costs more than their few operations.

Each is plain C++ without branches, so that a loop around it vectorises.  Coefficients are minimax fits (Remez)
made for this purpose; errors are given in units in the last place over all finite floats, and NaN, infinities,
signed zeros and subnormals come out as libm's.
"""

from __future__ import annotations

VECTOR_MATH_PARTS: dict[str, str] = {
    "fma_of": """\
INLINE float fma_of(float a, float b, float c) {
#if defined(__FP_FAST_FMAF) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}""",
    "split_power": """\
struct Power { float two_to, rest; };  // exp(x) = two_to * exp(rest), |rest| <= log(2) / 2
INLINE Power split_power(float x) {
  const float shifted = fma_of(x, 1.44269504f, 12582912.0f), count = shifted - 12582912.0f;
  const float rest = fma_of(count, -1.42860682e-6f, fma_of(count, -0.693145752f, x));
  return {bits_of<float>((bits_of<uint32_t>(shifted) + 127u) << 23), rest};
}""",
    "expm1_small": """\
INLINE float expm1_small(float r) {  // |r| <= log(2) / 2
  float p = fma_of(r, 0.001381446482f, 0.00836878038f);
  p = fma_of(p, r, 0.04166839424f);
  p = fma_of(p, r, 0.1666652011f);
  p = fma_of(p, r, 0.4999999341f);
  return fma_of(p * r, r, r);
}""",
    "exp_float": """\
INLINE float exp_float(float x) {  // within 1 unit
  const float bounded = 89.0f < x ? 89.0f : x;  // NaN stays; two such choices in a row would not become a minimum
  const float shifted = fma_of(bounded, 1.44269504f, 12582912.0f), count = shifted - 12582912.0f;
  const float rest = fma_of(count, -1.42860682e-6f, fma_of(count, -0.693145752f, bounded));
  const int32_t power = bits_of<int32_t>(shifted) - 0x4b400000, half = power >> 1;
  const float first = bits_of<float>((half + 127) << 23), second = bits_of<float>((power - half + 127) << 23);
  const float result = (1.0f + expm1_small(rest)) * first * second;
  return x < -104.0f ? 0.0f : result;
}""",
    "tanh_float": """\
INLINE float tanh_float(float x) {  // within 3 units
  const float twice = 2.0f * __builtin_fabsf(x), bounded = twice > 20.0f ? 20.0f : twice;
  const Power power = split_power(bounded);
  const float expm1 = fma_of(power.two_to, expm1_small(power.rest), power.two_to - 1.0f);
  return __builtin_copysignf(expm1 / (expm1 + 2.0f), x);
}""",
    "erf_float": """\
INLINE float erf_float(float x) {  // within 3 units
  const float size = __builtin_fabsf(x), square = x * x;
  float near = fma_of(square, -0.000581610549497f, 0.0049579603886f);
  near = fma_of(near, square, -0.0267419908529f);
  near = fma_of(near, square, 0.112811209459f);
  near = fma_of(near, square, -0.376124258947f);
  near = fma_of(near * square, size, 1.12837913915f * size);
  const float t = size > 4.0f ? 4.0f : size;
  float far = fma_of(t, -0.00119922541159f, 0.015168025263f);  // log(erfc(t)), to a few parts in 1e8 of erf(t)
  far = fma_of(far, t, -0.0898505131297f);
  far = fma_of(far, t, -0.652635329461f);
  far = fma_of(far, t, -1.11881980423f);
  far = fma_of(far, t, -0.00226856066276f);
  // exp of it, to fewer places than exp_float: erfc is the small part of the result.
  const float shifted = fma_of(far, 1.44269504f, 12582912.0f), count = shifted - 12582912.0f;
  const float rest = fma_of(count, -0.693147181f, far);
  const float power = bits_of<float>((bits_of<uint32_t>(shifted) + 127u) << 23);
  float p = fma_of(rest, 0.00829022903216f, 0.041898390182f);
  p = fma_of(p, rest, 0.166676400725f);
  p = fma_of(p, rest, 0.499991461478f);
  p = fma_of(p, rest, 0.99999970543f);
  const float erfc = fma_of(power * rest, p, power);
  return __builtin_copysignf(size > 0.96f ? 1.0f - erfc : near, x);
}""",
}


def transpose_part() -> str:
    """``fill_tile``: the transposed copy of a square tile, 16 x 16 elements of up to 4 bytes at a time in registers."""
    lines = [
        "#if defined(__clang__) || __GNUC__ >= 12",
        "template <class T> INLINE void transpose16(const T* source, int64_t stride, T* target, int64_t width) {",
        "  typedef T Row16 __attribute__((vector_size(16 * sizeof(T)), aligned(sizeof(T)), may_alias));",
        "  Row16 a[16], b[16];",
        "  for (int i = 0; i < 16; i++) a[i] = *(const Row16*)(source + i * stride);",
    ]
    current, other = "a", "b"
    for distance in (8, 4, 2, 1):
        low = ", ".join(str(16 + lane - distance if lane & distance else lane) for lane in range(16))
        high = ", ".join(str(16 + lane if lane & distance else lane + distance) for lane in range(16))
        lines += [
            f"  for (int i = 0; i < 16; i++) if (!(i & {distance})) {{",
            f"    {other}[i] = __builtin_shufflevector({current}[i], {current}[i + {distance}], {low});",
            f"    {other}[i + {distance}] = __builtin_shufflevector({current}[i], {current}[i + {distance}], {high});",
            "  }",
        ]
        current, other = other, current
    lines += [
        f"  for (int i = 0; i < 16; i++) *(Row16*)(target + i * width) = {current}[i];",
        "}",
        "#define HAS_TRANSPOSE16 1",
        "#endif",
        "template <int width, class T>",
        "INLINE void fill_tile(T* tile, const T* source, int64_t stride, int64_t rows, int64_t columns) {",
        "  // tile[r * width + c] = source[r + c * stride]",
        "#ifdef HAS_TRANSPOSE16",
        "  if constexpr (sizeof(T) <= 4) if (rows == width && columns == width) {",
        "    for (int r = 0; r < width; r += 16)",
        "      for (int c = 0; c < width; c += 16)",
        "        transpose16(source + r + c * stride, stride, tile + r * width + c, width);",
        "    return;",
        "  }",
        "#endif",
        "  for (int64_t c = 0; c < columns; c++)",
        "    for (int64_t r = 0; r < rows; r++) tile[r * width + c] = source[r + c * stride];",
        "}",
    ]
    return "\n".join(lines)
