"""Convolutions of single pixels as products: eager's values, gradients and strides, in any layout and setting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.hooks.hookspecs import hookimpl
from turret.ir import Schedule

FORMATS = (torch.contiguous_format, torch.channels_last)


class Watch:
    """Plugin: the library calls of the schedules that were made."""

    def __init__(self) -> None:
        self.calls = list[str]()

    @hookimpl
    def turret_event(self, event: object) -> None:
        made = getattr(event, "product", None)
        if isinstance(made, Schedule):
            self.calls += [str(step.op) for step in made.externs]

    def convolutions(self) -> int:
        return sum("convolution" in name for name in self.calls)


def compiled(function: Callable, watch: Watch, **options: Any) -> Callable:
    options = {"on_error": "raise", "cache": False} | options
    return turret.compile(function, options=options, plugins=[watch], dynamic=False)


def agree(function: Callable, make: Callable[[], list[torch.Tensor]], watch: Watch, **options: Any) -> None:
    """Values, strides and gradients of two calls, compiled and not."""
    results = []
    for call in (compiled(function, watch, **options), function):
        inputs = make()
        output = call(*inputs)
        (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum().backward()
        results.append([output, *(t.grad for t in inputs if t.requires_grad)])
    for got, expected in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        assert got.stride() == expected.stride()


@pytest.mark.thorough
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4)),
    st.sampled_from(FORMATS),
    st.sampled_from(FORMATS),
    st.booleans(),
    st.booleans(),
    st.sampled_from((torch.float32, torch.float64)),
)
@settings(deadline=None, max_examples=20)
def test_values_strides_and_gradients_are_eagers(
    sizes: tuple[int, ...], image: Any, weight: Any, biased: bool, trained: bool, dtype: torch.dtype
) -> None:
    batch, channels, filters, height, width = sizes

    def make() -> list[torch.Tensor]:
        torch.manual_seed(0)
        x = torch.randn(batch, channels, height, width, dtype=dtype).to(memory_format=image)
        first = torch.randn(filters, channels, 1, 1, dtype=dtype).to(memory_format=weight)
        second = torch.randn(channels, filters, 1, 1, dtype=dtype)
        bias = torch.randn(filters, dtype=dtype)
        return [x.requires_grad_(trained), first.requires_grad_(), second.requires_grad_(), bias.requires_grad_(biased)]

    def function(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.relu(F.conv2d(x, first, bias if biased else None)), second)

    agree(function, make, Watch())


def _pair(settings: dict[str, Any], size: int = 1) -> tuple[Callable, Callable]:
    def make() -> list[torch.Tensor]:
        torch.manual_seed(0)
        x = torch.randn(2, 8, 12, 12)
        groups = settings.get("groups", 1)
        first, second = torch.randn(8, 8 // groups, size, size), torch.randn(8, 8 // groups, size, size)
        return [t.requires_grad_() for t in (x, first, second)]

    def function(x: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return F.conv2d(F.conv2d(x, first, **settings).sin(), second, **settings)

    return function, make


def test_networks_of_single_pixels_have_no_convolution() -> None:
    watch = Watch()
    agree(*_pair({}), watch)
    assert watch.convolutions() == 0


@pytest.mark.parametrize("settings", [{"stride": 2}, {"padding": 1}, {"groups": 2}, {"stride": (1, 2)}])
def test_what_is_no_product_stays_a_convolution(settings: dict[str, Any]) -> None:
    watch = Watch()
    agree(*_pair(settings), watch)
    assert watch.convolutions() == 4


def test_weights_of_several_pixels_stay_convolutions() -> None:
    watch = Watch()
    agree(*_pair({}, size=3), watch)
    assert watch.convolutions() == 4


def test_products_that_may_be_rounded_stay_convolutions() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        watch = Watch()
        function, make = _pair({})
        compiled(function, watch)(*make())
        assert watch.convolutions() > 0
    finally:
        torch.set_float32_matmul_precision(before)


def test_weights_that_are_packed_for_inference_stay_convolutions() -> None:
    watch = Watch()
    function, make = _pair({})
    with torch.no_grad():
        inputs = make()
        got = compiled(function, watch, freezing=True)(*inputs)
        torch.testing.assert_close(got, function(*inputs), rtol=1e-4, atol=1e-4)
    assert watch.convolutions() == 2
