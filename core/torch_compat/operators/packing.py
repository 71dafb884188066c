"""oneDNN's products and convolutions, and its layouts for weights that stay as they are.

The ops are private to torch's own compiler (torch 2.11 to 2.13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def has_packing() -> bool:
    """Whether this build of torch has oneDNN and its calls for packed weights, and nobody has switched it off."""
    known = hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    return known and torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)


def computes_in(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes with a dtype on this processor."""
    return dtype == torch.float32 or (dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))


def pack_linear(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """A matrix [columns, depth] as ``packed_linear`` of about ``rows`` rows wants it: in a layout of oneDNN's own."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)  # type: ignore[no-any-return]


def linear_op() -> Any:
    """oneDNN's product of rows and a matrix, packed or not, as an ``OpOverload``."""
    return torch.ops.mkldnn._linear_pointwise.default


def packed_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Rows ``x`` [rows, depth] by a packed matrix."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")  # type: ignore[no-any-return]


def pack_convolution(weight: torch.Tensor, image: Sequence[int], places: Sequence[Any]) -> torch.Tensor:
    """A kernel for images of a shape; ``places``: stride, padding, dilation and groups."""
    stride, padding, dilation, groups = places
    return torch.ops.mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, image)  # type: ignore[no-any-return]


def packed_convolution(
    x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, places: Sequence[Any]
) -> torch.Tensor:
    """A convolution with a packed kernel."""
    stride, padding, dilation, groups = places
    return torch.ops.mkldnn._convolution_pointwise(  # type: ignore[no-any-return]
        x, packed, bias, padding, stride, dilation, groups, "none", [], ""
    )
