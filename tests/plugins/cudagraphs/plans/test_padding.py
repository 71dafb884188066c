"""Inputs of padded calls: the first sample for each that is added, laid out as the plan expects."""

from __future__ import annotations

import attrs
import pytest
import torch

from turret.hooks.size_source import SizeSource
from turret.plan import Plan, Slot, SlotRef
from turret.plugins.cudagraphs.plans.padding import Batches


def batch_plan() -> Plan:
    """A batch of rows, one of three rows a sample, and what is no batch; the second input is how many there are."""
    slots = (
        Slot("x", ("s0", 4), (6, 1), "complex64", "cpu", "input", 0),
        Slot("y", ("3*s0", 2), (1, "s1"), "int64", "cpu", "input", 2),
        Slot("w", ("s1",), (1,), "float32", "cpu", "input", 3),
    )
    sources = {"s0": SizeSource(1, None), "s1": SizeSource(3, 0)}
    return Plan("batch", "cpu", slots, (0, None, 1, 2), (), (SlotRef(0),), ("s0", "s1"), sources, batch_symbols=("s0",))


def batches() -> Batches:
    found = Batches.of(batch_plan(), ("s0", "s1"))
    assert found is not None
    return found


@pytest.mark.parametrize("lazy", [lambda x: x, torch.conj, torch._neg_view, lambda x: torch._neg_view(x.conj())])
def test_samples_that_are_added_are_the_first_one(lazy) -> None:
    x = lazy(torch.randn(2, 6, dtype=torch.complex64)[:, :4])
    y, w = torch.arange(12).view(6, 2).t().contiguous().t(), torch.ones(40)
    padded = batches().padded([x, 2, y, w], (2, 40), (5, 40))
    assert torch.equal(padded[0], x[[0, 1, 0, 0, 0]]) and padded[0].stride() == (6, 1)
    assert (padded[0].is_conj(), padded[0].is_neg()) == (x.is_conj(), x.is_neg())
    assert padded[1] == 5 and padded[3] is w
    assert torch.equal(padded[2], y[[0, 1, 2, 3, 4, 5, *[0, 1, 2] * 3]]) and padded[2].stride() == (1, 40)


def test_sizes_are_padded_to_the_next_that_is_named_where_they_count_samples() -> None:
    pad = batches().padded_key
    assert pad((3, 8), (4, 8, 16)) == (4, 8) and pad((9, 4), (16, 4, 8)) == (16, 4) and pad((8, 8), (4, 8)) == (8, 8)
    assert pad((3, 5), (4, 8)) is None  # the other is no number of samples
    assert pad((17, 8), (4, 8, 16)) is None and pad((0, 8), (4, 8)) is None


def test_a_plan_that_treats_samples_together_is_not_padded() -> None:
    assert Batches.of(attrs.evolve(batch_plan(), batch_symbols=()), ("s0", "s1")) is None
