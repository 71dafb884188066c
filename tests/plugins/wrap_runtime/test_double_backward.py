"""Gradients of compiled gradients are eager's, to any order, or an error says why they cannot be had."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import turret
from turret.errors import DoubleBackwardError

OPTIONS = {"cache": False, "on_error": "raise"}
F64 = torch.float64


def leaves(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(*shape, generator=generator, dtype=F64).requires_grad_() for shape in shapes]


def orders(function: Callable[..., Any], given: list[torch.Tensor], order: int) -> list[Any]:
    """Gradients of every order up to ``order``, each of a number that the ones before went into."""
    results = function(*given)
    total = sum(r.square().sum() for r in (results if isinstance(results, (list, tuple)) else [results]))
    found = []
    for _ in range(order):
        gradients = torch.autograd.grad(total, given, create_graph=True, allow_unused=True)
        found += gradients
        total = total + sum((g * g.sin()).sum() for g in gradients if g is not None and g.requires_grad)
    return found


def agree(function: Callable[..., Any], given: list[torch.Tensor], order: int = 2, **options: Any) -> None:
    compiled = turret.compile(function, options=OPTIONS | options)
    expected = orders(function, given, order)
    for _ in range(2):
        for mine, theirs in zip(orders(compiled, given, order), expected, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                torch.testing.assert_close(mine.detach(), theirs.detach(), rtol=1e-9, atol=1e-9)


STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sin": lambda a, b: a.sin(),
    "tanh": lambda a, b: a.tanh() * 2,
    "sigmoid": lambda a, b: (a + b).sigmoid(),
    "mul": lambda a, b: a * b,
    "mm": lambda a, b: a @ b.t() / 2,
    "softmax": lambda a, b: a.softmax(-1),
    "norm": lambda a, b: F.layer_norm(a, (4,)),
    "sum": lambda a, b: a.sum(0, keepdim=True) + b,
    "relu": lambda a, b: a.relu() + b,
    "exp": lambda a, b: (a.tanh() + b.tanh()).exp(),
    "detached": lambda a, b: a * b.detach(),
    "without gradients": lambda a, b: a + _plain(b),
    "reshaped": lambda a, b: a.reshape(2, 8).cos().reshape(4, 4),
    "gathered": lambda a, b: a[[0, 2, 2, 1]] * b,
    "logsumexp": lambda a, b: a.logsumexp(1, keepdim=True) - b,
}


def _plain(value: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return value.cos()


@pytest.mark.thorough
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5),
    st.integers(1, 2),
    st.sampled_from([2, 2, 3]),
)
@settings(max_examples=20)
def test_drawn_programs_have_eager_s_gradients_of_any_order(steps, outputs, order):
    def program(x, y):
        values = [x, y]
        for name, first, second in steps:
            values.append(STEPS[name](values[first % len(values)], values[second % len(values)]))
        return values[-outputs:] if len(values) > 2 + outputs else values[-1]

    agree(program, leaves((4, 4), (4, 4)), order)


SECOND = {
    "hessian": lambda f, x: torch.autograd.functional.hessian(f, x),
    "hvp": lambda f, x: torch.autograd.functional.hvp(f, x, torch.ones_like(x)),
    "vhp": lambda f, x: torch.autograd.functional.vhp(f, x, torch.ones_like(x)),
    "jvp": lambda f, x: torch.autograd.functional.jvp(f, x, torch.ones_like(x)),
    "through what comes before": lambda f, x: torch.autograd.functional.hessian(lambda x: f(x.cos()), x),
    "through what comes after": lambda f, x: torch.autograd.functional.hessian(lambda x: f(x).exp(), x),
}


@pytest.mark.parametrize("program", [lambda x: (x.sin() * x).exp().sum(), lambda x: x.sin().sum()])
@pytest.mark.parametrize("name", SECOND)
def test_torchs_functions_of_second_order_are_eager_s(name, program):
    fast = turret.compile(program, options=OPTIONS)
    (x,) = leaves((3,))
    torch.testing.assert_close(SECOND[name](fast, x.detach()), SECOND[name](program, x.detach()))


def penalised(critic: nn.Module, compiled: Callable[..., Any]) -> list[torch.Tensor]:
    """Gradients of a critic's weights under a penalty on the norm of its gradient."""
    critic.zero_grad()
    x = torch.linspace(-1, 1, 12, dtype=F64).reshape(3, 4).requires_grad_()
    scores = compiled(x * 2)
    (gradient,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
    (scores.mean() + ((gradient.norm(2, 1) - 1) ** 2).mean()).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in critic.parameters()]


