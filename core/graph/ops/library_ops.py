"""Library calls that write to memory they are given, where ATen's own variant makes a result and copies it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from turret.torch_compat.dispatch import runs_in_cudnn

_library = torch.library.Library("turret", "FRAGMENT")
_library.define(
    "convolution.out(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
    "bool transposed, SymInt[] output_padding, SymInt groups, *, Tensor(a!) out) -> Tensor(a!)"
)


def _convolution_out(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    """``aten::convolution`` into ``out``, of the result's shape and in any layout."""
    arguments = (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    layout = layout_of(input, weight)
    if transposed or not out.is_contiguous(memory_format=layout) or not runs_in_cudnn(*arguments):
        return out.copy_(torch.convolution(*arguments))
    cudnn = torch.backends.cudnn
    deterministic = cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    spatial = input.dim() - 2
    torch.ops.aten.cudnn_convolution.out(
        input.contiguous(memory_format=layout), weight.contiguous(memory_format=layout),
        *(each_dimension(given, spatial) for given in (padding, stride, dilation)),
        groups, cudnn.benchmark, deterministic, cudnn.allow_tf32, out=out,
    )  # fmt: skip
    return out if bias is None else out.add_(bias.view(-1, *[1] * spatial))


def each_dimension(given: Sequence[int], spatial: int) -> Sequence[int]:
    """What ``convolution`` is given for each spatial dimension, where it takes one number for all of them, too."""
    return [*given] * spatial if len(given) == 1 else given


def layout_of(input: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Channels last where one operand lies so, as ATen has it; of equal strides either name will do."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(input.dim())
    if last is not None and any(t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in (input, weight)):
        return last
    return torch.contiguous_format


_library.impl("convolution.out", _convolution_out, "CompositeExplicitAutograd")
