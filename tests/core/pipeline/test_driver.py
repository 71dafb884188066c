"""The failure policy: whatever a stage does wrong, results are eager's and the warning says whose fault it is."""

from __future__ import annotations

import re
import threading
import warnings

import attrs
import pytest
import torch
from torch import nn

import turret
from turret.errors import StageError
from turret.frames.trace_modes import mode_values
from turret.hooks.hookspecs import hookimpl

pytestmark = pytest.mark.usefixtures("fresh")

HOOKS = {
    "turret_decompositions": "decompositions",
    "turret_graph_pass": "graph_pass",
    "turret_joint": "joint",
    "turret_partition": "partition",
    "turret_place": "place",
    "turret_lowerings": "lowerings",
    "turret_lower": "lower",
    "turret_schedule": "schedule",
    "turret_codegen": "codegen",
    "turret_wrap_runtime": "wrap_runtime",
    "turret_runtime": "runtime",
}


def broken_plugin(hook, error=None):
    def fail(self):
        raise error or RuntimeError("out of ideas")

    fail.__name__ = hook
    return type("Broken", (), {hook: hookimpl(fail)})()


def program(x):
    x.mul_(2)
    return torch.softmax(torch.sin(x), -1)


@pytest.mark.parametrize("hook", HOOKS)
def test_a_stage_that_raises_means_eager_and_one_warning(hook):
    plugin = broken_plugin(hook)
    compiled = turret.compile(program, plugins=[plugin], options={"on_error": "fallback"})
    given, expected = torch.ones(3, 5), torch.ones(3, 5)
    with pytest.warns(UserWarning) as caught:
        result = compiled(given)
    torch.testing.assert_close(result, program(expected))
    torch.testing.assert_close(given, expected)
    (warning,) = [str(w.message) for w in caught if "Turret" in str(w.message)]
    assert re.search(rf"stage '{HOOKS[hook]}' \(plugin .*\) failed: .*RuntimeError: out of ideas", warning)
    assert re.search(r"plugin .*\.Broken\)", warning)
    assert "to reproduce" in warning and 'on_error="raise"' in warning and "debug_dir" in warning
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.ones(3, 5))


@pytest.mark.parametrize("hook", HOOKS)
def test_a_stage_that_raises_raises_where_asked_for(hook):
    with pytest.raises(StageError, match="out of ideas") as caught:
        turret.compile(program, plugins=[broken_plugin(hook)], options={"on_error": "raise"})(torch.ones(3, 5))
    assert caught.value.stage == HOOKS[hook]
    assert "out of ideas" in str(caught.value.__cause__)


def test_a_product_that_does_not_verify_is_the_fault_of_its_stage():
    class Wrong:
        @hookimpl(wrapper=True)
        def turret_lower(self):
            found = yield
            return attrs.evolve(found, outputs=(attrs.evolve(found.outputs[0], name="nothing"),))

    with pytest.raises(StageError, match=r"'lower'.*nothing"):
        turret.compile(lambda x: torch.sin(x), plugins=[Wrong()])(torch.ones(3))


def test_a_backward_that_does_not_compile_runs_eagerly():
    class Broken:
        @hookimpl
        def turret_schedule(self, program):
            if program.name.endswith("backward"):
                raise RuntimeError("out of ideas")

    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    compiled = turret.compile(layer, plugins=[Broken()], options={"on_error": "fallback"})
    with pytest.warns(UserWarning, match="stage 'schedule'.*out of ideas"):
        compiled(x).square().sum().backward()
    found = layer.weight.grad
    layer.weight.grad = None
    layer(x).square().sum().backward()
    torch.testing.assert_close(found, layer.weight.grad)


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_working_compiler_there_is_one_clear_error_and_eager(compiler, tmp_path):
    options = {"cpp_compiler": compiler, "cache_dir": str(tmp_path)}
    x = torch.randn(3, 5)
    with pytest.warns(UserWarning, match=rf"(?s)C\+\+ compiler.*{compiler}.*install one"):
        result = turret.compile(program, options={**options, "on_error": "fallback"})(x.clone())
    torch.testing.assert_close(result, program(x.clone()))
    turret.reset()
    with pytest.raises(StageError, match=r"(?s)'codegen' \(plugin turret.plugins.codegen.cpp\).*C\+\+ compiler"):
        turret.compile(program, options={**options, "on_error": "raise"})(x)


def test_a_compiler_that_rejects_its_flags_is_reported_with_its_command(tmp_path):
    options = {"cpp_flags": "--no-such-flag", "cache_dir": str(tmp_path)}
    with pytest.raises(StageError, match=r"(?s)failed on generated code.*--no-such-flag"):
        turret.compile(program, options=options)(torch.randn(3, 5))


