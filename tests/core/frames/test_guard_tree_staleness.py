"""The native guard tree notices every way in which Python lets objects change beneath it.

Its notes rest on how the interpreter keeps attributes: in dicts with versions, in arrays of values without a dict, in
both at once.  Each test changes objects in ways that move them between those forms, or that put other objects at
addresses that were used before, and compares with the check in Python after every change.
"""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turret.frames import guard_tree
from turret.frames.guards import DYNAMIC_MARKS, STATIC_MARK, Guard, GuardSet, TensorProperties, global_state, read
from turret.frames.sources import (
    AttrSource,
    BaseItemSource,
    BoundSource,
    DictSource,
    FunctionSource,
    ItemSource,
    KeySource,
    LocalSource,
    Source,
    TypeSource,
    ValueSource,
)

SELF = LocalSource(0, "self")
NAMES = ("a", "b", "c", "kind", "late")


def native(*guards: Guard, parameters: int = 1) -> Any:
    return guard_tree._translate(GuardSet(guards, parameters), guard_tree.load())


class Checks:
    """Checks of the same objects, native and in Python, made at several times."""

    def __init__(self, function: Callable, *arguments: Any) -> None:
        self.call = (function, *arguments)
        self.made: list[tuple[Any, Callable]] = []
        self.held = 0

    def add(self, guards: list[Guard]) -> None:
        """Another check, of the guards among these that hold now; the oldest of many goes."""
        count = len(self.call) - 1
        holding = [g for g in guards if GuardSet((g,), count).compile_python()(*self.call)]
        made = GuardSet(tuple(holding), count)
        self.made = [*self.made[-4:], (native(*holding, parameters=count), made.compile_python())]

    def agree(self) -> None:
        """All answer as Python does, twice: when they take notes, and when they rely on them."""
        for check, python in self.made:
            expected = python(*self.call)
            assert check(*self.call) == expected and check(*self.call) == expected
            self.held += expected


def fresh(rng: random.Random) -> Any:
    """An equal one of a few values, but a new object, which comes to lie where one was freed just now."""
    number = rng.randrange(3)
    made = [lambda: float(f"{number}.5"), lambda: 10**20 + number, lambda: f"text {number}", lambda: (number, [number])]
    made += [lambda: {number}, lambda: frozenset([number])]  # of one size, and kept on no free list
    return rng.choice([*made, made[0], lambda: [number], lambda: {"a": number}, lambda: number])()


def guards_on_attributes(rng: random.Random, source: Source, value: Any) -> list[Guard]:
    """Guards on the attributes and the namespace of an instance as it is now."""
    guards = [Guard("TYPE", source, type(value))]
    space = DictSource(source)
    for name in NAMES:
        reached = read(attribute := AttrSource(source, name), None, (value,))
        own = ItemSource(space, name)
        guards += [Guard(kind, space, name) for kind in ("HAS_KEY", "NO_KEY")]
        if not isinstance(reached, Exception):
            guards += [Guard("EQUALS", s, reached) for s in (attribute, own, BaseItemSource(space, dict, name))]
            guards += [Guard("TYPE", attribute, type(reached)), Guard("TYPE", own, type(reached))]
    guards += [Guard("KEYS", space, tuple(vars(value))), Guard("LENGTH", space, len(vars(value)))]
    guards += [
        Guard("ID", space, vars(value)),
        Guard("TYPE", space, dict),
        Guard("ID", TypeSource(source), type(value)),
    ]
    for n, (key, item) in enumerate(vars(value).items()):
        guards += [Guard("EQUALS", KeySource(space, n), key), Guard("EQUALS", ValueSource(space, n), item)]
    return rng.sample(guards, rng.randrange(1, len(guards)))


class OtherDict(dict):
    """A class that a namespace may be of instead."""


def family() -> tuple[type, type]:
    """Two classes that an instance may be of in turn."""

    class First:
        kind = "class"

        def __init__(self, rng: random.Random) -> None:
            self.a, self.b = fresh(rng), fresh(rng)

        def store(self, value: Any) -> None:
            self.a = value

        def load(self) -> Any:
            return self.a

    class Second(First):
        late = "class"

    return First, Second


