"""Draws that nobody reads, with ``fallback_random``: what is drawn after them is what eager draws."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import turret

DRAWS = (
    lambda y: torch.rand(2, 3), lambda y: torch.randn_like(y), lambda y: torch.bernoulli(y.sigmoid()),
    lambda y: torch.randperm(5), lambda y: torch.randint(0, 9, (2, 3)), lambda y: F.dropout(y),
    lambda y: torch.multinomial(y.sigmoid(), 1), lambda y: torch.normal(y, 1.0), lambda y: F.rrelu(y, training=True),
)  # fmt: skip


@pytest.mark.parametrize("requires_grad", [False, True])
@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(range(len(DRAWS))), st.booleans()), min_size=1, max_size=5))
def test_what_is_drawn_later_is_what_eager_draws(requires_grad, drawn):
    def program(y):
        total = y * 2
        for number, read in drawn:
            value = DRAWS[number](y)
            if read:
                total = total + value.sum()
        return total * torch.rand(2, 3)

    results = []
    for call in (program, turret.compile(program, options={"fallback_random": True})):
        torch.manual_seed(0)
        y = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_(requires_grad)
        results.append((call(y).detach(), torch.rand(4)))
    torch.testing.assert_close(results[1], results[0])


def test_draws_of_a_generator_of_its_own_advance_it_when_nobody_reads_them():
    def program(y, generator):
        torch.randn(3, generator=generator)
        return y + torch.randn(2, generator=generator)

    results = []
    for call in (program, turret.compile(program)):
        generator = torch.Generator().manual_seed(3)
        results.append((call(torch.ones(2), generator), torch.rand(2, generator=generator)))
    torch.testing.assert_close(results[1], results[0], rtol=0, atol=0)
