"""What programs use of the standard library: captured whole, with what eager gives, for arguments that change."""

import bisect
import collections
import copy
import enum
import functools
import heapq
import math
import operator
import types

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_captured, assert_same, outcome

X = torch.arange(4.0) + 1
KEPT: list = []


def whole(program, calls=((X, 2), (X * 2, 3), (X[:3], 5), (X, 2))):
    """Captured as one graph, results and what is left in ``KEPT`` included."""
    observed, found = Observed(program, fullgraph=True), []
    for call in (program, observed):
        KEPT[:] = [1, 2, 3]
        found.append([(*outcome(call, args, {}), list(KEPT)) for args in calls])
    for number, (theirs, mine) in enumerate(zip(*found, strict=True)):
        assert_same(mine, theirs, f"call {number}")
    assert_captured(observed)


class Flags(enum.IntFlag):
    R, W = 1, 2


class Mode(str, enum.Enum):
    SUM = "sum"


class Kind(enum.Enum):
    ONE, TWO, THREE = 1, 2, 3


class Items(list):
    pass


class Attributes(dict):
    pass


def raised(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)


def heap(x, n):
    items = [3, 1, 2, n]
    heapq.heapify(items)
    heapq.heappush(items, 0)
    return x + heapq.heappop(items) + heapq.heapreplace(items, 7) + heapq.heappushpop(items, 9), items


def heap_of_largest(x, n):
    items = [1, 5, n]
    heapq._heapify_max(items)
    least = heapq._heapreplace_max(items, 0)
    return x * least + heapq._heappop_max(items), heapq.nlargest(2, [1, 5, 3, n]), heapq.nsmallest(2, [4, 2, n])


def empty_heap(x, n):
    return x + n, raised(heapq.heappop, []), raised(heapq.heapreplace, [], n)


def heap_of_a_class(x, n):
    items = Items([3, 1, n])
    heapq.heapify(items)
    heapq.heappush(KEPT, n)
    return x + heapq.heappop(items), items


def bisection(x, n):
    found = [bisect.bisect([1, 3, 5], n), bisect.bisect_left([1, 2, 2, 5], n), bisect.bisect(range(9), n, lo=1, hi=3)]
    by_key = bisect.bisect_right([(1,), (4,), (9,)], n, key=lambda item: item[0])
    return x + by_key, found, raised(bisect.bisect, [1, 2], n, -1)


def insertion(x, n):
    bisect.insort(KEPT, n)
    bisect.insort_left(KEPT, n, 0, key=lambda v: -v)
    return x + len(KEPT)


def comparison_as_a_key(x, n):
    key = functools.cmp_to_key(lambda a, b: a - b)
    rows = sorted([[2, "a"], [n, "b"], [2, "c"]], key=functools.cmp_to_key(lambda a, b: (a[0] > b[0]) - (a[0] < b[0])))
    return x * sorted([3, 1, n], key=functools.cmp_to_key(lambda a, b: b - a))[0], rows, key(1) < key(n), key(n).obj


def operators_that_change_things(x, n):
    items, table = [1, 2, 7], {"a": 1}
    assert operator.iconcat(items, [n]) is items
    operator.delitem(items, 0)
    operator.delitem(table, "a")
    operator.setitem(items, 0, n)
    operator.setitem(KEPT, 0, n)
    operator.iconcat(KEPT, [n])
    operator.delitem(KEPT, 1)
    return x + items[0], items, table, operator.isub({1, 2}, {2}), operator.ior({"a": 1}, {"b": n})


def operators_that_count(x, n):
    items = [1, n, n]
    found = operator.countOf(items, n), operator.indexOf(items, n), operator.length_hint(items)
    return operator.call(torch.add, x, n), found, raised(operator.countOf, 3, 1), operator.concat([1], (items))


def numbers(x, n):
    area = math.prod(x.shape) + math.prod([0.5, n], start=2)
    return x * area + math.fsum([0.1, n]) + math.dist([0, 0], [3, n]) + math.hypot(3, n)


def texts(x, n):
    return x + 1, "hello".replace("l", "L", n), str(b"a", "ascii"), "a,b,c".split(",", n), "ab".center(n + 3, "*")


def members(x, n):
    return x * (Flags.R | Flags.W) + torch.full((2,), Flags.R | Flags.W).sum(), Kind(min(n, 3)), Flags(n & 3)


def texts_that_are_members(x, n):
    return torch.nn.functional.mse_loss(x, x * n, reduction=Mode.SUM)


def names_that_capture_uses_too(x, n):
    def program(t, function, value=1, self=2, args=3):
        return t * value * self + function

    bound = functools.partial(program, t=x, function=n)() + functools.partial(program, self=n, t=x)(function=3)
    counts = collections.Counter(t=n)
    counts.update(t=2, self=1)
    made = dict(t=x, value=n, self=1), collections.OrderedDict(t=n), collections.defaultdict(None, t=n, factory=n)
    return bound, made, types.SimpleNamespace(t=x, value=n, name=2, raw=3), Attributes(t=n, value=1, name=2, raw=4)


@pytest.mark.parametrize(
    "program",
    [
        heap, heap_of_largest, empty_heap, heap_of_a_class, bisection, insertion, comparison_as_a_key,
        operators_that_change_things, operators_that_count, numbers, texts, members, texts_that_are_members,
        names_that_capture_uses_too,
    ],
)  # fmt: skip
def test_it_is_captured_whole(program):
    whole(program)


OPERATORS = [f for name, f in vars(operator).items() if isinstance(f, types.BuiltinFunctionType) and name[0] != "_"]
OPERANDS = (([1, 2, 3], 1), ([1, 2, 3], [2]), ({"a": 1}, "a"), ({1, 2}, {2}), ([1], 0, 5), ({"a": 1}, "b", 2), ([2],))


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("operands", OPERANDS, ids=repr)
def test_an_operator_changes_what_eagers_changes(function, operands):
    def program(x, n):
        first, *rest = given
        try:
            return x + 1, function(first, *rest), first
        except Exception as error:
            return x + 1, type(error), first

    given = copy.deepcopy(operands)
    expected = program(X, 1)
    given = copy.deepcopy(operands)
    assert_same(Observed(program)(X, 1), expected)
