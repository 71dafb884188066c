"""What a captured function changes outside of itself changes once, in order, as in Python."""

from __future__ import annotations

import collections

import torch
from torch import nn

from tests.plugins.capture.capture_lab import Observed, check

X = torch.arange(4.0)
COUNTER = 0
LOG: list = []


def test_changes_of_arguments_are_seen_by_the_caller():
    def change(x, items, table, seen, queue):
        items.append(x + 1)
        items[0] = "new"
        table["k"] = x * 2
        table["n"] = table.pop("old") + 1
        seen.add(3)
        queue.appendleft(items)
        return x

    check(change, X, [1, 2], {"old": 1}, {1, 2}, collections.deque([5]), graphs=1, calls=1)


class Holder:
    def __init__(self):
        self.count = 0
        self.items = []
        self.gone = 1


def test_attributes_are_set_and_deleted():
    def change(x, holder):
        holder.count += 1
        holder.items.append(x * holder.count)
        holder.new = x + 1
        if hasattr(holder, "gone"):
            del holder.gone
        return holder.count, holder.new

    check(change, X, Holder(), calls=3, breaks=0)


def test_globals_are_stored():
    def change(x):
        global COUNTER
        COUNTER += 1
        LOG.append(COUNTER)
        return x + COUNTER

    observed = Observed(change)
    assert torch.equal(observed(X), X + 1) and torch.equal(observed(X), X + 2)
    assert COUNTER == 2 and LOG == [1, 2]
    assert not observed.breaks


def test_cells_of_enclosing_functions_are_stored():
    total = 0

    def change(x):
        nonlocal total
        total = total + 1
        return x * total

    observed = Observed(change)
    assert torch.equal(observed(X), X) and torch.equal(observed(X), X * 2)
    assert total == 2


def test_tensors_are_mutated_in_place():
    def change(x, y):
        x.add_(1)
        y[0] = 5
        y.mul_(x)
        return x, y

    check(change, X, X + 1, graphs=1)


def test_identity_of_objects_is_kept():
    def same(x, items):
        other = items
        other.append(x)
        return items, other, x

    items: list = []
    result = Observed(same)(X, items)
    assert result[0] is items and result[1] is items and result[2] is X and items[0] is X


def test_one_object_in_two_places_is_rebuilt_once():
    def shared(x):
        inner = [x + 1]
        return inner, {"again": inner}

    first, second = Observed(shared)(X)
    assert second["again"] is first


def test_a_cycle_is_rebuilt():
    def cycle(x):
        items = [x + 1]
        items.append(items)
        return items

    items = Observed(cycle)(X)
    assert items[1] is items


def test_two_arguments_that_become_one_object_are_captured_anew():
    def change(x, a, b):
        a.append(1)
        b.append(2)
        return x + len(a)

    observed = Observed(change)
    observed(X, [], [])
    shared: list = []
    assert torch.equal(observed(X, shared, shared), X + 2)
    assert shared == [1, 2]


def test_tensors_that_come_to_share_memory_are_captured_anew():
    def change(x, y):
        x.add_(1)
        return x + y

    observed = Observed(change)
    observed(torch.zeros(3), torch.zeros(3))
    one = torch.zeros(3)
    assert torch.equal(observed(one, one), torch.full((3,), 2.0))
    base = torch.zeros(6)
    assert torch.equal(observed(base[:3], base[3:]), torch.ones(3))
    assert torch.equal(observed(base[3:], base[3:]), torch.full((3,), 2.0))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        self.total = self.total + x.detach()
        self.last = x
        return self.linear(x) * self.calls


def test_module_state_changes():
    module, plain = Counting(), Counting()
    plain.load_state_dict(module.state_dict())
    observed = Observed(module.__call__)
    for _ in range(3):
        torch.testing.assert_close(observed(X), plain(X))
        torch.testing.assert_close(module.total, plain.total)
        assert module.calls == plain.calls and module.last is X
        assert "total" in module._buffers


def test_effects_before_an_exception_stay():
    def fail(x, items):
        items.append(x + 1)
        raise ValueError("after a change")

    check(fail, X, [])


class Table(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value * 2)


def test_subclasses_of_containers_keep_their_own_methods():
    def change(x, table):
        table["a"] = x
        made = Table(b=1)
        made["c"] = x
        return table, made, len(table), "a" in table, list(made)

    check(change, X, Table(), calls=2)
