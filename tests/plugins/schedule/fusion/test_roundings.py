"""Roundings to half types inside a kernel: whoever reads a number that decides something sees the same one."""

from __future__ import annotations

import pytest
import torch

import turret


def squares(x):
    return ((x[:, None] - x[None]) ** 2).sum(-1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.frac(squares(x)),
        lambda x: squares(x) - squares(x).floor(),
        lambda x: squares(x) % 1,
        lambda x: squares(x).ceil() - squares(x),
    ],
)
def test_the_rest_of_a_half_number_after_a_step_is_a_rest(program, dtype):
    x = torch.randint(-8, 9, (15, 31), generator=torch.Generator().manual_seed(0)).div(4).to(dtype)
    rest = turret.compile(program, options={"cache": False})(x)
    assert rest.min() >= 0 and rest.max() <= 1
    torch.testing.assert_close(rest, program(x))


def test_what_a_comparison_lets_through_is_on_its_side_of_the_bound():
    def program(x):
        total = squares(x)
        return torch.where(total > 100, total - 100, 1.0)

    x = torch.randint(-8, 9, (31, 31), generator=torch.Generator().manual_seed(0)).div(4).to(torch.bfloat16)
    found = turret.compile(program, options={"cache": False})(x)
    assert (found > 0).all()
    torch.testing.assert_close(found, program(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("copy", [torch.clone, torch.Tensor.float, torch.abs], ids=lambda f: f.__name__)
def test_a_copy_of_what_is_compared_is_rounded_as_it_is(copy, dtype):
    def program(x):
        share = x.abs() / (x.abs().sum(1, keepdim=True) + 1)
        copied, other = copy(share), share.clone()
        return copied, share - copied, other == share

    x = torch.randn(33, 65, generator=torch.Generator().manual_seed(0)).mul(4).to(dtype)
    _, rest, equal = turret.compile(program, options={"cache": False})(x)
    assert equal.all() and (rest == 0).all()
