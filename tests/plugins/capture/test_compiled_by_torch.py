"""What a program gave to torch.compile is, inside of what Turret compiles, a part of the graph around."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.arange(4.0)


@pytest.fixture(scope="module")
def compiled():
    """Functions and modules that torch compiles; its compiler is loaded for them."""
    made = {
        "function": torch.compile(lambda v: v * 2, backend="eager"),
        "module": torch.compile(nn.Linear(4, 4), backend="eager"),
        "in place": nn.Tanh(),
    }
    made["in place"].compile(backend="eager")
    return made


@pytest.mark.parametrize("name", ["function", "module", "in place"])
def test_a_call_of_it_is_in_the_graph(compiled, name):
    def program(v):
        return compiled[name](v + 1) * 2

    observed = Observed(program, fullgraph=True)
    assert_same(observed(X), program(X))
    assert len(observed.graphs) == 1


def test_attributes_of_a_compiled_module_are_those_of_the_module(compiled):
    def program(v):
        module = compiled["module"]
        return v * module.in_features + module.weight.sum(), module.bias is not None

    observed = Observed(program, fullgraph=True)
    assert_same(observed(X), program(X))


def test_compiled_functions_are_told_apart():
    double, triple = (torch.compile(f, backend="eager") for f in (lambda v: v * 2, lambda v: v * 3))

    def program(v, function):
        return function(v)

    observed = Observed(program, fullgraph=True)
    for function in (double, triple, double):
        assert_same(observed(X, function), program(X, function))
