"""Functions and modules that are made anew for each call: captured once, whatever they close over."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome
from turret.frames.sources import LocalSource
from turret.plugins.capture.facts.policy import History

X = torch.tensor([0.5, -1.5, 2.5])


def scaled(factor: Any) -> Callable:
    return lambda v: v * factor


def with_default(factor: Any) -> Callable:
    def inner(v, by=factor):
        return v * by

    return inner


def with_keyword_default(factor: Any) -> Callable:
    def inner(v, *, by=factor):
        return v * by

    return inner


def decorated(factor: Any) -> Callable:
    inner = scaled(factor)

    @functools.wraps(inner)
    def wrapper(*args, **kwargs):
        return inner(*args, **kwargs) + 1

    return wrapper


def twice(factor: Any) -> Callable:
    inner, outer = scaled(factor), with_default(factor)
    return lambda v: outer(inner(v))


class Holder:
    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def method(self, v):
        return v * self.factor

    def __call__(self, v):
        return v + self.factor


class Wrapper(nn.Module):
    def __init__(self, inner: Callable) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, v):
        return self.inner(v) * 2


def multiply(factor: Any, v: Any) -> Any:
    return v * factor


FORMS: dict[str, Callable[[Any], Callable]] = {
    "lambda": scaled,
    "default": with_default,
    "keyword default": with_keyword_default,
    "decorated": decorated,
    "nested": twice,
    "partial": lambda f: functools.partial(multiply, f),
    "partial of lambda": lambda f: functools.partial(lambda g, v: g * v, f),
    "bound method": lambda f: Holder(f).method,
    "callable instance": Holder,
    "module": lambda f: Wrapper(scaled(f)),
    "vmap": lambda f: torch.vmap(scaled(f)),
    "grad": lambda f: torch.func.grad(lambda v: (scaled(f)(v)).sum()),
    "no_grad": lambda f: torch.no_grad()(scaled(f)),
}


def apply(function: Callable, x: torch.Tensor) -> torch.Tensor:
    return function(x) * 2 + function(x + 1)


def apply_around_a_break(function: Callable, x: torch.Tensor) -> torch.Tensor:
    y = function(x)
    print(end="")
    return function(y) + 1


def apply_each(functions: list[Callable], x: torch.Tensor) -> list[torch.Tensor]:
    return [f(x) for f in functions]


@pytest.mark.parametrize("form", sorted(FORMS))
def test_a_function_made_for_each_call_is_captured_once_or_twice(form):
    observed = Observed(apply)
    for number in range(5):
        make = FORMS[form]
        factor = torch.tensor(float(number))
        assert_same(observed(make(factor), X), apply(make(factor), X))
    expected = 2 if form == "module" else 1  # a module is known by identity until another one is there
    assert len(observed.graphs) <= expected and not observed.breaks, observed.recompiles


@pytest.mark.parametrize("form", ["lambda", "module", "bound method", "decorated"])
def test_behind_a_break_as_well(form):
    observed = Observed(apply_around_a_break)
    counts = []
    for number in range(6):
        factor = torch.tensor(float(number))
        assert_same(observed(FORMS[form](factor), X), apply_around_a_break(FORMS[form](factor), X))
        counts.append(len(observed.graphs))
    assert counts[-1] == counts[2] and not observed.fallbacks, observed.recompiles


_FACTORS = st.sampled_from([2.0, 3.0, 3, True, torch.tensor(2.0), torch.ones(3), torch.ones(3, requires_grad=True)])


@settings(max_examples=40, deadline=None)
@given(
    calls=st.lists(st.lists(st.tuples(st.sampled_from(sorted(FORMS)), _FACTORS), min_size=1, max_size=3), max_size=6)
)
def test_whatever_functions_come_and_close_over_the_results_are_eagers(calls):
    observed = Observed(apply_each)
    for call in calls:
        mine, theirs = ([FORMS[form](factor) for form, factor in call] for _ in range(2))
        found, expected = outcome(observed, (mine, X), {}), outcome(apply_each, (theirs, X), {})
        assert_same(found, expected)


def with_all(first: Any, second: Any, third: Any) -> Callable:
    def inner(v, by=first, plus=second, *, less=third):
        return v * by + plus - less

    return inner


def in_another_order(first: Any, second: Any, third: Any) -> Callable:
    def inner(v, by=third, *, plus=first, less=second):
        return v * by + plus - less

    return inner


_PLAIN = st.sampled_from([2, 3, 2.0, -0.5, True, torch.tensor(2.0)])
_CHANGES = {
    "another": lambda f, values: with_all(*values),
    "other code": lambda f, values: in_another_order(*values),
    "defaults": lambda f, values: setattr(f, "__defaults__", tuple(values[:2])),
    "fewer defaults": lambda f, values: setattr(f, "__defaults__", None),
    "keyword defaults": lambda f, values: f.__kwdefaults__.update(less=values[0]),
    "code": lambda f, values: setattr(f, "__code__", with_all(1, 1, 1).__code__),
}


@settings(max_examples=40, deadline=None)
@given(
    given_args=st.integers(1, 3),
    changes=st.lists(st.tuples(st.sampled_from(sorted(_CHANGES)), st.tuples(_PLAIN, _PLAIN, _PLAIN)), max_size=8),
)
def test_defaults_are_those_of_the_function_that_is_there(given_args, changes):
    def program(function, x):
        return function(*[x, 4, 5][:given_args]) * 2

    observed, function = Observed(program), with_all(2, 3, 4)
    for name, values in [("nothing", ()), *changes]:
        function = _CHANGES.get(name, lambda f, values: None)(function, values) or function
        assert_same(outcome(observed, (function, X), {}), outcome(program, (function, X), {}))


def test_a_function_is_handed_back_as_the_one_that_came():
    def program(function, x):
        return function, x + 1, [function], {"it": function}

    observed = Observed(program)
    for number in range(3):
        function = scaled(number)
        found = observed(function, X)
        assert found[0] is function and found[2][0] is function and found[3]["it"] is function
    assert len(observed.graphs) == 1


def test_identity_is_noticed_where_the_program_asks_for_it():
    def program(one, other, x):
        return x + 1 if one is other else x - 1

    observed = Observed(program)
    kept = scaled(1)
    for one, other in ((kept, kept), (scaled(1), scaled(1)), (kept, kept), (scaled(1), kept)):
        assert_same(observed(one, other, X), program(one, other, X))
    assert len(observed.graphs) == 2


GLOBAL = scaled(1)


def test_one_that_is_compared_with_a_global_is_told_from_others_like_it():
    def program(function, x):
        return x + 1 if function is GLOBAL else x - 1

    observed = Observed(program)
    for function in (scaled(1), GLOBAL, scaled(1), GLOBAL):
        assert_same(observed(function, X), program(function, X))


def counters() -> tuple[Callable, Callable]:
    count = 0

    def advance(v):
        nonlocal count
        count += 1
        return v + count

    return advance, lambda: count


def crossed() -> tuple[Callable, Callable]:
    return counters()[0], counters()[1]


@settings(max_examples=15, deadline=None)
@given(makers=st.lists(st.sampled_from([counters, crossed]), min_size=2, max_size=5))
def test_cells_that_functions_share_or_do_not(makers):
    def program(pair, x):
        return pair[0](x) + pair[0](x), pair[1]()

    observed = Observed(program)
    for make in makers:
        assert_same(observed(make(), X), program(make(), X))
    assert len(observed.graphs) <= 2


def test_equal_code_with_other_globals_is_another_function():
    scopes: list[dict[str, Any]] = [{"K": 2.0}, {"K": 3.0}]
    code = compile("lambda v: v * K", "<test>", "eval").co_consts[0]
    observed = Observed(apply)
    for scope in (*scopes, *scopes):
        function = types.FunctionType(code, scope)
        assert_same(observed(function, X), apply(function, X))


def test_attributes_of_a_function_are_looked_at():
    def program(function, x):
        return function(x) * getattr(function, "weight", 1.0), function.__name__

    def named(weight: float | None) -> Callable:
        made = scaled(2.0)
        made.__name__ = f"by_{weight}"
        if weight is not None:
            made.weight = weight  # type: ignore[attr-defined]
        return made

    observed = Observed(program)
    for weight in (None, 2.0, 3.0, None, 2.0):
        assert_same(observed(named(weight), X), program(named(weight), X))


def test_an_attribute_of_a_module_that_is_another_function_each_time():
    module = Wrapper(scaled(1.0))
    observed = Observed(module.__call__)
    for number in range(6):
        module.inner = scaled(torch.tensor(float(number)))
        assert_same(observed(X), module(X))
    assert len(observed.graphs) == 1


def test_an_empty_cell_is_told_from_a_filled_one():
    def maybe(filled: bool) -> Callable:
        def inner(v):
            try:
                return v + value
            except NameError:
                return v - 1

        if filled:
            value = 1.0
        return inner

    observed = Observed(apply)
    for filled in (True, False, True, False):
        assert_same(observed(maybe(filled), X), apply(maybe(filled), X))


class Doubling(nn.Module):
    """A module around another, made anew in each call."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, x):
        return self.base(x) * 2


