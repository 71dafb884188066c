"""Turret's own decompositions, registered by op name, next to what they need to agree on."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import TypeVar

import attrs
import torch

from turret.graph.dtypes import compute_dtype
from turret.torch_compat.operators.layouts import is_contiguous_or_false

Function = TypeVar("Function", bound=Callable)


@attrs.frozen
class Entry:
    """One decomposition.

    ``any_dtype`` says that it is right for complex tensors too (it only moves data), ``on_cpu`` that it follows
    eager's CPU kernels and that torch's own serves the other devices.
    """

    function: Callable
    any_dtype: bool = False
    on_cpu: bool = False


OWN: dict[str, Entry] = {}
"""``[namespace.]op[.overload]`` -> decomposition."""


def decomposes(*names: str, any_dtype: bool = False, on_cpu: bool = False) -> Callable[[Function], Function]:
    """Register a function as the decomposition of the named ops.

    It takes the op's arguments and returns its results; ``NotImplemented`` keeps this one call whole.
    """

    def register(function: Function) -> Function:
        for name in names:
            OWN[name] = Entry(function, any_dtype, on_cpu)
        return function

    return register


def convert(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """``x`` in ``dtype``; no node when it is already."""
    return x if x.dtype == dtype else torch.ops.prims.convert_element_type.default(x, dtype)


def widen(x: torch.Tensor) -> torch.Tensor:
    """``x`` in the dtype that eager computes in."""
    return convert(x, compute_dtype(x.dtype))


def rounded(value: float, dtype: torch.dtype) -> float:
    """A number as a floating ``dtype`` holds it, or infinity.  Without tensors, which a tracer would see."""
    if dtype == torch.float64 or math.isnan(value):
        return value
    try:
        packed = struct.pack("<e" if dtype == torch.float16 else "<f", value)
    except OverflowError:
        return math.copysign(math.inf, value)
    if dtype == torch.float16:
        return struct.unpack("<e", packed)[0]
    (bits,) = struct.unpack("<I", packed)
    if dtype == torch.bfloat16:
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """``x`` with contiguous strides, which eager's kernel promises; no node when it has them."""
    return x if is_contiguous_or_false(x) else torch.ops.aten.clone.default(x, memory_format=torch.contiguous_format)
