"""Methods written in C: bound ones from before, guarded as a method of an object of a kind, and those of a break."""

from __future__ import annotations

import collections
import hashlib
import inspect
import io
import random
import weakref

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, check

X = torch.ones(3)


class Doubling(list):
    def append(self, value):
        list.append(self, value * 2)


class Shadowed(dict):
    pass


def shadowed():
    made = Shadowed(a=1)
    made.get = lambda key: 55
    return dict.get.__get__(made), ("a",), made


def bound(owner, name, *args):
    return getattr(owner, name), args, owner


MAKERS = {
    "list": lambda: bound([1], "append", 2),
    "deque": lambda: bound(collections.deque([1]), "pop"),
    "text": lambda: bound("abc", "upper"),
    "number": lambda: bound(5, "__add__", 3),
    "bytearray": lambda: bound(bytearray(b"a"), "append", 98),
    "stream": lambda: bound(io.StringIO(), "write", "a"),
    "hash": lambda: bound(hashlib.sha256(b"a"), "hexdigest"),
    "random": lambda: bound(random.Random(0), "random"),
    "error": lambda: bound(ValueError("a"), "add_note", "b"),
    "inherited": lambda: bound(Doubling([1]), "extend", [2]),
    "shadowed": shadowed,
    "given by super": lambda: (super(Doubling, made := Doubling([1])).append, (2,), made),
    "of a base": lambda: (super(collections.OrderedDict, d := collections.OrderedDict(a=1)).update, ({"b": 2},), d),
    "of the class": lambda: bound(collections.OrderedDict(a=1), "update", {"b": 2}),
}


def program(x, method, args):
    y = x + 1
    return y, method(*args)


def seen(call, make):
    method, args, owner = make()
    y, result = call(X, method, args)
    held = owner.getvalue() if isinstance(owner, io.StringIO) else getattr(owner, "__notes__", owner)
    return y.tolist(), result, list(held) if isinstance(held, (list, dict)) else str(type(held))


@pytest.mark.parametrize("name", [n for n in MAKERS if n not in ("given by super", "of a base")])
def test_a_method_of_another_object_of_the_kind_needs_no_recompile(name):
    observed = Observed(program)
    for _ in range(3):
        assert seen(observed, MAKERS[name]) == seen(program, MAKERS[name])
    assert len(observed.units) == 1 and observed.graphs and not observed.fallbacks


def test_methods_of_one_name_that_differ_are_told_apart():
    observed = Observed(program)
    for _ in range(2):
        for make in MAKERS.values():
            assert seen(observed, make) == seen(program, make)


def digest(x):
    y = x + 1
    made = hashlib.sha256(b"a")
    made.update(b"b")
    return y * 2, made.hexdigest()


GENERATOR = random.SystemRandom()


def drawn(x):
    y = x + 1
    GENERATOR.seed(0)
    return y * (GENERATOR.getrandbits(2) >= 0)


def written(x):
    y = x + 1
    stream = io.StringIO()
    stream.write("a")
    return y * 2, stream.getvalue()


def kept(x):
    y = x + 1
    digest = hashlib.sha256(b"a").hexdigest
    print(end="")
    return y * 2, digest()


@pytest.mark.parametrize(("function", "breaks"), [(digest, 3), (drawn, 2), (written, 3), (kept, 3)])
def test_only_the_call_of_a_method_that_capture_does_not_know_breaks_the_graph(function, breaks):
    check(function, X, breaks=breaks)


def noted(x, error):
    y = x + 1
    error.add_note("first")
    error.add_note("second")
    try:
        raise KeyError("own")
    except KeyError as found:
        found.add_note("note")
        own = found.__notes__
    return y, own, error.__notes__


def test_notes_of_exceptions_are_written_in_the_graph():
    check(noted, X, ValueError("given"), breaks=0)


class Slotted:
    __slots__ = ("kept", "unset")

    def __init__(self):
        self.kept = 5


class Plain:
    factor = 3


KNOWN = Plain()
KNOWN.added = 4

GETTERS = {
    "the names of a class": (lambda get, x: x * get(Plain)["factor"], type.__dict__["__dict__"]),
    "the bases of a class": (lambda get, x: x * len(get(Plain)), type.__dict__["__mro__"]),
    "the names of an object": (lambda get, x: x * get(KNOWN)["added"], Plain.__dict__["__dict__"]),
    "a slot": (lambda get, x: x * get(Slotted(), Slotted), Slotted.__dict__["kept"]),
    "a slot without a value": (lambda get, x: x * get(Slotted()), Slotted.__dict__["unset"]),
    "another object": (lambda get, x: x * get(x), Slotted.__dict__["kept"]),
    "weak references": (lambda get, x: x * (2 if get(Plain()) is None else 3), Plain.__dict__["__weakref__"]),
}


@pytest.mark.parametrize("name", GETTERS)
def test_the_get_of_a_field_is_the_attribute(name):
    program, field = GETTERS[name]
    get = field.__get__
    check(lambda x: program(get, x), torch.ones(2))


@pytest.mark.parametrize(
    "program",
    (
        lambda x: x * inspect.getattr_static(KNOWN, "added") * inspect.getattr_static(KNOWN, "factor"),
        lambda x: x * (2 if Plain().__weakref__ is None else 3),
    ),
)
def test_attributes_are_found_without_asking_the_object(program):
    check(program, torch.ones(2), graphs=1)


class WithFunctionsInC:
    size, largest = len, max


def test_a_function_in_c_is_no_method_of_the_class_that_has_it():
    check(
        lambda x: x * WithFunctionsInC().size([1, 2]) + WithFunctionsInC.largest(1, WithFunctionsInC().largest(2, 3)),
        torch.ones(2),
        graphs=1,
    )


def test_an_object_with_a_weak_reference_knows_it():
    def program(x):
        held = Plain()
        reference = weakref.ref(held)
        return x * (2 if held.__weakref__ is reference else 3)

    x = torch.ones(2)
    with pytest.warns(turret.TurretWarning, match="weak reference"):
        assert torch.equal(Observed(program)(x), program(x))
