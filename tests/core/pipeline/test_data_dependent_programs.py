"""Drawn programs over rows whose number depends on data: one graph gives eager's values and gradients for all data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import turret

BEGINNINGS = (
    "X[X[:, 0] > 0]",
    "X[M]",
    "X[torch.nonzero(X[:, 1] < 0).squeeze(1)]",
    "X.masked_select(X > 0).unsqueeze(1) * W[0]",
    "torch.repeat_interleave(X, (X[:, 0] > 0).long() * 2, dim=0)",
    "X[: int(M.sum())]",
    "X[int(M.sum()) :]",
    "torch.ones(int(M.sum()), 5) * X[0]",
)
STEPS = (
    "Y.sin()",
    "Y * 2 + 1",
    "Y - Y.sum(0)",
    "Y * Y.sum(1, keepdim=True)",
    "Y.softmax(1)",
    "Y.softmax(0)",
    "F.layer_norm(Y, (5,))",
    "Y @ W",
    "(Y.t() @ Y)[:1] + Y",
    "Y.flip(0)",
    "Y.reshape(-1).view(-1, 5) * 3",
    "Y.t().contiguous().t()",
    "torch.cat([X, Y], 0)",
    "torch.cat([Y, X], 0)[1:]",
    "Y[:, [4, 3, 2, 1, 0]]",
    "Y[Y[:, 0] > 0]",
    "torch.where(Y > 0, Y, Y.exp())",
    "Y.log_softmax(-1)",
    "Y * Y.detach().abs().sum().item()",
    "torch.stack([Y, Y * 2], 1)[:, 1]",
    "Y.repeat(2, 1)",
    "Y.masked_fill(Y > 0.5, 0.0)",
    "Y.unsqueeze(1).expand(-1, 3, -1).sum(1)",
    "Y * torch.ones(Y.shape[0], 1)",
    "torch.einsum('nd,de->ne', Y, W)",
    "Y.index_select(0, torch.arange(Y.shape[0]))",
)
ENDS = (
    "Y",
    "Y.sum(0)",
    "Y.t()",
    "(Y, Y.sum())",
    "(Y * 2, Y.shape[0])",
    "torch.outer(Y.sum(1), Y.sum(1))",
    "Y @ Y.t()",
    "(Y.view(-1), Y)",
    "Y.max(1).values",
    "Y.argmax(1)",
    "(Y > 0).sum().item()",
    "torch.zeros(6, 5).index_put((Y[:, 0].long().clamp(0, 5),), Y, accumulate=True)",
)


@st.composite
def sources(draw: st.DrawFn) -> str:
    steps = draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=4))
    lines = [f"Y = {draw(st.sampled_from(BEGINNINGS))}", *(f"Y = {step}" for step in steps)]
    return "\n    ".join(["def program(X, W, M):", *lines, f"return {draw(st.sampled_from(ENDS))}"]) + "\n"


def defined(source: str) -> Callable:
    scope = {"torch": torch, "F": F}
    exec(source, scope)
    return scope["program"]


def inputs(kind: str) -> tuple[torch.Tensor, ...]:
    """Rows of which some, none, one or all are taken by each of the beginnings."""
    generator = torch.Generator().manual_seed(len(kind))
    x, w = (torch.randn(n, 5, generator=generator) for n in (6, 5))
    if kind == "some":
        return x, w, torch.tensor([1, 0, 1, 1, 0, 0]).bool()
    if kind == "none":
        x = torch.cat([-x[:, :1].abs(), x[:, 1:2].abs(), -x[:, 2:].abs()], 1)
    elif kind == "all":
        x = torch.cat([x[:, :1].abs(), -x[:, 1:2].abs(), x[:, 2:]], 1)
    else:
        x = torch.where(torch.arange(6)[:, None] == 2, x.abs(), -x.abs())
    return x, w, torch.full((6,), kind == "all") | (torch.arange(6) == (3 if kind == "one" else 9))


def run(program: Callable, kind: str) -> list:
    x, w, m = inputs(kind)
    x, w = x.requires_grad_(), w.requires_grad_()
    results = pytree.tree_leaves(program(x, w, m))
    leaves = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad]
    if not leaves:
        return results
    total = sum((r * torch.linspace(0.5, 1.5, max(1, r.numel()))[: r.numel()].view(r.shape)).sum() for r in leaves)
    return [*results, *torch.autograd.grad(total, [x, w], allow_unused=True)]


def agrees(source: str) -> None:
    program = defined(source)
    options = {"on_error": "raise", "capture": "turret", "cache": False}
    compiled = turret.compile(program, options=options, fullgraph=True, dynamic=False)
    try:
        for kind in ("some", "none", "one", "all"):
            for found, expected in zip(run(compiled, kind), run(program, kind), strict=True):
                assert type(found) is type(expected)
                if isinstance(expected, torch.Tensor):
                    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
                else:
                    assert found == expected
    finally:
        turret.reset()


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
@given(sources())
def test_drawn_programs_agree_with_eager_for_all_data(source: str) -> None:
    agrees(source)


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_every_way_to_rows_that_depend_on_data(beginning: str) -> None:
    agrees(f"def program(X, W, M):\n    Y = {beginning}\n    return (Y.softmax(1) @ W, Y.sum(0), Y.shape[0])\n")