def test_errors_of_the_program_are_torch_s_own():
    compiled = turret.compile(lambda table, index: table[index] + 1)
    table = torch.randn(4)
    with pytest.raises(IndexError):
        compiled(table, torch.tensor([1, 9]))
    torch.testing.assert_close(compiled(table, torch.tensor([1, 3])), table[[1, 3]] + 1)


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("calls", [(-1,), (3, -1), (3, -1, -1)])
def test_an_error_in_a_graph_that_runs_eagerly_leaves_the_modes_of_the_thread(dynamic, calls):
    def program(x, n):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.slice_scatter(x, x.narrow(0, 0, 1), 0, n, n + 1)  # eager refuses what ends at 0

    step = turret.compile(program, dynamic=dynamic, options={"on_error": "fallback"})
    before = mode_values()
    for n in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if n < 0:
                with pytest.raises(RuntimeError, match="slice"):
                    step(torch.randn(6, 4), n)
            else:
                torch.testing.assert_close(step(torch.ones(6, 4), n), torch.ones(6, 4))
        after, grad = mode_values(), torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        assert grad and after == before


def test_observers_that_fail_are_ignored_with_a_warning():
    class Noisy:
        @hookimpl
        def turret_event(self, event):
            raise RuntimeError("cannot look")

    with pytest.warns(UserWarning, match="cannot look"):
        result = turret.compile(torch.sin, plugins=[Noisy()])(torch.ones(3))
    torch.testing.assert_close(result, torch.sin(torch.ones(3)))


def test_an_unusable_default_cache_folder_costs_the_cache_alone(monkeypatch, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.delenv("TURRET_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(occupied))
    with pytest.warns(UserWarning, match="keeps no compiled artifacts.*cannot be made"):
        result = turret.compile(torch.sin)(torch.ones(3))
    torch.testing.assert_close(result, torch.sin(torch.ones(3)))


def test_wrappers_of_executables_run_though_an_equal_graph_is_in_the_cache(tmp_path):
    calls = []

    class Wrap:
        cache_key = "wrap"

        @hookimpl
        def turret_wrap_runtime(self, function, role):
            def wrapped(args):
                calls.append(role)
                return function(args)

            return wrapped

    for _ in range(2):
        turret.reset()
        compiled = turret.compile(program, options={"cache_dir": str(tmp_path)}, plugins=[Wrap()])
        compiled(torch.ones(3, 5))
    assert calls == ["inference"] * 2


def test_autocast_around_the_call_holds_for_forward_and_a_later_backward(tmp_path):
    """The backward is compiled where autocast is off again, from the same trace; also where the forward was stored."""
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)

    def program(x):
        y = layer(x)
        with torch.autocast("cpu", enabled=False):
            z = torch.mm(y.float(), layer.weight)
        return torch.tanh(torch.mm(z, layer.weight))

    def gradients(function):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = function(x)
        result.float().square().sum().backward()
        return result, layer.weight.grad.clone(), layer.bias.grad.clone()

    expected = gradients(program)
    options = {"cache_dir": str(tmp_path)}
    forward_alone = turret.compile(program, options=options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert forward_alone(x).dtype == torch.bfloat16
    for _ in range(2):
        turret.reset()
        found = gradients(turret.compile(program, options=options))
        assert [t.dtype for t in found] == [t.dtype for t in expected]
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


def shared(x, w):
    return torch.softmax(x @ w, -1).sum(0)


def in_threads(count, work):
    """Results of ``work(number)`` in as many threads, started together; raises the first error."""
    barrier, results, errors = threading.Barrier(count), [None] * count, []

    def run(number):
        try:
            barrier.wait()
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize("compiled_before", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_many_threads_may_call_one_compiled_function(training, compiled_before):
    w = torch.randn(16, 16)
    inputs = [torch.randn(32, 16) for _ in range(8)]

    def call(function, x):
        weight = w.clone().requires_grad_(training)
        result = function(x, weight)
        if training:
            result.square().sum().backward()
        return result.detach(), weight.grad

    compiled = turret.compile(shared)
    if compiled_before:
        call(compiled, inputs[0])
    found = in_threads(8, lambda number: [call(compiled, inputs[number]) for _ in range(20)])
    for x, results in zip(inputs, found, strict=True):
        expected, gradient = call(shared, x)
        for result, weight_gradient in results:
            torch.testing.assert_close(result, expected)
            if training:
                torch.testing.assert_close(weight_gradient, gradient)


def test_different_functions_compile_in_different_threads_at_once(tmp_path):
    def make(number):
        def function(x):
            return torch.sin(x) * number + torch.cos(x).sum(-1, keepdim=True) / (number + 1)

        return function

    x = torch.randn(4, 8)
    functions = [make(number) for number in range(4)]

    def work(number):
        return turret.compile(functions[number], options={"cache_dir": str(tmp_path)})(x)

    for function, result in zip(functions, in_threads(4, work), strict=True):
        torch.testing.assert_close(result, function(x))
