"""Backwards of one output after another: autograd frees for each what eager's frees, and no more."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import turret


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


class Negative(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return -x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


def layers(x, w):
    for _ in range(4):
        x = torch.tanh(x @ w.diag() + x)
    return x


PROGRAMS = {
    "apart": lambda x, w: (x.exp() * 2, w.sin()),
    "shared": lambda x, w: both(x * w),
    "shared sum": lambda x, w: both(x + w),
    "nothing": lambda x, w: (x + w, x.cumsum(0)),
    "one": lambda x, w: (x + w, x * w),
    "three": lambda x, w: (x.exp(), w.exp(), x * w),
    "one of another": lambda x, w: (lambda h: (h, h + w, h * x))(x.exp()),
    "functions": lambda x, w: (Cube.apply(x), Negative.apply(w), Cube.apply(w)),
    "function below": lambda x, w: both(Negative.apply(x)),
    "written": lambda x, w: ((x * 1).mul_(w), (w + 1).add_(x)),
    "layers": lambda x, w: (layers(x, w), w + 1, x.sin()),
    "checkpoint": lambda x, w: (checkpoint(torch.sin, x, use_reentrant=False), w.exp()),
    "views": lambda x, w: (x.exp()[1:], (w + x)[:2]),
}


def both(value):
    return value.exp(), value.sin()


def outcome(function, order, keep):
    x, w = torch.full((3,), 0.5, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    results = function(x, w)
    for roots, kept in zip(order, keep, strict=True):
        try:
            torch.autograd.backward([results[n % len(results)].sum() for n in roots], retain_graph=kept)
        except RuntimeError as error:
            return str(error).split(" (")[0], []  # eager's has accumulated some gradients by then
    return "", [x.grad, w.grad]


@pytest.mark.parametrize("program", PROGRAMS)
def test_backwards_of_one_output_after_another_find_what_eagers_find(program):
    function = PROGRAMS[program]
    compiled = turret.compile(function, backend="aot_eager", options={"on_error": "raise"})
    for order in itertools.product([(0,), (1,), (2,), (0, 1)], repeat=3):
        for keep in itertools.product([False, True], repeat=2):
            said, expected = outcome(function, order, (*keep, False))
            found = outcome(compiled, order, (*keep, False))
            assert found[0] == said, (order, keep)
            torch.testing.assert_close(found[1], expected, msg=f"{order} {keep}")


def test_what_is_kept_for_another_output_is_checked_for_writes():
    x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
    first, second = turret.compile(lambda x, w: (x.exp(), w.sin()))(x, w)
    first.sum().backward()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError):
        second.sum().backward()


def test_a_node_does_not_keep_itself():
    x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
    first, second = turret.compile(lambda x, w: (x.exp(), w.exp()))(x, w)
    first.sum().backward()
    node = weakref.ref(first.grad_fn.next_functions[0][0])
    gc.disable()
    try:
        del first, second
        assert node() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("change", ["double", "half"])
def test_a_parameter_whose_type_was_changed_before_the_backward_is_not_read_as_what_it_was(change):
    net = torch.nn.Linear(3, 3)
    fast = turret.compile(net, fullgraph=True, options={"on_error": "raise", "cache": False})
    x = torch.ones(2, 3, requires_grad=True)
    fast(x).sum().backward()
    result = fast(x).sum()
    getattr(net, change)()
    with pytest.raises(RuntimeError, match=r"was torch.float32, cpu, .* and is torch.(float64|float16), cpu"):
        result.backward()
    net.float()
    fast(x).sum().backward()


@pytest.mark.parametrize(
    "other", [torch.ones(1), torch.ones(3, 3).t() * 2, torch.ones(2, 3)], ids=["fewer", "turned", "rows"]
)
def test_a_parameter_whose_memory_was_laid_out_otherwise_before_the_backward_is_not_read_as_it_was(other):
    weight = torch.nn.Parameter(torch.arange(9.0).reshape(3, 3))
    fast = turret.compile(torch.mm, fullgraph=True, options={"on_error": "raise", "cache": False})
    x = torch.ones(2, 3, requires_grad=True)
    result = fast(x, weight).sum()
    before, weight.data = weight.data, other
    with pytest.raises(RuntimeError, match=r"saved for its backward was .*, and is .* now"):
        result.backward()
    weight.data = before
    fast(x, weight).sum().backward()
    assert x.grad is not None


def test_a_parameter_whose_numbers_were_set_before_the_backward_is_read_as_it_is():
    weight = torch.nn.Parameter(torch.ones(3, 3))
    fast = turret.compile(torch.mm, fullgraph=True, options={"on_error": "raise", "cache": False})
    x = torch.ones(2, 3, requires_grad=True)
    for call in (fast, torch.mm):
        weight.data = torch.ones(3, 3)
        result = call(x, weight).sum()
        weight.data = weight.data * 3
        assert torch.equal(torch.autograd.grad(result, x)[0], torch.full((2, 3), 9.0))
