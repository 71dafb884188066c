"""Fake twins of tensors that are views of another dtype: ``view_as_complex``, ``view_as_real``, ``view(dtype)``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from turret.torch_compat.autograd import creation_meta_of, is_known_leaf, set_creation_meta
from turret.torch_compat.dispatch import enable_python_dispatcher
from turret.torch_compat.operators.ops import neg_view
from turret.torch_compat.sizes import assuming_nothing


def is_view_of_another_dtype(real: torch.Tensor) -> bool:
    """Whether a tensor is one whose fake twin ``fake_view`` makes.

    Torch's own way takes the base to have the view's shape but for the last dimension, which no base need have.
    """
    base = real._base
    if type(real) is not torch.Tensor or base is None or type(base) not in (torch.Tensor, torch.nn.Parameter):
        return False
    if base.dtype == real.dtype or not base.layout is real.layout is torch.strided:
        return False
    return base.untyped_storage().nbytes() > 0


def fake_view(real: torch.Tensor, fake_base: Any, layout: Sequence[Any], environment: ShapeEnv | None) -> Any:
    """The fake twin, a view of its base's by the memory that they share; ``layout``: size, stride and offset."""
    base = real._base
    assert base is not None
    with torch.inference_mode(False), enable_python_dispatcher(), assuming_nothing(environment):
        if is_known_leaf(real):
            with torch.no_grad():
                made = _viewed(fake_base, real, base, layout)
            made.requires_grad_(real.requires_grad)
        else:
            if base.requires_grad != real.requires_grad:
                with torch.no_grad():
                    fake_base = fake_base.view(fake_base.shape)
                fake_base.requires_grad_(real.requires_grad)
            with torch.enable_grad():
                made = _viewed(fake_base, real, base, layout)
        set_creation_meta(made, creation_meta_of(real))
    return made


def _viewed(fake_base: torch.Tensor, real: torch.Tensor, base: torch.Tensor, layout: Sequence[Any]) -> torch.Tensor:
    made = _memory(fake_base, base, real.dtype).as_strided(*layout)
    made = made.conj() if real.is_conj() else made
    return neg_view(made) if real.is_neg() else made


def _memory(fake_base: torch.Tensor, base: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """All memory of a base from its start, as elements of another dtype."""
    size = base.untyped_storage().nbytes()
    if dtype.is_complex and base.dtype == dtype.to_real():
        return torch.view_as_complex(_flat(fake_base, (size // dtype.itemsize, 2)))
    if base.dtype.is_complex and dtype == base.dtype.to_real():
        return torch.view_as_real(_flat(fake_base, (size // base.dtype.itemsize,)))
    widest = max(dtype.itemsize, base.dtype.itemsize)
    return _flat(fake_base, (size // widest * (widest // base.dtype.itemsize),)).view(dtype)


def _flat(fake_base: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return fake_base.as_strided(shape, (2, 1) if len(shape) == 2 else (1,), 0)
