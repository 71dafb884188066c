"""Instances of classes that derive from numbers and texts, made in compiled code: real objects, with what their classes
say of operators and what the builtin class says of all else."""

from __future__ import annotations

import math

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_captured, assert_same, outcome

X = torch.arange(1.0, 4.0)


class Whole(int):
    pass


class Tagged(int):
    def __new__(cls, value, tag="none"):
        made = super().__new__(cls, value)
        made.tag = tag
        return made

    def __add__(self, other):
        return Tagged(super().__add__(other) + 1, self.tag)

    def twice(self):
        return self * 2


class Odd(int):
    def __eq__(self, other):
        return "eq"

    def __hash__(self):
        return 1

    def __bool__(self):
        return False

    def __lt__(self, other):
        return "lt"

    def __rmul__(self, other):
        return "rmul"

    def __index__(self):
        return 1

    def __str__(self):
        return "odd"


class Real(float):
    def __mul__(self, other):
        return Real(float(self) + other)


class Text(str):
    def loud(self):
        return Text(self.upper())

    def __add__(self, other):
        return Text(str.__add__(self, other))


MADE = ("Whole(n)", "Tagged(n, 'a')", "Odd(n)", "Real(1.5)", "Text('ab')", "Whole()", "Text(n)", "Real('2.5')")
USED = (
    "a", "a + 1", "1 + a", "a * n", "n * a", "a * x", "x * a", "x + a", "-a", "a == n", "a != 2", "a < 3", "3 < a", "a // 2",
    "a % 2", "a ** 2", "2 ** a", "divmod(a, 2)", "abs(a)", "round(a)", "int(a)", "float(a)", "str(a)", "repr(a)", "f'{a}'",
    "f'{a:>5}'", "bool(a)", "not a", "hash(a) == hash(n)", "{a: 1}", "{n: 1}.get(a)", "[5, 6, 7, 8][a]", "range(a)", "x[a]",
    "x.sum(a - a)", "torch.full((a,), 1.0)", "isinstance(a, int)", "type(a).__name__", "a.loud()", "a.twice()", "a.tag",
    "a + 'c'", "a[0]", "len(a)", "a.upper()", "a in 'cab'", "a.join('xy')", "a and 1", "a if a else 0", "math.sqrt(a)",
    "a.bit_length()", "a.real", "a.is_integer()", "a == a", "[a, a].index(a)", "a is a", "sum([a, a])", "max(a, 1)", "sorted([a, 1])",
    "a | 4", "a << 1", "'%s' % a", "x ** a", "torch.add(x, a, alpha=a)", "setattr(a, 'z', 1) or a.z", "a.__class__", "a @ a",
)  # fmt: skip


@pytest.mark.parametrize("made", MADE)
def test_what_is_done_with_one_gives_what_eager_gives(made):
    scope = {k: v for k, v in globals().items() if isinstance(v, type)} | {"torch": torch, "math": math}
    for used in USED:
        exec(f"def program(x, n):\n a = {made}\n found = {used}\n return x + 1, found, a", scope)
        program = scope["program"]
        observed = Observed(program)
        for n in (2, 1):
            expected, found = outcome(program, (X, n), {}), outcome(observed, (X, n), {})
            assert found[0] == expected[0], (used, found, expected)
            if expected[0] == "raised":
                assert type(found[1]) is type(expected[1]) and str(found[1]) == str(expected[1]), used
            else:
                assert_same(found[1], expected[1], used)


def numbers(x, n):
    whole, tagged = Whole(n), Tagged(n, "a")
    return x * whole + tagged.twice(), tagged + 3, tagged.tag, whole, [5, 6, 7, 8][whole], torch.full((whole,), whole)


def texts(x, n):
    text = Text("ab")
    return x * len(text), text.loud(), text + "c", text[0], {text: n}["ab"], f"{text}"


def containers(x, n):
    class_ = Rows
    rows = class_()
    rows.append(x)
    rows.append(None)
    rows.append(x * n)
    return torch.cat(rows), rows


class Rows(list):
    def append(self, item):
        if item is not None:
            super().append(item)


@pytest.mark.parametrize("program", [numbers, texts, containers])
def test_they_are_part_of_one_graph(program):
    observed = Observed(program, fullgraph=True)
    for n in (2, 3, 2):
        assert_same(observed(X, n), program(X, n))
    assert_captured(observed)
