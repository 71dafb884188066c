"""Random ops in terms of ``rand`` and ``randn``, which the replayable random pass rewrites afterwards.

Left out under ``fallback_random``, so that eager's own ops and numbers remain.  Distributions whose arguments
eager checks by value (a tensor of probabilities or of standard deviations) stay whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turret.graph.dtypes import compute_dtype
from turret.plugins.decompositions.registry import convert

aten = torch.ops.aten


def _rand(x: torch.Tensor) -> torch.Tensor:
    dtype = compute_dtype(x.dtype) if x.dtype.is_floating_point else torch.float32
    return aten.rand.default(list(x.shape), dtype=dtype, device=x.device, pin_memory=False)


def _randn(x: torch.Tensor) -> torch.Tensor:
    return aten.randn.default(list(x.shape), dtype=compute_dtype(x.dtype), device=x.device, pin_memory=False)


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled values and the mask of those kept."""
    if train is False:
        ones = aten.full.default(list(x.shape), True, dtype=torch.bool, device=x.device, pin_memory=False)
        return aten.clone.default(x), ones
    kept = aten.lt.Scalar(_rand(x), 1.0 - p)
    scale = 0.0 if p == 1.0 else 1.0 / (1.0 - p)
    return aten.mul.Scalar(aten.mul.Tensor(x, kept), scale), kept


def uniform(x: torch.Tensor, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    if generator is not None or not x.dtype.is_floating_point:
        return NotImplemented
    return convert(aten.add.Scalar(aten.mul.Scalar(_rand(x), high - low), low), x.dtype)


def exponential(x: torch.Tensor, rate: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    if generator is not None or not x.dtype.is_floating_point or rate <= 0:
        return NotImplemented
    return convert(aten.div.Scalar(aten.log1p.default(aten.neg.default(_rand(x))), -rate), x.dtype)


def normal(x: torch.Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    if generator is not None or not x.dtype.is_floating_point or std < 0:
        return NotImplemented
    return convert(aten.add.Scalar(aten.mul.Scalar(_randn(x), std), mean), x.dtype)


def normal_around(mean: torch.Tensor, std: float = 1.0, *, generator: Any = None) -> torch.Tensor:
    if generator is not None or not mean.dtype.is_floating_point or std < 0:
        return NotImplemented
    return convert(aten.add.Tensor(aten.mul.Scalar(_randn(mean), std), mean), mean.dtype)


RANDOM: dict[str, Callable[..., Any]] = {
    "native_dropout": native_dropout,
    "uniform": uniform,
    "exponential": exponential,
    "normal_functional": normal,
    "normal.Tensor_float": normal_around,
}
"""Op name -> decomposition, used unless ``fallback_random`` asks for eager's numbers."""