@pytest.mark.parametrize("cached", [False, True], ids=["compiled here", "from the cache"])
def test_a_penalty_on_gradients_trains_a_module_as_in_eager(cached, tmp_path):
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1)).double()
    options = OPTIONS | ({"cache": True, "cache_dir": str(tmp_path)} if cached else {})
    expected = penalised(critic, critic)
    for _ in range(2 if cached else 1):
        turret.reset()
        torch.testing.assert_close(penalised(critic, turret.compile(critic, options=options)), expected)


def test_gradients_of_some_outputs_alone_have_gradients_too():
    def program(x, y):
        return x.sin() * y, x.exp()

    def partial(function):
        x, y = leaves((3,), (3,))
        first, _ = function(x, y)
        (gradient,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.sum(), (x, y))

    torch.testing.assert_close(partial(turret.compile(program, options=OPTIONS)), partial(program))


def test_sizes_may_be_dynamic():
    def program(x, y):
        return (x @ y).sigmoid()

    compiled = turret.compile(program, options=OPTIONS, dynamic=True)
    for n in (2, 3, 5):
        given = leaves((n, 4), (4, n))
        for mine, theirs in zip(
            orders(compiled, given, 2), orders(lambda x, y: (x @ y).sigmoid(), given, 2), strict=True
        ):
            torch.testing.assert_close(mine, theirs)


def test_a_graph_that_was_kept_is_differentiated_again():
    (x,) = leaves((3,))
    compiled = turret.compile(lambda x: (x * 2).exp(), options=OPTIONS)
    (gradient,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    for _ in range(2):
        (second,) = torch.autograd.grad(gradient.sum(), x, retain_graph=True)
        torch.testing.assert_close(second, 4 * (2 * x).exp())


def refusal(function: Callable[..., Any], between: Callable[..., None] = lambda *held: None, match: str = "") -> None:
    (x,) = leaves((4,))
    held = [x * 2, torch.ones(4, dtype=F64)]
    result = turret.compile(function, options=OPTIONS)(*held).sum()
    between(held)
    (gradient,) = torch.autograd.grad(result, x, create_graph=True)
    with pytest.raises(DoubleBackwardError, match=match):
        gradient.sum().backward()


def test_random_numbers_are_not_drawn_anew():
    refusal(lambda x, y: F.dropout(x.sin(), 0.5) * y, match="random numbers.*without turret.compile")


def test_changed_inputs_are_not_taken_for_what_they_were():
    refusal(lambda x, y: (y.add_(1), x.sin() * y)[1], match="changes its inputs")
    # The sum is not saved for the backward, so that autograd does not look at its version.
    refusal(lambda x, y: (x + y).sigmoid(), lambda held: held[1].add_(1), match="was written to since")


def test_an_input_that_nobody_kept_is_let_go_of_and_named():
    refusal(lambda x, y: (x + y).sigmoid(), lambda held: held.clear(), match="is gone")
    compiled = turret.compile(lambda x: (x + 1).sigmoid(), options=OPTIONS)
    (x,) = leaves((4,))
    inner = x * 2
    seen = weakref.ref(inner)
    result = compiled(inner)
    del inner
    gc.collect()
    assert seen() is None
    result.sum().backward()
