"""The frame hook sees frames of threads inside a compiled callable alone, and survives all that frames do."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import sys
import threading
import types

import pytest
import torch

import turret
from turret.frames import frame_hook, guard_tree
from turret.plugins.capture.dispatching import dispatch

OPTIONS = {"capture": "turret", "cache": False, "on_error": "raise"}


def add(x, n):
    return x + n


@pytest.fixture(scope="module")
def hook():
    turret.compile(add, options=OPTIONS)(torch.ones(2), 1)
    return dispatch._native()


def test_it_is_installed_inside_compiled_callables_alone(hook):
    inside = []

    def program(x):
        inside.append((hook.is_installed(), hook.is_active()))
        return x

    program._torchdynamo_disable = True
    turret.compile(lambda x: program(x) + 1, options=OPTIONS)(torch.ones(2))
    assert inside == [(True, True)]
    assert not hook.is_installed() and not hook.is_active()


def test_recursion_through_compiled_callables(hook):
    def descend(x, n):
        return x if n == 0 else compiled(x + 1, n - 1)

    compiled = turret.compile(descend, options=OPTIONS)
    assert torch.equal(compiled(torch.zeros(2), 5), torch.full((2,), 5.0))


def test_an_exception_leaves_the_hook_as_it_was(hook):
    def fail(x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        turret.compile(fail, options=OPTIONS)(torch.ones(2))
    assert not hook.is_installed() and not hook.is_active()


def test_threads_capture_on_their_own(hook):
    compiled = turret.compile(lambda x, n: torch.relu(x) * n, options=OPTIONS)
    failures = []

    def work(number):
        try:
            for step in range(20):
                x = torch.randn(3)
                if not torch.equal(compiled(x, number), torch.relu(x) * number):
                    failures.append((number, step))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n % 3,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not hook.is_installed()


def test_another_thread_is_not_captured(hook):
    seen = []

    def elsewhere():
        seen.append(hook.is_active())

    def program(x):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return x + 1

    turret.compile(program, options={**OPTIONS, "on_error": "fallback"})(torch.ones(2))
    assert seen == [False]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_goes_on(hook):
    compiled = turret.compile(add, options=OPTIONS)
    compiled(torch.ones(2), 1)
    child = os.fork()
    if child == 0:
        good = torch.equal(compiled(torch.ones(2), 1), torch.full((2,), 2.0)) and not hook.is_installed()
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_units_are_left_to_the_callback_while_hooks_save_tensors(hook):
    hook.watch_hooks(guard_tree.load().hooks_question())
    unit = types.SimpleNamespace(check=lambda *call: True, run=lambda *call: "chosen")

    def call():
        return hook.call(add, (1, 2), None, add.__code__, [unit], None)

    assert call() == "chosen"
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert call() == 3
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            assert other.submit(call).result() == "chosen"
    assert call() == "chosen"


def test_quick_entries_leave_torchs_callback_as_it_was_and_see_another_stance(hook):
    ran = []

    @torch.compiler.disable
    def check(x):
        ran.append(hook.is_installed())
        if x.sum() < 0:
            raise ValueError("mine")

    def program(x):
        check(x)
        return x + 1

    compiled = turret.compile(program, options={**OPTIONS, "on_error": "fallback"})
    hook.watch_hooks(guard_tree.load().hooks_question())
    compiled(torch.ones(2))
    before = frame_hook.set_torchs_callback(False)
    try:
        for x in (torch.ones(2), -torch.ones(2)):
            with contextlib.nullcontext() if x[0] > 0 else pytest.raises(ValueError, match="mine"):
                assert torch.equal(compiled(x), x + 1)
            assert frame_hook.set_torchs_callback(False) is False
    finally:
        frame_hook.set_torchs_callback(before)
    for stance in (turret.set_stance, torch.compiler.set_stance):
        ran.clear()
        with stance("force_eager"):
            compiled(torch.ones(2))
        compiled(torch.ones(2))
        assert ran == [False, True]


def test_generators_and_coroutines_pass_through(hook):
    def produce(x):
        yield x + 1
        yield x + 2

    assert [int(v) for v in turret.compile(produce, options=OPTIONS)(torch.zeros(()))] == [1, 2]


def test_it_works_beside_torch_compile(hook):
    def inner(x):
        return torch.sin(x) + 1

    def outer(x):
        return compiled_by_torch(x) * 2

    x = torch.randn(4)
    compiled_by_torch = torch.compile(inner, backend="eager")
    torch.testing.assert_close(turret.compile(outer, options=OPTIONS)(x), outer(x))
    turrets = turret.compile(inner, options=OPTIONS)
    torch.testing.assert_close(torch.compile(lambda v: turrets(v) * 2, backend="eager")(x), inner(x) * 2)
    assert not hook.is_installed()


def test_a_hook_below_that_puts_itself_on_top_again_does_not_go_round(hook):
    """A torch.compile that fails leaves its hook in place; the next call of one puts it on top of Turret's."""

    def failing(graph, inputs):
        raise ValueError("no")

    compiled_by_torch = torch.compile(lambda x: torch.sin(x) + 1, backend="eager")
    x = torch.randn(4)
    with pytest.raises(Exception, match="no"):
        torch.compile(lambda v: v + 1, backend=failing)(x)
    result = turret.compile(lambda v: compiled_by_torch(v) * 2, options=OPTIONS)(x)
    torch.testing.assert_close(result, (torch.sin(x) + 1) * 2)
    assert not hook.is_installed()


def test_arguments_of_every_kind_reach_the_captured_code(hook):
    def program(a, /, b, *rest, c=3, **more):
        return a + b + sum(rest) + c + more.get("d", 0)

    compiled = turret.compile(program, options=OPTIONS)
    x = torch.ones(2)
    for args, kwargs in (((x, 1), {}), ((x, 1, 2, 3), {"c": 4}), ((x,), {"b": 2, "d": 5})):
        assert torch.equal(compiled(*args, **kwargs), program(*args, **kwargs))


def test_deep_recursion_raises_recursion_error(hook):
    def forever(n):
        return forever(n + 1)

    limit = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        turret.compile(forever, options=OPTIONS)(0)
    assert sys.getrecursionlimit() == limit
