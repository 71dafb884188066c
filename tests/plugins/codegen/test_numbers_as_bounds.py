"""Numbers that bound, choose or fill (NaN, infinities, both zeros) give what eager gives, in C++ and Triton.

Versions of torch differ in what a NaN bounds; eager of the version at hand is the reference.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, inf, nan

import turret

POINTS = (0.0, -0.0, 1.0, -2.5, 3.0, inf, -inf, nan)
NUMBERS = (nan, inf, -inf, -0.0, 0.0, 1.5, -1, 2)

OPS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "clamp from": lambda x, n: torch.clamp(x, min=n),
    "clamp to": lambda x, n: torch.clamp(x, max=n),
    "clamp between itself": lambda x, n: torch.clamp(x, n, n),
    "clamp from it to 1": lambda x, n: torch.clamp(x, n, 1.0),
    "clamp from -1 to it": lambda x, n: torch.clamp(x, -1.0, n),
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "clamp_ from": lambda x, n: x.clone().clamp_(min=n),
    "clamp_min_": lambda x, n: x.clone().clamp_min_(n),
    "maximum": lambda x, n: torch.maximum(x, x.new_full((), n)),
    "minimum": lambda x, n: torch.minimum(x.new_full((), n), x),
    "fmax": lambda x, n: torch.fmax(x, x.new_full((), n)),
    "fmin": lambda x, n: torch.fmin(x, x.new_full((), n)),
    "threshold": lambda x, n: F.threshold(x, n, 7.0),
    "threshold, value": lambda x, n: F.threshold(x, 0.5, n),
    "where": lambda x, n: torch.where(x > 0, x, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 0, n),
    "copysign": torch.copysign,
    "above": lambda x, n: (x > n) ^ (x <= n),
    "full": lambda x, n: torch.full_like(x, n),
    "elu": lambda x, n: F.elu(x, n),
    "leaky_relu": lambda x, n: F.leaky_relu(x, n),
}
NOT_EXTREMES = frozenset(("threshold, value", "where", "masked_fill", "copysign", "elu", "leaky_relu", "full"))
"""Ops that never take one of two zeros; which of them is the greater, GPUs and eager's halves are free to say."""
CASES = st.lists(st.tuples(st.sampled_from(sorted(OPS)), st.sampled_from(NUMBERS)), min_size=1, max_size=20)
EVERY = [(name, number) for name in OPS for number in NUMBERS]


def every_result(cases: list[tuple[str, float]], x: Tensor) -> list[Tensor]:
    return [OPS[name](x, number) for name, number in cases]


def unlike(expected: Tensor, got: Tensor, signs: bool) -> bool:
    if (got.dtype, got.shape) != (expected.dtype, expected.shape):
        return True
    bad = (got != expected) & ~(got.isnan() & expected.isnan())
    if expected.is_floating_point():
        # A number that was computed (elu's exponential) may be rounded otherwise.
        near = torch.isclose(got, expected, rtol=1e-2) & expected.isfinite() & (expected != 0)
        bad = (bad & ~near) | (signs & (expected == 0) & (got.signbit() != expected.signbit()))
    return bool(bad.any())


def assert_like_eager(run: Callable, cases: list[tuple[str, float]], dtype: torch.dtype, exact: bool) -> None:
    x = torch.tensor(POINTS, dtype=dtype).repeat(64)  # whole vectors, of whatever length
    found = zip(cases, every_result(cases, x), run(x), strict=True)
    wrong = [case for case, expected, got in found if unlike(expected, got, exact or case[0] in NOT_EXTREMES)]
    assert not wrong, f"{dtype}: {wrong}"


@settings(max_examples=3)
@given(cases=CASES, dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
@example(cases=EVERY, dtype=torch.bfloat16)
@example(cases=EVERY, dtype=torch.float32)
def test_in_cpp_kernels(cases: list[tuple[str, float]], dtype: torch.dtype) -> None:
    options = {"on_error": "raise", "cache": False}
    run = turret.compile(lambda x: every_result(cases, x), fullgraph=True, dynamic=False, options=options)
    assert_like_eager(run, cases, dtype, exact=dtype.itemsize > 2)


@settings(max_examples=3)
@given(cases=CASES, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
@example(cases=EVERY, dtype=torch.bfloat16)
@example(cases=EVERY, dtype=torch.float32)
def test_in_triton_kernels(cases: list[tuple[str, float]], dtype: torch.dtype) -> None:
    pytest.importorskip("triton")
    from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen

    plugins, options = [InterpretedCodegen()], {"on_error": "raise", "cache": False}
    run = turret.compile(lambda x: every_result(cases, x), dynamic=False, options=options, plugins=plugins)
    assert_like_eager(run, cases, dtype, exact=False)


@pytest.mark.parametrize(
    "name", ["clamp from", "clamp to", "clamp from it to 1", "clamp_min", "clamp_max", "threshold"]
)
def test_a_number_that_changes_and_becomes_nan(name: str) -> None:
    run = turret.compile(lambda x, n: OPS[name](x, n), options={"on_error": "raise", "cache": False})
    x = torch.tensor(POINTS).repeat(64)
    for number in (0.5, 1.5, 2.5, nan, inf, -inf, nan, -0.0):
        assert not unlike(OPS[name](x, number), run(x, number), signs=True), number


def test_integers_bounded_by_numbers_of_either_kind() -> None:
    x = torch.tensor([0, 1, -2, 100, -100, 3], dtype=torch.int64).repeat(64)
    cases = [(n, v) for n, v in EVERY if n in ("clamp from", "clamp to", "clamp_min", "clamp from it to 1")]
    run = turret.compile(lambda x: every_result(cases, x), dynamic=False, options={"on_error": "raise"})
    found = zip(cases, every_result(cases, x), run(x), strict=True)
    assert [case for case, expected, got in found if unlike(expected, got, signs=True)] == []
