"""Graphs in the hands of compilers of others: what is handed over, what comes back, and what happens where it fails."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

import turret
from turret.errors import PluginError, StageError, TurretWarning
from turret.hooks.products import NodePlacement, Placement
from turret.testing import assert_same, check, programs

aten = torch.ops.aten
OPTIONS = {"cache": False, "on_error": "raise"}
LATER = {"lower", "schedule", "codegen"}


class Vendor:
    """Takes graphs of one scope, and runs them as they are."""

    def __init__(self, scope="graph"):
        self.scope, self.taken, self.stages = scope, [], []

    def make(self, module):
        return fx.Interpreter(module).run

    @turret.hookimpl
    def turret_compile_graph(self, module, example_inputs, scope, role, placement, target, name):
        if scope != self.scope:
            return None
        self.taken.append((role, module, example_inputs, placement, target, name))
        return self.make(module)

    @turret.hookimpl
    def turret_event(self, event):
        if event.kind == "stage_started":
            self.stages.append(event.stage)


class Drawn(Vendor):
    """Places some calls eagerly, and takes some graphs and clusters, laid out in ways of its own."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def coin(self, *what):
        return random.Random(f"{self.seed} {what}").random()

    @turret.hookimpl(wrapper=True)
    def turret_place(self):
        placement = yield
        eager = NodePlacement("eager", "drawn")
        return Placement({n: eager if self.coin(n) < 0.3 else placed for n, placed in placement.nodes.items()})

    @turret.hookimpl
    def turret_compile_graph(self, module, scope, placement, name):
        if scope == "captured" or self.coin(scope, name) > {"graph": 0.2, "cluster": 0.6}[scope]:
            return None
        calls = {n.name for n in module.graph.nodes if n.op == "call_function"}
        if scope == "cluster":
            assert all(placement.nodes[n].where == "compiled" for n in calls & placement.nodes.keys())

        def run(args):
            given = list(args)
            args.clear()
            results = fx.Interpreter(module).run(*given)
            return [r.contiguous() if torch.is_tensor(r) and self.coin(k) < 0.3 else r for k, r in enumerate(results)]

        run._boxed_call = True
        return run


def program(x, w):
    return torch.softmax(torch.sigmoid(x @ w).cumsum(0), -1)


def inputs():
    return torch.randn(5, 4), torch.randn(4, 6, requires_grad=True)


def compiled_by(*vendors, **options):
    return turret.compile(program, plugins=vendors, options={**OPTIONS, **options})


@settings(max_examples=15)
@given(programs(), st.integers(0, 2**32))
def test_drawn_programs_in_drawn_parts_give_what_eager_gives(program, seed):
    dynamic = random.Random(seed).choice([None, False, True])
    check(program, lambda f: turret.compile(f, plugins=[Drawn(seed)], options=OPTIONS, dynamic=dynamic))


def test_no_later_stage_sees_a_graph_that_was_taken():
    vendor = Vendor()
    assert_same(program, compiled_by(vendor), inputs)
    assert [role for role, *_ in vendor.taken] == ["forward", "backward"]
    assert not LATER & set(vendor.stages)
    for _, module, examples, placement, target, name in vendor.taken:
        placeholders = module.graph.find_nodes(op="placeholder")
        assert [type(e) for e in examples] == [type(n.meta["val"]) for n in placeholders]
        assert placement.nodes and target.device_type == "cpu" and name


def test_clusters_are_offered_where_nobody_takes_the_graph():
    class Eager(Vendor):
        @turret.hookimpl(wrapper=True)
        def turret_place(self, graph):
            placement = yield
            calls = {n.name for n in graph.module.graph.nodes if n.target is aten.cumsum.default}
            return Placement({**placement.nodes, **dict.fromkeys(calls, NodePlacement("eager", "no cumsum"))})

    vendor = Eager("cluster")
    assert_same(program, compiled_by(vendor), inputs)
    targets = [n.target for _, module, *_ in vendor.taken for n in module.graph.nodes]
    assert aten.cumsum.default not in targets and aten.sigmoid.default in targets
    assert not LATER & set(vendor.stages)


def test_a_cluster_that_nobody_takes_is_turret_s():
    class First(Vendor):
        @turret.hookimpl(wrapper=True)
        def turret_place(self, graph):
            placement = yield
            calls = {n.name for n in graph.module.graph.nodes if n.target is aten.cumsum.default}
            return Placement({**placement.nodes, **dict.fromkeys(calls, NodePlacement("eager", "no cumsum"))})

        @turret.hookimpl
        def turret_compile_graph(self, module, scope, name):
            if scope == "cluster" and name.endswith("cluster_0"):
                self.taken.append(name)
                return self.make(module)

    vendor = First()
    assert_same(program, compiled_by(vendor), inputs)
    assert vendor.taken and set(vendor.stages) >= LATER


def test_what_is_offered_and_not_taken_compiles_as_if_it_had_not_been():
    class Declines(Vendor):
        @turret.hookimpl
        def turret_compile_graph(self, module, scope):
            self.taken.append(scope)
            module.graph.erase_node(next(iter(module.graph.find_nodes(op="output"))))  # a copy is offered

    vendor = Declines()
    assert_same(program, compiled_by(vendor), inputs)
    assert set(vendor.taken) == {"captured", "graph", "cluster"}


