"""Methods written in C: bound ones from before, guarded as a method of an object of a kind, and those of a break."""

from __future__ import annotations

import collections
import hashlib
import io
import random

import pytest
import torch

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
