"""Pointwise ops whose decomposition in torch differs from eager's kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import turret

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32)
SPECIAL = (0.0, -0.0, 1.0, -1.5, 3e-5, 6e4, 1e-30, 1e30, float("inf"), -float("inf"), float("nan"))
EXPONENTS = st.one_of(
    st.integers(-30, 30),
    st.integers(-2200, 2200),
    st.sampled_from((127, 128, -126, -149, 1023, -1074, 2**31 - 1, 2**31, 2**32 + 3, 2 - 2**33)),
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=6, deadline=None)
@given(
    values=st.lists(st.one_of(st.sampled_from(SPECIAL), st.floats(-1e4, 1e4)), min_size=8, max_size=8),
    exponents=st.lists(EXPONENTS, min_size=8, max_size=8),
    one=st.booleans(),
)
def test_powers_of_two_that_overflow_alone_do_not_when_multiplied(
    dtype: torch.dtype, values: list[float], exponents: list[int], one: bool
) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    x = x.to(dtype) if dtype.is_floating_point else x.nan_to_num(nan=3).clamp(-1e9, 1e9).to(dtype)
    exponent = torch.tensor(exponents[0] if one else exponents)
    compiled = turret.compile(torch.ldexp, options={"cache": False, "on_error": "raise"})
    torch.testing.assert_close(compiled(x, exponent), torch.ldexp(x, exponent), rtol=0, atol=0, equal_nan=True)
    fractions = exponent.clamp(-20, 20) / 4
    torch.testing.assert_close(compiled(x, fractions), torch.ldexp(x, fractions), equal_nan=True)


LOSSES = (
    F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div, F.poisson_nll_loss, F.hinge_embedding_loss,
    F.binary_cross_entropy_with_logits,
)  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(0,), (3, 0)], ids=str)
@pytest.mark.filterwarnings("ignore:reduction")
def test_a_loss_of_no_elements_and_its_gradients_are_eagers(loss, reduction, shape):
    outcomes = []
    for run in (loss, turret.compile(loss, options={"cache": False, "on_error": "raise"})):
        x, target = (torch.ones(shape, requires_grad=True) for _ in range(2))
        result = run(x, target, reduction=reduction)
        result.sum().backward()
        outcomes.append((result.detach(), x.grad, target.grad))
    for one, other in zip(*outcomes, strict=True):
        torch.testing.assert_close(other, one, equal_nan=True)


@settings(max_examples=12, deadline=None)
@given(
    numbers=st.one_of(
        st.lists(st.sampled_from((0.0, 1.0, 1.00000001, 2.5, 3.0, -7.0, float("inf"))), min_size=2, max_size=4),
        st.lists(st.sampled_from((0, 1, 2, 3, 16777217, 2**40)), min_size=2, max_size=4),
    ),
    dtype=st.sampled_from((torch.float16, torch.float32, torch.float64, torch.int64)),
    right=st.booleans(),
    out_int32=st.booleans(),
    length=st.sampled_from((0, 1, 5)),
    read=st.booleans(),
)
def test_a_bucket_of_a_number_that_changes_is_found_in_the_graph(
    numbers: list[float], dtype: torch.dtype, right: bool, out_int32: bool, length: int, read: bool
) -> None:
    def program(number: float | torch.Tensor, boundaries: torch.Tensor) -> torch.Tensor:
        given = number.item() if isinstance(number, torch.Tensor) else number
        return torch.bucketize(given, boundaries, right=right, out_int32=out_int32) * 2

    ends = torch.arange(2 * length).to(dtype)[::2]
    compiled = turret.compile(program, fullgraph=True, options={"cache": False, "on_error": "raise"})
    for number in numbers:
        given = torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None) if read else number
        torch.testing.assert_close(compiled(given, ends), program(given, ends), rtol=0, atol=0)
