"""Floats that change from call to call: inputs of the graph, and guards where the program decides on them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

X, Y = torch.tensor([0.5, 1.5, 2.5]), torch.tensor([2.0, -1.0, 0.25])
_NUMBERS = (0.1, 0.3, 0.7, 0.05, 1e-3)


def check(program: Callable, numbers: Any = _NUMBERS, captures: int = 2, breaks: int = 0) -> Observed:
    """Calls with each number, captured and not."""
    observed = Observed(program)
    for number in numbers:
        mine, theirs = X.clone(), X.clone()
        assert_same(observed(mine, number), program(theirs, number))
        assert_same(mine, theirs, "argument")
    assert len(observed.breaks) == breaks and not observed.fallbacks, observed.breaks
    assert len(observed.graphs) <= captures + breaks, observed.recompiles
    return observed


@pytest.mark.parametrize(
    "program",
    [
        lambda x, r: x.add_(Y, alpha=-r),
        lambda x, r: x.addcdiv_(Y, Y + 3, value=-r),
        lambda x, r: x.lerp(Y, 1 - r),
        lambda x, r: torch._foreach_add([x], [Y], alpha=r),
        lambda x, r: torch._foreach_addcdiv([x], [Y], [Y + 3], [r / (1 - 0.9**3)]),
        lambda x, r: (x.long() * r, x.sum() * r, r**x, torch.pow(r, Y), x.clamp(max=r)),
        lambda x, r: torch.vmap(lambda v: v * r)(x),
        lambda x, r: (torch.full((2,), r), x.new_full((2,), r), torch.where(x > r, x, r)),
        lambda x, r: (x, r, [r * 3], {"rate": -r}, abs(r), r is None, float(r), bool(r)),
        lambda x, r: x * max(r, 0.25) + min(r, 0.2),
        lambda x, r: (x * r, f"{r:.3f}", "%.2e" % (r * 2), {f"at {r}": x + 1}),
    ],
)
def test_a_float_that_changes_is_an_operand_like_a_number_of_python(program):
    check(program)


def test_what_a_graph_cannot_hold_breaks_it_and_goes_on():
    check(lambda x, r: (x * r, complex(r, 1), x + 1), breaks=1)


def test_a_decision_on_a_float_is_a_guard():
    observed = check(lambda x, r: x + 1 if r * 2 > 0.5 else x - r, captures=4)
    assert len(observed.recompiles) == 2  # the float changed; the decision changed


def test_an_op_that_compares_numbers_is_asked_by_python():
    check(lambda x, r: (x + r, torch.ops.aten.eq(3, r + 2.5)), breaks=1)


def test_whether_a_decision_on_a_float_is_another_object_is_known():
    def program(x, r):
        return x + r if (x is None) is (r * 2 > 0.5) else x - r, (r > 0.05) is True

    check(program, captures=5)


@settings(max_examples=30, deadline=None)
@given(
    symbol=st.sampled_from([operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]),
    form=st.sampled_from(
        [
            lambda r: r, lambda r: 1 - r * 0.1, lambda r: r / 3, lambda r: -r + 0.3, lambda r: (r + 1) ** 2 - 2,
            lambda r: r % 0.2, lambda r: r // 0.2,
        ]
    ),
    bound=st.sampled_from([0.0, 0.1, 0.3, 1.0, 0.1 + 0.2]),
    numbers=st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.1 + 0.2, 1.0, -0.5, 0.2, 0.6]), min_size=3, max_size=7),
)  # fmt: skip
def test_decisions_are_those_of_python(symbol, form, bound, numbers):
    def program(x, r):
        return (x + 1) * r if symbol(form(r), bound) else x - 1

    observed = Observed(program)
    for number in numbers:
        assert_same(observed(X, number), program(X, number))


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_infinity_and_nan_are_taken_for_what_they_are(number):
    check(lambda x, r: x * r, (0.1, 0.2, number, 0.3, number), captures=4)


def test_a_float_of_a_module_that_anneals_it():
    class Annealed(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = 1.0

        def forward(self, x):
            return torch.softmax(x / self.temperature, 0)

    module = Annealed()
    observed = Observed(module.__call__)
    for _ in range(6):
        assert_same(observed(X), module(X))
        module.temperature *= 0.9
    assert len(observed.graphs) == 2 and not observed.breaks


RATE = 0.5


def test_a_global_float_that_changes():
    global RATE

    def program(x):
        return x * RATE

    observed = Observed(program)
    for number in (0.5, 0.25, 0.125, 0.3):
        RATE = number
        assert_same(observed(X), program(X))
    assert len(observed.graphs) == 2


def test_gradients_flow_past_a_float_that_changes():
    def program(x, r):
        return (x * r).sum()

    observed = Observed(program)
    for number in _NUMBERS:
        x = X.clone().requires_grad_()
        observed(x, number).backward()
        torch.testing.assert_close(x.grad, torch.full_like(X, number))
    assert len(observed.graphs) == 2


NEEDED = {
    "a method": lambda x, f: x * f.as_integer_ratio()[0],
    "a text": lambda x, f: x * len(f"{f}"), "a key": lambda x, f: x * {f: 2}[f],
    "an operation": lambda x, f: torch.nn.functional.layer_norm(x, (4,), eps=f),
    "a key of a set": lambda x, f: x * len({f, 1.0}), "a complex number": lambda x, f: (x * complex(f, 1)).real,
    "a container": lambda x, f: x * math.fsum([f, 1.0]),
}  # fmt: skip


@pytest.mark.parametrize("program", NEEDED.values(), ids=NEEDED)
def test_what_needs_a_number_takes_it_for_a_constant(program):
    observed = Observed(program, fullgraph=True)
    x = torch.arange(4.0)
    for number in (0.5, 1.5, 2.25, 0.5):
        torch.testing.assert_close(observed(x, number), program(x, number))
    assert len(observed.graphs) == 3


_OPTIONS = {
    "an option": lambda x, f: F.layer_norm(x, (4,), eps=f),
    "a number of an option": lambda x, f: F.layer_norm(x, (4,), eps=f * 2) + f,
    "a factor of sizes": lambda x, f: F.interpolate(x[None], scale_factor=f + 1),
    "a float of a size": lambda x, f: F.layer_norm(x, (4,), eps=1 / x.shape[0]),
}


@pytest.mark.parametrize("program", _OPTIONS.values(), ids=_OPTIONS)
def test_an_operation_that_needs_a_constant_is_captured_for_each_of_a_few_values_and_then_left_to_python(program):
    observed = Observed(program)
    for number in range(2, 7):
        x = torch.rand(number, 4)
        torch.testing.assert_close(observed(x, 1 / number), program(x, 1 / number))
    assert len(observed.graphs) == 5 and not observed.breaks and not observed.fallbacks
    for number in range(7, 12):
        x = torch.rand(number, 4)
        torch.testing.assert_close(observed(x, 1 / number), program(x, 1 / number))
    assert len(observed.breaks) == 1 and not observed.fallbacks


_OPERANDS = st.sampled_from(["f", "g", "n", "x.shape[0]", "3", "-2", "0.1", "-1.5", "0.0", "-0.0", "1e16", "True"])


def _arithmetic(part: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "<", "=="])
    functions = st.sampled_from(["math.sqrt", "math.exp", "math.floor", "int", "round", "abs", "-", "bool", "float"])
    several = st.sampled_from(["min", "max", "math.hypot"])
    return st.one_of(
        st.builds("({} {} {})".format, part, operators, part),
        st.builds("{}({})".format, functions, part),
        st.builds("{}({}, {})".format, several, part, part),
        st.builds("divmod({}, {})[1]".format, part, part),
        st.builds("round({}, 2)".format, part),
        st.builds("sum([{}, {}, {}])".format, part, part, part),
    )


_VALUES = st.sampled_from([0.1, 0.3, -0.7, 1.0, 0.0, -0.0, 1e308, 5e-324, 2.0**53 + 1, math.inf, math.nan, 100.25])


@settings(max_examples=25, deadline=None)
@given(
    text=st.recursive(_OPERANDS, _arithmetic, max_leaves=6),
    calls=st.lists(st.tuples(_VALUES, _VALUES, st.sampled_from([2, 3, 5, 7])), min_size=3, max_size=6),
    fullgraph=st.booleans(),
)
def test_arithmetic_is_python_s_to_the_bit(text, calls, fullgraph):
    def program(x, f, g, n):
        return value(x, f, g, n), x + 1

    value = eval(f"lambda x, f, g, n: {text}", {"math": math})
    observed = Observed(program, fullgraph=fullgraph)
    for f, g, n in calls:
        expected, found = outcome(program, (X, f, g, n), {}), outcome(observed, (X, f, g, n), {})
        assert found[0] == expected[0], (found, expected)
        assert repr(found[1]) == repr(expected[1])  # zeros of both signs, ints and floats


@pytest.mark.parametrize(
    "number",
    [
        lambda x, f: f + 1e16 - 1e16, lambda x, f: sum([f, 1, f]), lambda x, f: f * False, lambda x, f: f // 0.02,
        lambda x, f: divmod(f, 0.02)[1], lambda x, f: math.sqrt(f) + math.sin(f), lambda x, f: round(f, 1),
        lambda x, f: round(f * 10), lambda x, f: 2**f, lambda x, f: max(f, 0.2) - min(f, 0.2), lambda x, f: (f > 0.2) * 1.5,
        lambda x, f: f * x.shape[0] / 3 * 3, lambda x, f: math.floor(f * 40) * f,
    ],
)  # fmt: skip
@pytest.mark.parametrize("fullgraph", [False, True])
def test_what_python_computes_of_a_float_needs_no_capture_of_its_own(number, fullgraph):
    def program(x, f):
        return x * number(x, f), number(x, f)

    observed = Observed(program, fullgraph=fullgraph)
    for f in (0.1, 0.3, 0.7, 0.05, 1e-3, 0.9):
        expected, found = program(X, f), observed(X, f)
        assert_same(found, expected)
        assert repr(found[1]) == repr(expected[1])
    assert len(observed.graphs) <= 2 and not observed.breaks and not observed.fallbacks


def test_floats_that_come_of_sizes_are_python_s_to_the_bit():
    def program(x):
        n = x.shape[0]
        return (
            n * 0.1 + 1e16 - 1e16,
            n / 3 * 3,
            (n - 5) * 0.0,
            n**0.5,
            n**-1,
            n * 0.7 % 0.3,
            n // 0.3,
            x[: int(n * 0.5)],
        )

    observed = Observed(program)
    for n in (3, 4, 5, 7, 11, 13):
        x = torch.arange(float(n))
        assert repr(observed(x)) == repr(program(x))
    assert len(observed.graphs) == 2


def test_what_raises_for_some_floats_raises_for_these():
    program = lambda x, f: (x * (1 / f), math.sqrt(f))  # noqa: E731
    observed = Observed(program, fullgraph=True)
    for f in (1.0, 2.0, 0.0, 3.0, -1.0, 4.0):
        expected, found = outcome(program, (X, f), {}), outcome(observed, (X, f), {})
        assert found[0] == expected[0]
        assert_same(found[1], expected[1])
    assert len(observed.graphs) == 2


def test_a_key_of_a_dict_beside_a_tensor_takes_the_float_for_a_constant():
    program = lambda x, f: (x * [f, 1.0][0], {f: 1})  # noqa: E731
    observed = check(program, captures=5)
    assert len(observed.graphs) == 5


def test_sums_of_numbers_and_tensors_are_python_s():
    for items in ([0.1] * 10, [0.1, 1, True, X, 0.1, 2], [X, 1.0], [1, 2**70], []):
        captured = Observed(lambda x, items=items: (x, sum(items), sum(items, 0.5), sum(iter(items))))
        assert_same(captured(X), (X, sum(items), sum(items, 0.5), sum(iter(items))))
