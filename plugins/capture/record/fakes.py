"""Which tensors a graph can be given, their fake twins, and fake results of calls that are not made on fakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from turret.graph.fakes.corrections import CorrectedFakeTensorMode
from turret.plugins.capture.errors import Unsupported
from turret.torch_compat.autograd import is_leaf
from turret.torch_compat.fakes import FakeTensor, MetaTensorDescriber, is_functional_tensor, is_functorch_wrapper


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


def is_recorded_in_part(real: Any) -> bool:
    """Whether eager records some operations on a tensor and no others, where gradients are recorded."""
    return isinstance(real, torch.Tensor) and real.is_inference() and real.requires_grad


def recorded_in_part() -> Unsupported:
    """That a graph is not given such a tensor."""
    return Unsupported("an inference tensor that requires gradients, of which eager records some operations")


def check_input(real: torch.Tensor, records: bool) -> None:
    """Refuse a tensor that a graph cannot be given; ``records``: gradients are recorded somewhere in the frame."""
    if real._base is not None and real._base.layout != torch.strided:
        raise Unsupported(f"a view of a {real._base.layout} tensor as an input")
    if real.layout != torch.strided or real.is_quantized or is_functional_tensor(real):
        kind = "quantized" if real.is_quantized else real.layout
        raise Unsupported(f"a {kind} tensor as an input")
    if real._is_zerotensor():
        raise Unsupported("a tensor of zeros that has no memory")
    if is_functorch_wrapper(real) or isinstance(real, FakeTensor):
        raise Unsupported("a tensor inside another transformation")
    if records and is_recorded_in_part(real) and not torch.is_inference_mode_enabled():
        raise recorded_in_part()
    if real._is_view():
        try:
            is_leaf(real)
        except RuntimeError as error:  # changed where autograd forbids it: any use of it fails
            raise Unsupported(f"a view without a history: {str(error).partition('.')[0]}") from None


def fake_outputs(examples: Sequence[torch.Tensor], inputs: Sequence[Any], differentiable: Sequence[bool]) -> tuple:
    """New tensors of the layouts of ``examples``; those ``differentiable`` have a gradient if an input has."""
    return _Like.apply(tuple(examples), tuple(differentiable), *(v for v in inputs if isinstance(v, torch.Tensor)))


class _Like(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, examples: tuple, differentiable: tuple[bool, ...], *inputs: torch.Tensor) -> tuple:
        ctx.inputs = inputs
        made = [torch.empty_strided(e.shape, e.stride(), dtype=e.dtype, device=e.device) for e in examples]
        ctx.mark_non_differentiable(*(m for m, flows in zip(made, differentiable, strict=True) if not flows))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        found = (torch.empty_like(v) if v.is_floating_point() or v.is_complex() else None for v in ctx.inputs)
        return None, None, *found
