"""Builtins and what the standard library writes in C: results, order and kinds are Python's."""

from __future__ import annotations

import bisect
import collections
import contextlib
import dataclasses
import functools
import heapq
import keyword
import math
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, check

X = torch.arange(3.0)
T = TypeVar("T")


@dataclasses.dataclass(frozen=True, order=True)
class Settings:
    size: int = 2
    names: tuple = ("a", "b")


@dataclasses.dataclass
class Task:
    rank: int
    weight: torch.Tensor = dataclasses.field(compare=False, default=None)

    def __lt__(self, other):
        return self.rank < other.rank


@settings(max_examples=30, deadline=None)
@given(ranks=st.lists(st.integers(0, 5), max_size=9), item=st.integers(0, 5))
def test_heaps_are_those_of_python(ranks, item):
    def function(x):
        heap, tasks = list(ranks), [Task(n) for n in ranks]
        heapq.heapify(heap)
        heapq.heapify(tasks)
        seen = [heapq.heappushpop(heap, item), list(heap)]
        heapq.heappush(heap, item)
        heapq.heappush(tasks, Task(item))
        seen += [heapq.heapreplace(heap, 3), heapq.heappop(heap), list(heap), bisect.bisect(sorted(heap), item)]
        return x + seen[0], seen, [t.rank for t in tasks], heapq.heappop(tasks).rank

    check(function, X, graphs=1)


@settings(max_examples=30, deadline=None)
@given(ranks=st.lists(st.integers(0, 3), max_size=9), reverse=st.booleans())
def test_objects_are_sorted_by_their_own_order(ranks, reverse):
    def function(x):
        tasks = [Task(n, x + k) for k, n in enumerate(ranks)]
        ordered = sorted(tasks, reverse=reverse)
        tasks.sort(key=lambda task: Settings(-task.rank))
        return [t.weight for t in ordered], [t.rank for t in tasks]

    check(function, X)


def test_data_classes_are_shown_and_hashed():
    def function(x, given):
        made = Settings(3)
        return x * made.size, repr(made), f"{given}", hash(given) == hash(Settings()), {given: 1}[Settings()]

    check(function, X, Settings(), graphs=1)


def test_numbers_that_change_answer_as_the_number_of_the_call():
    def function(x, f, n):
        parts = f.real, f.imag, f.conjugate(), n.imag, n.denominator, n.conjugate(), n.numerator
        return x * f, f.is_integer(), f.__int__(), parts

    for change in (1, 7):
        observed = Observed(function)
        for f, n in ((2.5, 6), (3.0, 7), (4.5, 9), (4.0, 6 * change), (-7.5, 2)):
            expected, found = function(X, f, n), observed(X, f, n)
            assert torch.equal(found[0], expected[0])
            assert found[1:] == expected[1:]
            assert [type(v) for v in found[3]] == [type(v) for v in expected[3]]
            assert type(found[2]) is int


def test_blocks_are_left_as_python_leaves_them():
    @contextlib.contextmanager
    def shown(seen):
        seen.append("in")
        yield 2
        seen.append("out")

    def function(x):
        seen = []
        with contextlib.ExitStack() as stack:
            number = stack.enter_context(shown(seen))
            stack.callback(seen.append, "called")
        return x + number, seen

    check(function, X, graphs=1)


@torch.jit.script_if_tracing
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_function_that_is_scripted_under_traces_is_followed():
    check(lambda x: doubled(x) + 1, X, graphs=1)


@pytest.mark.parametrize("decorate", [functools.lru_cache, functools.cache])
def test_a_cache_made_in_compiled_code_is_pythons(decorate):
    def function(x):
        calls = []

        @decorate
        def counted(n):
            calls.append(n)
            return n + 1

        return x + counted(1) + counted(1), len(calls)

    check(function, X, breaks=None)


class Wired:
    def scaled(self, value, by, offset=0):
        return value * by + offset

    tripled = functools.partialmethod(scaled, by=3, offset=1)

    @property
    def ready(self):
        return "ready" in self.__dict__, vars(self).get("ready", 4)


def from_keys(x):
    x, ordered, counted = x + 1, collections.OrderedDict, collections.defaultdict
    return ordered.fromkeys(("a", "b"), value=x), ordered.fromkeys(iterable="ab"), counted.fromkeys(["a"], x)


def annotated(x):
    def applied(function: Callable[[T], Any], value: T) -> T:
        return function(value)

    return applied(lambda v: v + 1, x)


