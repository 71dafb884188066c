"""Classes that answer for themselves, and differently each time: every call of compiled code asks them anew."""

from __future__ import annotations

import collections
import enum
import itertools
import threading
import typing
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import NodePlacement, Placement

COUNTS: collections.Counter[str] = collections.Counter()


def method(name, answer=lambda number: number):
    """A method that answers something else each time, whatever it is given; each counts by itself.

    ``__len__`` is asked for a hint where eager makes lists, which nobody sees."""

    def own(*_args):
        COUNTS[name] += 1
        return answer(COUNTS[name] + 10)

    return own


def item(owner, key):
    if isinstance(key, int) and key > 2:
        raise IndexError(key)
    COUNTS["item"] += 1
    return COUNTS["item"] + 10


tick, odd = method("tick"), method("odd", lambda number: number % 2 == 1)


class Field(typing.NamedTuple):
    a: int
    b: float


TRUTHS = ("__contains__", "__bool__", "__eq__", "__ne__")
NUMBERS = ("__len__", "__call__", "__add__", "__radd__", "__getattr__", "__missing__")
METHODS = {
    **{name: method(name, lambda number: number % 2 == 1) for name in TRUTHS},
    **{name: method(name) for name in NUMBERS},
    "__iter__": method("__iter__", lambda number: iter([number])),
    "__getitem__": item,
    "computed": property(method("computed")),
}
BASES = {
    "object": (object, lambda kind: kind()),
    "named tuple": (Field, lambda kind: kind(3, 4.0)),
    "dict": (dict, lambda kind: kind(a=1, b=2)),
    "ordered dict": (collections.OrderedDict, lambda kind: kind(a=1, b=2)),
    "list": (list, lambda kind: kind([1, 2])),
    "tuple": (tuple, lambda kind: kind((1, 2))),
    "thread's": (threading.local, lambda kind: kind()),
    "class": (type, lambda meta: meta("Made", (), {"a": 1})),
}
USES = {
    "o[0]": lambda x, o: x * o[0],
    "o['a']": lambda x, o: x * o["a"],
    "len(o)": lambda x, o: x * len(o),
    "1 in o": lambda x, o: x * (1 in o),
    "sum(o)": lambda x, o: x * sum(o),
    "truth": lambda x, o: x * (2 if o else 3),
    "o == 3": lambda x, o: x * (2 if o == 3 else 3),
    "o != 3": lambda x, o: x * (2 if o != 3 else 3),
    "o == o": lambda x, o: x * (2 if o == o else 3),
    "o()": lambda x, o: x * o(),
    "o + 1": lambda x, o: x * (o + 1),
    "1 + o": lambda x, o: x * (1 + o),
    "o.a": lambda x, o: x * o.a,
    "o.absent": lambda x, o: x * o.absent,
    "o.computed": lambda x, o: x * o.computed,
    "hasattr": lambda x, o: x * hasattr(o, "absent"),
    "*o": lambda x, o: (lambda *items: x * len(items))(*o),
}


def class_of(base, methods):
    """A class of the kind that ``BASES`` names, with methods of its own."""
    contents = {name: METHODS[name] for name in methods}
    if "__eq__" in contents:
        contents["__hash__"] = object.__hash__
    if base is Field:  # methods written in the body of a named tuple, which no subclass is
        made = typing.NamedTuple("Own", [("a", int), ("b", float)])
        for name, value in contents.items():
            setattr(made, name, value)
        return made
    return type("Own", (base,), contents)


def seen(function, make, calls=3):
    """What calls of a function give or raise."""
    COUNTS.clear()
    x, held, found = torch.tensor([1.0, 2.0, 3.0]), make(), []
    for _ in range(calls):
        try:
            found.append(function(x, held).tolist())
        except Exception as error:
            found.append(type(error))
    return found


class Calls:
    """Places everything eagerly: capture is what is looked at, and no kernel needs to be compiled for that."""

    @hookimpl(wrapper=True)
    def turret_place(self):
        placement = yield
        return Placement({name: NodePlacement("eager", "asked for") for name in placement.nodes})


CALLS = Calls()


def check(use, make):
    compiled = turret.compile(use, plugins=[CALLS], options={"cache": False, "on_error": "fallback"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert seen(compiled, make) == seen(use, make)


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(BASES)), st.sets(st.sampled_from(sorted(METHODS)), max_size=4), st.sampled_from(sorted(USES))
)
def test_what_a_class_says_is_asked_in_each_call(base, methods, use):
    kind, make = BASES[base]
    made = class_of(kind, sorted(methods))
    check(USES[use], lambda: make(made))


class Text(typing.NamedTuple):
    a: torch.Tensor
    b: float

    def __getitem__(self, key):
        return getattr(self, key)


@pytest.mark.parametrize(
    "use", [lambda x, o: x * o["a"] + o.b, lambda x, o: x * o.a + o["b"], lambda x, o: Text(x, 3.0)["b"] * o.a]
)
def test_a_named_tuple_with_items_of_its_own(use):
    check(use, lambda: Text(torch.arange(3.0), 2.0))


class Own(threading.local):
    def __init__(self):
        self.k = 2

    def step(self):
        self.k += 1
        return self.k


