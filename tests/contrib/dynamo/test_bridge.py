"""The bridge to torch._dynamo: its graphs, its breaks and recompiles, its guards, and torch.compile's own entry."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import turret
from turret.contrib import dynamo
from turret.errors import OptionError
from turret.hooks.hookspecs import hookimpl


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setenv("TURRET_ON_ERROR", "raise")
    monkeypatch.setenv("TURRET_CAPTURE", "dynamo")
    turret.reset()
    yield
    turret.reset()


class Watch:
    def __init__(self):
        self.events = []

    @hookimpl
    def turret_event(self, event):
        self.events.append(event)

    def of(self, kind, stage=None):
        return [e for e in self.events if e.kind == kind and stage in (None, e.stage)]


@pytest.fixture
def entry_point():
    """``backend="turret"`` of torch.compile, as an installed package has it."""
    from torch._dynamo.backends import registry

    registry.list_backends()
    before = dict(registry._BACKENDS), dict(registry._COMPILER_FNS)
    for table in (registry._BACKENDS, registry._COMPILER_FNS):
        table.pop("turret", None)
    registry.register_backend(dynamo.backend, name="turret")
    yield
    for table, saved in zip((registry._BACKENDS, registry._COMPILER_FNS), before, strict=True):
        table.clear()
        table.update(saved)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return torch.sigmoid(self.linear(x)).sum(-1)


def test_torch_compile_runs_everything_after_capture_through_turret(entry_point, monkeypatch):
    from turret.hooks import plugin_manager

    watch = Watch()
    monkeypatch.setattr(plugin_manager, "default_manager", lambda: plugin_manager.create((watch,)))
    net, x = Net(), torch.randn(2, 4)
    compiled = torch.compile(net, backend="turret", options={"cache": False})
    compiled(x).sum().backward()
    found, net.linear.weight.grad = net.linear.weight.grad, None
    net(x).sum().backward()
    torch.testing.assert_close(found, net.linear.weight.grad)
    assert {"joint", "partition", "place", "lower", "schedule", "codegen", "runtime"} == {
        e.stage for e in watch.of("stage_ended")
    }


def test_torch_compile_hands_modes_and_options_on(entry_point):
    x = torch.randn(2, 4)
    net = Net()
    torch.testing.assert_close(torch.compile(net, backend="turret", mode="max-autotune")(x), net(x))
    with pytest.raises(Exception, match="did you mean 'partitioner'"):
        torch.compile(net, backend="turret", options={"partitoner": "save_all"})(x + 1)


def program(x):
    x = torch.sin(x)
    print("out of the graph")
    return torch.cos(x)


def test_a_graph_break_is_an_event_with_the_user_s_line_and_the_reason():
    watch = Watch()
    turret.compile(program, plugins=[watch])(torch.randn(3))
    (event,) = watch.of("graph_break")
    assert re.search(r"test_bridge\.py:\d+ in program\n    print\(\"out of the graph\"\)\n", event.message)
    assert "print" in event.message.split("\n", 2)[2]
    assert len(watch.of("product", "capture")) == 2


def test_a_break_before_any_op_and_one_in_an_inlined_function_are_seen():
    def inner(x):
        torch._dynamo.graph_break()
        return x + 1

    def outer(x):
        print("first")
        return inner(x) * 2

    watch = Watch()
    turret.compile(outer, plugins=[watch])(torch.randn(3))
    messages = [e.message for e in watch.of("graph_break")]
    assert len(messages) >= 2
    assert "in outer" in messages[0] and any("graph_break" in m for m in messages[1:])


def test_breaks_of_other_compilers_are_not_ours():
    watch = Watch()
    turret.compile(torch.sin, plugins=[watch])(torch.randn(3))
    torch.compile(program, backend="eager")(torch.randn(3))
    assert watch.of("graph_break") == []


def test_breaks_under_torch_compile_reach_the_observers(entry_point, capfd, monkeypatch):
    from turret.plugins.observers import logs

    monkeypatch.setattr(logs, "_enabled", set())
    turret.set_logs("graph_breaks")
    turret.compile(torch.sin)(torch.randn(3))
    torch.compile(program, backend="turret")(torch.randn(3))
    assert re.search(r"graph_breaks\].*print", capfd.readouterr().err, re.S)


def test_a_recompile_is_an_event_with_the_function_and_what_did_not_hold():
    watch = Watch()
    factor = 2

    def scaled(x):
        return x * factor

    compiled = turret.compile(scaled, plugins=[watch])
    compiled(torch.randn(3))
    assert watch.of("recompile") == []
    compiled(torch.randn(3, 3))
    (event,) = watch.of("recompile")
    assert event.name == "scaled" and "test_bridge.py" in event.message
    assert "rank mismatch" in event.message or "dim" in event.message
    factor = 3
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 3.0))


def test_guards_are_a_printable_product():
    watch = Watch()
    turret.compile(torch.sin, plugins=[watch])(torch.randn(3))
    (event,) = watch.of("product", "guards")
    text = str(event.product)
    assert len(text.splitlines()) == len(event.product.guards) > 0
    assert "TENSOR_MATCH" in text or "check_tensor" in text


def test_a_guard_filter_that_is_no_function_is_refused():
    with pytest.raises(OptionError, match=r"guard_filter_fn.*expected a function"):
        turret.compile(program, options={"guard_filter_fn": True})


def test_a_float_that_changes_is_seen_each_time():
    class Scale(nn.Module):
        factor = 1.5

        def forward(self, x):
            return x * self.factor + (self.factor if self.factor > 2 else 0)

    module = Scale()
    compiled = turret.compile(module)
    for factor in (1.5, 2.5, 3.5, 2.5):
        module.factor = factor
        torch.testing.assert_close(compiled(torch.ones(3)), module(torch.ones(3)))


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_a_hook_added_to_a_submodule_after_the_first_call_is_seen(kind):
    net, x = nn.Sequential(Net(), nn.ReLU()), torch.randn(2, 4)
    compiled = turret.compile(net)
    plain = compiled(x)
    hooks = {
        "forward": lambda module: module.register_forward_hook(lambda m, args, out: out * 2),
        "forward_pre": lambda module: module.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
    }
    handle = hooks[kind](net[0].linear)
    torch.testing.assert_close(compiled(x), net(x))
    assert not torch.equal(compiled(x), plain)
    handle.remove()
    torch.testing.assert_close(compiled(x), plain)


def test_callables_compiled_alike_share_code_and_the_limit_of_recompiles():
    """Blocks of one class that are compiled one by one must not run into torch's limit of 8."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            return torch.relu(self.linear(x))

    blocks = [Block() for _ in range(12)]
    compiled = [turret.compile(block) for block in blocks]
    x = torch.randn(2, 4)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for block, twin in zip(blocks, compiled, strict=True):
            torch.testing.assert_close(twin(x), block(x))


def test_twelve_modules_of_torch_itself_stay_within_the_limit_of_recompiles():
    x = torch.randn(2, 4)
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for _ in range(12):
            module = nn.Linear(4, 3)
            torch.testing.assert_close(turret.compile(module)(x), module(x))


@pytest.mark.parametrize("change", [lambda v: v.unsqueeze_(0), lambda v: v.t_(), lambda v: v.transpose_(0, -1)])
def test_a_shape_read_after_an_in_place_change_of_layout_is_the_new_one(change):
    def function(x):
        v = x + 1
        change(v)
        return torch.zeros(v.shape), v.size(0), v.dim()

    x = torch.rand(3, 4)
    expected, actual = function(x), turret.compile(function)(x)
    assert actual[0].shape == expected[0].shape
    assert actual[1:] == expected[1:]


def test_captures_for_other_backends_are_left_as_they_are():
    def function(x):
        v = x + 1
        v.t_()
        return torch.zeros(v.shape)

    def shape():
        torch.compiler.reset()
        return torch.compile(function, backend="eager")(torch.rand(3, 4)).shape

    before = shape()
    turret.compile(function)(torch.rand(3, 4))
    assert shape() == before
