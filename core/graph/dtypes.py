"""The dtypes that generated kernels compute with, and what they compute them in."""

from __future__ import annotations

import torch

HALF = frozenset((torch.float16, torch.bfloat16))
"""Dtypes that kernels compute in float32."""
FLOATS = HALF | {torch.float32, torch.float64}
INTEGERS = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
COMPILED = FLOATS | INTEGERS | {torch.bool}
"""Dtypes that generated kernels compute with; complex, quantized and other dtypes stay extern."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of ``dtype`` are computed: float32 for the half types, else itself."""
    return torch.float32 if dtype in HALF else dtype
