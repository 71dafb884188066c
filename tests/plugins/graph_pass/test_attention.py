"""Attention that is written out becomes one call where that is faster and nobody can tell; else it stays as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import turret

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


class Calls:
    """Plugin: counts calls of attention in the graphs that are scheduled."""

    def __init__(self) -> None:
        self.count = 0

    @turret.hookimpl
    def turret_event(self, event: Any) -> None:
        if event.kind == "product" and event.stage == "schedule":
            self.count += sum(step.kind == "attention" for step in event.product.templates)


def compiled(function: Callable, **options: Any) -> tuple[Callable, Calls]:
    calls = Calls()
    made = turret.compile(function, plugins=[calls], options={"on_error": "raise", "cache": False}, **options)
    return made, calls


def qkv(*shape: int, queries: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    found = [torch.randn(shape, generator=generator).to(dtype) for _ in range(3)]
    return [found[0][..., :queries, :] if queries else found[0], *found[1:]]


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]), dim=-1) @ v


def scaled_query(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    weights = torch.matmul(q * 0.25, k.mT).softmax(-1)
    weights = F.dropout(weights, 0.1, training=False)
    return weights.matmul(v).transpose(1, 2).reshape(q.shape[0], q.shape[2], -1)


def in_wider_type(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(2, 3)) * 0.125
    return torch.matmul(F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype), v) + 1


def viewed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(q, k, v).view(-1, q.shape[-2], q.shape[-1])


@pytest.mark.parametrize("function", [plain, scaled_query, in_wider_type, viewed], ids=lambda f: f.__name__)
@pytest.mark.parametrize("queries", [0, 65])
def test_what_is_written_out_becomes_a_call(function: Callable, queries: int) -> None:
    args = qkv(2, 3, 70, 8, queries=queries)
    made, calls = compiled(function)
    got, want = made(*args), function(*args)
    assert calls.count == 1
    assert got.stride() == want.stride()
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_attention_over_three_dimensions_becomes_a_call() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), 2), v)

    args = qkv(6, 70, 8)
    made, calls = compiled(function)
    torch.testing.assert_close(made(*args), function(*args), rtol=1e-5, atol=1e-5)
    assert calls.count == 1


def test_dynamic_sizes_are_not_guarded_on() -> None:
    made, calls = compiled(plain)
    for length in (70, 90, 5):  # the second makes it a symbol
        args = qkv(2, 3, length, 8)
        torch.testing.assert_close(made(*args), plain(*args), rtol=1e-5, atol=1e-5)
    assert calls.count == 2


def test_values_that_are_not_finite_come_out_as_written() -> None:
    q, k, v = qkv(2, 3, 70, 8)
    q[0, 0, 3, 2], v[0, 1, 4, 4], k[1, 0, 5, 1] = float("nan"), float("inf"), float("inf")
    made, calls = compiled(plain)
    torch.testing.assert_close(made(q, k, v), plain(q, k, v), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert calls.count == 1


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.mT).masked_fill(torch.ones(q.shape[-2], k.shape[-2]).tril() == 0, float("-inf"))
    return scores.softmax(-1) @ v


def with_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.mT, -1)
    return weights @ v, weights


def over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.mT, -2) @ v


def written_to(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q = q.clone()
    scores = q @ k.mT
    q.mul_(2)
    return scores.softmax(-1) @ v + q


def scores_twice(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.sum()


def of_one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k[:, :1].mT, -1) @ v


@pytest.mark.parametrize(
    "function", [masked, with_weights, over_queries, written_to, scores_twice, of_one_head], ids=lambda f: f.__name__
)
def test_what_could_be_told_apart_stays(function: Callable) -> None:
    args = qkv(2, 3, 70, 8)
    made, calls = compiled(function)
    torch.testing.assert_close(made(*args), function(*args), rtol=1e-4, atol=1e-5)
    assert calls.count == 0


def test_gradients_of_any_order_keep_it_written_out() -> None:
    args = [t.requires_grad_() for t in qkv(1, 2, 70, 8)]
    made, calls = compiled(plain)
    first = [torch.autograd.grad(f(*args).square().sum(), args[0], create_graph=True)[0] for f in (made, plain)]
    second = [torch.autograd.grad(g.square().sum(), args[1])[0] for g in first]
    torch.testing.assert_close(*second, rtol=1e-3, atol=1e-4)
    assert calls.count == 0


@pytest.mark.parametrize(
    "args", [qkv(2, 3, 16, 8), qkv(2, 3, 70, 8, dtype=torch.bfloat16)], ids=["short", "bfloat16 on the host"]
)
def test_what_was_not_seen_to_be_faster_stays(args: list[Tensor]) -> None:
    made, calls = compiled(plain)
    made(*args)
    assert calls.count == 0


def test_a_program_that_chooses_its_kernels_is_left_alone() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return plain(q, k, v)

    args = qkv(2, 3, 70, 8)
    made, calls = compiled(function)
    torch.testing.assert_close(made(*args), function(*args), rtol=1e-5, atol=1e-5)
    assert calls.count == 0