def hot(call: Callable, *arguments: Any) -> None:
    """Have the interpreter specialize a call."""
    for _ in range(40):
        call(*arguments)


def change_attributes(rng: random.Random, one: Any, other: Any, classes: tuple[type, type]) -> None:
    """One of the ways to change, or to move, an instance's attributes."""
    name, value = rng.choice(NAMES), fresh(rng)
    of_class = rng.choice(classes)
    ways: list[Callable[[], Any]] = [
        lambda: setattr(one, name, value),
        lambda: setattr(other, rng.choice(["a", "b", "late", f"n{rng.randrange(40)}"]), value),
        lambda: object.__setattr__(one, name, value),
        lambda: delattr(one, name),
        lambda: (delattr(one, "a"), setattr(one, "a", fresh(rng))),
        lambda: hot(one.store, value),
        lambda: one.store(value),
        lambda: hasattr(one, "a") and hot(one.load),
        lambda: one.__dict__,
        lambda: one.__dict__.__setitem__(name, value),
        lambda: one.__dict__.pop(name),
        lambda: one.__dict__.popitem(),
        lambda: one.__dict__.clear(),
        lambda: one.__dict__.update(a=value, late=value),
        lambda: one.__dict__.setdefault(name, value),
        lambda: one.__dict__.__ior__({name: value}),
        lambda: one.__dict__.__setitem__(7, value),
        lambda: [setattr(one, f"n{n}", n) for n in range(35)],
        lambda: [one.__dict__.pop(f"n{n}", None) for n in range(35)],
        lambda: setattr(one, "__dict__", dict(one.__dict__)),
        lambda: setattr(one, "__dict__", {"a": value, "b": value}),
        lambda: setattr(one, "__dict__", other.__dict__),
        lambda: setattr(one, "__dict__", OtherDict(one.__dict__)),
        lambda: setattr(one, "__class__", of_class),
        lambda: delattr(one, "__dict__"),
        lambda: setattr(of_class, name, value),
        lambda: setattr(of_class, name, property(lambda self: 1)),
        lambda: delattr(of_class, name),
        lambda: setattr(of_class, "__getattr__", lambda self, name: 5),
        lambda: delattr(of_class, "__getattr__"),
    ]
    with contextlib.suppress(AttributeError, KeyError, TypeError):  # there may be no such attribute
        rng.choice(ways)()


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**48))
def test_attributes_are_seen_to_change_however_they_are_kept(seed: int) -> None:
    rng = random.Random(seed)
    classes = family()
    one, other = classes[0](rng), classes[0](rng)
    checks = Checks(None, one)
    for _ in range(30):
        if rng.random() < 0.3:
            checks.add(guards_on_attributes(rng, SELF, one))
        checks.agree()
        change_attributes(rng, one, other, classes)
    assert checks.held or not checks.made


class Slots:
    __slots__ = ("a", "b")


