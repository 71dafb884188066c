"""How torch's dtypes look in C++: the type of an element in memory, of a value in a register, and the ways between.

Half-precision values live in ``float`` registers and are rounded after every operation that can leave the
format, as eager PyTorch does, so a store only drops bits that are zero already.
"""

from __future__ import annotations

import torch

from turret.errors import UnsupportedError
from turret.graph.scalar_ops import neutral_value
from turret.ir.emit import c_emitter
from turret.ir.emit.c_emitter import CType
from turret.ir.nest import accumulator_dtype

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


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """A C++ literal with exactly the value that torch gives ``value`` in ``dtype``."""
    return c_emitter.literal(value, dtype, ctype(dtype))


def reduction_identity(kind: str, dtype: torch.dtype) -> str:
    """The value that leaves any other unchanged under ``kind``."""
    return literal(neutral_value(kind, dtype), dtype)


def accumulator(kind: str, dtype: torch.dtype) -> CType:
    """What a serial reduction or scan is carried in: double for sums and products of narrower floats, as eager's."""
    return ctype(accumulator_dtype(kind, dtype))
