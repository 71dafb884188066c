"""Passes at every phase: what they are handed, that what they change is what runs, and that a bad one is named."""

from __future__ import annotations

import operator

import attrs
import pytest
import torch
from torch import fx

import turret
from turret.errors import StageError
from turret.hooks.products import CapturedGraph, NodePlacement
from turret.ir import Kernel, LoopProgram, Schedule, call, rewrite

aten = torch.ops.aten
OPTIONS = {"cache": False, "on_error": "raise"}
PHASES = ["captured", "joint", "forward", "backward", "placed"]


def program(x, w):
    h = torch.tanh(x @ w) + x.sum(-1, keepdim=True)
    h.mul_(2)
    return torch.softmax(h, -1), h.sin()


def inputs():
    torch.manual_seed(0)
    return torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)


def outcome(function):
    x, w = inputs()
    first, second = function(x, w)
    (first.square().sum() + second.sum()).backward()
    return first.detach(), second.detach(), w.grad, x


class Visit:
    """Calls a function at every phase."""

    def __init__(self, visit):
        self.visit, self.phases = visit, []

    @turret.hookimpl
    def turret_graph_pass(self, phase, module):
        self.phases.append(phase)
        return self.visit(phase, module)


def compiled(*plugins, function=program):
    return turret.compile(function, plugins=plugins, options=OPTIONS)


def test_phases_come_in_their_order_with_values_on_every_node():
    missing = []

    def visit(phase, module):
        for node in module.graph.nodes:
            if node.op != "output" and "val" not in node.meta:
                missing.append((phase, node))
        values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        assert all(isinstance(value, torch.Tensor) for value in values)

    plugin = Visit(visit)
    torch.testing.assert_close(outcome(compiled(plugin)), outcome(program))
    assert plugin.phases == ["captured", "joint", "forward", "placed", "backward", "placed"]
    assert not missing


def test_a_graph_captured_from_outside_has_values_too():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    def target(v):
        u = v.tanh()
        u.add_(1)
        return (u.t(),)

    mode = FakeTensorMode(shape_env=ShapeEnv())
    captured = CapturedGraph(fx.symbolic_trace(target), (mode.from_tensor(torch.ones(2, 3)),), mode)
    seen = {}

    def visit(phase, module):
        if phase == "captured":
            seen.update((n.name, tuple(n.meta["val"].shape)) for n in module.graph.nodes if n.op != "output")

    turret.joint_graph(captured, plugins=[Visit(visit)])
    assert seen == {"v": (2, 3), "tanh": (2, 3), "add_": (2, 3), "t": (3, 2)}


@pytest.mark.parametrize("phase", PHASES)
def test_what_a_pass_changes_is_what_runs_and_new_calls_get_values(phase):
    targets = {"captured": (torch.sin, "sin"), "backward": (aten.cos.default,)}.get(phase, (aten.sin.default,))
    changed = []

    def visit(now, module):
        if now != phase:
            return
        for node in list(module.graph.nodes):
            if node.op.startswith("call") and node.target in targets:
                with module.graph.inserting_after(node):
                    doubled = module.graph.call_function(
                        operator.mul if phase == "captured" else aten.mul.Scalar, (node, 3.0)
                    )
                node.replace_all_uses_with(doubled, delete_user_cb=lambda user, new=doubled: user is not new)
                changed.append(doubled)

    first, second, grad, x = outcome(compiled(Visit(visit)))
    assert changed and all(isinstance(node.meta["val"], torch.Tensor) for node in changed)

    def expected_program(x, w):
        one, two = program(x, w)
        return one, two * 3

    wanted = outcome(program if phase == "backward" else expected_program)
    torch.testing.assert_close((first, second, x), (wanted[0], wanted[1], wanted[3]))
    # Before the cut a pass changes what is differentiated, and after it one graph alone.
    same = torch.allclose(grad, wanted[2], atol=1e-5)
    assert same == (phase == "captured")


def test_a_pass_after_placement_sees_and_sets_where_calls_run():
    seen = []

    class Eager:
        @turret.hookimpl
        def turret_graph_pass(self, phase, module):
            for node in module.graph.nodes if phase == "placed" else ():
                if node.target is aten.sin.default:
                    seen.append(node.meta["placement"].where)
                    node.meta["placement"] = NodePlacement("eager", "asked for")

    class Products:
        found: dict = {}  # noqa: RUF012

        @turret.hookimpl
        def turret_event(self, event):
            if event.kind == "product":
                self.found[event.stage] = event.product

    x = torch.ones(3, 5)
    function = compiled(Eager(), Products(), function=lambda v: torch.sin(v + 1) * 2)
    torch.testing.assert_close(function(x), torch.sin(x + 1) * 2)
    assert seen == ["compiled"]
    assert [str(extern.op) for extern in Products.found["schedule"].externs] == ["aten.sin.default"]


