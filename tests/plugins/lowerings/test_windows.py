"""Pooling and upsampling give eager's values, indices and gradients; what is left whole says why."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.lowerings.lowering_lab import check, externs, lowered

aten = torch.ops.aten

STRIDED = {
    "2 by 2": (2, 2, 0, 1),
    "overlapping and padded": (3, 2, 1, 1),
    "dilated": (2, 1, 1, 2),
    "gaps": (2, 3, 0, 1),
    "one number a dimension": ((3, 2), (2, 1), (1, 0), 1),
}


def image(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


@pytest.mark.parametrize("ceil", (False, True))
@pytest.mark.parametrize("setting", STRIDED)
def test_max_pooling_finds_values_and_indices(setting: str, ceil: bool) -> None:
    kernel, stride, padding, dilation = STRIDED[setting]

    def pool(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode=ceil, return_indices=True)

    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        check(pool, image(2, 3, 9, 8, dtype=dtype), loops_only=True)


def test_max_pooling_takes_the_first_of_equals_and_the_last_nan() -> None:
    x = torch.zeros(1, 1, 6, 6)
    check(lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True), x, loops_only=True)
    x[0, 0, 1, 1] = x[0, 0, 2, 1] = math.nan
    check(lambda a: F.max_pool2d(a, 3, 2, 1, return_indices=True), x, loops_only=True)
    x = torch.full((1, 1, 4, 4), -math.inf)
    check(lambda a: F.max_pool2d(a, 2, return_indices=True), x, loops_only=True)


def test_channels_last_maximum_is_left_to_eagers_kernel() -> None:
    x = image(2, 8, 6, 6).to(memory_format=torch.channels_last)
    program = check(lambda a: (F.max_pool2d(a, 2),), x)
    assert "along the channels" in str(program) and externs(program) == ["max_pool2d_with_indices.default"]


def test_gradients_of_windows_side_by_side_are_loops_and_of_overlapping_ones_are_not() -> None:
    x = image(2, 3, 8, 8)

    def backward(kernel: int, stride: int) -> Callable:
        def run(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values, where = aten.max_pool2d_with_indices(a, [kernel] * 2, [stride] * 2)
            grad = values * 2 + 1
            settings = ([kernel] * 2, [stride] * 2, [0, 0], [1, 1], False)
            return (aten.max_pool2d_with_indices_backward(grad, a, *settings, where),)

        return run

    check(backward(2, 2), x, loops_only=True)
    program = check(backward(3, 2), x)
    assert externs(program) == ["max_pool2d_with_indices_backward.default"] and "overlap" in str(program)


@pytest.mark.parametrize("counts_padding", (False, True))
@pytest.mark.parametrize("setting", ("2 by 2", "overlapping and padded", "gaps", "one number a dimension"))
def test_average_pooling(setting: str, counts_padding: bool) -> None:
    kernel, stride, padding, _ = STRIDED[setting]
    for ceil in (False, True):
        check(
            lambda a, c=ceil: (
                F.avg_pool2d(a, kernel, stride, padding, ceil_mode=c, count_include_pad=counts_padding),
            ),
            image(2, 3, 9, 8),
            loops_only=True,
        )
    check(lambda a: (F.avg_pool2d(a, kernel, stride, padding, divisor_override=5),), image(2, 3, 9, 8), loops_only=True)


def test_average_gradients() -> None:
    def backward(a: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.avg_pool2d_backward(grad, a, [2, 3], [2, 3], [0, 1], True, False, None),)

    x = image(2, 3, 9, 8)
    check(backward, x, image(*F.avg_pool2d(x, (2, 3), (2, 3), (0, 1), True, False).shape), loops_only=True)


@pytest.mark.parametrize("size", ((1, 1), (3, 4), (6, 8), (5, 3), (7, 9)))
def test_adaptive_pooling_of_even_and_uneven_windows(size: tuple[int, int]) -> None:
    x = image(2, 3, 6, 8)
    check(lambda a: (F.adaptive_avg_pool2d(a, size),), x)
    check(lambda a: F.adaptive_max_pool2d(a, size, return_indices=True), x, loops_only=True)


def test_pooling_in_three_dimensions() -> None:
    x = image(1, 2, 4, 6, 5)
    check(lambda a: F.max_pool3d(a, 2, 1, 1, return_indices=True), x, loops_only=True)
    check(lambda a: (F.avg_pool3d(a, 2, 2),), x, loops_only=True)


@settings(max_examples=80, deadline=None)
@given(draw=st.data(), dims=st.sampled_from((2, 3)))
def test_windows_wider_than_the_input_see_all_of_it(draw, dims: int) -> None:
    # Models whose pooling is to cover an image of any size have windows thousands of times as large.
    sizes = [draw.draw(st.integers(1, 6)) for _ in range(dims)]
    kernel = [draw.draw(st.sampled_from((1, 2, 3, 8, 40))) for _ in range(dims)]
    stride = [draw.draw(st.sampled_from((1, 2, k))) for k in kernel]
    padding = [draw.draw(st.integers(0, k // 2)) for k in kernel]
    ceil, counts, override = draw.draw(st.booleans()), draw.draw(st.booleans()), draw.draw(st.sampled_from((None, 7)))
    x = image(2, 2, *sizes)
    average, largest = (F.avg_pool2d, F.max_pool2d) if dims == 2 else (F.avg_pool3d, F.max_pool3d)
    dilation = [draw.draw(st.sampled_from((1, 2))) for _ in kernel]
    try:
        largest(x, kernel, stride, padding, dilation, ceil)
        out = average(x, kernel, stride, padding, ceil, counts, override)
    except RuntimeError:  # no window fits
        return
    backward = aten.avg_pool2d_backward if dims == 2 else aten.avg_pool3d_backward

    def run(a: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean = average(a, kernel, stride, padding, ceil, counts, override)
        given_back = backward(grad, a, kernel, stride, padding, ceil, counts, override)
        return mean, given_back, *largest(a, kernel, stride, padding, dilation, ceil, return_indices=True)

    check(run, x, image(*out.shape))


def test_windows_wider_than_the_input_are_no_longer_loops_than_the_input() -> None:
    program = check(lambda a: (F.avg_pool2d(a, 1280, ceil_mode=True),), image(1, 2, 7, 7), loops_only=True)
    assert "sum<r0<7, r1<7>" in str(program)


def test_dynamic_sizes_pool() -> None:
    check(lambda a: (F.max_pool2d(a, 2), F.avg_pool2d(a, 2)), image(2, 3, 8, 10), dynamic=True)


NEAREST = (aten.upsample_nearest2d, aten._upsample_nearest_exact2d)


@pytest.mark.parametrize("op", NEAREST)
def test_nearest_upsampling_by_whole_factors_is_loops(op: Callable) -> None:
    for size, scales in (((6, 8), ()), ((6, 12), (2.0, 3.0)), ((3, 4), ()), ((9, 4), (None, None))):
        check(lambda a, s=size, f=scales: (op.default(a, s, *f),), image(2, 2, 3, 4), loops_only=True)


@pytest.mark.parametrize("op", NEAREST)
def test_nearest_upsampling_by_other_factors_is_eagers(op: Callable) -> None:
    # A scale given by hand need not agree with the sizes.
    for size, scales in (((5, 7), ()), ((2, 3), ()), ((6, 8), (1.5, 2.0))):
        program = check(lambda a, s=size, f=scales: (op.default(a, s, *f),), image(2, 2, 3, 4))
        assert len(externs(program)) == 1 and "equally often" in str(program)


def test_nearest_gradients_add_up_repeated_elements() -> None:
    def backward(grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (aten.upsample_nearest2d_backward(grad, [6, 12], [2, 2, 3, 4], 2.0, 3.0),)

    check(backward, image(2, 2, 6, 12), loops_only=True)
    check(backward, image(2, 2, 6, 12, dtype=torch.bfloat16), loops_only=True)


def test_every_source_of_large_nearest_factors_is_eagers() -> None:
    # float32 places round off for some pairs of sizes; whichever way those go, the result is eager's.
    for few, many in ((1000, 41000), (7, 7 * 49), (331, 331 * 3)):
        check(lambda a, m=many: (aten.upsample_nearest1d(a, [m]),), image(1, 1, few), rtol=0, atol=0)


def test_lowering_a_pool_with_an_empty_batch() -> None:
    assert lowered(lambda a: (F.max_pool2d(a, 2),), torch.empty(0, 3, 4, 4)).statements is not None
    check(lambda a: (F.max_pool2d(a, 2), F.avg_pool2d(a, 2)), torch.empty(0, 3, 4, 4))
