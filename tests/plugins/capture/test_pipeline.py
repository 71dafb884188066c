"""Captured graphs through the whole pipeline: inference, training, mutation, dynamic sizes; the public surface."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import turret
from turret.hooks.hookspecs import hookimpl

OPTIONS = {"capture": "turret", "on_error": "raise", "cache": False}


def compiled(target, **settings):
    return turret.compile(target, options=OPTIONS, **settings)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x, *, scale=1.0):
        return x + self.layers(self.norm(x)) * scale


def test_a_module_trains_as_in_eager():
    torch.manual_seed(0)
    plain = Block()
    mine = copy.deepcopy(plain)
    fast = compiled(mine, fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (plain, mine)]
    for step in range(3):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
        for model, optimizer in zip((plain, fast), optimizers, strict=True):
            optimizer.zero_grad()
            model(x, scale=0.5).pow(2).mean().backward()
            optimizer.step()
    for expected, found in zip(plain.parameters(), mine.parameters(), strict=True):
        torch.testing.assert_close(found, expected)


def test_one_binary_serves_all_batch_sizes():
    fast = compiled(lambda x: torch.softmax(x @ x.T, -1) * x.shape[0], dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(fast(x), torch.softmax(x @ x.T, -1) * rows)


def test_inputs_are_mutated_through_compiled_code():
    def program(x, items):
        x.mul_(2)
        view = x[0]
        view.add_(1)
        items.append(view)
        return view.sum()

    mine, plain, mine_items, plain_items = torch.ones(2, 3), torch.ones(2, 3), [], []
    torch.testing.assert_close(compiled(program)(mine, mine_items), program(plain, plain_items))
    torch.testing.assert_close(mine, plain)
    torch.testing.assert_close(mine_items, plain_items)
    assert mine_items[0]._base is mine or mine_items[0].data_ptr() == mine.data_ptr()


def test_explain_counts_graphs_and_names_breaks():
    def program(x):
        y = torch.sin(x)
        n = y.sum().item()
        return torch.cos(x) * n

    explanation = turret.explain(program, options={"capture": "turret"})(torch.ones(3))
    assert explanation.graphs == 2
    assert any("Tensor.item" in reason for reason in explanation.breaks)


def test_a_guard_filter_drops_guards():
    class Filter:
        @hookimpl
        def turret_guard_filter(self, guards):
            return [guard.kind != "EQUALS" for guard in guards]

    fast = compiled(lambda x, n: x * n, plugins=[Filter()])
    assert torch.equal(fast(torch.ones(2), "ab".__len__()), torch.full((2,), 2.0))
    assert torch.equal(fast(torch.ones(2), 3), torch.full((2,), 2.0)), "the guard on n was kept"


def test_a_failing_stage_falls_back_to_the_captured_graph():
    class Broken:
        @hookimpl
        def turret_joint(self, captured):
            raise ValueError("broken on purpose")

    fast = turret.compile(lambda x: x + 1, options={"capture": "turret", "cache": False}, plugins=[Broken()])
    with pytest.warns(UserWarning, match="broken on purpose"):
        assert torch.equal(fast(torch.ones(2)), torch.full((2,), 2.0))


def test_a_failure_of_capture_itself_runs_the_function_as_python(monkeypatch):
    from turret.plugins.capture.interpreter import namespaces

    def broken(*args):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(namespaces.Namespaces, "variable", broken)
    fast = turret.compile(lambda x: torch.relu(x), options={"capture": "turret", "cache": False})
    with pytest.warns(UserWarning, match="planted"):
        assert torch.equal(fast(torch.ones(2)), torch.ones(2))


def test_methods_partials_and_callable_objects_are_compiled():
    class Scaler:
        def __init__(self, factor):
            self.factor = factor

        def scale(self, x):
            return x * self.factor

        def __call__(self, x):
            return self.scale(x) + 1

    scaler, x = Scaler(3), torch.ones(2)
    assert torch.equal(compiled(scaler.scale)(x), x * 3)
    assert torch.equal(compiled(scaler)(x), x * 3 + 1)


def test_a_compiled_module_is_dropped_with_its_captures():
    import gc
    import weakref

    module = Block()
    fast = compiled(module)
    fast(torch.randn(2, 8))
    reference = weakref.ref(module)
    del module, fast
    gc.collect()
    assert reference() is None


def test_a_compiled_callable_inside_another_is_part_of_its_graph():
    module = Block()
    inner, inner_module = compiled(lambda x: x * 2), compiled(module)
    explanation = turret.explain(lambda x: inner_module(inner(x)) + 1, options={"capture": "turret"})(torch.randn(2, 8))
    assert explanation.graphs == 1 and not explanation.breaks


def test_reset_forgets_captures():
    fast = compiled(lambda x, n: x * n)
    fast(torch.ones(2), 3)
    settings = fast.turret_settings
    assert len(settings.root.units) == 1
    turret.reset()
    assert not settings.root.units
    assert torch.equal(fast(torch.ones(2), 3), torch.full((2,), 3.0))


def test_the_recompile_limit_is_an_option():
    fast = turret.compile(lambda x, s: x * len(s), options={**OPTIONS, "recompile_limit": 2})
    with pytest.warns(UserWarning, match="compiled 2 times"):
        for text in ("a", "bb", "ccc"):
            assert torch.equal(fast(torch.ones(2), text), torch.full((2,), float(len(text))))


def test_an_input_that_is_no_leaf_may_change_its_shape_and_be_written_to():
    def program(x):
        x.unsqueeze_(0)
        x.mul_(2)
        return x.sum()

    def gradient(function):
        leaf = torch.arange(4.0, requires_grad=True)
        function(leaf.clone()).backward()
        return leaf.grad

    compiled = turret.compile(program, options={"capture": "turret", "on_error": "raise", "cache": False})
    torch.testing.assert_close(gradient(compiled), gradient(program))


def test_functions_that_run_no_python_code_compile():
    compiled = turret.compile(torch.tanh, fullgraph=True, options={"capture": "turret", "on_error": "raise"})
    torch.testing.assert_close(compiled(torch.ones(3)), torch.tanh(torch.ones(3)))


def test_compiling_what_is_compiled_starts_from_the_function():
    def program(x):
        return torch.sin(x) + 1

    options = {"capture": "turret", "on_error": "raise"}
    again = turret.compile(turret.compile(program, options=options), fullgraph=True, options=options)
    torch.testing.assert_close(again(torch.ones(3)), program(torch.ones(3)))


@pytest.mark.parametrize(
    ("mode", "how", "train"),
    [
        ("nearest", {"scale_factor": 1.5}, False), ("nearest", {"size": 7}, True),
        ("bilinear", {"scale_factor": 1.5}, True), ("bilinear", {"size": 7}, False),
        ("bicubic", {"scale_factor": 1.5}, True), ("bicubic", {"size": 7}, False),
        ("area", {"scale_factor": 1.5}, False), ("area", {"size": 7}, True),
    ],
)  # fmt: skip
@pytest.mark.thorough
def test_images_of_any_size_are_resized(mode, how, train):
    def resize(x):
        return torch.nn.functional.interpolate(x, mode=mode, **how) * 2

    compiled = turret.compile(resize, dynamic=True, fullgraph=True, options={"cache": False, "on_error": "raise"})
    for extent in (6, 9):
        x = torch.randn(2, 3, extent, extent, requires_grad=train)
        y = x.detach().clone().requires_grad_(train)
        found, expected = compiled(x), resize(y)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        if train:
            weights = torch.randn_like(expected)
            found.backward(weights)
            expected.backward(weights)
            torch.testing.assert_close(x.grad, y.grad)


def test_a_number_that_turns_out_to_be_one_value_is_that_value():
    def program(x, n):
        return (x + torch.ones(n)) * n

    function = turret.compile(program, dynamic=True, options=OPTIONS)
    for number in (3, 4, 5):
        x = torch.randn(2, number)
        torch.testing.assert_close(function(x, number), program(x, number))
