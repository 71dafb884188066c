"""The bias of a convolution apart from the library's call gives what the library gives."""

from __future__ import annotations

import pytest
import torch

from turret.plugins.decompositions.nn.convolutions import (
    convolution,
    convolution_backward,
    gradients_with_bias_apart,
    with_bias_apart,
)

SHAPES = [((2, 3, 9), (4, 3, 3)), ((2, 3, 9, 8), (4, 3, 3, 2)), ((2, 3, 5, 6, 7), (4, 3, 2, 2, 3))]


def arguments(x_shape: tuple[int, ...], w_shape: tuple[int, ...], device: str = "cpu"):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(s, generator=generator).to(device) for s in (x_shape, w_shape, w_shape[:1]))
    rank = len(x_shape) - 2
    return (x, weight, bias), ([2] * rank, [1] * rank, [1] * rank, False, [0] * rank, 1)


@pytest.mark.parametrize(("x_shape", "w_shape"), SHAPES)
def test_the_bias_is_added_as_the_library_adds_it(x_shape, w_shape) -> None:
    tensors, options = arguments(x_shape, w_shape)
    torch.testing.assert_close(with_bias_apart(*tensors, *options), torch.convolution(*tensors, *options))


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, True], [False, False, True]])
@pytest.mark.parametrize(("x_shape", "w_shape"), SHAPES)
def test_gradients_are_the_librarys(x_shape, w_shape, mask) -> None:
    (x, weight, bias), options = arguments(x_shape, w_shape)
    grad = torch.convolution(x, weight, bias, *options).cos()
    given = (grad, x, weight, list(bias.shape), *options, mask)
    wanted = torch.ops.aten.convolution_backward(*given)
    for asked, got, one in zip(mask, gradients_with_bias_apart(*given), wanted, strict=True):
        assert (got is not None) == asked
        if asked:
            torch.testing.assert_close(got, one)


def test_only_other_devices_than_the_cpu_have_it_apart() -> None:
    for device, whole in (("cpu", True), ("meta", False)):
        (x, weight, bias), options = arguments(*SHAPES[1], device)
        assert (convolution(x, weight, bias, *options) is NotImplemented) == whole
        grad = torch.convolution(x, weight, bias, *options)
        mask = [True, True, True]
        backward = convolution_backward(grad, x, weight, list(bias.shape), *options, mask)
        assert (backward is NotImplemented) == whole
        assert convolution(x, weight, None, *options) is NotImplemented
