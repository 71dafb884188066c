"""How torch's dtypes look in C++: the type of an element in memory, of a value in a register, and the ways between.

Half-precision values live in ``float`` registers and are rounded after every operation that can leave the
format, as eager PyTorch does, so a store only drops bits that are zero already.
"""

from __future__ import annotations

import functools
import math

import attrs
import torch

from turret.errors import UnsupportedError


@attrs.frozen
class CType:
    """One dtype: C++ types of value and element, suffix of its libm functions, and the prefix of its half helpers."""

    value: str
    element: str
    bits: int
    kind: str
    suffix: str = ""
    half: str = ""

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def register_bytes(self) -> int:
        """Bytes of a value in a register or a scratch array."""
        return 4 if self.half else self.bits // 8

    def load(self, element: str) -> str:
        """The value of the element expression ``element``."""
        if self.half:
            return f"{self.half}_load({element})"
        return f"({element} != 0)" if self.kind == "bool" else element

    def pack(self, value: str) -> str:
        """The element that holds ``value``."""
        if self.half:
            return f"{self.half}_pack({value})"
        return f"({self.element}){value}" if self.kind == "bool" else value

    def round(self, value: str) -> str:
        """``value``, computed in a wider register, rounded to this format."""
        return f"{self.half}_round({value})" if self.half else value


CTYPES: dict[torch.dtype, CType] = {
    torch.float32: CType("float", "float", 32, "float", "f"),
    torch.float64: CType("double", "double", 64, "float"),
    torch.bfloat16: CType("float", "uint16_t", 16, "float", "f", "bf16"),
    torch.float16: CType("float", "uint16_t", 16, "float", "f", "f16"),
    torch.bool: CType("bool", "uint8_t", 8, "bool"),
    **{
        getattr(torch, f"{sign}int{bits}"): CType(f"{sign}int{bits}_t", f"{sign}int{bits}_t", bits, f"{sign}int")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}


def ctype(dtype: torch.dtype) -> CType:
    """The C++ side of ``dtype``; ``UnsupportedError`` for complex and quantized ones."""
    found = CTYPES.get(dtype)
    if found is None:
        raise UnsupportedError(f"C++ kernels do not handle {dtype}; the op should run as an extern call")
    return found


@functools.lru_cache(maxsize=4096, typed=True)
def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=torch.float64).to(torch.float32).to(dtype))


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """A C++ literal with exactly the value that torch gives ``value`` in ``dtype``."""
    kind = ctype(dtype)
    if kind.kind == "bool":
        return "true" if value else "false"
    if not kind.is_float:
        return _integer(int(value), kind)
    value = float(value)
    if dtype != torch.float64:
        value = math.copysign(_rounded(abs(value), dtype), value) if math.isfinite(value) else value
    if math.isnan(value):
        return f'__builtin_nan{kind.suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{kind.suffix}()"
    return f"{value!r}{kind.suffix}" if math.copysign(1.0, value) > 0 else f"(-{-value!r}{kind.suffix})"


def _integer(value: int, kind: CType) -> str:
    if kind.kind == "uint":
        return f"{value % (1 << kind.bits)}{'u' if kind.bits <= 32 else 'ull'}"
    value = (value + (1 << kind.bits - 1)) % (1 << kind.bits) - (1 << kind.bits - 1)
    if value == -(1 << 63):
        return "INT64_MIN"
    text = str(value) if abs(value) < 1 << 31 else f"{value}ll"
    return f"({text})" if value < 0 else text


def reduction_identity(kind: str, dtype: torch.dtype) -> str:
    """The value that leaves any other unchanged under ``kind``."""
    where = ctype(dtype)
    if kind in ("sum", "any"):
        return literal(0, dtype)
    if kind in ("prod", "all"):
        return literal(1, dtype)
    smallest = kind == "max"
    if where.is_float:
        return literal(-math.inf if smallest else math.inf, dtype)
    if where.kind == "bool":
        return literal(not smallest, dtype)
    bounds = torch.iinfo(dtype)
    return literal(bounds.min if smallest else bounds.max, dtype)


def accumulator(kind: str, dtype: torch.dtype) -> CType:
    """What a serial reduction or scan is carried in: double for sums and products of narrower floats, as eager's."""
    if dtype.is_floating_point and kind in ("sum", "prod"):
        return CTYPES[torch.float64]
    return ctype(dtype)
