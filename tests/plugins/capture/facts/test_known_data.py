"""Tensors made of numbers and sizes are known while capturing: reading them, or a branch on them, breaks no graph."""

from __future__ import annotations

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.arange(12.0).reshape(3, 4)
NUMBERS = [0.5, 1.5]


def in_place(x):
    """Not followed further, but seen."""
    s = torch.tensor(x.shape)
    view = s[1:]
    first = s[0].item()
    s.mul_(2)
    return x + first + view.sum()


READS = [
    lambda x: x + int(torch._shape_as_tensor(x)[0]),
    lambda x: x + 1 if torch._shape_as_tensor(x)[0] > 2 else x * 2,
    lambda x: x + torch._shape_as_tensor(x).prod().item(),
    lambda x: x + 1 if 2 * torch._shape_as_tensor(x)[1] - 1 > 4 else x * 2,
    lambda x: x + int(torch.stack([torch._shape_as_tensor(x)[0], torch.tensor(3)])[1]),
    lambda x: x.reshape(torch.tensor(x.shape).flip(0).tolist()),
    lambda x: x + 1 if torch.tensor(x.shape).sum() > 50 else x * 2,
    lambda x: x + torch.as_tensor([x.size(0)]).item() + int(torch.as_tensor(x.shape).max()),
    lambda x: torch.nn.functional.interpolate(x[None, None], size=(torch._shape_as_tensor(x) * 2).tolist()),
    lambda x: x + 1 if (torch.tensor(x.shape) == torch.tensor([3, 4])).all() else x,
    lambda x: x + sum(v.item() for v in torch.linspace(0, 0.1, 3)),
    lambda x: [x + i for i in range(torch.tensor(x.shape[1]))],
    lambda x: x * torch.tensor(NUMBERS)[1].item() + len(torch.zeros(2, 2).tolist()),
    lambda x: x + 1 if torch.tensor(NUMBERS).max(dim=0)[1].item() else x,
    lambda x: (
        torch.full((2,), 3).tolist(),
        torch.eye(2).sum().item(),
        torch.ones(2, dtype=torch.bool).tolist(),
        x + 1,
    ),
    in_place,
]
MANY = [lambda x: x + sum(torch.arange(x.shape[0]).tolist())]
"""As many elements as a size says, which may be a symbol."""


@pytest.mark.parametrize("program", READS + MANY)
def test_what_is_known_is_read_while_capturing(program):
    assert_same(Observed(program, fullgraph=True)(X), program(X))
    assert_same(turret.compile(program, options={"capture": "turret", "on_error": "raise"})(X), program(X))


@pytest.mark.parametrize("program", READS)
def test_sizes_that_were_seen_to_change_are_assumed_where_they_are_read(program):
    observed = Observed(program, fullgraph=True, dynamic=True)
    assert_same(observed(X), program(X))


def test_each_size_that_is_read_is_captured_anew():
    def program(x):
        return x.reshape(torch._shape_as_tensor(x).flip(0).tolist())

    observed = Observed(program, fullgraph=True)
    for shape in ((3, 4), (5, 7), (6, 2), (5, 7)):
        x = torch.randn(shape)
        assert_same(observed(x), program(x))
    assert len(observed.graphs) == 3


def changed(x):
    s = torch.tensor([1, 2])
    s[0] = x.sum().long()
    return x + s[0].item()


def changed_through_a_view(x):
    s = torch.tensor([1, 2])
    s.view(2, 1)[0].copy_(x.sum().long())
    return x + s.tolist()[0]


def changed_sizes(x):
    s = torch._shape_as_tensor(x)
    s.add_(x.sum().long())
    return x + s[0].item()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [changed, changed_through_a_view, changed_sizes])
def test_what_was_changed_in_place_is_not_known(program, dynamic):
    observed = Observed(program, dynamic=dynamic)
    for x in (X, X + 1):
        assert_same(observed(x), program(x))
    assert observed.breaks


def test_random_numbers_are_not_known():
    def program(x):
        p = torch.full((2,), 0.5)
        return x + torch.bernoulli(p).sum().item(), torch.rand_like(p).tolist(), p.new_empty(2).shape

    observed = Observed(program)
    torch.manual_seed(3)
    expected = [program(X) for _ in range(3)]
    torch.manual_seed(3)
    for one in expected:
        assert_same(observed(X), one)
    assert observed.breaks


def test_lists_of_tensors_that_are_changed_in_place_are_known_no_more():
    def program(x):
        steps = [torch.tensor(0.0), torch.tensor(2.0)]
        torch._foreach_add_(steps, 1.0)
        torch._foreach_mul_([steps[1]], [2.0])
        return x * steps[0].item() + steps[1].item()

    observed = Observed(program)
    assert_same(observed(X), program(X))


def test_numbers_from_outside_are_assumed():
    def program(x):
        return x + 1 if torch.tensor(NUMBERS).sum() > 1 else x - 1

    observed = Observed(program, fullgraph=True)
    assert_same(observed(X), X + 1)
    NUMBERS[1] = 0.25
    try:
        assert_same(observed(X), X - 1)
    finally:
        NUMBERS[1] = 1.5


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, number):
        for part in self.parts:
            x = part(x)
        return x + 1 if number.item() % 2 == 0 else x * 2


def test_layers_that_read_what_they_are_given_are_followed_each_time():
    layers = torch.nn.ModuleList(Layer() for _ in range(3))

    def program(x):
        for number, layer in enumerate(layers):
            x = layer(x, torch.tensor(number))
        return x

    assert_same(Observed(program, fullgraph=True)(X), program(X))
