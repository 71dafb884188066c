"""``copy.deepcopy`` in compiled code: modules and tensors are copied in the graph, as eager copies them."""

from __future__ import annotations

import collections
import copy

import pytest
import torch
from torch import nn

from tests.plugins.capture.capture_lab import Observed, assert_same, check, outcome

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)
        self.sizes = collections.OrderedDict(a=[1, {2}])

    def forward(self, x):
        return self.norm(self.second(self.first(x)).relu()) * self.scale


BLOCK = Block()


def test_a_copied_module_is_one_graph():
    def function(x):
        made = copy.deepcopy(BLOCK)
        made.scale += 1
        made.sizes["a"].append(3)
        tied = made.first.weight is made.second.weight, made.first.weight is BLOCK.first.weight
        return made(x), tied, made.sizes, BLOCK.sizes, [n for n, _ in made.named_buffers()], BLOCK.scale * 1

    check(function, X, graphs=1)


def test_layers_copied_from_one():
    def function(x):
        layers = nn.ModuleList([copy.deepcopy(BLOCK.first) for _ in range(3)])
        for layer in layers:
            x = layer(x)
        return x

    check(function, X, graphs=1)


def test_a_copied_module_that_leaves_the_graph_learns_by_itself():
    def function(x):
        made = copy.deepcopy(BLOCK.first)
        return made, made(x).sum()

    made, loss = Observed(function)(X)
    plain, expected = function(X)
    assert_same(loss, expected)
    loss.backward()
    expected.backward()
    assert BLOCK.first.weight.grad is None
    assert_same(made.weight.grad, plain.weight.grad)
    assert_same(dict(made.named_parameters()), dict(plain.named_parameters()))
    assert type(made.weight) is nn.Parameter


def test_a_copied_tensor_has_memory_of_its_own():
    def function(x, held):
        y, again = copy.deepcopy([x, x])
        y += 1
        made = copy.deepcopy(held)
        made["a"].append(2)
        made["t"] += 1
        return x, y, again is y, held, made

    check(function, X, {"a": [1], "t": torch.ones(3)}, graphs=1)


def test_tensors_whose_copies_are_more_than_their_numbers_are_copied_as_python():
    def function(x):
        return copy.deepcopy(x) + 1

    check(function, X[:, :2], breaks=None)
    check(function, X.clone().requires_grad_(), breaks=None)
    marked = X.clone()
    observed = Observed(lambda x: copy.deepcopy(x))
    assert not hasattr(observed(marked), "tag")
    marked.tag = "here"
    assert observed(marked).tag == "here"


WHOLE = torch.arange(4.0)
PART = WHOLE[:2]


def test_copies_of_tensors_that_share_memory_share_it():
    def function(x):
        own = x * 2
        one, two = copy.deepcopy([own, own[:1]])
        three, four = copy.deepcopy([WHOLE, PART])
        one += 1
        three += 1
        return two, four, WHOLE * 1

    check(function, X, breaks=None)


def test_named_tuples_are_copied_by_their_items():
    kind = collections.namedtuple("Pair", "left right")
    held = kind([1], X)

    def function(x):
        made = copy.deepcopy(held)
        made.left.append(2)
        return made.right + x, type(made).__name__, made.left, held.left

    check(function, X, graphs=1)


def test_methods_and_own_state():
    class Counted:
        def __init__(self, count):
            self.count = count

        def __getstate__(self):
            return {"kept": self.count}

        def __setstate__(self, state):
            self.count = state["kept"] + 1

        def run(self, x):
            return x + self.count

    counted = Counted(1)

    def function(x):
        return copy.deepcopy(counted).run(x), copy.deepcopy(counted.run)(x), counted.count

    check(function, X, graphs=1)


class Own:
    def __init__(self, value, kept=None):
        self.value, self.kept = value, kept


class OwnCopy(Own):
    def __copy__(self):
        return type(self)(self.value, "copied")

    def __deepcopy__(self, memo):
        return type(self)(copy.deepcopy(self.value, memo), self.kept)


class Reduced(Own):
    def __reduce__(self):
        return Reduced, (self.value, "reduced")


class WithState(Own):
    def __getstate__(self):
        return {"value": self.value}


