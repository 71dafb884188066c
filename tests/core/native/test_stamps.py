"""Stamps notice every change of what they watch, and nothing else."""

from __future__ import annotations

import collections
import types

import pytest

from turret import guard_checks


@pytest.fixture(scope="module")
def make():
    guard_checks.wait()
    native = guard_checks.natives()
    assert native is not None

    def make(records):
        stamps = native.stamps.Stamps()
        assert [stamps.add(*record) for record in records] == list(range(len(records)))
        return stamps

    return make


class Thing:
    shared = 1

    def __init__(self) -> None:
        self.a, self.b = 1, 2


class Slotted:
    __slots__ = ("q",)


def write_a(thing: Thing, value: object) -> None:
    thing.a = value  # the interpreter specialises this line after some calls


@pytest.mark.parametrize("warm", [0, 100])
def test_attributes_of_an_instance(make, warm: int):
    thing = Thing()
    for number in range(warm):
        write_a(thing, number)
    changes = (
        lambda: write_a(thing, object()),
        lambda: setattr(thing, "new", 1),
        lambda: delattr(thing, "new"),
        lambda: thing.__dict__.update(a=object()),
        lambda: vars(thing).pop("b"),
    )
    for change in changes * 3:
        stamps = make([("instance", thing, True), ("dict", thing.__dict__, None)])
        assert thing.a is thing.a and stamps.fresh() and not stamps.stale()
        thing.b = getattr(thing, "b", 2)
        stamps = make([("instance", thing, True), ("dict", thing.__dict__, None)])
        change()
        assert not stamps.fresh() and stamps.stale() == [1]


def test_a_new_dict_or_class_of_an_instance(make):
    thing = Thing()
    stamps = make([("instance", thing, True), ("instance", thing, None)])
    thing.__dict__ = dict(thing.__dict__)
    assert not stamps.fresh() and stamps.stale() == [0]
    thing.__class__ = type("Other", (Thing,), {})
    assert stamps.stale() == [0, 1]


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, collections.defaultdict])
def test_dicts(make, kind: type):
    def fresh_after(change) -> bool:
        held = kind()
        held.update(a=1, b=2)
        stamps = make([("dict", held, None)])
        change(held)
        return stamps.fresh()

    changes = (
        lambda d: d.pop("a"),
        lambda d: d.popitem(),
        lambda d: d.clear(),
        lambda d: d.update(b=3),
        lambda d: d.__ior__({"c": 1}),
        lambda d: d.setdefault("c", 1),
        lambda d: d.__delitem__("b"),
        lambda d: d.__setitem__("a", None),
    )
    assert not any(map(fresh_after, changes))
    assert all(map(fresh_after, (lambda d: d.get("a"), lambda d: list(d), lambda d: d.setdefault("a", 3))))


def test_the_order_of_attributes(make):
    thing = Thing()
    stamps = make([("dict", thing.__dict__, None)])
    held = thing.a
    del thing.a
    thing.a = held
    assert list(vars(thing)) == ["b", "a"] and not stamps.fresh()


def test_classes_and_their_bases(make):
    base = type("Base", (), {})
    kind = type("Kind", (base,), {})
    for change in (lambda: setattr(kind, "x", 1), lambda: setattr(base, "y", 1), lambda: delattr(base, "y")):
        stamps = make([("type", kind, None)])
        assert stamps.fresh()
        change()
        assert not stamps.fresh()


def test_functions_and_cells(make):
    def outer():
        value = 1

        def function(a=1, *, b=2):
            return value

        def change():
            nonlocal value
            value = object()

        return function, change

    function, change_cell = outer()
    for change in (
        lambda: setattr(function, "__defaults__", (2,)),
        lambda: setattr(function, "__kwdefaults__", {"b": 3}),
        lambda: setattr(function, "__code__", function.__code__.replace(co_name="other")),
    ):
        stamps = make([("function", function, None), ("cell", function.__closure__[0], None)])
        function()
        assert stamps.fresh()
        change()
        assert stamps.stale() == [0]
    stamps = make([("function", function, None), ("cell", function.__closure__[0], None)])
    change_cell()
    assert not stamps.fresh() and stamps.stale() == [1]


def test_slots_and_modules(make):
    slotted, module = Slotted(), types.ModuleType("module")
    slotted.q, module.x = 1, 1
    records = [("slot", slotted, Slotted.__dict__["q"]), ("instance", module, True), ("dict", vars(module), None)]
    stamps = make(records)
    assert stamps.fresh()
    slotted.q = object()
    module.x = object()
    assert stamps.stale() == [0, 2]
    stamps = make(records)
    del slotted.q
    assert not stamps.fresh()


def test_it_counts_how_often_nothing_changed(make):
    held: dict = {}
    stamps = make([("dict", held, None), ("dict", held, None)])
    assert [stamps.fresh() for _ in range(3)] == [True] * 3 and stamps.hits == 3
    held["a"] = 1
    assert not stamps.fresh() and stamps.hits == 3 and stamps.stale() == [0, 1]


def test_what_cannot_be_watched_is_refused(make):
    for record in (("dict", [], None), ("type", 3, None), ("instance", 3, True), ("slot", 3, 4), ("other", 3, None)):
        with pytest.raises(ValueError, match="no stamp"):
            make([record])
    with pytest.raises(TypeError):
        make([("dict",)])


def test_watched_objects_are_let_go(make):
    import gc
    import weakref

    thing = Thing()
    stamps = make([("instance", thing, True), ("dict", thing.__dict__, None)])
    thing.stamps = stamps
    watch = weakref.ref(thing)
    del thing, stamps
    gc.collect()
    assert watch() is None
