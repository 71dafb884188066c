"""Fake twins of the tensors that a capture meets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv, StatelessSymbolicContext

from turret.graph.fakes.corrections import CorrectedFakeTensorMode
from turret.torch_compat.autograd import creation_meta_of, is_known_leaf, set_creation_meta
from turret.torch_compat.dispatch import enable_python_dispatcher
from turret.torch_compat.fakes import FakeTensorMode, MetaTensorDescriber, Source


def fake_mode_without_gradients(shape_env: ShapeEnv) -> CorrectedFakeTensorMode:
    """A mode whose fake tensors have no ``grad`` though the real ones do.

    A program that reads a gradient finds it by its source.  Fake along with every tensor, gradients would bring size
    symbols that no input of the graph has, and take longer to make than the tensors.
    """
    mode = CorrectedFakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    mode.fake_tensor_converter.meta_converter.describer = _WithoutGradients()
    return mode


class _WithoutGradients(MetaTensorDescriber):
    def describe_tensor(self, t: torch.Tensor, **options: Any) -> Any:
        described = super().describe_tensor(t, **options)
        object.__setattr__(described, "grad", None)
        return described


def is_view_of_another_dtype(real: torch.Tensor) -> bool:
    """Whether a tensor is one whose fake twin ``fake_view`` makes.

    Torch's own way takes the base to have the view's shape but for the last dimension, which no base need have.
    """
    base = real._base
    if base is None or base.dtype == real.dtype or not base.layout is real.layout is torch.strided:
        return False
    return not (real.is_conj() or real.is_neg()) and base.untyped_storage().nbytes() > 0


def fake_view(
    mode: FakeTensorMode, real: torch.Tensor, context: StatelessSymbolicContext | None, name: Source, of_base: Source
) -> torch.Tensor:
    """The fake twin, a view of its base's by the memory that they share; sizes are symbols as ``context`` has it."""
    base = real._base
    assert base is not None and mode.shape_env is not None
    known = mode.fake_tensor_converter._get_memo(real)
    if known is not None:
        return known
    layout: Any = (real.shape, real.stride(), real.storage_offset())
    if context is not None:
        layout = mode.shape_env.create_symbolic_sizes_strides_storage_offset(real, name, symbolic_context=context)
    fake_base: Any = mode.from_tensor(base, static_shapes=context is None, source=of_base)
    with torch.inference_mode(False), enable_python_dispatcher(), mode.shape_env.suppress_guards():
        if is_known_leaf(real):
            with torch.no_grad():
                made: Any = _memory(fake_base, base, real.dtype).as_strided(*layout)
            made.requires_grad_(real.requires_grad)
        else:
            if base.requires_grad != real.requires_grad:
                with torch.no_grad():
                    fake_base = fake_base.view(fake_base.shape)
                fake_base.requires_grad_(real.requires_grad)
            with torch.enable_grad():
                made = _memory(fake_base, base, real.dtype).as_strided(*layout)
        set_creation_meta(made, creation_meta_of(real))
    mode.fake_tensor_converter.set_tensor_memo(real, made)
    return made


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
