"""``turret.explain`` says what a call becomes, and leaves what is compiled alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import turret
from turret.hooks.hookspecs import hookimpl

pytestmark = pytest.mark.usefixtures("fresh")


def test_one_graph_has_its_calls_kernels_externs_and_guards():
    layer = nn.Sequential(nn.Linear(128, 128), nn.ReLU()).eval()
    found = turret.explain(layer)(torch.randn(8, 128))
    assert (found.graphs, found.graph_breaks, found.breaks, found.fallbacks) == (1, 0, (), ())
    assert found.ops == {"linear": 1, "relu": 1}
    assert found.kernels == 1
    assert found.externs == {"aten.mm.default": 1}
    assert found.guards > 0
    assert "1 graphs, 0 breaks, 2 calls" in str(found) and "1 kernels, 1 extern calls" in str(found)


def test_products_are_told_with_what_they_were_chosen_from():
    class Loops:
        @hookimpl
        def turret_choice_cost(self, candidate):
            return 1.5 if candidate.form == "loops" else 2.5

    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).eval()
    found = turret.explain(layers, plugins=[Loops()])(torch.randn(1, 4))
    assert found.products == {"loops of rows 2.5 us, loops 1.5 us, library 2.5 us": 2}
    assert not found.externs
    assert "2 products loops of rows 2.5 us, loops 1.5 us, library 2.5 us" in str(found)


def test_every_break_has_the_user_s_line_and_the_reason():
    def program(x):
        print("first")
        x = torch.sin(x)
        if x.sum() > 100:
            return x
        return torch.cos(x)

    found = turret.explain(program)(torch.randn(3))
    assert found.graph_breaks == 2 and found.graphs == 2
    assert all("test_explain.py:" in message and "in program" in message for message in found.breaks)
    assert 'print("first")' in found.breaks[0]
    assert "if x.sum() > 100" in found.breaks[1] and "a branch on a tensor" in found.breaks[1]


def test_fallbacks_are_reported_with_stage_plugin_and_reason():
    class Broken:
        @hookimpl
        def turret_schedule(self):
            raise RuntimeError("out of ideas")

    with pytest.warns(UserWarning, match="out of ideas"):
        found = turret.explain(torch.sin, options={"on_error": "fallback"}, plugins=[Broken()])(torch.ones(3))
    assert len(found.fallbacks) == 1
    assert "'schedule'" in found.fallbacks[0] and "out of ideas" in found.fallbacks[0]


def test_it_explains_what_is_compiled_already_and_disturbs_it_not():
    graphs = []

    class Watch:
        @hookimpl
        def turret_event(self, event):
            if event.kind == "compile_started":
                graphs.append(event.name)

    def program(x):
        return torch.sin(x) + 1

    compiled = turret.compile(program, plugins=[Watch()])
    compiled(torch.randn(3))
    assert turret.explain(compiled)(torch.randn(3)).graphs == 1
    assert turret.explain(program)(torch.randn(3)).graphs == 1
    compiled(torch.randn(3))
    assert len(graphs) == 1


def test_options_of_compile_are_taken():
    found = turret.explain(lambda x: torch.sin(x), dynamic=True, mode="max-autotune")(torch.randn(3))
    assert found.graphs == 1
    with pytest.raises(turret.TurretError, match="unknown mode"):
        turret.explain(torch.sin, mode="fast")(torch.ones(1))


def test_explaining_many_times_explains_each_time_and_uses_up_nobody_s_recompiles():
    def program(x):
        return torch.sin(x) + 1

    assert [turret.explain(program)(torch.randn(3)).graphs for _ in range(12)] == [1] * 12
    counted = []

    class Watch:
        @hookimpl
        def turret_event(self, event):
            if event.kind == "compile_started":
                counted.append(event.name)

    turret.compile(program, plugins=[Watch()])(torch.randn(3))
    assert len(counted) == 1


def test_it_has_the_names_of_torchs_own():
    def program(x):
        y = x.sin()
        print(end="")
        return y * 2 + 1

    found = turret.explain(program)(torch.ones(3))
    assert (found.graph_count, found.graph_break_count, found.op_count) == (2, 1, 3)
    assert [len(calls) for calls in found.ops_per_graph] == [1, 2]
    (reason,) = found.break_reasons
    assert reason.reason.startswith("input or output") and reason.location.endswith("in program")
