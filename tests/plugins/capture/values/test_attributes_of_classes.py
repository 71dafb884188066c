"""Who answers for attributes: methods in C under the names of special methods, descriptors that a class is asked for,
and classes whose instances run code when they end."""

import functools

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_captured, assert_same, check

X = torch.arange(4.0)
ENDED: list = []


class Attributes(dict):
    __getattr__ = dict.get
    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


class Strict(dict):
    __getattr__ = dict.__getitem__


KEPT = Attributes(a=1)


class Answer:
    def __init__(self, given):
        self.given = given

    def __get__(self, instance, owner=None):
        return (self.given, owner.__name__) if instance is None else self.given * 2


class ClassProperty:
    def __init__(self, function):
        self.function = function

    def __get__(self, instance, owner):
        return self.function(owner)


class Described:
    answer = Answer(3)

    @ClassProperty
    def name(cls):
        return cls.__name__

    def add(self, a, b):
        return a + b

    add_one = functools.partialmethod(add, 1)

    @functools.cached_property
    def cached(self):
        return 1


class Derived(Described):
    pass


class Ends:
    def __init__(self, number):
        self.number = number

    def __del__(self):
        ENDED.append(self.number)


def entries(x, n):
    made = Attributes(a=n)
    made.b = x * n
    del made.a
    return made.b + 1, made, made.missing


def entries_of_before(x, n):
    KEPT.b = n
    KEPT.a += 1
    return x * KEPT.a + KEPT.b, dict(KEPT)


def no_entry(x, n):
    made = Strict(a=n)
    try:
        made.b
    except KeyError as error:
        return x * made.a, str(error)


def asked_of_the_class(x, n):
    found = Described.answer, Derived.answer, Described().answer, Derived.name, Derived().name, Described.name
    return x + Described.add_one(Described(), n), found, Described.cached is Described.__dict__["cached"]


@pytest.mark.parametrize("program", [entries, entries_of_before, no_entry, asked_of_the_class])
def test_it_is_as_eager_finds_it(program):
    observed, found = Observed(program, fullgraph=True), []
    for call in (program, observed):
        dict.clear(KEPT)
        KEPT.a = 1
        found.append([(call(X, n), dict(KEPT)) for n in (2, 3, 2)])
    for theirs, mine in zip(*found, strict=True):
        assert_same(mine, theirs)
    assert_captured(observed)


def ends_at_once(x):
    made = Ends(1)
    del made
    return x + len(ENDED)


def ends_when_it_is_replaced(x):
    made = Ends(1)
    made = Ends(2)
    return x + len(ENDED) * made.number


@pytest.mark.parametrize("program", [ends_at_once, ends_when_it_is_replaced])
def test_an_end_that_runs_code_is_where_eager_has_it(program):
    found = []
    for call in (program, Observed(program)):
        ENDED.clear()
        found.append((call(X), call(X + 1), list(ENDED)))
    assert_same(*found)


def test_a_class_whose_instances_end_visibly_is_used_as_ever():
    kept = Ends(3)
    check(lambda x: x * kept.number, X)


class SaysDict:
    @property
    def __class__(self):
        return dict


class SaysList:
    __class__ = list


class SaysTuple:
    def __getattribute__(self, name):
        return tuple if name == "__class__" else object.__getattribute__(self, name)


class SaysLinear(torch.nn.Module):
    @property
    def __class__(self):
        return torch.nn.Linear


@pytest.mark.parametrize("kind", [SaysDict, SaysList, SaysTuple, SaysLinear])
def test_an_object_may_say_that_it_is_of_another_class_and_type_does_not_ask_it(kind):
    def told(x, given):
        said = isinstance(given, (dict, list, tuple, torch.nn.Linear)), isinstance(given, kind), type(given) is kind
        return x + 1, *said, given.__class__.__name__

    def made(x, _):
        return told(x, kind())

    given = kind()
    for program in (told, made):
        assert_same(Observed(program)(torch.ones(2), given), program(torch.ones(2), given))