@pytest.mark.parametrize(
    "program",
    [
        from_keys,
        annotated,
        lambda x: Wired().tripled(x),
        lambda x: (x + 1, Wired().ready),
        lambda x: (x + 1, dict.fromkeys("ab", 2), keyword.iskeyword("None"), frozenset("ab").__contains__("c")),
        lambda x: (x + 1, [*range(1, 7, 2).__iter__()], next(range(3, 5).__iter__())),
        lambda x: (x + 1, sys.intern("a" + "b"), torch.onnx.is_in_onnx_export()),
        lambda x: x + 1 if torch.autograd._is_checkpoint_valid() else x - 1,
        lambda x: torch.jit._unwrap_optional(x) + 1,
        lambda x: torch.utils._pytree.tree_map_only(torch.Tensor, lambda v: v[0], (x, {"a": x + 1}, 3)),
        lambda x: (max([x.sum(), x[0]]), min(map(lambda v: v - 2, (x[1], x[2]))), max([3]), min((x,))),
    ],
)
def test_small_questions_are_answered_in_one_graph(program):
    check(program, X, graphs=1)


def test_keyword_arguments_that_a_method_does_not_take_are_left_to_python():
    with pytest.raises(TypeError, match="takes no keyword arguments"):
        turret.compile(lambda x: dict.fromkeys("ab", value=x))(X)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: {"a": 1}.pop("a", 2, 3),
        lambda: {"a": 1}.popitem(None),
        lambda: {"a": 1}.update("a", 1),
        lambda: collections.OrderedDict(a=1).pop("a", 2, 3),
        lambda: dict("a", 1),
    ],
)
def test_calls_with_too_many_arguments_raise_what_python_raises(wrong):
    def program(x):
        try:
            return x + 1, wrong()
        except TypeError:
            return x - 1

    torch.testing.assert_close(turret.compile(program, backend="eager")(X), X - 1)


def test_numbers_that_are_symbols_compare_and_round_as_they_should():
    mine = Observed(lambda x, n: (x + 1, (n == n) is True, math.floor(n * 0.5), (n | 2) > (n | 2), n is None))
    for n in (5, 3, 8, 9):
        assert mine(X, n)[1:] == (True, n // 2, False, False)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: next(), lambda x: len(1, 2), lambda x: iter(1, 2, 3), lambda x: isinstance(1), lambda x: sorted(),
        lambda x: sum(), lambda x: any(items=[1]), lambda x: zip([1], by=2), lambda x: tuple(1, 2),
        lambda x: [1].sort(1), lambda x: [].append(), lambda x: x.size(0, 1), lambda x: divmod(1),
    ],
)  # fmt: skip
def test_arguments_that_a_builtin_does_not_take_raise_what_python_raises(call):
    def program(x):
        try:
            call(x)
        except TypeError as error:
            return x + 1, str(error)

    assert_same(Observed(program)(torch.ones(2)), program(torch.ones(2)))


def test_words_of_exceptions_are_the_interpreters():
    def required(a, b, *, c):
        pass

    def program(x, case):
        try:
            if case == 0:
                required(1, 2, 3)
            elif case == 1:
                required(c=1)
            elif case == 2:
                [1].remove(2)
            else:
                [1].index(2)
        except (TypeError, ValueError) as error:
            return x + 1, str(error)

    for case in range(4):
        check(program, X, case)


def test_vars_of_the_frame_are_its_variables():
    def program(x):
        y = x + 1
        return y, sorted(vars())

    assert_same(Observed(program)(torch.ones(2)), program(torch.ones(2)))


@functools.cache
def halves(text):
    return [text[:1], text[1:]]


@functools.cache
def table_of(text):
    return {"text": text, "made": []}


def test_what_a_function_remembers_is_one_object():
    def program(x, log):
        log.append(halves("ab"))
        log.append(table_of("t"))
        table_of("t")["made"].append(1)
        return x + len(halves("ab"))

    observed, log = Observed(program), []
    for _ in range(2):
        assert_same(observed(torch.ones(2), log), torch.full((2,), 4.0) - 1)
    assert log[0] is log[2] is halves("ab") and log[1] is log[3] is table_of("t")
    assert table_of("t")["made"] == [1, 1]


@pytest.mark.parametrize("most", [None, 0, 2, 5, -1])
def test_a_deque_of_at_most_so_many_items(most):
    def program(x, most):
        queue = collections.deque([1, 2, 3], maxlen=most)
        queue.append(4)
        return x + len(queue), list(queue), queue.maxlen, collections.deque([1], most).maxlen

    check(program, torch.ones(2), most)


class Nameless:
    pass


def test_the_text_of_an_object_from_before_is_that_of_its_address():
    kept = Nameless()
    check(lambda x: (x + 1, repr(kept), str(kept), f"{kept!r:>80}", str(kept) == repr(kept)), X, graphs=1)


