"""Operators, methods and builtins on arguments that they do not take: the program gets Python's own errors."""

from __future__ import annotations

import builtins
import collections
import itertools
import math
import operator
import typing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.function_capture import Watch, captured

X = torch.ones(2)
CONTAINERS = (
    "[1, x, 2]", "(1, x)", "{'a': x, 1: 2}", "{1, 'a'}", "frozenset({1})", "collections.deque([1, x], 3)", "collections.deque([1, x], None)",
    "collections.defaultdict(list, {1: x})", "collections.Counter('aab')", "range(5)", "'abc'", "2.5",
)  # fmt: skip
ARGUMENTS = (
    "0.5", "'s'", "None", "(1,)", "[2]", "-1", "3", "10**20", "True", "{}", "{1}", "slice(0, 's')",
    "slice(None, None, 0)", "object", "range(2)", "b'k'", "1j",
)  # fmt: skip
STATEMENTS = (
    "r = c * {a}", "r = {a} * c", "c *= {a}", "r = c + {a}", "r = c | {a}", "r = c < {a}", "r = {a} >= c", "r = c[{a}]",
    "r = {a} in c", "r = enumerate(c, {a}).__next__()", "r = isinstance(c, {a})", "r = isinstance(c, (int, {a}))",
    "r = getattr(c, {a})", "r = hasattr(c, {a})", "r = sorted(c, {a})", "r = sum(c, {a})", "r = divmod({a}, 2)",
    "r = c.index({a}, {a})", "r = c.insert({a}, 1)", "r = c.rotate({a})", "r = c.setdefault({a}, 1)",
    "r = c.pop({a})", "r = c.__setitem__({a})", "r = c.__len__({a})", "r = type(iter({a}, c)).__name__ and 1",
    "r = range({a})", "r = list(reversed(c))[{a}]",
)  # fmt: skip


def _ended(call) -> tuple[str, str]:
    result, contents = call(X)[1:]
    return repr(result), repr(contents)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(CONTAINERS), st.sampled_from(STATEMENTS), st.sampled_from(ARGUMENTS))
def test_wrong_arguments_raise_what_python_raises_and_are_no_failure_of_capture(container, statement, argument):
    scope = {"collections": collections}
    body = statement.format(a=argument)
    exec(
        f"def program(x):\n c, r = {container}, None\n try:\n  {body}\n"
        " except Exception as error:\n  r = type(error), error.args\n return x + 1, r, c",
        scope,
    )
    assert _ended(captured(scope["program"], Watch())) == _ended(scope["program"])


class Special:
    """Answers what Python asks a class for, with what tells one question from the others."""

    __hash__ = object.__hash__

    def __round__(self, *digits):
        return "round", digits

    def __rdivmod__(self, other):
        return "rdivmod"

    def __format__(self, text):
        return f"<{text}>"

    def __index__(self):
        return 2

    def __reversed__(self):
        return iter([2, 1])


class Plain:
    pass


_OUTSIDE = frozenset(
    "breakpoint compile copyright credits dir eval exec exit globals hash help id input license locals memoryview open print "
    "quit vars".split()
)
FUNCTIONS = tuple(
    f"{module.__name__}.{name}"
    for module in (builtins, math, operator)
    for name, function in vars(module).items()
    if callable(function) and name[0] != "_" and name[0].islower() and name not in _OUTSIDE
)
TENSORS = ("[1.5, -2.5]", "2.5", "[3]", "[1, 2]", "[True, False]", "1 + 2j")
OTHERS = ("2", "2.5", "'s'", "[1]", "None", "True", "(1, 2)", "x", "{}", "Special()", "Plain()")
FORMS = ("({0})", "({0}, {1})", "({1}, {0})", "({0}, {0}, {0})", "({1})")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(FUNCTIONS), st.sampled_from(FORMS), st.sampled_from(TENSORS), st.sampled_from(OTHERS), st.booleans()
)
def test_functions_of_python_take_of_a_tensor_what_python_takes(function, form, tensor, other, read):
    """``round(x)``, ``divmod(x, 2)``: tensors have methods like these, and Python's functions do not ask for them."""
    scope = {module.__name__: module for module in (builtins, math, operator)} | {"Special": Special, "Plain": Plain}
    call = function + form.format("x", other)
    exec(f"def program(x):\n r = {call}\n return {'r' if read else 'x + 1'}", scope)
    x = eval(f"torch.tensor({tensor})")
    assert _outcome(captured(scope["program"], Watch()), x.clone()) == _outcome(scope["program"], x.clone())


