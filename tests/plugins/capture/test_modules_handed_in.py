"""Modules that are arguments: one unit stands for all that are alike, and each call computes with what it was given."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import nn
from torch.nn.utils import parametrizations

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(3, 4)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Doubled(Inner):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 2


class Block(nn.Module):
    """A module with what modules have: parts, a shared one, running statistics, a counter, plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.drop = Inner(), nn.BatchNorm1d(4), nn.Dropout(0.0)
        self.scale, self.steps, self.name, self.table = 1.5, 0, "block", [1.0, 2.0]
        self.register_buffer("offset", torch.randn(4))
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        y = self.drop(self.norm(self.inner(x) * self.scale + self.offset)) + self.table[-1]
        return y.relu() if self.name == "block" else y.tanh() * len(self.name)


def flagged(b: Block) -> None:
    b.training = not b.training


def partly(b: Block) -> None:
    b.norm.train(not b.norm.training)


def hooked(b: Block) -> None:
    b.inner.register_forward_hook(lambda module, args, result: result + 1)


def hooked_before(b: Block) -> None:
    b.register_forward_pre_hook(lambda module, args: (args[0] * 3,))


def hooked_backward(b: Block) -> None:
    b.inner.register_full_backward_hook(lambda module, given, wanted: tuple(g * 2 for g in given))


def hooked_parameter(b: Block) -> None:
    if b.inner.linear.weight.requires_grad:
        b.inner.linear.weight.register_hook(lambda g: g * 5)


def scaled(b: Block) -> None:
    b.scale += 0.25


def named(b: Block) -> None:
    b.name += "s"


def listed(b: Block) -> None:
    b.table.append(3.0)


def reshaped(b: Block) -> None:
    b.inner.linear = nn.Linear(4, 4, bias=b.inner.linear.bias is None).double()


def replaced(b: Block) -> None:
    b.drop = nn.Identity()


def retyped(b: Block) -> None:
    b.inner.__class__ = Doubled


def narrowed(b: Block) -> None:
    b.offset = b.offset.float()


def frozen(b: Block) -> None:
    for p in b.inner.parameters():
        p.requires_grad_(not p.requires_grad)


def tied(b: Block) -> None:
    b.norm.weight = b.norm.bias if b.inner.linear.bias is None else b.inner.linear.bias


def strided(b: Block) -> None:
    b.inner.linear.weight = nn.Parameter(b.inner.linear.weight.detach().t().contiguous().t())


def patched(b: Block) -> None:
    b.drop.forward = lambda x: x - 1


def parametrized(b: Block) -> None:
    if not hasattr(b.inner.linear, "parametrizations"):
        parametrizations.weight_norm(b.inner.linear)


CHANGES = [
    flagged, partly, hooked, hooked_before, hooked_backward, hooked_parameter, scaled, named, listed, reshaped,
    replaced, retyped, narrowed, frozen, tied, strided, patched, parametrized,
]  # fmt: skip


def one(a: Any, b: Any, x: torch.Tensor) -> Any:
    return a(x) + 1


def two(a: Any, b: Any, x: torch.Tensor) -> Any:
    return a(b(x)), a is b


def nested(a: Any, b: Any, x: torch.Tensor) -> Any:
    return [part(x) for part in {"a": [a], "b": [b]}["b"]], a.norm.weight is b.norm.weight


def weighed(a: Any, b: Any, x: torch.Tensor) -> Any:
    return sum((p * p).sum() for part in (a, b) for p in part.parameters()), len(list(a.buffers())), a(x)


def broken(a: Any, b: Any, x: torch.Tensor) -> Any:
    y = a(x)
    if y.sum().item() > 0:
        y = b(y)
    return a(y)


PROGRAMS = [one, two, nested, weighed, broken]


def detached(result: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)


def seen(program: Callable, a: nn.Module, b: nn.Module) -> Any:
    """The result, gradients, and the state of both modules after a call."""
    x = X.clone().requires_grad_()
    for p in (*a.parameters(), *b.parameters()):
        p.grad = None
    try:
        result = program(a, b, x)
    except RuntimeError as error:
        return type(error)
    tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    total = sum(t.square().sum() for t in tensors)
    total.backward()
    gradients = [p.grad for p in (*a.parameters(), *b.parameters())]
    return detached(result), x.grad, gradients, [(m.steps, dict(m.state_dict())) for m in (a, b)]


def assert_as_eager(observed: Observed, program: Callable, a: nn.Module, b: nn.Module) -> None:
    """A call gives what a plain one gives, which both start from the same state of the modules."""
    before = [(m, m.steps, copy.deepcopy(m.state_dict())) for m in (a, b)]
    expected = copy.deepcopy(seen(program, a, b))
    for module, steps, state in before:
        module.steps = steps
        module.load_state_dict(state)
    assert_same(seen(observed, a, b), expected)


@pytest.mark.parametrize("program", [one, two, weighed])
def test_modules_that_are_alike_are_captured_once(program):
    observed = Observed(program)
    for _ in range(5):
        assert_as_eager(observed, program, Block(), Block())
    assert len(observed.graphs) <= 3  # the count of steps is 0 each time; two of one class are two


@pytest.mark.parametrize("program", PROGRAMS)
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), max_size=6)
)
def test_what_differs_between_modules_is_seen(program, changes):
    observed = Observed(program)
    blocks = [Block() for _ in range(3)]
    assert_as_eager(observed, program, *blocks[:2])
    for change, number, a, b in changes:
        change(blocks[number])
        assert_as_eager(observed, program, blocks[a], blocks[b])


@pytest.mark.parametrize("share", [False, True])
def test_parameters_that_two_modules_share_are_one_input(share):
    def program(a, b, x):
        with torch.no_grad():
            a.weight.mul_(2)
        return b(x)

    observed = Observed(program)
    for shared in (share, not share, share):
        for _ in range(2):
            a, b = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
            if shared:
                b.weight = a.weight
            mine = copy.deepcopy((a, b))
            assert_same(observed(a, b, X), program(*mine, X))
            assert_same((a.weight, b.weight), (mine[0].weight, mine[1].weight))
    assert len(observed.graphs) == 2


def test_a_parameter_that_is_handed_in_is_captured_once():
    def program(p):
        return p.sin() * 2

    observed = Observed(program)
    for _ in range(5):
        p = nn.Parameter(torch.randn(5))
        assert_same(observed(p), program(p))
    assert len(observed.graphs) == 1
