"""Functions that kernels call, as Triton source; each module gets those that it uses.

They are source and not imports, so that a kernel's text says all that it does and its name covers all of it.
"""

from __future__ import annotations

import re

IMPORTS = """\
import triton
import triton.language as tl
from triton.language.extra import libdevice
"""
WAIT_IMPORT = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"
WAIT = "gdc_wait()  # the kernel before may still run: what it writes is not there yet"
SIGNAL = "gdc_launch_dependents()  # all that came before this kernel has ended: the next may begin, and wait"
WAITS_FROM = (9, 0)
"""The compute capability from which on a kernel can be launched before the one ahead of it has ended."""

_FUNCTIONS = """
def floor_div(a, b):
    # Triton divides towards zero, the loop IR towards minus infinity.
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


def floor_mod(a, b):
    r = a % b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


def float_mod(a, b):
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)


def float_floordiv(a, b, quotient):
    # The quotient of what fmod leaves is nearly whole; floor may miss by one and is put right.
    r = libdevice.fmod(a, b)
    d = (a - r) / b
    d = tl.where((r != 0) & ((r < 0) != (b < 0)), d - 1, d)
    f = tl.floor(d)
    f = tl.where(d - f > 0.5, f + 1, f)
    f = tl.where(d == 0, libdevice.copysign(d * 0, quotient), f)
    return tl.where(b == 0, quotient, f)


def int_pow(base, exponent):
    # Negative exponents leave 1, -1 or 0, as the rounded reciprocal would be.
    odd = (exponent & 1) != 0
    zero = (base ^ base) + (exponent ^ exponent)
    one = zero + 1
    power = base + zero
    small = tl.where(power == one, one, tl.where(power == zero - one, tl.where(odd, power, one), zero))
    negative = exponent < 0
    result = one
    left = tl.where(negative, zero, exponent)
    for _ in range(64):
        result = tl.where((left & 1) != 0, result * power, result)
        power = power * power
        left = left >> 1
    return tl.where(negative, small, result)


def float_pow(base, exponent):
    # libdevice's misses whole powers by a unit in the last place, 10 ** 2 among them, and CUDA's own does not. The
    # logarithm and its product with the exponent are pairs of numbers, the second what rounding left of the first:
    # at most 0.8 units off (numpy, 8 million pairs), and exact where the result is a float32.
    x = tl.where(exponent == exponent, base, base)  # blocks of one shape, also of a number
    y = tl.where(base == base, exponent, exponent)
    size = tl.abs(x)
    small = size < 1.1754943508222875e-38
    # size = m * 2 ** e with m from sqrt(1 / 2) to sqrt(2)
    bits = tl.where(small, size * 16777216.0, size).to(tl.int32, bitcast=True)
    power = (bits - 1060439283) >> 23
    m = (bits - (power << 23)).to(tl.float32, bitcast=True)
    e = (power - tl.where(small, 24, 0)).to(tl.float32)
    # log2(m) = 2 / log(2) * (s + s ** 3 / 3 + s ** 5 / 5 + ...) with s = (m - 1) / (m + 1)
    above, below = m - 1.0, m + 1.0
    s = above / below
    rest = tl.fma(-s, m - (below - 1.0), tl.fma(-s, below, above))
    s_rest = rest / below
    z = s * s
    z_rest = tl.fma(s, s, -z) + 2.0 * s * s_rest
    q = z * z * (0.20000000298 + z * (0.14285714924 + z * (0.11111111193 + z * 0.09090909361)))
    third = z * 0.3333333432674408
    third_rest = tl.fma(z, 0.3333333432674408, -third) + (z * -9.934107758624577e-09 + (z_rest * 0.33333333 + q))
    t = s * third
    log = s + t
    log_rest = t - (log - s) + (tl.fma(s, third, -t) + (s_rest + (s * third_rest + s_rest * third)))
    log2 = log * 2.885390043258667
    log2_rest = tl.fma(log, 2.885390043258667, -log2) + (log * 3.851926067000022e-08 + log_rest * 2.885390043258667)
    near = log2 + log2_rest
    whole = e + near
    whole_rest = near - (whole - e) + (log2_rest - (near - log2))
    # 2 ** (y * log2(size)), beyond whose ends there is nothing but zero and infinity
    product = y * whole
    far = tl.abs(product) > 200.0
    product_rest = tl.where(far, 0.0, tl.fma(y, whole, -product) + y * whole_rest)
    product = tl.where(far, tl.where(product < 0, -200.0, 200.0), product)
    n = libdevice.rint(product)
    part = product - n
    f = part + product_rest
    f_rest = product_rest - (f - part)
    u = f * 0.6931471824645996
    u_rest = tl.fma(f, 0.6931471824645996, -u) + (f * -1.9046542121259336e-09 + f_rest * 0.6931471824645996)
    p = 0.00015403529687 + f * 1.52527336e-05
    p = 0.2402265071869 + f * (0.05550410971 + f * (0.00961812865 + f * (0.00133335579 + f * p)))
    one_and = 1.0 + u
    mantissa = one_and + (u - (one_and - 1.0) + (f * f * p + u_rest))
    first = n.to(tl.int32) >> 1
    second = n.to(tl.int32) - first
    result = mantissa * ((first + 127) << 23).to(tl.float32, bitcast=True)
    result = result * ((second + 127) << 23).to(tl.float32, bitcast=True)
    # zeros, infinities, and numbers below zero
    infinity = float("inf")
    integer = tl.floor(y) == y
    odd = integer & (tl.floor(y * 0.5) != y * 0.5)
    negative = x.to(tl.int32, bitcast=True) < 0
    result = tl.where(size == 0.0, tl.where(y < 0, infinity, 0.0), result)
    result = tl.where(size == infinity, tl.where(y < 0, 0.0, infinity), result)
    result = tl.where(tl.abs(y) == infinity, tl.where((size > 1.0) == (y > 0), infinity, 0.0), result)
    result = tl.where(size == 1.0, 1.0, result)
    result = tl.where(negative & odd, result * -1.0, result)  # minus would lose the sign of zero
    result = tl.where((x < 0) & ~integer & (size != infinity), float("nan"), result)
    result = tl.where((x != x) | (y != y), float("nan"), result)
    return tl.where((y == 0.0) | (x == 1.0), 1.0, result)


def float_exp2(a):
    # The instruction gives zero for what is below the normal numbers; a product does not.
    small = a < -126.0
    return libdevice.exp2(tl.where(small, a + 64.0, a)) * tl.where(small, 5.421010862427522e-20, 1.0)


def float_hypot(a, b):
    # libdevice's root is approximate. What is far from one is scaled, so that no square leaves the range.
    x, y = tl.abs(a), tl.abs(b)
    large = tl.maximum(x, y)
    down = tl.where(large > 1.152921504606847e18, 5.421010862427522e-20, 1.0)
    scale = tl.where(large < 8.673617379884035e-19, 1.2676506002282294e30, down)
    back = tl.where(scale > 1.0, 7.888609052210118e-31, tl.where(scale < 1.0, 1.8446744073709552e19, 1.0))
    x, y = x * scale, y * scale
    length = tl.sqrt_rn(x * x + y * y) * back
    return tl.where((x == float("inf")) | (y == float("inf")), float("inf"), length)


def max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def min_nan(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


def add_of(a, b):
    return a + b


def mul_of(a, b):
    return a * b


def max_of(a, b):
    return tl.maximum(a, b)


def min_of(a, b):
    return tl.minimum(a, b)


def argmax_of(a, i, b, j):
    # A NaN is better than anything; of equals, the one with the lower number.
    first = (a > b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


def argmin_of(a, i, b, j):
    first = (a < b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


def sums_of(a, i, b, j):
    return a + b, i + j


def corrected_mean(near, off):
    return tl.where(off != off, near, near + off)  # an infinite mean is what it is


def corrected_squares(squares, rest, off):
    corrected = squares - rest * off
    return tl.where(corrected < 0, 0.0, corrected)


def random_words(seed, linear, stream):
    c0 = (linear & 0xFFFFFFFF).to(tl.uint32)
    c1 = ((linear >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = c0 ^ c0
    wide = stream.to(tl.int64)
    low, high = (wide & 0xFFFFFFFF).to(tl.uint32), ((wide >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, c0, c1, zero + low, zero + high)


def random_bits(seed, linear, stream):
    w0, w1, w2, w3 = random_words(seed, linear, stream)
    return w0.to(tl.int64)


def random_uniform(seed, linear, stream, digits: tl.constexpr):
    w0, w1, w2, w3 = random_words(seed, linear, stream)
    unit: tl.constexpr = 1.0 / (1 << digits)
    return (w0 >> (32 - digits)).to(tl.float32) * unit


def random_normal(seed, linear, stream):
    w0, w1, w2, w3 = random_words(seed, linear, stream)
    radius = ((w0 >> 8) + 1).to(tl.float32) * 5.9604644775390625e-08
    angle = (w1 >> 8).to(tl.float32) * 5.9604644775390625e-08
    return tl.sqrt_rn(-2.0 * libdevice.log(radius)) * libdevice.cos(6.283185307179586 * angle)


def wide_word(high, low):
    return ((high.to(tl.int64) << 21) | (low >> 11).to(tl.int64)).to(tl.float64)


def random_uniform_double(seed, linear, stream):
    w0, w1, w2, w3 = random_words(seed, linear, stream)
    return wide_word(w0, w1) * 1.1102230246251565e-16


def random_normal_double(seed, linear, stream):
    w0, w1, w2, w3 = random_words(seed, linear, stream)
    unit = tl.full([], 1.1102230246251565e-16, tl.float64)
    radius = (wide_word(w0, w1) + 1) * unit
    angle = wide_word(w2, w3) * unit
    turn = tl.full([], 6.283185307179586, tl.float64)
    return tl.sqrt(-2.0 * libdevice.log(radius)) * libdevice.cos(turn * angle)
"""

SOURCES = {
    text.split("(")[0].removeprefix("def "): f"@triton.jit\n{text.strip()}\n"
    for text in re.split(r"\n\n\n", _FUNCTIONS.strip())
}


def prelude_for(body: str) -> str:
    """Source of the functions that ``body`` mentions, and of those that they call, each before its users."""
    needed: set[str] = set()
    pending = _called(body)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending += _called(SOURCES[name])
    return "\n\n".join(text for name, text in SOURCES.items() if name in needed)


def _called(text: str) -> list[str]:
    """The functions that a text mentions."""
    return [name for name in SOURCES if name in text and re.search(rf"\b{name}\b", text)]