class Solver:
    def __init__(self, function: nn.Module) -> None:
        self.function = function

    def integrate(self, x):
        for _ in range(2):
            x = x + self.function(x)
            if x.sum() > 1e6:
                break
        return x


def test_a_solver_made_in_each_call_around_modules_made_in_each_call():
    base = nn.Linear(3, 3)

    def program(x):
        return Solver(Doubling(base)).integrate(x)

    def solve(x):
        function = Doubling(base)
        print(end="")
        return Solver(function).integrate(x)

    for each in (program, solve):
        observed = Observed(each)
        counts = []
        for _ in range(6):
            assert_same(observed(X), each(X))
            counts.append(len(observed.graphs))
        assert counts[-1] == counts[2] > 0 and not observed.fallbacks, observed.recompiles


def test_a_function_that_lies_where_the_one_before_lay_is_another_one():
    history, source = History(), LocalSource(0, "function")
    before = scaled(1)
    place = id(before)
    assert not history.see_object(source, before) and not history.see_object(source, before)
    del before
    after = scaled(2)
    assert id(after) == place, "the interpreter takes memory that was given back last"
    assert history.see_object(source, after)


def test_modules_of_one_kind_that_take_turns():
    modules = [Wrapper(scaled(float(n))) for n in range(3)]
    layers = [nn.Linear(3, 3) for _ in range(3)]

    def program(module, layer, x):
        return module(x) + layer(x), module

    observed = Observed(program)
    for number in (0, 1, 2, 0, 1, 2, 0):
        module, layer = modules[number], layers[number]
        found, expected = observed(module, layer, X), program(module, layer, X)
        assert found[1] is module
        assert_same(found[0], expected[0])


@pytest.mark.parametrize("disable", [turret.disable, functools.partial(turret.disable, recursive=False)])
def test_a_disabled_function_that_is_made_anew_is_no_reason_to_capture_again(disable):
    def program(x, by):
        @disable
        def inner(v):
            return v + by

        return inner(x * 2) * 3

    observed = Observed(program)
    for by in (1, 1, 2, 2):
        assert_same(observed(X, by), (X * 2 + by) * 3)
    graphs = len(observed.graphs)
    for _ in range(5):
        assert_same(observed(X, 2), (X * 2 + 2) * 3)
    assert len(observed.graphs) == graphs and not any("inner" in text for text in observed.recompiles)


def test_a_function_in_place_of_a_disabled_one_is_followed():
    def program(x, function):
        return function(x) + 1

    def plain(factor):
        return lambda v: v * factor

    observed = Observed(program)
    disabled = [turret.disable(plain(2)), turret.disable(plain(3))]
    for function in (disabled[0], disabled[1], plain(4), disabled[0], plain(5)):
        assert_same(observed(X, function), program(X, function))
    assert any("outside of compiled code" in text for text in observed.breaks)
