"""A failure names the plugin that brought what failed: a table's function, a smaller hook, a product, a stage."""

from __future__ import annotations

import attrs
import pytest
import torch

import turret
from turret.errors import StageError
from turret.hooks.devices import device_for
from turret.hooks.registration.blame import Owned, blame, blamed
from turret.ir import call, constant

aten = torch.ops.aten
OPTIONS = {"cache": False, "on_error": "raise"}


def program(x, w):
    return torch.sigmoid(x @ w).exp().sum(0), torch.sort(x, 1).values


def inputs():
    return torch.randn(4, 8), torch.randn(8, 8, requires_grad=True)


def failing(hook, function, **marks):
    function.__name__ = hook
    return type("Culprit", (), {hook: turret.hookimpl(**marks)(function)})()


def error_of(*plugins):
    with pytest.raises(StageError) as caught:
        result, _ = turret.compile(program, plugins=plugins, options=OPTIONS)(*inputs())
        result.sum().backward()
    return caught.value


class Innocent:
    """Another plugin with a say in everything, asked before and after the one at fault."""

    @turret.hookimpl
    def turret_decompositions(self):
        return {aten.tanh.default: lambda v: v}

    @turret.hookimpl
    def turret_lowerings(self):
        return {aten.tanh.default: lambda b, v: v}

    @turret.hookimpl
    def turret_graph_pass(self):
        return False

    @turret.hookimpl
    def turret_ir_pass(self):
        return None

    @turret.hookimpl
    def turret_wrap_runtime(self):
        return None

    @turret.hookimpl
    def turret_partition(self):
        return None


def table_of(hook, op, function):
    return failing(hook, lambda self: {op: function})


def out_of_ideas(*args, **kwargs):
    raise RuntimeError("out of ideas")


def wrong_shape(v):
    return torch.tanh(v).sum()


def wrong_dtype(v):
    return torch.tanh(v).double()


def wrong_size(v):
    return torch.tanh(v).t()


def nothing(v):
    return None


class Callable:
    """A function without code of its own."""

    def __call__(self, *args):
        raise RuntimeError("out of ideas")


DECOMPOSITIONS = [out_of_ideas, wrong_shape, wrong_size, wrong_dtype, nothing, Callable()]


@pytest.mark.parametrize("function", DECOMPOSITIONS, ids=lambda f: getattr(f, "__name__", "callable"))
def test_a_decomposition(function):
    culprit = table_of("turret_decompositions", aten.sigmoid.default, function)
    for plugins in ([culprit, Innocent()], [Innocent(), culprit]):
        error = error_of(*plugins)
        assert error.stage == "joint" and error.plugin.endswith("test_blame.Culprit")


def whole_rows(b, v):
    return b.pointwise(lambda e: e, v.sum() if hasattr(v, "sum") else v, constant(1, torch.int64))


def no_tensor(b, v):
    return 3


def mixed_dtypes(b, v):
    from turret.ir import Expr

    return b.pointwise(lambda e: Expr.make("add", (e, constant(1, torch.int64)), e.dtype), v)


def unknown_tensor(b, v):
    from turret.ir import load

    return b.pointwise(lambda e: call("add", e, load("nobody", (), e.dtype)), v)


LOWERINGS = [out_of_ideas, whole_rows, no_tensor, mixed_dtypes, unknown_tensor, Callable()]


@pytest.mark.parametrize("function", LOWERINGS, ids=lambda f: getattr(f, "__name__", "callable"))
def test_a_lowering(function):
    culprit = table_of("turret_lowerings", aten.exp.default, function)
    for plugins in ([culprit, Innocent()], [Innocent(), culprit]):
        error = error_of(*plugins)
        assert error.stage == "lower" and error.plugin.endswith("test_blame.Culprit"), error


@pytest.mark.parametrize("hook", ["turret_decompositions", "turret_lowerings"])
@pytest.mark.parametrize("table", [3, {aten.exp.default: 3}, {aten.exp.default: "exp"}])
def test_what_is_no_table(hook, table):
    error = error_of(failing(hook, lambda self: table), Innocent())
    assert error.plugin.endswith("test_blame.Culprit") and "expected" in str(error)


@pytest.mark.parametrize("hook", ["turret_partition_cost", "turret_fusion_score", "turret_partition", "turret_place"])
def test_a_hook_that_is_asked_by_a_built_in_one(hook):
    def fail(self):
        raise RuntimeError("out of ideas")

    assert error_of(failing(hook, fail), Innocent()).plugin.endswith("test_blame.Culprit")


def test_whoever_returned_a_product_that_breaks_its_contract():
    def schedule(self, program):
        return attrs.evolve(turret.schedule(program), steps=())

    error = error_of(failing("turret_schedule", schedule), Innocent())
    assert error.stage == "schedule" and error.plugin.endswith("test_blame.Culprit")


def test_a_pass_and_a_wrapper():
    for hook in ("turret_graph_pass", "turret_ir_pass", "turret_wrap_runtime"):
        for order in ([0, 1], [1, 0]):
            plugins = [failing(hook, lambda self: out_of_ideas()), Innocent()]
            assert error_of(*(plugins[i] for i in order)).plugin.endswith("test_blame.Culprit")


def test_a_device():
    class Broken(type(device_for("cpu"))):
        def load(self, plan, store):
            raise RuntimeError("out of ideas")

    device = Broken()

    def turret_device(self, device_type):
        return device if device_type == "cpu" else None

    error = error_of(failing("turret_device", turret_device), Innocent())
    assert error.stage == "load" and error.plugin.endswith("test_blame.Culprit")


def test_what_is_no_device():
    error = error_of(failing("turret_device", lambda self: 3), Innocent())
    assert "plugin 'tests.core.hooks.registration.test_blame.Culprit': turret_device gave 3" in str(error)


@pytest.mark.parametrize(
    ("attribute", "plugin"),
    [
        ("turret.plugins.decompositions.table.decomposition_table", "turret.plugins.decompositions"),
        ("turret.plugins.joint.trace.trace", "turret.plugins.joint"),
        ("turret.plugins.lowerings.table.lower_graph", "turret.plugins.lowerings"),
        ("turret.plugins.schedule.stage.plan_memory", "turret.plugins.schedule"),
        ("turret.plugins.codegen.cpp.stage.emit", "turret.plugins.codegen.cpp"),
    ],
)
def test_a_built_in_stage_is_named_by_what_it_runs(monkeypatch, attribute, plugin):
    monkeypatch.setattr(attribute, out_of_ideas)
    assert error_of(Innocent()).plugin == plugin


def test_a_mark_stays_with_whom_it_was_given_first():
    inner = Owned(out_of_ideas, "inner")
    with pytest.raises(RuntimeError) as caught:
        Owned(lambda: inner(), "outer")()
    assert blamed(caught.value) == "inner"
    wrapped = ValueError("around")
    wrapped.__cause__ = caught.value
    assert blamed(wrapped) == "inner" and blamed(ValueError()) == ""
    blame(wrapped, "")
    assert blamed(wrapped) == "inner"
