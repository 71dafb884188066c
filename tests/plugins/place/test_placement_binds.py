"""What is placed eagerly gets no kernel, for its layout neither, and computes what it would anyway."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import NodePlacement, Placement
from turret.ir import Definition, Scatter
from turret.testing import assert_same, check, programs

DEFINES = (Definition, Scatter)


class Elsewhere:
    """Places some calls eagerly, and gathers what kernels were made of nodes that are placed so."""

    def __init__(self, is_eager):
        self.is_eager = is_eager
        self.eager: set[str] = set()
        self.calls, self.kernels = 0, 0
        self.made: list[str] = []

    @hookimpl(wrapper=True)
    def turret_place(self):
        placement = yield
        chosen = {name: NodePlacement("eager", "asked for") for name in placement.nodes if self.is_eager(name)}
        self.eager = {n for n, p in placement.nodes.items() if p.where == "eager"} | set(chosen)
        self.calls += len(placement.nodes)
        return Placement({**placement.nodes, **chosen})

    @hookimpl
    def turret_event(self, event):
        if event.kind == "product" and event.stage == "lower":
            for statement in event.product.statements:
                if isinstance(statement, DEFINES) and self.eager.intersection(statement.origins):
                    self.made.append(str(statement))
        if event.kind == "product" and event.stage == "schedule":
            self.kernels += len(event.product.kernels)


def compiler_with(plugin):
    return lambda function: turret.compile(
        function, plugins=[plugin], options={"cache": False, "on_error": "raise"}, dynamic=False
    )


def strided(*shape):
    return lambda: torch.randn(*shape[:-1], 2 * shape[-1], dtype=torch.bfloat16)[..., ::2]


SAMPLES = {
    "a product written to a transposed input": (
        lambda x, y: x.mul_(y),
        lambda: torch.randn(4, 6, dtype=torch.bfloat16).t(),
        lambda: torch.randn(6, 4, dtype=torch.bfloat16),
    ),
    "a product written to an input with gaps": (lambda x, y: x.mul_(y), strided(4, 6), strided(4, 6)),
    "a copy to an input of another dtype and shape": (
        lambda x, y: x.copy_(y),
        lambda: torch.randn(4, 6),
        lambda: torch.randn(6, dtype=torch.float64),
    ),
    "views": (lambda x: (x[::2] + 1, x.t() * 2, x.t().reshape(-1)), lambda: torch.randn(4, 4)),
    "an expanded result": (lambda x: (x + 1).expand(3, 4), lambda: torch.randn(4)),
    "two results in one memory": (lambda x: ((y := x + 1), y.t()[0], y[0]), lambda: torch.randn(4, 4)),
    "a training step": (
        lambda x, w: torch.nn.functional.layer_norm(torch.tanh(x @ w), (4,)).t(),
        lambda: torch.randn(4, 4),
        lambda: torch.randn(4, 4, requires_grad=True),
    ),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_where_all_is_eager_there_is_no_kernel(name):
    function, *makers = SAMPLES[name]
    plugin = Elsewhere(lambda node: True)
    assert_same(function, compiler_with(plugin)(function), lambda: tuple(make() for make in makers))
    assert plugin.calls and plugin.kernels == 0 and plugin.made == []


@settings(max_examples=15)
@given(programs())
def test_where_all_of_a_program_is_eager_there_is_no_kernel(program):
    plugin = Elsewhere(lambda node: True)
    check(program, compiler_with(plugin))
    assert plugin.kernels == 0, "\n".join([str(program), *plugin.made])


@pytest.mark.thorough
@settings(max_examples=15)
@given(programs(), st.integers(0, 2**32))
def test_what_is_eager_of_a_program_gets_no_kernel(program, seed):
    plugin = Elsewhere(lambda node: random.Random(f"{seed} {node}").random() < 0.5)
    check(program, compiler_with(plugin))
    assert plugin.made == [], str(program)