def _outcome(program, x) -> tuple:
    try:
        return _told(program(x))
    except Exception as error:
        return type(error), str(error)


def _told(value) -> tuple:
    if isinstance(value, torch.Tensor):
        return type(value), value.dtype, value.shape, str(value.tolist())
    if hasattr(value, "__next__") or isinstance(value, (tuple, list)):
        return type(value), *map(_told, itertools.islice(value, 8))
    return type(value), "" if " at 0x" in repr(value) else repr(value)


def test_a_product_in_place_makes_another_tensor_where_the_graph_runs_as_it_is():
    def program(x):
        operator.imatmul(x, x)
        return x + 1

    x = torch.tensor([1.0, 2.0])
    assert captured(program, Watch())(x).tolist() == [2.0, 3.0]


def test_the_right_side_says_what_a_union_of_dicts_is():
    def program(x):
        made = {"a": x} | collections.defaultdict(list, b=x)
        made["c"].append(x + 1)
        return made, collections.OrderedDict(a=1) | {"b": 2}, {"a": 1} | collections.OrderedDict(b=2)

    for found, expected in zip(captured(program, Watch())(X), program(X), strict=True):
        assert type(found) is type(expected) and repr(found) == repr(expected)


def test_what_a_callee_did_before_an_error_of_an_operator_is_kept():
    def program(x, kept):
        kept.append(1)
        return (1, x) * 0.5

    kept: list[int] = []
    with pytest.raises(TypeError, match="can't multiply sequence by non-int of type 'float'"):
        captured(program, Watch())(X, kept)
    assert kept == [1]


class Taking:
    """Takes an argument in ``__init__`` and hands it on, which ``object`` refuses."""

    def __init__(self, *given):
        super().__init__(*given)


class Choosing:
    def __new__(cls, *given):
        return object.__new__(cls, *given[1:])


UNION = int | None
CALLEES = (
    "object.__new__", "object.__init__", "int.__new__", "list.__new__", "str.__new__", "object", "slice", "slice(0, 3).indices",
    "slice(0, 1, 0).indices", "max", "min", "collections.defaultdict", "collections.OrderedDict", "collections.deque",
    "collections.OrderedDict().popitem", "{}.popitem", "range", "enumerate", "zip", "dict", "set", "list", "tuple", "Taking",
    "Choosing", "isinstance", "issubclass", "int", "float", "bool", "complex", "bytes", "str", "reversed", "iter", "sum", "any",
    "round", "divmod", "pow", "len", "hasattr", "callable", "sorted", "map", "filter", "next", "abs", "ord", "chr", "bin",
)  # fmt: skip
GIVEN = (
    "0", "-1", "2", "1.5", "'s'", "''", "None", "()", "(1, 2)", "[2]", "{}", "{1: 2}", "{1}", "object", "int", "list", "Taking",
    "Choosing", "Taking()", "UNION", "int | str", "list[int]", "int | list[int]", "(int, (str, UNION))", "len", "iter([1])",
    "range(3)", "b'k'", "True", "typing.Optional[int]", "typing.List[int]", "typing.Any",
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(CALLEES), st.lists(st.sampled_from(GIVEN), max_size=3))
def test_calls_of_any_number_of_arguments_end_as_pythons_do(callee, given_):
    scope = globals() | {"typing": typing}
    exec(
        f"def program(x):\n try:\n  r = {callee}({', '.join(given_)})\n"
        " except Exception as error:\n  r = type(error), error.args\n return r",
        scope,
    )
    assert _outcome(captured(scope["program"], Watch()), X) == _outcome(scope["program"], X)


@pytest.mark.parametrize(
    "callee, given_",
    [
        ("isinstance", "1, UNION"), ("isinstance", "None, UNION"), ("isinstance", "'s', UNION"), ("isinstance", "1, list[int]"),
        ("isinstance", "'s', int | list[int]"), ("isinstance", "1, typing.Any"), ("object.__new__", ""), ("object.__new__", "1"),
        ("object.__new__", "Choosing, 1"), ("object.__new__", "int"), ("Taking", "1"), ("object.__init__", "Taking(), 1"),
        ("slice(0, 1, 0).indices", "3"), ("slice(0, 1).indices", "-3"), ("slice", ""), ("max", "1, 2, default=3"), ("min", ""),
        ("collections.OrderedDict().popitem", ""), ("collections.defaultdict", "1"),
    ],
)  # fmt: skip
def test_calls_that_the_interpreter_refuses_are_refused(callee, given_):
    test_calls_of_any_number_of_arguments_end_as_pythons_do.hypothesis.inner_test(callee, [given_] if given_ else [])
