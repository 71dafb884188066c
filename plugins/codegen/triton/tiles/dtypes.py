"""How torch's dtypes look in Triton: the element of a pointer, the value in registers, and literals of both.

Half-precision values live in float32 registers and are rounded after every operation that can leave the format, so
a kernel gives what the loop program says, whatever the device's own half arithmetic would do.
"""

from __future__ import annotations

import functools
import math

import attrs
import torch

from turret.errors import UnsupportedError
from turret.graph.dtypes import HALF


@attrs.frozen
class TritonType:
    """One dtype: Triton's short name in signatures, names of the element's and the register's types, and its kind."""

    short: str
    element: str
    register: str
    bits: int
    kind: str

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_half(self) -> bool:
        return self.register != self.element

    def load(self, element: str) -> str:
        """The register value of a loaded element."""
        return f"{element}.to({self.register})" if self.is_half else element

    def round(self, value: str) -> str:
        """``value``, computed in a wider register, rounded to this format."""
        return f"({value}).to({self.element}).to({self.register})" if self.is_half else value


def _integer(bits: int, signed: bool = True) -> TritonType:
    name = f"tl.{'' if signed else 'u'}int{bits}"
    return TritonType(f"{'i' if signed else 'u'}{bits}", name, name, bits, "int" if signed else "uint")


TYPES: dict[torch.dtype, TritonType] = {
    torch.float32: TritonType("fp32", "tl.float32", "tl.float32", 32, "float"),
    torch.float64: TritonType("fp64", "tl.float64", "tl.float64", 64, "float"),
    torch.bfloat16: TritonType("bf16", "tl.bfloat16", "tl.float32", 16, "float"),
    torch.float16: TritonType("fp16", "tl.float16", "tl.float32", 16, "float"),
    torch.bool: TritonType("i1", "tl.int1", "tl.int1", 8, "bool"),
    torch.int8: _integer(8),
    torch.int16: _integer(16),
    torch.int32: _integer(32),
    torch.int64: _integer(64),
    torch.uint8: _integer(8, False),
    torch.uint16: _integer(16, False),
    torch.uint32: _integer(32, False),
    torch.uint64: _integer(64, False),
}


def triton_type(dtype: torch.dtype) -> TritonType:
    """The Triton side of ``dtype``; ``UnsupportedError`` for complex, quantized and 8-bit floating ones."""
    found = TYPES.get(dtype)
    if found is None:
        raise UnsupportedError(f"Triton kernels do not handle {dtype}; the op should run as an extern call")
    return found


@functools.lru_cache(maxsize=4096, typed=True)
def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=torch.float64).to(torch.float32).to(dtype))


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """Text with exactly the value that torch gives ``value`` in ``dtype``: a Python number, or a scalar tensor."""
    kind = triton_type(dtype)
    if kind.kind == "bool":
        return str(bool(value))
    if not kind.is_float:
        return str(_wrapped(int(value), kind))
    value = float(value)
    if math.isnan(value) or math.isinf(value):
        return f'float("{value}")'
    if dtype != torch.float64:
        value = math.copysign(_rounded(abs(value), dtype), value)
        if math.isinf(value):
            return f'float("{value}")'
    if value == 0 and math.copysign(1.0, value) < 0:
        return f"(tl.full([], 0.0, {kind.register}) * -1.0)"  # Triton up to 3.6 takes every constant zero for 0.0
    return repr(value)


def _wrapped(value: int, kind: TritonType) -> int:
    if kind.kind == "uint":
        return value % (1 << kind.bits)
    return (value + (1 << kind.bits - 1)) % (1 << kind.bits) - (1 << kind.bits - 1)


def typed_literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """A scalar tensor of the register type: safe wherever Triton would guess another type for a bare number."""
    return f"tl.full([], {literal(value, dtype)}, {triton_type(dtype).register})"


def accumulator(kind: str, dtype: torch.dtype) -> torch.dtype:
    """What a reduction or scan is carried in: small integers and bools in int32, halves in float32."""
    if dtype in HALF:
        return torch.float32
    if kind in ("any", "all") or dtype in (torch.bool, torch.int8, torch.int16, torch.uint8, torch.uint16):
        return torch.int32
    return dtype


def to_accumulator(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """A register value of ``source`` as an accumulator."""
    have, want = triton_type(source).register, triton_type(target).register
    return value if have == want else f"{value}.to({want})"


def from_accumulator(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """An accumulator as a register value of ``target``."""
    have, want = triton_type(source).register, triton_type(target).register
    if target == torch.bool:
        return f"({value} != 0)"
    return value if have == want else f"{value}.to({want})"
