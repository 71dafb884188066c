"""What programs of one graph (``fullgraph``) may do with Python's own means: results are eager's, call after call."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import typing
import warnings
import weakref
from typing import Any

import numpy
import pytest
import torch
from torch.fx.experimental.symbolic_shapes import sym_and, sym_or
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same
from turret.errors import CaptureError

X = torch.tensor([1.0, 2.0, 0.0])


def whole(program, *calls, dynamic=None):
    """One graph for each way that guards know of; results are eager's for all of ``calls``, tuples of arguments."""
    observed = Observed(program, fullgraph=True, dynamic=dynamic)
    for args in [*calls, *calls] or [(X,), (X + 1,)]:
        assert_same(observed(*args), program(*args))
    assert not observed.fallbacks and not observed.breaks
    return observed


# Decisions that the program hands out, and does not branch on.


DECISIONS = {
    "bool": lambda x: bool(x.sum()),
    "bool of an int": lambda x: bool(x.sum().long()),
    "not": lambda x: not x.sum(),
    "not of a condition": lambda x: not x.sum() > 2,
    "not not": lambda x: not not x.sum(),
    "not not of a condition": lambda x: not not x.sum() > 2,
    "three times not": lambda x: not not not x.sum() > 2,
    "in": lambda x: 3 in [x.sum()],
    "in a tuple": lambda x: 3 in (0, x.sum()),
    "not in": lambda x: 3 not in [x.sum()],
    "in, known": lambda x: 3 in [3, x.sum()],
    "in, itself": lambda x: x in [x, 2],
    "and": lambda x: bool(x.sum() > 2) & bool(x.sum() < 4),
    "or": lambda x: bool(x.sum() > 4) | bool(x.sum() < 0),
}


