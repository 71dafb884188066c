"""Dynamic sizes of tensors that have gradients, and of views: only what the graph is given has symbols."""

from __future__ import annotations

import pytest
import torch

import turret


def leaf(n, gradient=True):
    made = torch.arange(3.0 * n).view(n, 3).requires_grad_()
    if gradient:
        made.grad = torch.ones(n, 3)
    return made


@pytest.mark.parametrize(
    "make",
    [
        leaf,
        lambda n: leaf(n, n % 2 == 0),
        lambda n: leaf(n)[1:],
        lambda n: leaf(n)[1:].t()[:, 1:],
        lambda n: torch.ones(40, requires_grad=True).as_strided((n, 2), (3, 1)),
        lambda n: torch.ones(1, 3, requires_grad=True).expand(n, 3),
    ],
)
def test_any_input_with_a_gradient_may_have_dynamic_sizes(make):
    def function(x):
        return (x * 2).sum(0), x[1:]

    compiled = turret.compile(function, fullgraph=True, dynamic=True, options={"on_error": "raise", "cache": False})
    for n in (4, 5, 7):
        torch.testing.assert_close(compiled(make(n)), function(make(n)))


def test_a_gradient_that_the_program_reads_has_its_own_layout():
    def function(x):
        return x.grad * 2 + x

    compiled = turret.compile(function, fullgraph=True, dynamic=True, options={"on_error": "raise", "cache": False})
    for n in (4, 5, 7):
        x = leaf(n)
        if n % 2:
            x.grad = torch.arange(3.0 * n).view(3, n).t()
        torch.testing.assert_close(compiled(x), function(x))


def test_a_tensor_of_zeros_without_memory_is_left_to_python():
    def program(x):
        return x * 1.0 + x.sum()

    compiled = turret.compile(program, options={"cache": False})
    for x in (torch.ones(4), torch._efficientzerotensor((4,)), torch.ones(4)):
        torch.testing.assert_close(compiled(x), program(x))
