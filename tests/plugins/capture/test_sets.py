"""Sets are iterated over in the order of eager's hash table, whatever they went through."""

from __future__ import annotations

import copy
import enum
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, check

ELEMENTS = st.one_of(
    st.integers(-3, 70),
    st.sampled_from("abcdefgh"),
    st.tuples(st.integers(0, 3), st.sampled_from("ab")),
    st.sampled_from([1.0, True, None]),
)
ROWS = st.lists(ELEMENTS, max_size=20)
CHANGES = (
    "update difference_update intersection_update symmetric_difference_update add discard remove clear pop "
    "__ior__ __iand__ __isub__ __ixor__"
).split()
NEW = (
    "copy union intersection difference symmetric_difference __or__ __and__ __sub__ __xor__ keys items set frozenset "
    "set_of_dict copy_copy"
).split()


@st.composite
def steps(draw):
    """Calls on sets that are numbered: (name, number, number of another, elements)."""
    found = []
    for _ in range(draw(st.integers(1, 12))):
        name = draw(st.sampled_from([*NEW, *CHANGES, "add", "discard", "add", "discard", "pop", "list", "break"]))
        found.append((name, draw(st.integers(0, 5)), draw(st.integers(0, 5)), tuple(draw(ROWS))))
    return tuple(found)


def apply(name, one, other, row, seen):
    """One call; a set if it makes one."""
    if name == "list":
        seen.append(list(one))
    elif name == "break":
        print(end="")
    elif name in ("add", "discard"):
        for element in row[:3]:
            getattr(set, name)(one, element)
    elif name == "pop":
        seen.append(one.pop() if one else None)
    elif name == "remove":
        if row and row[0] in one:
            one.remove(row[0])
    elif name == "clear":
        one.clear()
    elif name in CHANGES:
        getattr(set, name)(one, other if name.startswith("__") or not row else row)
    elif name == "copy":
        return one.copy()
    elif name == "copy_copy":
        return copy.copy(one)
    elif name == "set":
        return set(one)
    elif name == "frozenset":
        return set(frozenset(one) | frozenset(row))
    elif name == "set_of_dict":
        return set(dict.fromkeys(row))
    elif name == "keys":
        return dict.fromkeys(row).keys() ^ one
    elif name == "items":
        return {element: 1 for element in row}.items() & one
    elif name.startswith("__"):
        return getattr(set, name)(one, other)
    else:
        return getattr(set, name)(one, row) if row else getattr(set, name)(one, other)
    return None


def orders(sets):
    """The order of each set, and what it becomes as it grows, which says how large its table is."""
    found = []
    for one in sets:
        grown = one.copy()
        found.append([list(one), [grown.add(k) or list(grown) for k in (64, 33, 17)][-1], one.pop() if one else None])
    return found


@settings(max_examples=40, deadline=None)
@given(first=ROWS, calls=steps())
def test_tables_are_those_of_eager_after_any_calls(first, calls):
    def function(x, given):
        seen = []
        sets = [given, set(first), set()]
        for name, one, other, row in calls:
            made = apply(name, sets[one % len(sets)], sets[other % len(sets)], row, seen)
            if made is not None:
                sets.append(made)
        return x + 1, sets, seen

    found = []
    for run in (function, Observed(function)):
        outside = {5, 40, "b", "g", (1, "a")}
        outside.discard(40)
        _, sets, seen = run(torch.ones(2), outside)
        assert sets[0] is outside
        found.append((repr(seen), repr(orders(sets))))
    assert found[0] == found[1]


def test_elements_whose_hashes_are_addresses_lie_as_in_eager():
    modules = [torch.nn.Linear(1, 1) for _ in range(30)]

    def function(x):
        kept = set(modules)
        for module in modules[3:]:
            kept.discard(module)
        kept.add(modules[20])
        return x + 1, kept

    assert list(Observed(function)(torch.ones(1))[1]) == list(function(torch.ones(1))[1])


def test_sets_that_only_compiled_code_makes_are_popped_and_walked_through_there():
    def function(x):
        waiting = {8, 16, 3, 24}
        waiting.discard(16)
        waiting.add(0)
        while waiting:
            x = x * 10 + waiting.pop()
        return x

    check(function, torch.ones(1), breaks=0, graphs=1)