def test_a_boxed_callable_may_free_its_inputs_early():
    class Boxed(Vendor):
        def make(self, module):
            def run(args):
                given = list(args)
                args.clear()
                return list(fx.Interpreter(module).boxed_run(given))

            run._boxed_call = True
            return run

    assert_same(program, compiled_by(Boxed()), inputs)


def test_results_in_memory_of_others_are_copied():
    """A compiler returns its input, or one tensor twice; eager's results have memory of their own."""

    def halves(x):
        y = x * 1
        return y, y + 0

    class Shares(Vendor):
        def make(self, module):
            return lambda x: (x, x)

    x = torch.randn(4)
    first, second = turret.compile(halves, plugins=[Shares()], options=OPTIONS)(x)
    first.add_(1)
    second.add_(2)
    assert not torch.equal(first, x) and not torch.equal(second, x) and not torch.equal(first, second)


def test_results_are_laid_out_as_eager_s():
    class Dense(Vendor):
        def make(self, module):
            return lambda *args: [r.contiguous() for r in fx.Interpreter(module).run(*args)]

    x = torch.randn(3, 4)
    compiled = turret.compile(lambda v: v.t() + 1, plugins=[Dense()], options=OPTIONS)
    assert compiled(x).stride() == (x.t() + 1).stride()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda *args: (args[0],) * 9, "a tuple of 9; expected a tuple or list of"),
        (lambda *args: args[0], "a Tensor; expected"),
        (lambda *args: None, "a NoneType; expected"),
        (lambda *args: [torch.ones(2, dtype=torch.int8)], "int8 of shape .*expected torch.float32 of shape"),
        (lambda *args: [torch.ones(9, 9, 9)], r"shape \(9, 9, 9\).*expected torch.float32 of shape \(5, 6\)"),
        (lambda *args: [3], "is a int; expected torch.float32"),
    ],
)
def test_results_that_do_not_fit_are_an_error_that_names_the_plugin(made, message):
    class Wrong(Vendor):
        def make(self, module):
            return made

    with pytest.raises(PluginError, match=message) as caught, torch.no_grad():
        compiled_by(Wrong())(*inputs())
    assert "Wrong" in str(caught.value)


class Raises(Vendor):
    def make(self, module):
        raise ValueError("no such machine")


class GivesNumber(Vendor):
    def make(self, module):
        return 7


@pytest.mark.parametrize("scope", ["captured", "graph", "cluster"])
@pytest.mark.parametrize("kind", [Raises, GivesNumber])
def test_a_compiler_that_fails_is_named_or_the_graph_runs_eagerly(kind, scope):
    x, w = inputs()
    with pytest.raises(StageError, match=f"'compile_graph'.*{kind.__name__}"):
        compiled_by(kind(scope))(x, w)
    with pytest.warns(TurretWarning, match=f"runs a graph eagerly.*{kind.__name__}"):
        torch.testing.assert_close(compiled_by(kind(scope), on_error="fallback")(x, w), program(x, w))


class Breaks(Vendor):
    """Its second call fails."""

    boxed = False

    def make(self, module):
        calls = []

        def run(*args):
            calls.append(1)
            if len(calls) > 1:
                if self.boxed:
                    args[0].clear()
                raise ValueError("lost the machine")
            return fx.Interpreter(module).run(*(args[0] if self.boxed else args))

        run._boxed_call = self.boxed
        return run


class BreaksBoxed(Breaks):
    boxed = True


@pytest.mark.parametrize("scope", ["graph", "cluster"])
def test_a_callable_that_fails_is_named_or_its_graph_runs_eagerly(scope):
    x, w = inputs()
    with torch.no_grad():
        compiled = compiled_by(Breaks(scope))
        compiled(x, w)
        with pytest.raises(StageError, match=r"Breaks.*raised ValueError: lost the machine"):
            compiled(x, w)
        compiled = compiled_by(Breaks(scope), on_error="fallback")
        compiled(x, w)
        with pytest.warns(TurretWarning, match=r"Breaks.*lost the machine"):
            torch.testing.assert_close(compiled(x, w), program(x, w))
        torch.testing.assert_close(compiled(x, w), program(x, w))


def test_a_callable_that_fails_without_its_inputs_is_named():
    x, w = inputs()
    with torch.no_grad():
        compiled = compiled_by(BreaksBoxed(), on_error="fallback")
        compiled(x, w)
        with pytest.raises(StageError, match=r"BreaksBoxed.*lost the machine"):
            compiled(x, w)


def test_an_error_of_the_program_s_data_is_eager_s():
    compiled = turret.compile(lambda x, i: x[i] + 1, plugins=[Vendor()], options=OPTIONS)
    with pytest.raises(IndexError):
        compiled(torch.randn(3), torch.tensor([7]))


def test_a_device_without_kernels_can_have_a_graph_compiler():
    vendor = Vendor()
    x = torch.randn(3, device="meta")
    result = turret.compile(lambda v: torch.sin(v) + 1, plugins=[vendor], options=OPTIONS)(x)
    assert result.device.type == "meta" and len(vendor.taken) == 1
