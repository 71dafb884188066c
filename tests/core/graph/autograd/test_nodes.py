"""Gradients end where they are told to, and results of one node have nodes of their own."""

from __future__ import annotations

import pytest
import torch

from turret.graph.autograd.nodes import native, stopped


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@pytest.mark.parametrize("make", [torch.sin, Doubled.apply, lambda x: x.split(1)[0]], ids=["native", "python", "view"])
def test_no_gradient_goes_on_from_where_it_ends(make):
    x = torch.ones(2, requires_grad=True)
    h = make(x)
    result = (h * x[:1] * torch.inf).sum() if make is torch.sin else (h * x[:1]).sum()
    with stopped([h]):
        to_x, to_h = torch.autograd.grad(result, [x, h], retain_graph=True)
    torch.testing.assert_close(to_h, (torch.inf if make is torch.sin else 1) * torch.ones_like(h))
    assert to_x[1] == 0, "nothing came through h"
    through = torch.autograd.grad(result, x, retain_graph=True)[0]
    assert not torch.equal(through, to_x), "hooks are gone behind"


def test_a_result_next_to_where_gradients_end_has_all_of_its_own():
    x = torch.ones(2, requires_grad=True)
    first, second = x.clone().unbind()
    with stopped([first]):
        (to_x,) = torch.autograd.grad(first * 3 + second * 5, [x])
    torch.testing.assert_close(to_x, torch.tensor([0.0, 5.0]))


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return sum(g * k for g, k in ((first, 2), (second, 3)) if g is not None)


def test_a_hook_of_one_result_is_not_called_for_the_gradient_of_another():
    x, seen = torch.ones(2, requires_grad=True), []
    first, second = Two.apply(x)
    native().part([first, second])
    first.register_hook(seen.append)
    second.sum().backward()
    assert seen == []
    torch.testing.assert_close(x.grad, torch.full((2,), 3.0))


def test_a_result_that_requires_no_gradient_is_left_as_it_is():
    plain, made = torch.ones(2), torch.ones(2, requires_grad=True)
    native().part([plain, made])
    assert plain.grad_fn is None and made.grad_fn is None


@pytest.mark.parametrize("given", [[1], 3, [None]])
def test_what_is_no_tensor_is_an_error(given):
    with pytest.raises(TypeError):
        native().part(given)


def test_an_error_on_the_way_reaches_the_caller():
    def cut(root, gradients, numbers, edges):
        raise LookupError("here")

    x = torch.ones(2, requires_grad=True)
    first, second = Two.apply(x)
    native().derive(native().group(cut), [second], [first], None)
    first.retain_grad()
    with pytest.raises(LookupError, match="here"):
        second.sum().backward()
