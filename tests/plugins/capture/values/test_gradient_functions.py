"""``grad_fn`` of tensors in compiled code."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


@pytest.mark.parametrize(
    "compute", [torch.sin, Tripled.apply, torch.Tensor.detach, lambda x: x, lambda x: x.unbind()[0]]
)
def test_whether_there_is_one_breaks_no_graph(compute):
    def program(x):
        y = compute(x)
        return y * 2 if y.grad_fn is None else y * 3, y.grad_fn is not None, bool(y.grad_fn)

    observed = Observed(program, fullgraph=True)
    leaf = torch.ones(3, requires_grad=True)
    for x in (leaf, leaf.clone(), torch.ones(3)):
        assert_same(observed(x), program(x))


def test_results_of_one_operation_have_the_same_one():
    def program(x):
        a, b = x.unbind()
        return a.grad_fn is b.grad_fn, a.grad_fn is a.grad_fn, a.grad_fn is (a * b).grad_fn, (a * b).detach()

    x = torch.ones(2, requires_grad=True)
    assert_same(Observed(program, fullgraph=True)(x), program(x))


def test_one_that_is_looked_at_is_eagers():
    def program(x):
        y = x.sin()
        function = y.grad_fn
        return y * 2, function.name(), type(function).__name__, function

    x = torch.ones(2, requires_grad=True)
    observed = Observed(program)
    *found, function = observed(x)
    assert_same(found, [*program(x)[:3]])
    assert function is not None
    assert len(observed.graphs) >= 1
