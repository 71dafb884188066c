"""Gradients asked for in a frame of what was computed before it: eager's, whatever lies between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import assert_same
from turret.errors import CaptureError


def _retained(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad:
        tensor.retain_grad()
    return tensor


BEFORE: dict[str, Callable] = {
    "of it": lambda x, w: x * 2,
    "of it and others": lambda x, w: x * w,
    "of others": lambda x, w: w.tanh(),
    "made of a view": lambda x, w: x[1:].expand(2, 2).reshape(-1),
    "a view of it": lambda x, w: x.view(3, 1),
    "a part of it": lambda x, w: x[1:],
    "without a history": lambda x, w: torch.ones(3),
    "itself": lambda x, w: x,
}
INSIDE: dict[str, Callable] = {
    "of both": lambda x, z: (x.sum() * z).sum(),
    "of what was before": lambda x, z: z.sin().sum(),
    "of itself": lambda x, z: x.exp().sum(),
    "with a gradient that is retained": lambda x, z: (x.sum() * _retained(z * 2)).sum(),
    "of a leaf made here": lambda x, z: (z.detach().requires_grad_() * x.sum()).sum(),
}


@settings(max_examples=60)
@given(
    before=st.sampled_from(sorted(BEFORE)),
    inside=st.sampled_from(sorted(INSIDE)),
    is_leaf=st.booleans(),
    creates=st.booleans(),
    breaks=st.booleans(),
    method=st.sampled_from(["grad", "backward", "backward of inputs"]),
)
def test_gradients_reach_what_was_computed_before(
    before: str, inside: str, is_leaf: bool, creates: bool, breaks: bool, method: str
) -> None:
    def step(x: torch.Tensor, z: torch.Tensor) -> object:
        y = INSIDE[inside](x, z)
        if method == "grad":
            return torch.autograd.grad(y, x, create_graph=creates, retain_graph=True, allow_unused=True)
        y.backward(create_graph=creates, retain_graph=True, inputs=None if method == "backward" else [x])
        return x.grad if x.is_leaf else None

    def whole(x: torch.Tensor, w: torch.Tensor) -> object:
        z = BEFORE[before](x, w)
        if breaks:
            turret.graph_break()
        return step(x, z)

    def outcome(function: Callable) -> object:
        leaf = torch.tensor([0.5, -1.0, 2.0], requires_grad=True)
        weight = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        x = leaf if is_leaf else leaf * 1
        try:
            found = function(x, weight)
        except RuntimeError as error:
            return type(error)
        return found, leaf.grad, weight.grad

    compiled = turret.compile(step, options={"cache": False})
    try:
        expected = outcome(lambda x, w: step(x, BEFORE[before](x, w)))
        assert_same(outcome(lambda x, w: compiled(x, BEFORE[before](x, w))), expected, "the step compiled")
        assert_same(outcome(turret.compile(whole, options={"cache": False})), expected, "all compiled")
    finally:
        turret.reset()


def test_a_gradient_for_what_the_frame_computed_is_taken_behind_the_graph_that_did() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> object:
        w.cumsum(0).retain_grad()  # with which the graph does not go on
        hidden = x.sin()
        return torch.autograd.grad((hidden * w).sum(), hidden, allow_unused=True)

    x, w = torch.ones(3, requires_grad=True), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    (found,) = turret.compile(program)(x, w)
    assert found is not None and torch.equal(found, w)


@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_gradient_for_an_argument_with_hooks_is_what_they_make_of_it(is_leaf: bool) -> None:
    def step(x: torch.Tensor) -> object:
        return torch.autograd.grad((x * 3).sum(), x)

    compiled = turret.compile(step)
    for hooks in range(3):
        x = torch.ones(3, requires_grad=True)
        x = x if is_leaf else x * 1
        for _ in range(hooks):
            x.register_hook(lambda gradient: gradient * 2)
        assert_same(compiled(x), step(x), f"with {hooks} hooks")


def test_one_graph_says_why_it_cannot_have_them() -> None:
    def step(x: torch.Tensor, z: torch.Tensor) -> object:
        return torch.autograd.grad((x * z).sum(), x)

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(CaptureError, match="goes on into what was computed before"):
        turret.compile(step, fullgraph=True)(x, x * 2)


def test_penalties_of_leaves_made_in_the_graph_are_in_it() -> None:
    def penalty(real: torch.Tensor, fake: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        between = (0.5 * real + 0.5 * fake).detach().requires_grad_()
        (found,) = torch.autograd.grad((between @ w).tanh().sum(), between, create_graph=True)
        return ((found.norm(dim=1) - 1) ** 2).mean()

    w = torch.randn(4, 3, requires_grad=True)
    real, fake = torch.randn(2, 4), torch.randn(2, 4, requires_grad=True) * 2
    found = turret.compile(penalty, fullgraph=True)(real, fake, w)
    torch.testing.assert_close(found, penalty(real, fake, w))