def test_the_text_of_objects_that_change_is_written_where_it_is_handed_out():
    observed = Observed(lambda x, given: (x + 1, repr(given), [str(given)], f"{given}"), fullgraph=True)
    for _ in range(4):
        given = Nameless()
        text = object.__repr__(given)
        assert observed(X, given)[1:] == (text, [text], text)
    assert len(observed.recompiles) < 3


def test_the_text_of_an_object_made_in_the_graph_tells_the_address_of_what_leaves_it():
    def program(x, table):
        made = Nameless()
        table["text"] = str(made)
        return x + 1, made

    table: dict[str, str] = {}
    _, made = Observed(program, fullgraph=True)(X, table)
    assert table["text"] == object.__repr__(made)


def test_what_depends_on_the_address_of_an_object_that_changes_breaks_the_graph():
    observed = Observed(lambda x, given: x + ("Nameless" in repr(given)))
    for _ in range(2):
        torch.testing.assert_close(observed(X, Nameless()), X + 1)
    assert "tells its address" in observed.breaks[0]


def attributes_of_a_partial(x):
    held = functools.partial(torch.add, other=1)
    held.total, held.itself = x.sum(), held
    vars(held)["doubled"] = x * 2
    del held.total
    functools.update_wrapper(held, torch.nn.functional.relu)
    names = sorted(held.__dict__)
    return held(x), held.doubled, names, hasattr(held, "total"), held.itself is held, held.__name__


def a_partial_with_attributes(x):
    held = functools.partial(torch.mul, other=x)
    held.by = x + 1
    return held, held.by


def test_partials_have_attributes():
    check(attributes_of_a_partial, X, graphs=1)
    found, by = check(a_partial_with_attributes, X, graphs=1)(X)
    assert found.by is by


def test_attributes_of_a_partial_from_before_are_set():
    held = [functools.partial(torch.add, other=1) for _ in range(2)]

    def program(x, given):
        given.calls = getattr(given, "calls", 0) + 1
        given.last = x * 2
        return given(x), dict(vars(given))

    observed = Observed(program, fullgraph=True)
    for _ in range(3):
        assert_same(observed(X, held[0]), program(X, held[1]))
        assert_same(vars(held[0]), vars(held[1]))


def holding_themselves():
    row: list = [1]
    row.append(row)
    inner: list = []
    pair = (inner, 2)
    inner.append(pair)
    table: dict = {1: 2}
    table[3] = [table]
    queue: collections.deque = collections.deque()
    queue.append([queue])
    return {"list": row, "tuple": pair, "dict": table, "deque": queue}


@pytest.mark.parametrize("kind", ["list", "tuple", "dict", "deque"])
@pytest.mark.parametrize("made_here", [True, False])
def test_the_text_of_a_container_that_holds_itself_says_so(kind, made_here):
    before = holding_themselves()[kind]

    def program(x):
        held = holding_themselves()[kind] if made_here else before
        return x + 1, repr(held), str(held), f"{held}"

    assert_same(Observed(program)(X), program(X))


def test_the_text_of_a_container_that_is_held_many_times_is_whole():
    def program(x):
        row = [1]
        return x + 1, repr([row, (row, row)]), repr({1: row, 2: row})

    check(program, X)


@pytest.mark.parametrize("kind", [list, tuple])
def test_containers_nested_as_deeply_as_calls_may_be_end_no_process(kind):
    def program(x):
        held = kind()
        for _ in range(30_000):
            held = kind([held])
        try:
            shown = len(repr(held))
        except RecursionError:
            shown = -1
        return x + 1, shown

    assert_same(Observed(program)(X), program(X))


@pytest.mark.parametrize(
    "text", ["1 + 2", " [1, (2, 3)][1][0] * 3", "{'a': [1, 2]}", "[]", "-2.5 ** 2", "'a' 'b'", "1 / 0"]
)
def test_an_expression_of_literals_is_evaluated_in_the_graph(text):
    def program(x):
        try:
            return x + 1, eval(text)
        except ZeroDivisionError as error:
            return x + 1, str(error)

    observed = Observed(program, fullgraph=True)
    for _ in range(2):
        assert_same(observed(X), program(X))
    found = observed(X)[1]
    assert type(found) is not list or observed(X)[1] is not found


@pytest.mark.parametrize("text", ["x", "len('a')", "[n for n in (1, 2)]", "(lambda: 1)()", "1 +", "print()"])
def test_other_expressions_are_left_to_python(text):
    def program(x):
        try:
            return x + 1, eval(text)
        except SyntaxError:
            return x + 2

    assert_same(Observed(program)(X), program(X))
