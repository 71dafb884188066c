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


def _row_and_rows():
    memory = torch.arange(16.0).view(4, 4)
    return memory[1], memory[:2]


def _row_and_base():
    memory = torch.arange(16.0).view(4, 4)
    return memory[1], memory


@pytest.mark.filterwarnings("ignore:nothing of")
@pytest.mark.parametrize("make", [_row_and_rows, _row_and_base])
@pytest.mark.parametrize(
    "program",
    [
        lambda row, rows, x: (row.copy_(x[0]), rows * 2),
        lambda row, rows, x: (rows.copy_(x[: rows.shape[0]]), row * 2),
        lambda row, rows, x: (rows.copy_(x[: rows.shape[0]]).sin(), row.exp(), row * x),
        lambda row, rows, x: (rows.mul_(2), row * x[0]),
    ],
)
def test_a_view_that_is_first_read_after_a_write_to_its_base_has_the_gradients_of_the_write(make, program):
    compiled = turret.compile(program, options={"on_error": "raise", "cache": False})
    found = []
    for function in (compiled, program):
        x = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
        row, rows = make()
        results = function(row, rows, x)
        (gradient,) = torch.autograd.grad(sum(r.sum() for r in results), x)
        found.append((*(r.detach() for r in results), row.detach(), rows.detach(), gradient))
        found[-1] += (row.requires_grad, rows.requires_grad)
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x.transpose(0, -1).add_(1)])
def test_a_strided_view_with_a_gradient_is_written_to_where_none_is_recorded(write, mode):
    def program(x):
        write(x)
        return x * 2

    compiled = turret.compile(program, fullgraph=True, options={"on_error": "raise"})
    found = []
    for function in (compiled, program):
        leaf = torch.arange(24.0).requires_grad_()
        x = leaf.clone().as_strided((2, 3, 4), (12, 4, 1))
        with mode():
            result = function(x)
        found.append((result, x.detach(), *torch.autograd.grad(x.sum(), leaf)))
    torch.testing.assert_close(found[0], found[1])