def some_places(rng: random.Random) -> tuple[Any, dict[Source, Callable[[Any], None]]]:
    """A function with objects behind it that refer to values without a version, and how to put another value there."""
    slots, items, table, module = Slots(), [fresh(rng)], {1.5: fresh(rng)}, types.ModuleType("sample")
    slots.a, module.value = fresh(rng), fresh(rng)
    exec("def store(new):\n    global value\n    value = new", module.__dict__)
    inside, held = (items, slots), fresh(rng)
    proxies = [types.MappingProxyType({"a": fresh(rng)})]

    def function(x: Any = 1) -> Any:
        return slots, items, table, module, inside, held, proxies, x

    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))

    def source(name: str) -> Source:
        index = function.__code__.co_freevars.index(name)
        return AttrSource(ItemSource(AttrSource(FunctionSource(), "__closure__"), index), "cell_contents")

    def put_in_list(value: Any) -> None:
        items.clear()
        items.append(value)

    def put_in_proxy(value: Any) -> None:
        proxies.clear()
        proxies.append(types.MappingProxyType({"a": value}))

    places: dict[Source, Callable[[Any], None]] = {
        ItemSource(ItemSource(source("proxies"), 0), "a"): put_in_proxy,
        AttrSource(source("slots"), "a"): lambda value: setattr(slots, "a", value),
        ItemSource(source("items"), 0): put_in_list,
        ItemSource(ItemSource(source("inside"), 0), 0): put_in_list,
        AttrSource(ItemSource(source("inside"), 1), "a"): lambda value: setattr(slots, "a", value),
        ItemSource(source("table"), 1.5): lambda value: table.__setitem__(1.5, value),
        AttrSource(source("module"), "value"): module.store,
        ItemSource(BoundSource("globals", module.__dict__), "value"): module.store,
        source("held"): lambda value: setattr(cells["held"], "cell_contents", value),
        ItemSource(AttrSource(FunctionSource(), "__defaults__"), 0): lambda value: setattr(
            function, "__defaults__", (value,)
        ),
        AttrSource(FunctionSource(), "note"): lambda value: setattr(function, "note", value),
    }
    return function, places


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**48))
def test_another_value_at_the_address_of_the_guarded_one_is_seen(seed: int) -> None:
    rng = random.Random(seed)
    function, places = some_places(rng)
    checks = Checks(function)
    for _ in range(30):
        if rng.random() < 0.3:
            guards = []
            for source in places:
                value = read(source, function, ())
                if not isinstance(value, Exception):
                    guards += [Guard("EQUALS", source, value), Guard("TYPE", source, type(value))]
                    if isinstance(value, (list, dict, str, tuple, set, frozenset)):
                        guards.append(Guard("LENGTH", source, len(value)))
                    if isinstance(value, tuple):
                        guards.append(Guard("EQUALS", ItemSource(ItemSource(source, 1), 0), value[1][0]))
            del value
            checks.add(rng.sample(guards, rng.randrange(1, len(guards))))
            del guards
        checks.agree()
        put = rng.choice(list(places.values()))
        put(None)  # frees what was there
        put(fresh(rng))
    assert checks.held or not checks.made


@pytest.mark.parametrize("make", [float, str, lambda text: complex(text), lambda text: text.encode(), lambda t: (t, t)])
def test_an_argument_at_the_address_of_the_one_before_is_not_taken_for_it(make: Callable[[str], Any]) -> None:
    check = native(Guard("EQUALS", SELF, make("2.5")))
    for _ in range(3):
        assert check(None, make("2.5"))
    for text in ("3.5", "4.5", "2.25"):
        assert not check(None, make(text)) and check(None, make("2.5"))


def test_a_class_that_changes_more_often_than_it_can_have_versions_is_still_seen_to_change() -> None:
    class Local:
        number = -1

    thing = Local()
    checks = Checks(None, thing)
    checks.add([Guard("EQUALS", AttrSource(SELF, "number"), -1), Guard("ID", SELF, thing)])
    for number in range(2500):
        Local.number = number
        if number % 100 == 0:
            checks.add([Guard("EQUALS", AttrSource(SELF, "number"), number)])
        checks.agree()
    Local.number = -1
    checks.agree()


def test_reading_a_namespace_between_calls_does_not_cost_a_full_check() -> None:
    class Local:
        def __init__(self) -> None:
            self.a, self.b = 1, 2

    thing = Local()
    check = native(
        Guard("ID", SELF, thing),
        Guard("EQUALS", AttrSource(SELF, "a"), 1),
        Guard("NO_KEY", DictSource(SELF), "late"),
    )
    for _ in range(300):
        assert vars(thing)["b"] == 2  # makes the dict
        assert check(None, thing)
        assert thing.b == 2  # may take the dict apart
        assert check(None, thing)
    assert check.statistics()["full"] <= 12
    thing.late = 1
    assert not check(None, thing)


def test_a_proxy_of_another_mapping_at_the_address_of_the_one_before_is_seen() -> None:
    mappings = {"a": 1}, {"a": 2}
    proxies: list[Any] = [types.MappingProxyType(mappings[0])]
    check = native(Guard("EQUALS", ItemSource(ItemSource(BoundSource("proxies", proxies), 0), "a"), 1), parameters=0)
    for _ in range(3):
        assert check(None)
    proxies[0] = None
    proxies[0] = types.MappingProxyType(mappings[1])
    assert not check(None)


class OtherParameter(torch.nn.Parameter):
    """A class that a parameter may be of instead."""


