"""What ``torch.func`` decides about a function that is captured for it: whose formulas hold, and what tensors say."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from tests.plugins.capture.capture_lab import Observed, assert_same, outcome


class Sine(torch.autograd.Function):
    """Its derivatives, and what it does to a batch, are not what its forward would give."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x):
        return torch.sin(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 5

    @staticmethod
    def vmap(info, in_dims, x):
        return Sine.apply(x) * 11, in_dims[0]


def asks_whether_it_requires_gradients(x):
    y = x * 1
    return y * 2 if y.requires_grad else y * 5


def asks_whether_it_is_a_leaf(x):
    y = x * 1
    return y * 2 if y.is_leaf else y * 5


def has_a_hook_where_gradients_flow(x):
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 10)
    return y * x


def checkpoints(x):
    return checkpoint(torch.sin, x, use_reentrant=False)


def checkpoints_by_a_function(x):
    return checkpoint(torch.sin, x, use_reentrant=True)


def checkpoints_without_gradients(x):
    with torch.no_grad():
        return checkpoint(torch.sin, x, use_reentrant=False) + checkpoints_by_a_function(x)


FUNCTIONS = [
    Sine.apply,
    asks_whether_it_requires_gradients,
    asks_whether_it_is_a_leaf,
    has_a_hook_where_gradients_flow,
    checkpoints,
    checkpoints_by_a_function,
    checkpoints_without_gradients,
]


def pulled_back(f, x):
    value, pull = torch.func.vjp(f, x)
    return value, pull(torch.ones_like(value))


def at_a_dual_level(f, x):
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))))


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "vjp": pulled_back,
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "vmap": lambda f, x: torch.vmap(f)(x),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "dual level": at_a_dual_level,
    "vmap of grad": lambda f, x: torch.vmap(torch.func.grad(f))(x),
}


@pytest.mark.filterwarnings("ignore:nothing of")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__qualname__)
def test_a_function_under_a_transform_is_what_it_is_eagerly(f, transform):
    def program(x):
        return TRANSFORMS[transform](f, x + 0)

    x = torch.tensor([0.5, 1.0, 2.0])
    (how, found), (expected_how, expected) = (outcome(run, (x,), {}) for run in (Observed(program).call, program))
    assert how == expected_how, found
    assert_same(type(found) if how == "raised" else found, type(expected) if how == "raised" else expected)


def test_what_breaks_a_graph_under_a_transform_is_told():
    observed = Observed(lambda x: torch.func.grad(lambda x: Sine.apply(x).sum())(x) + x.exp())
    observed.call(torch.ones(3))
    assert "an autograd.Function under torch.func.grad" in str(observed.breaks)
