"""Operators of classes that derive from containers answer as Python's do: of which class, and which object."""

from __future__ import annotations

import itertools
import operator

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

X = torch.ones(2)


class Numbers(list):
    pass


class Pair(tuple):
    __slots__ = ()


class Table(dict):
    pass


class Some(set):
    pass


class Fixed(frozenset):
    pass


class Added(list):
    def __add__(self, other):
        return "added"

    def __radd__(self, other):
        return "added to"


class Joined(dict):
    def __ror__(self, other):
        return "joined to"

    def __ior__(self, other):
        return "joined in place"


class Doubled(dict):
    def __getitem__(self, key):
        return super().__getitem__(key) * 2


class Backwards(list):
    def __iter__(self):
        return iter(self[::-1])


class Declines(set):
    def __or__(self, other):
        return NotImplemented


class Says:
    def __radd__(self, other):
        return "says"

    __ror__ = __rmul__ = __radd__


MAKERS = {
    "list": lambda: [1, 2], "Numbers": lambda: Numbers([3, 4]), "Added": lambda: Added([5]),
    "Backwards": lambda: Backwards([6, 7]),
    "tuple": lambda: (1, 2), "Pair": lambda: Pair((3, 4)), "empty": lambda: Pair(()),
    "dict": lambda: {"a": 1}, "Table": lambda: Table(a=2, b=3), "Joined": lambda: Joined(b=4),
    "Doubled": lambda: Doubled(c=5),
    "set": lambda: {1, 2}, "Some": lambda: Some({2, 3}), "Declines": lambda: Declines({4}), "Fixed": lambda: Fixed({1, 5}),
    "frozenset": lambda: frozenset({2, 5}), "int": lambda: 2, "text": lambda: "ab", "Says": lambda: Says(),
}  # fmt: skip
OPERATORS = [operator.add, operator.mul, operator.or_, operator.and_, operator.sub, operator.xor]
PLAIN = ("Numbers", "Pair", "Table", "Some", "Fixed")
OPERATIONS = ("add", "mul", "or", "and", "sub", "xor")


def operated(operation, left, right):
    return lambda x: (x + 1, operation(MAKERS[left](), MAKERS[right]()))


def operated_in_place(name, left, right):
    change = getattr(operator, f"i{name}")

    def program(x):
        target = MAKERS[left]()
        same = target
        target = change(target, MAKERS[right]())
        return x + 1, target, target is same, same

    return program


def assert_follows(program, **options):
    observed = Observed(program, **options)
    expected, found = outcome(program, (X,), {}), outcome(observed, (X,), {})
    assert found[0] == expected[0], (found, expected)
    if expected[0] == "raised":
        assert type(found[1]) is type(expected[1])
        assert str(found[1]) == str(expected[1])
    else:
        assert_same(found[1], expected[1])


@pytest.mark.thorough
@pytest.mark.parametrize("left", MAKERS)
def test_results_and_refusals_are_those_of_python(left):
    for operation, right in itertools.product(OPERATORS, MAKERS):
        if {left, right} & {"int", "text"} == {left, right}:
            continue
        assert_follows(operated(operation, left, right))


@pytest.mark.thorough
@pytest.mark.parametrize("left", MAKERS)
def test_operators_in_place_change_the_object(left):
    for name, right in itertools.product(OPERATIONS, MAKERS):
        assert_follows(operated_in_place(name, left, right))


@pytest.mark.parametrize(
    ("operation", "left", "right"),
    [
        (operator.add, "Numbers", "list"), (operator.add, "list", "Numbers"), (operator.add, "Pair", "tuple"),
        (operator.add, "tuple", "Pair"), (operator.mul, "Numbers", "int"), (operator.mul, "int", "Pair"),
        (operator.or_, "Table", "dict"), (operator.or_, "dict", "Table"), (operator.or_, "Some", "set"),
        (operator.sub, "set", "Some"), (operator.and_, "Fixed", "frozenset"), (operator.xor, "frozenset", "Fixed"),
        (operator.iadd, "Numbers", "tuple"), (operator.imul, "Numbers", "int"), (operator.ior, "Table", "dict"),
        (operator.ior, "Some", "set"), (operator.isub, "Some", "Fixed"),
    ],
)  # fmt: skip
def test_they_are_followed(operation, left, right):
    assert_follows(operated(operation, left, right), fullgraph=True)


def test_elements_may_be_tensors():
    def program(x):
        rows = Numbers([x]) + [x * 2]
        rows += (x * 3,)
        table = Table(a=x) | {"b": x * 4}
        return rows, table, Pair((x,)) + (x * 5,)

    assert_follows(program, fullgraph=True)


class Divides:
    def __init__(self, n):
        self.n = n

    def __divmod__(self, other):
        return self.n, other

    def __rdivmod__(self, other):
        return other, self.n


class DividesFirst(Divides):
    def __rdivmod__(self, other):
        return "first", self.n


class Leaves:
    def __divmod__(self, other):
        return NotImplemented


@pytest.mark.parametrize(
    ("left", "right"),
    itertools.product(
        [lambda: 7, lambda: Divides(2), lambda: DividesFirst(3), lambda: Leaves(), lambda: 2.5], repeat=2
    ),
)
def test_divmod_is_up_to_the_classes(left, right):
    def program(x):
        first, second = divmod(left(), right())
        return x + 1, getattr(first, "n", first), getattr(second, "n", second)

    assert_follows(program, fullgraph=True)