class Restored(Own):
    def __setstate__(self, state):
        self.__dict__.update(state, kept="restored")


class Made(Own):
    def __new__(cls, value, kept=None):
        return object.__new__(cls)

    def __getnewargs__(self):
        return (self.value,)


class ReducedByProtocol(Own):
    def __reduce_ex__(self, protocol):
        return ReducedByProtocol, (self.value, protocol)


@pytest.mark.parametrize("kind", [Own, OwnCopy, Reduced, WithState, Restored, Made, ReducedByProtocol])
def test_a_copy_is_made_by_the_methods_that_a_class_has_for_it(kind):
    def program(x, n):
        first = kind([x, n], x)
        shallow, deep = copy.copy(first), copy.deepcopy([first, first, n])
        return shallow, shallow.value is first.value, deep, deep[0] is deep[1], deep[0].value is first.value

    observed, x = Observed(program), torch.arange(3.0)
    for n in (2, 3):
        assert_same(outcome(observed, (x, n), {}), outcome(program, (x, n), {}))


def test_copies_that_a_class_or_a_counter_makes_are_part_of_one_graph():
    def program(x, n):
        counts = collections.Counter("aab")
        more = copy.copy(counts)
        more["a"] += n
        return x * more["a"], counts, more, copy.deepcopy(OwnCopy([n])).value, copy.copy(Reduced(x)).value

    observed, x = Observed(program, fullgraph=True), torch.arange(3.0)
    for n in (2, 3):
        assert_same(observed(x, n), program(x, n))


class Named:
    def __init__(self, value):
        self.value = value


Pair = collections.namedtuple("Pair", "one other")
OUTSIDE = [(1, ("a",)), ([1], 2), Pair([1], 2), {Named(1): [1]}, Named((1, [2]))]


def first_key(table):
    return next(iter(table))


def shapes():
    """Objects that hold others, each in another way; what is asked of a copy beside its original."""
    holder: list = []
    round_about = (holder, 1)
    holder.append(round_about)
    inner, pair, key = ([1],), Pair([1], (2,)), Named(3)
    return {
        "tuple of constants": ((1, "a", (2, None)), lambda c, o: (c is o, c)),
        "tuple of lists": (inner, lambda c, o: (c is o, c[0] is o[0])),
        "one tuple twice": ([inner, inner], lambda c, o: (c[0] is c[1], c[0] is o[0])),
        "tuple in a tuple": (((1, 2), inner), lambda c, o: (c is o, c[0] is o[0], c[1] is o[1])),
        "tuple that holds itself": (round_about, lambda c, o: (c[0][0] is c, c is o)),
        "named tuple": (pair, lambda c, o: (c is o, type(c) is Pair, c.other is o.other)),
        "one named tuple twice": ([pair, pair], lambda c, o: c[0] is c[1]),
        "object as key": ({key: [1]}, lambda c, o: (key in c, first_key(c) is key, first_key(c).value)),
        "key that is a value too": ({"a": key, key: 1}, lambda c, o: (c["a"] in c, key in c)),
        "key in a tuple": ({(1, key): 1}, lambda c, o: (first_key(c)[1] is key, len(c))),
        "objects in a set": ({key}, lambda c, o: (key in c, len(c))),
        "frozenset": (frozenset([1]), lambda c, o: (c is o, c)),
        "function": ([shapes, lambda: 1], lambda c, o: (c[0] is o[0], c[1] is o[1])),
        "range": ([range(3)], lambda c, o: c[0] is o[0]),
    }


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", list(shapes()))
def test_a_copy_shares_with_its_original_what_pythons_shares(copied, kind):
    def program(x):
        original, asked = shapes()[kind]
        return x + 1, asked(copied(original), original)

    assert_same(Observed(program)(X), program(X))


@pytest.mark.parametrize("number", range(len(OUTSIDE)))
def test_a_copy_of_what_existed_before_shares_what_pythons_shares(number):
    def program(x):
        original = OUTSIDE[number]
        one, other = copy.deepcopy([original, original])
        keys = first_key(one) is first_key(original) if isinstance(original, dict) else None
        return x + 1, one is original, one is other, keys

    check(program, X)
