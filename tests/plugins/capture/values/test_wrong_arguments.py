"""Operators, methods and builtins on arguments that they do not take: the program gets Python's own errors."""

from __future__ import annotations

import collections

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
