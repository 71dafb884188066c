"""Fake twins of the tensors that a capture meets."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from turret.graph.fakes.corrections import CorrectedFakeTensorMode
from turret.torch_compat.fakes import MetaTensorDescriber


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