def test_the_loop_program_and_the_schedule_can_be_rewritten():
    phases = []

    class CosineForSine:
        @turret.hookimpl
        def turret_ir_pass(self, phase, product, target):
            phases.append((phase, type(product), target.device_type))
            if phase == "lowered":
                swap = lambda e: call("cos", *e.args) if e.op == "sin" else None  # noqa: E731
                statements = [attrs.evolve(s, expr=rewrite(s.expr, replace=swap)) for s in product.statements]
                return attrs.evolve(product, statements=tuple(statements))

    class Renamed:
        @turret.hookimpl
        def turret_ir_pass(self, phase, product):
            if phase == "scheduled":
                assert "cos(" in str(product)
                steps = [attrs.evolve(s, name=f"own_{s.name}") if isinstance(s, Kernel) else s for s in product.steps]
                return attrs.evolve(product, steps=tuple(steps))

    class Sources:
        plans: list = []  # noqa: RUF012

        @turret.hookimpl
        def turret_event(self, event):
            if event.kind == "product" and event.stage == "codegen":
                self.plans.append(str(event.product))

    x = torch.randn(3, 5)
    function = compiled(CosineForSine(), Renamed(), Sources(), function=lambda v: torch.sin(v) + 1)
    torch.testing.assert_close(function(x), torch.cos(x) + 1)
    assert phases == [("lowered", LoopProgram, "cpu"), ("scheduled", Schedule, "cpu")]
    assert "own_k0" in Sources.plans[0]


def test_stages_called_one_by_one_run_them_too():
    class Count:
        phases: list = []  # noqa: RUF012

        @turret.hookimpl
        def turret_ir_pass(self, phase):
            self.phases.append(phase)

        @turret.hookimpl
        def turret_graph_pass(self, phase):
            self.phases.append(phase)

    plugins = [Count()]
    parts = turret.partition(turret.joint_graph(torch.sin, torch.ones(3), plugins=plugins), plugins=plugins)
    turret.schedule(turret.lower(parts, plugins=plugins), plugins=plugins)
    assert Count.phases == ["captured", "joint", "forward", "placed", "lowered", "scheduled"]


def wrong_type(phase, product):
    return 3


def undefined(phase, product):
    if phase == "lowered":
        return attrs.evolve(product, statements=product.statements[:-1])
    return attrs.evolve(product, steps=product.steps[:-1])


def raising(phase, product):
    raise RuntimeError("out of ideas")


@pytest.mark.parametrize("wrong", [wrong_type, undefined, raising])
@pytest.mark.parametrize("phase", ["lowered", "scheduled"])
def test_a_pass_that_breaks_the_loop_ir_is_named(wrong, phase):
    class Breaks:
        @turret.hookimpl
        def turret_ir_pass(self, phase, product):
            return wrong(phase, product) if phase == self.phase else None

    plugin = Breaks()
    plugin.phase = phase
    with pytest.raises(StageError, match=rf"stage 'ir_pass' \(plugin .*Breaks\) failed: {phase}"):
        outcome(compiled(plugin))
    lenient = turret.compile(program, plugins=[plugin], options={**OPTIONS, "on_error": "fallback"})
    with pytest.warns(UserWarning, match=r"plugin .*Breaks"):
        torch.testing.assert_close(outcome(lenient), outcome(program))


def drop_output(graph):
    graph.output_node().args = (graph.output_node().args[0][:-1],)


def add_input(graph):
    with graph.inserting_before(next(iter(graph.nodes))):
        graph.placeholder("more")


def out_of_order(graph):
    used = next(n for n in graph.nodes if n.op.startswith("call"))
    with graph.inserting_before(next(iter(graph.nodes))):
        graph.node_copy(used)


@pytest.mark.parametrize("wrong", [drop_output, add_input, out_of_order])
@pytest.mark.parametrize("phase", PHASES)
def test_a_pass_that_breaks_its_graph_is_named_and_taken_back(wrong, phase):
    def visit(now, module):
        if now == phase:
            wrong(module.graph)

    plugin = Visit(visit)
    with pytest.raises(StageError, match=rf"stage 'graph_pass' \(plugin .*Visit\) failed: {phase}"):
        outcome(compiled(plugin))
    lenient = turret.compile(program, plugins=[plugin], options={**OPTIONS, "on_error": "fallback"})
    with pytest.warns(UserWarning, match=r"plugin .*Visit"):
        torch.testing.assert_close(outcome(lenient), outcome(program))