@pytest.mark.parametrize("name", DECISIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_decisions_on_data_are_results(name, dtype):
    decide = DECISIONS[name]
    values = [X.to(dtype), X.to(dtype) + 1, X.to(dtype) * 0]
    observed = whole(lambda x: (decide(x), x + 1), *((v,) for v in values))
    assert len(observed.graphs) == 1


def test_a_branch_on_what_is_in_a_list_of_data_breaks_the_graph_or_is_part_of_it():
    def program(x):
        return x + 1 if 3 in [x.sum()] else x - 1

    observed = Observed(program)
    for x in (X, X + 1):
        assert torch.equal(observed(x), program(x))
    assert observed.breaks
    whole = Observed(program, fullgraph=True)
    for x in (X, X + 1):
        assert torch.equal(whole(x), program(x))


def test_conditions_on_several_numbers_are_checked_by_the_graph():
    def program(x):
        one, two, _ = x.tolist()
        torch._check(sym_and(one >= 0, two <= 10, sym_or(one < 5, two < 5)))
        return x + one + two

    observed = Observed(program, fullgraph=True, dynamic=True)
    assert torch.equal(observed(X.long()), program(X.long()))
    with pytest.raises(RuntimeError):
        observed(torch.tensor([-1, 2, 3]))


# Functions that remember their results.


class Remembering:
    total = 0

    def __init__(self, by=1.0):
        self.by = by

    @functools.lru_cache
    def scaled(self, x, by=2.0):
        return x * by * self.by

    @functools.lru_cache
    def count(self, by):
        self.total += by
        return self.total


@functools.lru_cache
def table(count):
    return torch.arange(count) * 2.0


@functools.cache
def nested_table(count):
    return [torch.ones(count), {"a": torch.zeros(count)}]


def test_a_remembered_table_is_one_object_for_the_program_and_for_compiled_code():
    for function, take in ((table, lambda v: v), (nested_table, lambda v: v[1]["a"])):
        function.cache_clear()
        observed = whole(lambda x, f=function, g=take: (x + g(f(3)), g(f(3))))
        assert type(take(function(3))) is torch.Tensor
        assert observed(X)[1] is take(function(3))
        assert function.cache_info().misses == 1


def test_methods_that_remember():
    kept = Remembering(3.0)
    whole(lambda x: kept.scaled(x * 1))
    whole(lambda x: kept.scaled(x + 1, by=5.0) + x)

    def counts(x):
        made = Remembering()
        return x + made.count(3) + made.count(3) + made.count(4), made.total

    whole(counts)


def test_a_method_that_remembers_and_changes_things_runs_its_body_as_often_as_in_python():
    for program in (lambda x, n: x + Counting.of.counted(n - 1), lambda x, n: x + Counting.of.counted(n)):
        seen = []
        for call in (program, turret.compile(program)):
            Counting.of = Counting()
            made = [call(torch.zeros(2), n).tolist() for n in (3, 4, 5, 4, 3, 6, 4, 3)]
            seen.append((made, Counting.of.calls))
        assert seen[0] == seen[1]


def test_what_is_remembered_for_a_tensor_that_existed_before_is_left_to_python():
    doubled = functools.lru_cache(lambda x: x * 2)
    fast, held = turret.compile(lambda x: [doubled(x)]), X.clone()
    assert fast(held)[0] is fast(held)[0] is doubled(held)


def remembered_numbers(settings):
    @functools.lru_cache
    def number(by=1):
        return settings["scale"] * by

    return number, lambda x: x * number() + number(by=2)


def remembered_containers(settings):
    @functools.cache
    def table(key):
        return [settings["scale"], {"key": key}]

    return table, lambda x: x * table("a")[0] + len(table("a")[1])


def remembered_tensors(settings):
    @functools.lru_cache(maxsize=None)
    def table(count):
        return torch.full((count,), settings["scale"])

    return table, lambda x: (x[:3] * table(3), table(3))


def remembered_of_modules(settings):
    class Scales(torch.nn.Module):
        @functools.lru_cache
        def scale(self, by):
            return self.by * by

        def forward(self, x):
            return x * self.scale(by=2)

    net = Scales()
    vars(net)["by"] = settings["scale"]
    settings["changed"] = lambda: vars(net).update(by=settings["scale"])
    return Scales.scale, lambda x: net(x)


def remembered_behind_changes(settings):
    @functools.cache
    def number():
        return settings["scale"]

    def program(x):
        settings["scale"] += 1.0
        return x * number()

    return number, program


def remembered_behind_writes(settings):
    total = torch.full((3,), settings["scale"])

    @functools.cache
    def number():
        return float(total.sum())

    def program(x):
        total.add_(settings["scale"])
        return x * number()

    return number, program


def remembered_alone(settings):
    @functools.lru_cache(maxsize=1)
    def table():
        return {"scale": settings["scale"]}

    return table, lambda x: (x * table()["scale"], table())


def remembered_by_nobody(settings):
    @functools.lru_cache(maxsize=0)
    def table():
        return {"scale": settings["scale"]}

    return table, lambda x: (x * table()["scale"], table())


def remembered_and_forgotten(settings):
    calls = []

    @functools.lru_cache(maxsize=1)
    def number(by):
        calls.append(by)
        return settings["scale"] * len(calls)

    return number, lambda x: x * number(1) + number(2)


CHANGED = {
    "a tensor": (lambda n: torch.arange(n) * 1.0, lambda found, x: x + found.add_(1)[:3]),
    "a part of one": (lambda n: torch.ones(n), lambda found, x: x + found[:1].mul_(2)),
    "one in a tuple": (lambda n: (n, torch.ones(n)), lambda found, x: x + found[1].mul_(2)[:3]),
    "a list": (lambda n: [n], lambda found, x: found.append(1) or x * len(found)),
    "a list in a tuple": (lambda n: (n, [n]), lambda found, x: found[1].append(1) or x * len(found[1])),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changes_of_what_is_remembered_for_a_number_that_changes_stay(name):
    make, use = CHANGED[name]
    seen = []
    for compiled in (False, True):
        remembered = functools.cache(make)

        def program(x, n, remembered=remembered):
            return use(remembered(n), x)

        call = turret.compile(program, backend="eager", dynamic=True) if compiled else program
        seen.append([call(X, n) for n in (3, 3, 4, 3)])
    assert_same(seen[1], seen[0])


@pytest.mark.parametrize(
    "make",
    [
        remembered_numbers, remembered_containers, remembered_tensors, remembered_of_modules,
        remembered_behind_changes, remembered_behind_writes, remembered_and_forgotten,
        remembered_alone, remembered_by_nobody,
    ],
)  # fmt: skip
def test_a_result_is_remembered_until_its_cache_is_cleared(make):
    seen = []
    for compiled in (False, True):
        settings = {"scale": 2.0, "changed": int}
        function, program = make(settings)
        call = turret.compile(program, backend="eager") if compiled else program
        results = []
        for step in range(6):
            if step in (1, 3):  # a change that the cache hides, until it is cleared
                settings["scale"] += 3.0
                settings["changed"]()
            if step in (2, 5):
                function.cache_clear()
            results.append(call(X))
        seen.append(results)
    assert_same(seen[1], seen[0])


def test_the_one_result_of_a_function_without_arguments_is_part_of_the_graph():
    made = []

    @functools.lru_cache(maxsize=1)
    def table():
        made.append({"scale": 3.0})
        return made[-1]

    table()
    observed = whole(lambda x: (x * table()["scale"], table()))
    for _ in range(2):
        assert observed(X)[1] is made[0] and len(made) == 1


def test_a_function_that_raises_remembers_nothing():
    @functools.cache
    def refuses(limit):
        if settings["scale"] > limit:
            raise ValueError("too much")
        return limit

    def program(x):
        try:
            return x * refuses(3.0)
        except ValueError as error:
            return x, str(error)

    settings = {"scale": 5.0}
    observed = Observed(program)
    for scale in (5.0, 2.0, 6.0):
        settings["scale"] = scale
        refuses.cache_clear()
        found = observed(X)
        refuses.cache_clear()
        assert_same(found, program(X))


class Counting:
    of: Counting

    def __init__(self):
        self.calls = 0

    @functools.lru_cache(maxsize=2)
    def counted(self, n):
        self.calls += 1
        return n * 10


def test_a_method_that_remembers_and_changes_what_was_there_before_is_left_to_python():
    def program(x, held):
        return x + held.count(3)

    held = [Remembering(), Remembering()]
    observed = Observed(program)
    for _ in range(3):
        assert torch.equal(observed(X, held[0]), program(X, held[1]))
        assert held[0].total == held[1].total == 3
    assert observed.breaks


# Frozen dataclasses.


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any
    y: Any = 2.0


@dataclasses.dataclass(frozen=True)
class Line:
    start: Point
    end: Any = 7


@turret.allow_in_graph
def length_of(line, other=None):
    return (line.x - line.y) + (0 if other is None else other.start.x)


def test_frozen_dataclasses_are_arguments_of_what_is_one_node():
    whole(lambda x: length_of(Point(x, x * 2)))
    whole(lambda x: length_of(Point(x), other=Line(Point(x + 1))))
    given = Point(X, X + 1)
    whole(lambda x: length_of(given) + x)


def test_frozen_dataclasses_are_keys():
    def program(x):
        kept = {Line(Point(1.0, (2, "a"))): 3, Line(Point(1.5)): 4}
        return x + kept[Line(Point(1.0, (2, "a")))] + kept[Line(Point(1.5))], Line(Point(2)) in kept

    whole(program)
    whole(lambda x: (x + 1, hash(Line(Point(1), (1, -1))) == hash((Point(1), (1, -1)))))


# Warnings.


def test_a_block_that_records_warnings_gives_an_empty_list():
    def program(x):
        with warnings.catch_warnings(record=True) as said:
            y = x.sin()
        return y, said, warnings.catch_warnings(record=True)

    observed = Observed(program, fullgraph=True)
    y, said, block = observed(X)
    assert torch.equal(y, X.sin()) and said == [] and isinstance(block, warnings.catch_warnings)
    with block as said:
        warnings.simplefilter("always")
        warnings.warn("recorded", stacklevel=1)
    assert len(said) == 1


@pytest.mark.parametrize("says", [lambda x: warnings.warn("x", stacklevel=1), lambda x: torch.range(0, 3)])
def test_a_warning_that_the_program_records_is_left_to_python(says):
    def program(x):
        with warnings.catch_warnings(record=True) as said:
            says(x)
        return x + len(said)

    before = list(warnings.filters)
    with pytest.raises(CaptureError, match="records"):
        Observed(program, fullgraph=True)(X)
    assert warnings.filters == before
    whole(lambda x: (x.sin(), warnings.filters == before))


# Functions and objects that lead back to themselves; weak references.


def test_functions_that_lead_back_to_themselves_leave_the_graph():
    def program(x):
        def one(n):
            return [one, two, parts] if n == 0 else two(n - 1)

        def two(n, again=None):
            return one(n)

        parts = [one, {"two": two}]
        return x + 1, one, parts

    result, one, parts = Observed(program, fullgraph=True)(X)
    assert torch.equal(result, X + 1)
    first, second, same = one(4)
    assert first is one is parts[0] and second is parts[1]["two"] and same is parts


def test_a_recursive_function_lives_across_a_break():
    def program(x):
        def power(n):
            return x if n == 0 else power(n - 1) * x

        y = power(2)
        print("", end="")
        return y + power(3)

    observed = Observed(program)
    assert torch.equal(observed(X), program(X))
    assert len(observed.graphs) == 2


def test_weak_references_are_made_and_followed():
    class Held:
        by = 3.0

    held = Held()

    def program(x, holder):
        to_input, to_holder = weakref.ref(x), weakref.ref(holder)
        y = to_input() * to_holder().by
        return y, to_input, to_holder, weakref.ref(y), to_input == weakref.ref(x)

    observed = Observed(program, fullgraph=True)
    x = X.clone()
    y, to_input, to_holder, to_result, same = observed(x, held)
    assert torch.equal(y, X * 3) and to_input() is x and to_holder() is held and to_result() is y and same.all()
    del y
    assert to_result() is None
    with pytest.raises(CaptureError, match="may be gone"):
        Observed(lambda x: weakref.ref(x * 2)() + 1, fullgraph=True)(X)
    with pytest.raises(CaptureError, match="callback"):
        Observed(lambda x: (weakref.ref(x, lambda r: None), x + 1), fullgraph=True)(X)
    whole(lambda x: (_no_reference(), x + 1))


def _no_reference():
    try:
        return weakref.ref([])
    except TypeError:
        return "none"


# Others.


def test_a_descriptor_that_only_sets_leaves_reading_to_the_instance():
    class Doubling:
        def __set__(self, owner, value):
            owner.__dict__["field"] = value * 2

    class Owner:
        field = Doubling()

    def program(x):
        owner = Owner()
        before = type(owner.field).__name__
        owner.field = x
        return owner.field, before

    whole(program)


def test_a_list_is_extended_by_itself():
    class Own(list):
        pass

    def program(x):
        items, own = [x, 1], Own([x, 2])
        items.extend(items)
        own.extend(own)
        return items, list(own), x + 1

    whole(program)


def test_paths_and_texts_of_what_is_known():
    class Named(os.PathLike):
        def __fspath__(self):
            return "named"

    named = Named()
    whole(lambda x: (os.fspath("a"), os.fspath(named), str(table), repr(operator.add), x + 1))


def test_the_address_of_a_tensor_is_that_of_the_tensor():
    held = [X.clone(), X.clone()]
    addresses = [id(v) for v in held]

    def program(x, number, address):
        return x * (2 if id(held[number]) == address else 3)

    whole(program, *((X, n, a) for n in (0, 1) for a in addresses))


def test_arguments_named_by_words_of_python():
    whole(lambda x: (x.clone().uniform_(**{"from": 2.0, "to": 2.0}), x.clone().random_(3, to=4)))
    whole(lambda x: x.clone().random_(**{"from": 5, "to": 6}))


def test_numpys_functions_of_types_and_of_tensors_shapes():
    whole(lambda x: x + numpy.issubdtype(type(3), numpy.integer) + numpy.can_cast(numpy.int8, numpy.int16))
    whole(lambda x: (numpy.ones_like(x, dtype=numpy.float64), numpy.full_like(x, 2.4)))
    whole(lambda x: (x + 1, x.numpy().tolist(), numpy.arange(3).tolist()))
    whole(lambda x, n: (x + n % numpy.int64(4), n % numpy.int64(4)), (X, 7), (X, 9), dynamic=True)


def test_a_policy_of_a_checkpoint_is_a_partial_in_turn():
    by = {torch.ops.aten.sin.default}

    def program(x):
        def keeps(context, op, *args, kept, **kwargs):
            return op in kept

        policy = functools.partial(create_selective_checkpoint_contexts, functools.partial(keeps, kept=by))
        return checkpoint(lambda y: y.sin().cos(), x, use_reentrant=False, context_fn=policy)

    whole(program)


def test_blocks_that_refuse_hooks_decorate():
    @torch.autograd.graph.disable_saved_tensors_hooks("refused")
    def outside(x):
        return x.cos()

    def program(x):
        @torch.autograd.graph.disable_saved_tensors_hooks("refused")
        def inside(x, by):
            return x.sin() * by

        return inside(x, by=3), outside(x)

    whole(program)


def test_an_operator_is_compiled_on_its_own():
    assert torch.equal(turret.compile(torch.ops.aten.sin.default, backend="eager", fullgraph=True)(X), X.sin())


def test_a_compiled_function_in_an_operator_is_python_while_it_is_captured(fresh_library):
    inner = turret.compile(lambda x: x.sin().cos(), backend="eager", fullgraph=True, dynamic=True)
    fresh_library.define("nested(Tensor x) -> Tensor")
    fresh_library.impl("nested", inner, "CompositeExplicitAutograd")
    operator = getattr(torch.ops, fresh_library.ns).nested
    observed = Observed(lambda x: operator(x) + 1, fullgraph=True)
    for x in (X, torch.ones(5)):
        torch.testing.assert_close(observed(x), x.sin().cos() + 1)


@pytest.fixture
def fresh_library():
    with torch.library._scoped_library("whole_programs", "FRAGMENT") as library:
        yield library


def test_floats_that_change_and_are_asked_whether_they_are_whole():
    whole(lambda x, by: x * 2 if by.is_integer() else x, *((X, by) for by in (1.5, 2.0, 2.5, 4.0)))


def test_a_number_is_copied_into_a_tensor_by_all_backends():
    def program(x):
        return x.clone().copy_(1), x.long().copy_(2.5)

    whole(program)
    compiled = turret.compile(program, fullgraph=True, options={"cache": False})
    assert_same(compiled(X), program(X))


@pytest.mark.parametrize("compiler", [turret.compile, torch.compile])
def test_what_is_compiled_in_compiled_code_is_part_of_its_graph(compiler):
    layer = torch.nn.Linear(3, 3)

    def program(x):
        scaled = compiler(lambda y, by=2: y * by, backend="eager")
        return scaled(x, by=3) + compiler(layer, dynamic=True)(x), scaled

    observed = Observed(program, fullgraph=True)
    for x in (X, X + 1):
        found, scaled = observed(x)
        torch.testing.assert_close(found, x * 3 + layer(x))
        torch.testing.assert_close(scaled(x), x * 2)


def test_annotations_are_read():
    whole(lambda x: (x + 1, sorted(typing.get_type_hints(Point))))
