"""Torch's settings of the whole process that kernels look at when they run: determinism, precisions, libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

Setter = Callable[..., Any]
"""What is called to set a setting."""
Reader = Callable[[], Any]
"""What is called to read one."""


def determinism() -> tuple[bool, bool, bool]:
    """Whether algorithms must be deterministic, whether others only warn, and whether torch's compiler was told."""
    compiler = sys.modules.get("torch._inductor.config")
    told = False if compiler is None else compiler.deterministic
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(), told


def set_determinism(enabled: bool, warn_only: bool, tell: bool) -> None:
    """Make ``determinism()`` these."""
    set_kernels_determinism(enabled, warn_only)
    compiler: Any = sys.modules.get("torch._inductor.config")
    if compiler is not None:
        compiler.deterministic = tell


def set_kernels_determinism(enabled: bool, warn_only: bool) -> None:
    """What ``torch.set_deterministic_debug_mode`` calls, with both arguments by position."""
    torch._C._set_deterministic_algorithms(enabled, warn_only=warn_only)


def use_deterministic_algorithms(enabled: bool, warn_only: bool) -> None:
    """What programs call, with both arguments by position."""
    torch.use_deterministic_algorithms(enabled, warn_only=warn_only)


_precision: Callable[[str, str], str] = torch._C._get_fp32_precision_getter
"""The precision of float32 of a backend and kind of op, or of the more general one that says something."""
_set_precision: Callable[[str, str, str], Any] = torch._C._set_fp32_precision_setter
"""And what sets it."""
_PRECISIONS = (
    ("generic", "all"),
    *(
        (backend.__name__.rpartition(".")[2], kind)
        for backend in (torch.backends.cuda, torch.backends.mkldnn)
        for kind in ("all", "matmul", "conv", "rnn")
    ),
)
"""Of which backend and kind of op there is a precision of float32; what says nothing has that of one before it."""


def _asked(reader: Reader) -> Any:
    """The answer; None where torch refuses one, as it does where two ways to set a precision were mixed."""
    try:
        return reader()
    except RuntimeError:
        return None


def float32_precisions() -> tuple[Any, ...]:
    """In which precisions products and convolutions of float32 may compute, by all names that torch has for them."""
    return (
        _asked(torch._C._get_float32_matmul_precision),
        _asked(torch._C._get_cudnn_allow_tf32),
        *(_precision(*place) for place in _PRECISIONS),
    )


def set_float32_precisions(products: str | None, cudnn: bool | None, *precisions: str) -> None:
    """Make ``float32_precisions()`` these; what can have its precision from a more general one has it from there."""
    if products is not None and _asked(torch._C._get_float32_matmul_precision) != products:
        torch._C._set_float32_matmul_precision(products)
    if cudnn is not None and _asked(torch._C._get_cudnn_allow_tf32) != cudnn:
        torch._C._set_cudnn_allow_tf32(cudnn)
    for place, precision in zip(_PRECISIONS, precisions, strict=True):
        if _precision(*place) != precision:
            _set_precision(*place, "none")
        if _precision(*place) != precision:
            _set_precision(*place, precision)


_OF_PRODUCTS = """
_get_cublas_allow_fp16_reduced_precision_reduction _get_cublas_allow_bf16_reduced_precision_reduction
_get_cublas_allow_fp16_accumulation _get_blas_preferred_backend _get_deterministic_algorithms
"""
"""What reads settings of products beside the precision of float32; not every version has all of them."""
_products: tuple[Reader, ...] = tuple(getattr(torch._C, n) for n in _OF_PRODUCTS.split() if hasattr(torch._C, n))
"""Those that this version has."""


_OF_GPU_PRODUCTS = (torch.backends.cuda.__name__.rpartition(".")[2], "matmul")
"""Of products on GPUs, the place of the precision."""


def product_settings() -> tuple[Any, ...]:
    """What a library for matrix products looks at when it chooses kernels, in under a microsecond."""
    return (
        _asked(torch._C._get_float32_matmul_precision),
        _precision(*_OF_GPU_PRODUCTS),
        *[reader() for reader in _products],
    )


_NAMES = """
deterministic_fill_uninitialized_memory cudnn_enabled cudnn_benchmark cudnn_deterministic cudnn_depthwise_kernel
mkldnn_enabled mkldnn_deterministic nnpack_enabled cublas_allow_fp16_reduced_precision_reduction
cublas_allow_bf16_reduced_precision_reduction cublas_allow_fp16_accumulation math_sdp_allow_fp16_bf16_reduction
warnAlways
"""
"""Torch has a function that sets each and one that reads it; not every version has all of them."""

readers: dict[Setter, Reader] = {
    set_determinism: determinism,
    set_float32_precisions: float32_precisions,
    **{
        getattr(torch._C, f"_set_{name}"): getattr(torch._C, f"_get_{name}")
        for name in _NAMES.split()
        if hasattr(torch._C, f"_set_{name}")
    },
}
"""By the function that sets it, what reads a setting."""
if hasattr(torch._C, "_cuda_set_cudnn_benchmark_limit"):
    readers[torch._C._cuda_set_cudnn_benchmark_limit] = torch._C._cuda_get_cudnn_benchmark_limit

setters: dict[Setter, Reader | None] = {
    **readers,
    torch._C._set_float32_matmul_precision: float32_precisions,
    torch._C._set_cublas_allow_tf32: float32_precisions,
    torch._C._set_cudnn_allow_tf32: float32_precisions,
    _set_precision: float32_precisions,
    torch._C._set_onednn_allow_tf32: None,
    set_kernels_determinism: determinism,
    use_deterministic_algorithms: determinism,
}
"""Functions that change settings, with what reads those that they change; of oneDNN's TF32 torch tells nothing."""
untold: dict[Setter, int] = {
    torch._C._set_float32_matmul_precision: 0, torch._C._set_cublas_allow_tf32: 0, torch._C._set_cudnn_allow_tf32: 1
}  # fmt: skip
"""Of setters whose setting torch may not tell of, the place in ``float32_precisions()`` that is None then."""
by_name: dict[Setter, Setter] = {
    torch.use_deterministic_algorithms: use_deterministic_algorithms,
    torch._C._set_deterministic_algorithms: set_kernels_determinism,
}
"""Functions of torch that take an argument by name alone, with those of the same effect that take it by position."""


def values(reader: Reader) -> tuple[Any, ...]:
    """What the setter of a setting is called with to make it what it is now."""
    found = reader()
    return found if isinstance(found, tuple) else (found,)
