"""A graph break runs one instruction as Python and goes on: in loops, blocks, branches and nested calls."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch
from torch import nn

from tests.plugins.capture.capture_lab import Observed, assert_same, check, outcome
from turret.errors import CaptureError
from turret.plugins.capture.registry import registry

X = torch.arange(1.0, 5.0)


def opaque(value):
    """A call that capture does not follow."""
    return value


opaque._torchdynamo_disable = True


def test_a_call_in_the_middle():
    def program(x, y):
        a = x + 1
        b = opaque(a)
        return a * b + y

    observed = check(program, X, X * 2, breaks=1, graphs=2)
    assert "opaque" in observed.breaks[0]


def test_reading_a_tensors_value():
    def program(x):
        n = x.sum().item()
        y = x * n
        return y.tolist(), y + int(x[0]), float(x[1])

    check(program, X, breaks=None)


def test_a_branch_on_data():
    def program(x):
        if x.sum() > 0:
            y = x + 1
        else:
            y = x - 1
        return y * 2

    check(program, X, breaks=1)
    check(program, -X, breaks=1)


def test_a_while_loop_on_data():
    def program(x):
        steps = 0
        while x.sum() < 1000:
            x = x * 2
            steps += 1
        return x, steps

    observed = check(program, X, breaks=None)
    assert len(observed.graphs) <= 6


def test_a_break_in_a_for_loop_compiles_the_body_once():
    def program(x, n):
        total = 0
        for i in range(n):
            x = x + i
            total += opaque(x).sum().item()
            x = x * 2
        return x, total

    observed = check(program, X, 30, breaks=None)
    assert len(observed.graphs) < 12


def test_a_break_in_a_loop_over_an_iterator_of_its_own_compiles_the_body_once():
    def program(x, n):
        numbers = iter(range(n))
        while (i := next(numbers, None)) is not None:
            x = opaque(x) + i
        return x

    observed = check(program, X, 30, breaks=None)
    assert len(observed.graphs) < 12


def test_many_rounds_need_no_deep_stack():
    def program(x, n):
        for _ in range(n):
            x = opaque(x) + 1
        return x

    check(program, X, 3000, breaks=None, calls=1)


def test_the_stack_is_kept_across_a_break():
    def program(x):
        return [x + 1, (x * 2, opaque(x) - 1), max(len(opaque("ab")), 1)], {"k": opaque(x)}

    check(program, X, breaks=None)


def test_a_break_inside_with():
    def program(x):
        with torch.no_grad():
            y = x * 2
            z = opaque(y)
            w = z + 1
            inside = torch.is_grad_enabled()
        return w, x * 3, inside, torch.is_grad_enabled()

    check(program, X.clone().requires_grad_(), breaks=1)


class Tracked:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, trace):
        self.log.append(("exit", kind))
        return kind is ValueError


def test_a_break_inside_a_users_with():
    def program(x, log):
        with Tracked(log) as tracked:
            y = opaque(x) + 1
            tracked.log.append("body")
        return y

    check(program, X, [], breaks=1, calls=1)


def test_an_unknown_context_manager():
    def program(x):
        with contextlib.ExitStack() as stack, contextlib.redirect_stdout(None):
            y = x + 1
        return y * 2, stack is not None

    check(program, X, breaks=None)


def failing(kind):
    raise kind("from outside")


failing._torchdynamo_disable = True


def test_an_exception_in_the_instruction_that_breaks_is_handled():
    def program(x, log):
        y = x + 1
        try:
            failing(KeyError)
            log.append("not reached")
        except KeyError as error:
            log.append(repr(error))
            y = y * 3
        finally:
            log.append("finally")
        with Tracked(log):
            failing(ValueError)
        return y + 1

    check(program, X, [], breaks=None)


def test_an_exception_that_nobody_handles_leaves_the_function():
    def program(x, log):
        log.append("before")
        y = x + 1
        failing(RuntimeError)
        return y

    check(program, X, [], breaks=1, calls=1)


def test_a_break_while_an_exception_is_handled():
    def program(x, log):
        try:
            try:
                x = x + 1
                raise KeyError("first")
            except KeyError as error:
                log.append(opaque(str(error)))
                x = x * 2
                log.append(repr(opaque(sys.exc_info()[1])))
                raise ValueError(opaque("second"))
        except ValueError as error:
            log.append((str(error), repr(error.__context__)))
        return x + 1, sys.exc_info()[1]

    check(program, X, [], breaks=None, calls=1)


def test_a_failing_call_inside_a_handler_keeps_its_context():
    def program(x):
        try:
            x = x + 1
            raise KeyError("first")
        except KeyError:
            failing(ValueError)
        return x

    expected, found = outcome(program, (X,), {}), outcome(Observed(program), (X,), {})
    assert repr(found[1]) == repr(expected[1]) and repr(found[1].__context__) == repr(expected[1].__context__)


def test_a_break_in_a_called_function():
    def inner(x):
        y = x * 2
        return opaque(y) + 1

    def program(x):
        a = x + 1
        return inner(a) - a

    check(program, X, breaks=None)


def test_closures_survive_a_break():
    def program(x):
        count = 0

        def step(v):
            nonlocal count
            count += 1
            return v * count

        y = step(x)
        y = opaque(y)
        y = step(y)
        scale = opaque(3)
        return y * scale, count, step(x)

    check(program, X, breaks=None)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i == 1:
                opaque(x)
        return x.relu()


def test_a_module_with_a_break():
    torch.manual_seed(0)
    module = Model()
    observed = Observed(module.__call__)
    for _ in range(2):
        torch.testing.assert_close(observed(X), module(X))
    assert observed.breaks and not observed.fallbacks


def test_fullgraph_names_the_reason_and_the_place():
    def program(x):
        return opaque(x + 1)

    with pytest.raises(CaptureError, match=r"(?s)opaque.*test_breaks\.py.*return opaque"):
        Observed(program, fullgraph=True)(X)


def test_a_print_is_printed_each_time(capsys):
    def program(x):
        print("seen", x.shape[0])
        return x + 1

    observed = Observed(program)
    observed(X)
    observed(X)
    assert capsys.readouterr().out == "seen 4\n" * 2


def test_deleted_and_unbound_variables_stay_so():
    def program(x, flag):
        if flag:
            extra = x + 1
        y = opaque(x)
        del x
        try:
            return y, extra
        except UnboundLocalError:
            return y, None

    check(program, X, True, breaks=1)
    check(program, X, False, breaks=1)


def test_jumps_in_boolean_expressions():
    def program(x):
        y = (x.sum() > 3 and x.max() > 2) or x
        return y, (x.sum() < 0 or x) * 2

    check(program, X, breaks=None)


@contextlib.contextmanager
def managed(log, scale):
    log.append("begin")
    try:
        inner = scale + 1
        yield inner
        log.append("no exception")
    except KeyError:
        log.append("handled")
    finally:
        log.append(("end", inner))


def test_a_break_inside_a_block_of_a_generator_based_manager():
    def program(x, log, kind):
        with managed(log, 2) as scale:
            y = opaque(x) * scale
            if kind is not None:
                failing(kind)
        return y + 1

    for kind in (None, KeyError, ValueError):
        check(program, X, [], kind, breaks=None, calls=1)


def test_a_generator_goes_on_after_a_break():
    def program(x):
        scale = 2

        def produce(n):
            for i in range(n):
                got = yield x * i * scale
                if got:
                    yield got

        made = produce(5)
        first = next(made)
        opaque(None)
        second = made.send("sent")
        opaque(None)
        return first, second, list(made), next(made, "done")

    check(program, X, breaks=None)


def test_code_that_is_read_in_the_scope_of_the_frame_runs_there():
    def program(x, items):
        local = x + 1
        items.append(eval("local"))
        exec("items.append(2)")
        items.append(eval(*("len(items)",)))
        items.append(eval("given", {"given": 3}))
        return local

    captured, logs = Observed(program), [[], []]
    assert_same(captured(torch.ones(2), logs[0]), program(torch.ones(2), logs[1]))
    assert_same(*logs)


def test_after_a_break_an_unbound_variable_of_a_closure_is_still_a_local_one():
    def program(x, rows):
        print(end="")
        for row in rows:

            def later():
                return row

        return row

    for function in (program, Observed(program)):
        kind, error = outcome(function, (torch.ones(2), []), {})[:2]
        assert kind == "raised" and type(error) is UnboundLocalError


def test_a_break_while_a_handler_has_an_exception_keeps_what_is_around_it_compiled():
    def program(x, log):
        y = x * 2
        try:
            raise KeyError(1)
        except KeyError as error:
            fail_quietly(log, error)
        return y + 1

    def fail_quietly(log, error):
        log.append(str(error))

    fail_quietly._torchdynamo_disable = True
    observed, log = Observed(program), []
    assert_same(observed(torch.ones(2), log), torch.full((2,), 3.0))
    assert log == ["1"]
    assert len(observed.graphs) == 2


def test_what_a_handler_needs_as_a_constant_and_cannot_have_breaks_the_graph(monkeypatch):
    def named(module):
        return type(module).__name__

    def program(module, x):
        module.flag = 1
        return x + 1, named(module)

    monkeypatch.setitem(registry.functions, named, lambda t, module: module.constant())
    check(program, torch.nn.Tanh(), torch.ones(2), breaks=1)
