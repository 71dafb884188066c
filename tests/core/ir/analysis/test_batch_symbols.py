"""Which steps treat the samples of a batch one by one: those whose first results stay as they are with more samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.ir.analysis.batch_symbols import batch_symbols

FEATURES = 6
WEIGHT, BIAS, TABLE = torch.randn(FEATURES, FEATURES), torch.randn(FEATURES), torch.randn(9, FEATURES)


def is_batch(function: Callable[..., Any], *args: torch.Tensor) -> bool:
    """Whether a function's steps treat the samples along the first dimension of its first argument one by one."""
    with torch.no_grad():
        program = turret.lower(turret.partition(turret.joint_graph(function, *args, dynamic=True)))
        schedule = turret.schedule(program)
    (symbol,) = (name for name, source in program.symbols.items() if (source.input, source.dimension) == (0, 0))
    return batch_symbols(schedule.steps, program.declarations(), [symbol]) == (symbol,)


def attention(x: torch.Tensor) -> torch.Tensor:
    heads = x.unflatten(2, (2, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(heads, heads.sin(), heads.cos(), is_causal=True)


ONE_BY_ONE: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "elements": (lambda x: (x.sin() * 2 + x.tanh(), x.exp()), (torch.randn(5, 6),)),
    "a linear layer": (lambda x, w, b: torch.relu(F.linear(x, w, b)) + x, (torch.randn(5, 6), WEIGHT, BIAS)),
    "statistics of a sample": (lambda x: F.layer_norm(x, (6,)).softmax(-1), (torch.randn(5, 6),)),
    "a table": (lambda ids, table: F.embedding(ids, table).sum(-1), (torch.randint(0, 9, (5, 3)), TABLE)),
    "an element looked up in a sample": (lambda x: x.gather(1, (x > 0).long()), (torch.randn(5, 6),)),
    "products of a batch": (lambda x, y: torch.bmm(x, y).amax(-1), (torch.randn(5, 6, 4), torch.randn(5, 4, 3))),
    "attention": (attention, (torch.randn(5, 7, 8),)),
    "a sample flipped and joined to itself": (lambda x: torch.cat([x, x.flip(1)], 1), (torch.randn(5, 6),)),
    "a scan of a sample": (lambda x: torch.cumsum(x, 1), (torch.randn(5, 6),)),
    "a convolution": (lambda x: F.conv2d(x, torch.ones(4, 3, 3, 3), padding=1).relu(), (torch.randn(5, 3, 8, 8),)),
    "what has nothing to do with samples": (lambda x, w: (x * 2, w.sum(0) + 1), (torch.randn(5, 6), WEIGHT)),
}

TOGETHER: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "a mean of samples": (lambda x: x - x.mean(0), (torch.randn(5, 6),)),
    "a scan along samples": (lambda x: torch.cumsum(x, 0), (torch.randn(5, 6),)),
    "samples in another order": (lambda x: x.flip(0) + x, (torch.randn(5, 6),)),
    "samples rolled": (lambda x: x.roll(1, 0), (torch.randn(5, 6),)),
    "the first sample for all": (lambda x: x + x[:1], (torch.randn(5, 6),)),
    "how many samples there are": (lambda x: x / x.shape[0], (torch.randn(5, 6),)),
    "where a sample is": (lambda x: x + torch.arange(x.shape[0])[:, None], (torch.randn(5, 6),)),
    "a table read at the place of a sample": (lambda x, t: x + t[: x.shape[0]], (torch.randn(5, 6), TABLE)),
    "the diagonal": (lambda x: x.diagonal() + 1, (torch.randn(5, 9),)),
    "samples joined": (lambda x: torch.cat([x, x]), (torch.randn(5, 6),)),
    "samples sorted": (lambda x: x.sort(0).values, (torch.randn(5, 6),)),
    "samples by samples": (lambda x: x @ x.t(), (torch.randn(5, 6),)),
    "samples as columns": (lambda x: (x * 2).t().contiguous(), (torch.randn(5, 6),)),
    "random numbers": (lambda x: F.dropout(x, 0.5), (torch.randn(5, 6),)),
    "samples looked up": (lambda x, n: x[n], (torch.randn(5, 6), torch.tensor([3, 1]))),
    "samples written to": (lambda x, n: x.index_add(0, n, x[:2]), (torch.randn(5, 6), torch.tensor([3, 1]))),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_samples_are_treated_one_by_one(name: str) -> None:
    function, args = ONE_BY_ONE[name]
    assert is_batch(function, *args)


@pytest.mark.thorough
@pytest.mark.parametrize("name", TOGETHER)
def test_samples_are_not_treated_one_by_one(name: str) -> None:
    function, args = TOGETHER[name]
    assert not is_batch(function, *(a.clone() for a in args))


_STEPS: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    ("sin", torch.sin),
    ("softmax", lambda x: x.softmax(-1)),
    ("linear", lambda x: x @ x.new_ones(x.shape[-1], 4)),
    ("halves", lambda x: torch.cat([x[..., 2:], x[..., :2]], -1)),
    ("pairs", lambda x: x.reshape(-1, 2).sum(1).view(x.shape[0], -1).repeat(1, 2)),
    ("rows", lambda x: x.reshape(-1) * 2),
    ("sample", lambda x: x.reshape(-1, 4)),
    ("flat", lambda x: x.view(x.shape[0], -1)),
    ("centre", lambda x: x - x.mean(0)),
    ("turn", lambda x: x.flip(0)),
    ("shift", lambda x: torch.cat([x[-1:], x[:-1]])),
    ("scan", lambda x: x.cumsum(0)),
    ("outer", lambda x: x.unsqueeze(-1) * x.unsqueeze(-2)),
    ("first", lambda x: x * x[0]),
)


@settings(max_examples=10)
@given(st.lists(st.sampled_from(_STEPS), min_size=1, max_size=4))
def test_what_is_said_to_be_a_batch_gives_the_same_first_samples_whatever_follows(steps: list) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _, step in steps:
            x = step(x)
        return x

    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(3))
    try:
        expected = function(x)
    except (RuntimeError, IndexError):
        return  # not a program
    if is_batch(function, x):
        found = function(torch.cat([x, x[:1].expand(3, -1)]))
        torch.testing.assert_close(found[: expected.shape[0]], expected)