def some_tensor(rng: random.Random) -> torch.Tensor:
    """A tensor: plain or a parameter, with or without gradients, a leaf, computed, or a view of another one."""
    data = torch.ones(
        rng.choice([(2, 3), (2, 3), (3, 2), (6,), (), (1, 2, 3), (1, 1, 1, 1, 2, 3)]),
        dtype=rng.choice([torch.float32, torch.float64]),
    )
    made: list[Callable[[], torch.Tensor]] = [
        lambda: data,
        lambda: torch.nn.Parameter(data, requires_grad=rng.random() < 0.8),
        lambda: data.requires_grad_(),
        lambda: data.requires_grad_() * 2,
        lambda: data.requires_grad_().view(-1),
        lambda: data.transpose(0, -1),
        lambda: (data * 2).requires_grad_().transpose(0, -1),
    ]
    return rng.choice(made)()


def change_tensor(rng: random.Random, holder: Any, name: str) -> None:
    """One of the ways to change, mark or replace a tensor that an object holds."""
    tensor, other = getattr(holder, name), some_tensor(rng)
    whole = not tensor._is_view()  # of a view that is put elsewhere torch cannot find the history any more
    mark, dims = rng.choice([STATIC_MARK, *DYNAMIC_MARKS]), {rng.randrange(3)}
    ways: list[Callable[[], Any]] = [
        lambda: setattr(holder, name, other),
        lambda: whole and setattr(tensor, "data", other.data),
        lambda: tensor.requires_grad_(rng.random() < 0.5),
        lambda: tensor.mul_(2),
        lambda: tensor.mul_(torch.ones((), dtype=tensor.dtype, requires_grad=True)),
        lambda: tensor.add_(other),
        lambda: tensor.detach_(),
        lambda: whole and tensor.t_(),
        lambda: whole and tensor.transpose_(0, -1),
        lambda: whole and tensor.resize_(rng.choice([(2, 3), (6,), (1, 2, 3), (3, 2, 1)])),
        lambda: whole and tensor.as_strided_((2, 3), rng.choice([(1, 2), (3, 1), (0, 0)])),
        lambda: setattr(tensor, "__class__", rng.choice([torch.nn.Parameter, OtherParameter])),
        lambda: tensor.retain_grad(),
        lambda: whole and tensor.set_(other),
        lambda: tensor._base.mul_(torch.ones((), dtype=tensor.dtype, requires_grad=True)),
        lambda: whole and torch.utils.swap_tensors(tensor, other),
        lambda: setattr(tensor, "grad", None),
        lambda: setattr(tensor, "note", 1),
        lambda: setattr(some_tensor(rng), mark, dims),
        lambda: setattr(tensor, mark, dims),
        lambda: getattr(tensor, mark).add(rng.randrange(3)),
        lambda: getattr(tensor, mark).clear(),
        lambda: delattr(tensor, mark),
        lambda: tensor.__dict__,
        lambda: tensor.__dict__.clear(),
        lambda: setattr(tensor, "__dict__", {mark: dims}),
        lambda: setattr(tensor, "__dict__", {}),
    ]
    with contextlib.suppress(AttributeError, RuntimeError, TypeError), torch.set_grad_enabled(rng.random() < 0.7):
        rng.choice(ways)()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**48))
def test_tensors_are_seen_to_change_whatever_is_done_to_them(seed: int) -> None:
    rng = random.Random(seed)
    holder = types.SimpleNamespace(a=some_tensor(rng), b=some_tensor(rng))
    checks = Checks(None, holder)
    for _ in range(30):
        if rng.random() < 0.3:
            guards = [Guard("ID", SELF, holder), Guard("GLOBAL_STATE", None, global_state())]
            for name in ("a", "b"):
                marks = rng.choice([None, frozenset(), frozenset([0])])
                dynamic = frozenset(range(rng.randrange(2)))
                facts = TensorProperties.of(getattr(holder, name), dynamic, marks)
                guards.append(Guard("TENSOR", AttrSource(SELF, name), facts))
            checks.add(guards)
        checks.agree()
        change_tensor(rng, holder, rng.choice("ab"))
    assert checks.held or not checks.made