def test_a_set_that_changes_its_size_while_it_is_walked_through_is_an_error():
    def function(x):
        kept = {1, 2, 3}
        for element in kept:
            kept.add(element + 10)
        return x

    with pytest.raises(RuntimeError, match="Set changed size during iteration"):
        Observed(function)(torch.ones(1))


def test_a_discarded_element_keeps_its_place_in_a_set_of_a_subclass():
    class Bag(set):
        pass

    def function(x):
        bag = Bag()
        for element in (0, 8, 16, 3):
            bag.add(element)
        bag.discard(0)
        bag.add(24)
        return x + 1, bag

    assert list(Observed(function)(torch.ones(1))[1]) == list(function(torch.ones(1))[1])


def test_sets_of_objects_are_walked_through_in_their_order():
    class Item:
        def __init__(self, number):
            self.number = number

    items = {Item(n) for n in range(5)}
    tensors = {torch.full((2,), float(n)) for n in range(3)}
    first = next(iter(tensors))

    def function(x, items, tensors):
        seen = [item.number for item in items]
        for tensor in tensors:
            x = x * 2 + tensor
        return x, seen, first in tensors, x in tensors, len(items)

    observed = Observed(function, fullgraph=True)
    for sets in ((items, tensors), (items, tensors), (items, {first}), (items, set())):
        expected, found = function(torch.ones(2), *sets), observed(torch.ones(2), *sets)
        assert torch.equal(found[0], expected[0])
        assert found[1:] == expected[1:]


def test_sets_of_a_subclass_are_followed():
    class Bag(set):
        def doubled(self):
            return {n * 2 for n in self}

    def function(x, bag):
        seen = sum(bag), 1 in bag, len(bag), sorted(bag.doubled()), list(bag)
        bag.add(9)
        bag.discard(1)
        return x + len(bag), seen

    def makes(x):
        bag = Bag([1, 2])
        bag.add(3)
        return x + len(bag), bag == {1, 2, 3}, {1} < bag, bag <= {1, 2}, bag != {1, 2, 3}, sorted(bag), bag

    check(makes, torch.ones(2), graphs=1)

    plain, changed = Bag([1, 2, 3]), Bag([1, 2, 3])
    expected, found = function(torch.ones(2), plain), Observed(function, fullgraph=True)(torch.ones(2), changed)
    assert found[1] == expected[1]
    assert changed == plain
    assert type(changed) is Bag


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_is_looked_for_by_the_frozen_one_that_is_equal(kind):
    def program(x):
        among, looked_for = {frozenset({1, 2}), 3}, {1, 2}
        found = looked_for in kind(among), {1} in kind(among)
        among.discard(looked_for)
        among.discard({7})
        return x + 1, found, among

    check(program, torch.ones(2), graphs=1)


class Grade(enum.IntEnum):
    LOW = 1
    HIGH = 2


SETS = [
    ({Grade.LOW, 9}, {1}),
    ({1}, {Grade.LOW, 9}),
    ({Grade.LOW}, {1}),
    ({True, 2}, {1.0, Grade.HIGH, 7}),
    (frozenset({Grade.LOW}), {1, 5}),
]
SET_OPERATIONS = [
    *(operator.or_, operator.and_, operator.sub, operator.xor, operator.ior, operator.iand),
    lambda one, other: one.union([*other]),
    lambda one, other: one.intersection([*other]),
    lambda one, other: set(one).update(other) or one,
    lambda one, other: [kept := set(one), kept.intersection_update([*other])][0],
]


@pytest.mark.parametrize("sets", SETS, ids=str)
def test_of_equal_elements_of_two_sets_the_one_stays_that_python_keeps(sets):
    def program(x):
        return x + 1, [operation(type(sets[0])(sets[0]), set(sets[1])) for operation in SET_OPERATIONS]

    expected, found = program(torch.ones(1))[1], turret.compile(program)(torch.ones(1))[1]
    assert [sorted(map(repr, s)) for s in found] == [sorted(map(repr, s)) for s in expected]


@pytest.mark.parametrize("kind", [set, frozenset])
def test_a_set_that_is_initialized_once_more_takes_the_new_elements_if_it_changes_at_all(kind):
    def program(x):
        made = kind({1, 2})
        made.__init__({2, 3})
        return x + 1, sorted(made)

    check(program, torch.ones(2), graphs=1)
