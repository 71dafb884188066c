"""Every hook can be answered from outside: what the outsider gives is what goes on, and results stay eager's."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import turret
from turret.graph import partitioning
from turret.hooks import hookspecs
from turret.hooks.products import CapturedGraph, NodePlacement, Placement
from turret.ir import call, constant

aten = torch.ops.aten
OPTIONS = {"cache": False, "on_error": "raise"}


def program(x):
    return torch.sigmoid(x).exp().cumsum(0) + (x.detach()[:1] @ x.detach().T).sum()


class Outsider:
    """A plugin whose one hook returns what it makes; ``given`` are its results."""

    def __init__(self):
        self.given = []

    def keep(self, result):
        self.given.append(result)
        return result


class Options(Outsider):
    @turret.hookimpl
    def turret_options(self):
        return self.keep((turret.Option(name="outsiders_own", default=3, doc="how many"),))


class Capture(Outsider):
    @turret.hookimpl
    def turret_capture(self, target, compile_graph):
        def run(value):
            mode = FakeTensorMode(shape_env=ShapeEnv())
            module = fx.symbolic_trace(lambda v: (target(v),))
            compiled = compile_graph(CapturedGraph(module, (mode.from_tensor(value),), mode))
            return self.keep(compiled(value)[0])

        return run


class GuardFilter(Outsider):
    @turret.hookimpl
    def turret_guard_filter(self, guards):
        return self.keep([True for _ in guards])


class Decompositions(Outsider):
    @turret.hookimpl
    def turret_decompositions(self):
        return self.keep({aten.sigmoid.default: lambda v: 0.5 * torch.tanh(0.5 * v) + 0.5})


class GraphPass(Outsider):
    @turret.hookimpl
    def turret_graph_pass(self, phase, module):
        for node in module.graph.nodes if phase == "forward" else ():
            if node.target is aten.sigmoid.default:
                with module.graph.inserting_after(node):
                    same = self.keep(module.graph.call_function(aten.mul.Scalar, (node, 1.0)))
                node.replace_all_uses_with(same, delete_user_cb=lambda user, same=same: user is not same)


class Joint(Outsider):
    @turret.hookimpl
    def turret_joint(self, captured):
        return self.keep(turret.joint_graph(captured))


class Partition(Outsider):
    @turret.hookimpl
    def turret_partition(self, context, joint):
        analysis = partitioning.analyze(joint)
        saved = partitioning.complete(analysis, (), partitioning.costs(context))
        return self.keep(partitioning.extract(joint, analysis, saved, "outsider's"))


class PartitionCost(Outsider):
    @turret.hookimpl
    def turret_partition_cost(self):
        return self.keep(float("inf"))


class Place(Outsider):
    @turret.hookimpl
    def turret_place(self, graph):
        calls = [node.name for node in graph.module.graph.nodes if node.op == "call_function"]
        return self.keep(Placement(dict.fromkeys(calls, NodePlacement("eager", "outside"))))


class CompileGraph(Outsider):
    @turret.hookimpl
    def turret_compile_graph(self, module, scope):
        return self.keep(module.forward) if scope == "graph" else None


class Lowerings(Outsider):
    @turret.hookimpl
    def turret_lowerings(self):
        def sigmoid(b, value):
            self.keep(value)
            one = constant(1.0, torch.float32)
            return b.pointwise(lambda v: call("reciprocal", call("add", one, call("exp", call("neg", v)))), value)

        return {aten.sigmoid.default: sigmoid}


class Lower(Outsider):
    @turret.hookimpl
    def turret_lower(self, graph, placement):
        return self.keep(attrs.evolve(turret.lower(graph, placement=placement), hints={"outside": 1}))


class IrPass(Outsider):
    @turret.hookimpl
    def turret_ir_pass(self, phase, product):
        return self.keep(attrs.evolve(product))


class Schedule(Outsider):
    @turret.hookimpl
    def turret_schedule(self, program):
        return self.keep(turret.schedule(program, options={"max_fusion_size": 1}))


class FusionScore(Outsider):
    @turret.hookimpl
    def turret_fusion_score(self):
        return self.keep(0.0)


class ChoiceCost(Outsider):
    @turret.hookimpl
    def turret_choice_cost(self, candidate):
        return self.keep(float(candidate.form != "library"))


class Codegen(Outsider):
    @turret.hookimpl
    def turret_codegen(self, schedule):
        return self.keep(turret.codegen(schedule, options={"cpp_flags": "-O0"}))


class Runtime(Outsider):
    @turret.hookimpl
    def turret_runtime(self, signature, forward, backward, saved_tensors):
        class Node(torch.autograd.Function):
            @staticmethod
            def forward(ctx, *inputs):
                results = forward(list(inputs))
                outputs = len(results) - saved_tensors
                ctx.save_for_backward(*results[outputs:])
                return tuple(results[:outputs])

            @staticmethod
            def backward(ctx, *tangents):
                return tuple(backward()([*ctx.saved_tensors, *tangents]))

        return self.keep(lambda *inputs: Node.apply(*inputs))


class WrapRuntime(Outsider):
    @turret.hookimpl
    def turret_wrap_runtime(self, function):
        return lambda args: self.keep(function(args))


class Events(Outsider):
    @turret.hookimpl
    def turret_event(self, event):
        self.keep(event)


OUTSIDERS = {
    next(name for name in vars(kind) if name.startswith("turret_")): kind for kind in Outsider.__subclasses__()
}
PRODUCTS = {"turret_joint", "turret_partition", "turret_place", "turret_lower", "turret_schedule", "turret_codegen"}
ELSEWHERE = {"turret_device", "turret_load_graph"}
"""Hooks whose outsider is a test of its own."""


def test_every_hook_has_its_outsider():
    assert OUTSIDERS.keys() | ELSEWHERE >= {name for name in vars(hookspecs) if name.startswith("turret_")}


@pytest.mark.parametrize("hook", OUTSIDERS)
def test_an_outsider_replaces_a_hook(hook):
    outsider, products = OUTSIDERS[hook](), []

    class Watch:
        @turret.hookimpl
        def turret_event(self, event):
            if event.kind == "product":
                products.append(event.product)

    x = torch.randn(5, 7, requires_grad=True)
    compiled = turret.compile(program, plugins=[outsider, Watch()], options=OPTIONS)
    result, expected = compiled(x), program(x)
    torch.testing.assert_close(result, expected)
    gradients = [torch.autograd.grad(value.square().sum(), x) for value in (result, expected)]
    torch.testing.assert_close(*gradients)
    assert outsider.given
    if hook in PRODUCTS:
        assert any(made is given for given in outsider.given for made in products)
