"""The default dtype, set in the program: seen by what follows, in the graph and after the call."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

X = torch.arange(1, 5)
STEPS = ("float64", "float32", "bfloat16", "int64", "ones", "divide", "tensor", "scalar", "ask", "random", "break")


@pytest.fixture(autouse=True)
def as_before():
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


def following(x, steps, restore):
    before, seen = torch.get_default_dtype(), []
    for step in steps:
        if step in ("float64", "float32", "bfloat16"):
            torch.set_default_dtype(getattr(torch, step))
        elif step == "int64":
            try:
                torch.set_default_dtype(torch.int64)
            except TypeError as error:
                seen.append(str(error))
        elif step == "ones":
            seen.append(torch.ones(2))
        elif step == "divide":
            seen.append(x / 3)
        elif step == "tensor":
            seen.append(torch.tensor([0.1]) + x)
        elif step == "scalar":
            seen.append((x * 0.1, torch.full((2,), 0.1), torch.where(x > 2, 0.1, 0.2)))
        elif step == "ask":
            seen.append(torch.get_default_dtype())
        elif step == "random":
            seen.append(torch.rand(2).dtype)
        else:
            turret.graph_break()
    if restore:
        torch.set_default_dtype(before)
    return seen, x + 1


def compared(call, *args):
    torch.set_default_dtype(torch.float32)
    found = outcome(call, args, {})
    after = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    return found, after


@given(st.lists(st.sampled_from(STEPS), max_size=6).map(tuple), st.booleans())
@settings(max_examples=50, deadline=None)
def test_what_follows_has_the_dtype_that_was_set(steps, restore):
    observed = Observed(following)
    for _ in range(2):
        found, expected = compared(observed, X, steps, restore), compared(following, X, steps, restore)
        assert_same(found[0], expected[0])
        assert found[1] is expected[1]
    if not {"break", "int64"} & set(steps):
        assert not observed.breaks


def test_a_default_dtype_that_an_error_leaves_behind():
    def program(x):
        torch.set_default_dtype(torch.float64)
        y = x * 0.5
        raise ValueError(y.dtype)

    assert_same(*(compared(call, X) for call in (Observed(program), program)))


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (x * self.weight).double() + torch.full((4,), 0.1) + torch.ones(4, dtype=torch.int64) / 3


def alike_layers(layers, x):
    for dtype, layer in zip((torch.float32, torch.float64, torch.float64, torch.float32), layers, strict=True):
        torch.set_default_dtype(dtype)
        x = layer(x)
    torch.set_default_dtype(torch.float32)
    return x


def test_layers_that_are_alike_under_other_dtypes_with_gradients():
    layers = torch.nn.ModuleList(Layer() for _ in range(4))
    results = []
    for call in (
        turret.compile(alike_layers, fullgraph=True, options={"on_error": "raise", "cache": False}),
        alike_layers,
    ):
        layers.zero_grad()
        y = call(layers, X / 1)
        y.square().sum().backward()
        results.append((y.detach(), [p.grad for p in layers.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-9)