@pytest.mark.parametrize("make", [Own, lambda: Own()])
@pytest.mark.parametrize(
    "use",
    [
        lambda x, o: (setattr(o, "h", 3), x * o.h)[1],
        lambda x, o: x * o.step(),
        lambda x, o: (setattr(o, "h", 3), delattr(o, "h"), x * hasattr(o, "h"))[2],
        lambda x, o: x * o.absent,
        lambda x, o: x * len(o.__dict__),
    ],
)
def test_attributes_of_a_thread_are_read_set_and_deleted(use, make):
    check(use, make)


def test_each_thread_has_its_attributes():
    held = threading.local()
    compiled = turret.compile(lambda x: x * held.k, plugins=[CALLS], options={"cache": False, "on_error": "raise"})
    held.k = 2
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    found = []

    def work():
        held.k = 5
        found.append(compiled(torch.ones(2)).tolist())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [[5, 5]] and compiled(torch.ones(2)).tolist() == [2, 2]


class Computes:
    """What an instance is, and what it holds, is another thing each time."""

    @property
    def __dict__(self):
        return {"k": tick()}


class Pretends:
    __class__ = property(lambda self: dict)
    k = 1


class Level(enum.Enum):
    LOW = 1

    @property
    def weight(self):
        return tick()


class Checks(type):
    def __instancecheck__(cls, instance):
        return odd()

    def __subclasscheck__(cls, kind):
        return odd()


Checked = Checks("Checked", (), {})


class Indexed:
    def __class_getitem__(cls, key):
        return tick()


@pytest.mark.parametrize(
    ("use", "make"),
    [
        (lambda x, o: x * o.__dict__["k"], Computes),
        (lambda x, o: x * vars(o)["k"], Computes),
        (lambda x, o: x * o.k * isinstance(o, dict), Pretends),
        (lambda x, o: x * o.weight, lambda: Level.LOW),
        (lambda x, o: x * isinstance(3, o), lambda: Checked),
        (lambda x, o: x * isinstance(o, (str, Checked)), lambda: 3),
        (lambda x, o: x * issubclass(int, o), lambda: Checked),
        (lambda x, o: x * issubclass(o, (str, Checked)), lambda: int),
        (lambda x, o: x * o[3], lambda: Indexed),
    ],
)
def test_what_classes_compute_is_computed_in_each_call(use, make):
    check(use, make)


def test_a_guard_that_fails_at_once_means_python_and_one_warning(monkeypatch):
    numbers = itertools.count()
    monkeypatch.setattr("turret.frames.guard_tree.check_of", lambda guards: lambda *call: next(numbers) < 0)
    compiled = turret.compile(lambda x: x + 1, plugins=[CALLS], options={"cache": False, "on_error": "fallback"})
    with pytest.warns(
        UserWarning, match=r"stage 'capture' \(plugin turret.plugins.capture\).*fails right after capture"
    ):
        assert compiled(torch.ones(2)).tolist() == [2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(torch.ones(2)).tolist() == [2, 2]


class Loud(list):
    def __setitem__(self, key, value):
        raise AssertionError("not of this class's own")

    def clear(self):
        raise AssertionError("not of this class's own")

    def extend(self, items):
        raise AssertionError("not of this class's own")


class LoudDict(dict):
    update = clear = Loud.clear


def count(x, o):
    o["a"] += 1
    return x * o["a"]


def append(x, o):
    o.append(len(o))
    return x * len(o)


def put(x, o):
    o["b"] = len(o)
    return x * len(o)


@pytest.mark.parametrize(
    ("use", "make"),
    [
        (count, collections.Counter),
        (count, lambda: LoudDict(a=1)),
        (put, lambda: LoudDict(a=1)),
        (append, lambda: Loud([1])),
    ],
)
def test_changed_containers_are_put_right_past_what_their_classes_make_of_it(use, make):
    check(use, make)
    x, mine, eagers = torch.ones(2), make(), make()
    compiled = turret.compile(use, plugins=[CALLS], options={"cache": False, "on_error": "raise"})
    for _ in range(3):
        compiled(x, mine), use(x, eagers)
    assert mine == eagers


ASKED = []


class Asked:
    def __init__(self, length):
        self.length = length

    def __iter__(self):
        ASKED.append("iter")
        return iter([1, 2])

    def __len__(self):
        ASKED.append("len")
        if isinstance(self.length, type):
            raise self.length("of no length")
        return self.length


class Hinted:
    def __init__(self):
        self.left = 2

    def __iter__(self):
        return self

    def __next__(self):
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return self.left

    def __length_hint__(self):
        ASKED.append("hint")
        return 7


@pytest.mark.parametrize(
    "make",
    [list, tuple, sorted, lambda v: [*v], lambda v: (*v, 3), lambda v: set(v), lambda v: [0] + list(v), max, sum, lambda v: [i for i in v]],
)  # fmt: skip
@pytest.mark.parametrize("length", [2, 9, TypeError, NotImplementedError, None])
def test_lists_ask_for_lengths_as_python_does(make, length):
    def program(x):
        values = Hinted() if length is None else Asked(length)
        try:
            return x + 1, make(values)
        except NotImplementedError as error:
            return x + 1, str(error)

    def seen(function):
        ASKED.clear()
        return [function(torch.ones(2))[1] for _ in range(2)], list(ASKED)

    observed = Observed(program)
    assert seen(observed) == seen(program)
    assert not observed.breaks
