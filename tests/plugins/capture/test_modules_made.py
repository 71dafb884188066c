"""Modules made in compiled code: objects like any other, with the state that their constructors give them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.plugins.capture.capture_lab import Observed, assert_same, check

INNER = nn.Linear(4, 4)
HOLDER = nn.Module()


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        self.parts = nn.ModuleList([nn.Tanh(), INNER])
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x * self.scale + self.shift


X = torch.linspace(-1, 1, 8).reshape(2, 4)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: nn.ReLU()(x),
        lambda x: nn.BCEWithLogitsLoss(pos_weight=x.detach().exp().sum())(x, x.sigmoid()),
        lambda x: nn.Sequential(INNER, nn.ReLU())(x),
        lambda x: nn.Sequential(INNER, nn.ReLU(), nn.Dropout(0.5))[1:](x),
        lambda x: nn.Sequential(nn.Dropout(0.9), INNER).eval()(x),
        lambda x: Scaled(x.mean())(x),
        lambda x: sum(p.sum() for p in nn.Sequential(nn.ReLU(), INNER).parameters()) + x,
        lambda x: (x + 1, Scaled(2.0)),
    ],
)
def test_a_module_made_while_running(program):
    check(program, X, graphs=1)
    check(program, X.clone().requires_grad_(), graphs=1)


def test_parameters_made_while_running():
    check(lambda x: nn.Linear(4, 3)(x), X, graphs=1)
    check(lambda x: nn.BatchNorm1d(4)(x).detach(), X, graphs=1)


def test_a_constructor_runs_on_every_call():
    made = []

    class Counted(nn.ReLU):
        def __init__(self):
            super().__init__()
            made.append(self)

    observed = Observed(lambda x: Counted()(x), fullgraph=True)
    for number in range(3):
        assert torch.equal(observed(X), X.relu())
        assert len(made) == number + 1


def test_a_module_from_before_the_call_gets_a_new_submodule():
    def f(x):
        HOLDER.part = nn.ReLU()
        return HOLDER.part(x)

    check(f, X, breaks=0)
    assert "part" in HOLDER._modules and "part" not in vars(HOLDER)


def test_a_module_made_before_a_break():
    def f(x):
        part = nn.Sequential(nn.ReLU(), INNER)
        y = part(x)
        print(end="")
        return part(y)

    check(f, X, breaks=1)


def test_hooks_on_a_module_made_while_running():
    def f(x):
        part = nn.Tanh()
        part.register_forward_hook(lambda module, args, result: result * 3)
        return part(x)

    observed = Observed(f)
    assert_same(observed(X), f(X))


_COUNTING = """
def install_generation_tagging_init(init, setstate, counted):
    def patched_init(self, *args, **kwargs):
        init(self, *args, **kwargs)
        counted.append(id(self))
    def patched_setstate(self, state):
        setstate(self, state)
        counted.append(id(self))
    return patched_init, patched_setstate
"""


@pytest.fixture
def counted(monkeypatch):
    """The modules counted by a constructor and a ``__setstate__`` of the form that torch.compile, once in use, gives."""
    scope = {"__name__": "torch._dynamo.mutation_guard"}
    exec(_COUNTING, scope)
    counted = []
    own = nn.Module.__init__, nn.Module.__setstate__
    init, setstate = scope["install_generation_tagging_init"](*own, counted)
    monkeypatch.setattr(nn.Module, "__init__", init)
    monkeypatch.setattr(nn.Module, "__setstate__", setstate)
    return counted


def test_a_constructor_that_torch_compile_counts(counted):
    observed = check(lambda x: Scaled(x.mean())(x), X, graphs=1)
    before = len(counted)
    observed(X)
    assert len(counted) == before


def test_a_copied_module_that_torch_compile_counts(counted):
    linear = nn.Linear(4, 4)
    observed = check(lambda x: copy.deepcopy(linear)(x), torch.randn(2, 4), graphs=1)
    before = len(counted)
    observed(torch.randn(2, 4))
    assert len(counted) == before
