"""Classes that a program defines: not looked into they cost nothing, and each call has one of its own."""

from __future__ import annotations

import pytest
import torch
from torch import masked, nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.arange(4.0)
OPTIONS = {"on_error": "raise", "cache": False}


def test_a_class_that_is_not_used_does_not_end_the_graph():
    def program(x):
        class Scale(torch.autograd.Function):
            """Never applied."""

            @staticmethod
            def forward(ctx, x):
                return x * 2

        return x + 1 if callable(Scale) else x

    observed = Observed(program, fullgraph=True)
    assert torch.equal(observed(X), X + 1) and not observed.breaks


def test_a_class_that_leaves_the_graph_is_one_of_its_call():
    def program(x, factor):
        class Scale(nn.Module):
            number = 3

            def __init__(self):
                super().__init__()
                self.factor = factor

            def forward(self, x):
                return x * self.factor

        factor = factor + 1
        return x + factor, Scale

    observed = Observed(program, fullgraph=True)
    (found, first), (expected, theirs) = observed(X, X), program(X, X)
    _, second = observed(X, X)
    assert_same(found, expected)
    assert first is not second and first.__qualname__ == theirs.__qualname__ and first.number == 3
    assert torch.equal(first()(X), theirs()(X))


def test_a_class_that_is_used_or_whose_body_computes_is_left_to_python():
    def used(x):
        class Double:
            def of(self, x):
                return x * 2

        return Double().of(x + 1) + 1

    def computes(x):
        class Numbers:
            total = len(x.shape)

        return x + Numbers.total

    def hears(x):
        class Base:
            found = 0

            def __init_subclass__(cls):
                Base.found += 1

        class Derived(Base):
            pass

        return x, Base.found

    for program in (used, computes, hears):
        assert_same(Observed(program)(X), program(X))
        with pytest.raises(turret.TurretError, match="a class defined in compiled code"):
            turret.compile(program, fullgraph=True, options=OPTIONS)(X)


@pytest.mark.parametrize("name", ["sum", "amax", "logsumexp", "softmax", "var", "cumsum", "argmin"])
def test_masked_reductions_are_one_graph(name):
    function = getattr(masked, name)

    def program(x):
        return function(x * 2, 1, mask=x > -1)

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    observed = Observed(program, fullgraph=True)
    torch.testing.assert_close(observed(x), program(x))
    assert len(observed.graphs) == 1
