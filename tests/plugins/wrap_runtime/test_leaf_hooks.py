"""Hooks of leaves are called where a gradient comes, and not where a graph leads to them without one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import turret


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.trunk(x).tanh()
        return self.one(hidden), self.other(hidden)


def backward_of_one(heads: tuple[torch.Tensor, torch.Tensor], module: Heads) -> None:
    heads[0].sum().backward()


def backward_with_another_use(heads: tuple[torch.Tensor, torch.Tensor], module: Heads) -> None:
    (heads[0].sum() + (module.other.weight**2).sum()).backward()


def backward_of_both(heads: tuple[torch.Tensor, torch.Tensor], module: Heads) -> None:
    (heads[0].sum() + heads[1].sum()).backward()


def gradient_alone(heads: tuple[torch.Tensor, torch.Tensor], module: Heads) -> None:
    torch.autograd.grad(heads[0].sum(), [module.trunk.weight])


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize(
    "differentiate", [backward_of_one, backward_with_another_use, backward_of_both, gradient_alone]
)
def test_hooks_are_called_as_eager_calls_them(kind: str, differentiate: Callable) -> None:
    def told(compile_module: Callable) -> tuple[list, list]:
        torch.manual_seed(0)
        module, calls = Heads(), []
        for name, parameter in module.named_parameters():

            def hook(given: torch.Tensor, name: str = name) -> torch.Tensor | None:
                calls.append((name, given.shape))
                return given * 2 if kind == "register_hook" else None

            getattr(parameter, kind)(hook)
        compiled = compile_module(module)
        for _ in range(2):
            differentiate(compiled(torch.ones(2, 3)), module)
        return sorted(calls), [p.grad for p in module.parameters()]

    (expected, gradients), (found, compiled) = told(lambda m: m), told(turret.compile)
    assert found == expected
    for mine, theirs in zip(compiled, gradients, strict=True):
        assert (mine is None) == (theirs is None)
        torch.testing.assert_close(mine, theirs)


def test_hooks_that_go_while_a_backward_runs_stay_gone() -> None:
    module = Heads()
    handles = [module.other.weight.register_hook(lambda gradient: gradient * 2)]
    module.trunk.weight.register_hook(lambda gradient: handles.pop().remove() if handles else None)
    one, _ = turret.compile(module)(torch.ones(2, 3))
    one.sum().backward()
    assert not module.other.weight._backward_hooks and not handles


def test_a_graph_behind_another_one_spares_hooks_ahead_of_both() -> None:
    first, second = Heads(), Heads()
    calls: list[bool] = []
    first.other.weight.register_hook(lambda gradient: calls.append(gradient is None))
    one, other = turret.compile(first)(torch.ones(2, 3))
    left, right = turret.compile(lambda a, b: (second.one(a), second.other(b)))(one, other)
    left.sum().backward(retain_graph=True)
    assert calls == []
    right.sum().backward()
    assert calls == [False]


def test_a_view_that_was_made_without_gradients_is_no_leaf_to_look_for():
    def program(a, b):
        with torch.no_grad():
            view = a.view(1, 3).t().reshape(3)
        turret.graph_break()
        return view * b, a * 2

    told = []
    for function in (program, turret.compile(program, options={"cache": False, "on_error": "raise"})):
        a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
        first, second = function(a * 1, b)
        second.sum().backward()
        told.append((a.grad, b.grad, first.detach()))
    torch.testing.assert_close(told[1], told[0])
