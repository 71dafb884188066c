"""The native guard tree answers what the Python check answers, whatever is done to the objects in between."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import gc
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

from turret.frames import guard_tree
from turret.frames.guards import Guard, GuardSet, TensorProperties, global_state, own_length, storage_pattern
from turret.frames.sources import (
    AttrSource,
    BaseItemSource,
    BoundSource,
    DictSource,
    FunctionSource,
    ItemSource,
    KeySource,
    LocalSource,
    ShownSource,
    SizeSource,
    Source,
    TypeSource,
    ValueSource,
)
from turret.frames.trace_modes import AUTOCAST_DEVICES

RAN: list[str] = []
"""Names of the user's code that ran."""


def native(guards: GuardSet) -> Any:
    return guard_tree._translate(guards, guard_tree.load())


class Meta(type):
    """A metaclass with an attribute that its classes show."""

    @property
    def shown(cls) -> int:
        RAN.append("Meta.shown")
        return 1


def world() -> list[Any]:
    """Fresh objects of many kinds, that refer to one another."""

    class Plain:
        limit = 3

        def method(self) -> None: ...

    class Child(Plain):
        @staticmethod
        def free() -> None: ...

    class Slots:
        __slots__ = ("a", "b")

    class Lazy:
        @property
        def prop(self) -> int:
            RAN.append("prop")
            return 7

        def __getattr__(self, name: str) -> Any:
            RAN.append("__getattr__")
            if name in ("b", "lost"):
                return 5
            raise AttributeError(name)

    class Watched:
        def __getattribute__(self, name: str) -> Any:
            RAN.append("__getattribute__")
            return object.__getattribute__(self, name)

    class Equal:
        def __eq__(self, other: object) -> bool:
            RAN.append("__eq__")
            return isinstance(other, Equal)

        def __hash__(self) -> int:
            RAN.append("__hash__")
            return 1

        def __len__(self) -> int:
            RAN.append("__len__")
            return 2

    class Table(dict):
        def __missing__(self, key: Any) -> Any:
            RAN.append("__missing__")
            return 11

    class Strange(dict):
        def __getitem__(self, key: Any) -> Any:
            RAN.append("__getitem__")
            return 13

    class Hidden:
        @property
        def __dict__(self) -> dict:
            RAN.append("__dict__")
            return {"a": 1}

    class Row(list): ...

    class WithMeta(metaclass=Meta):
        kept = 2

    Pair = collections.namedtuple("Pair", ("a", "b"))
    shared = {"a": 1, "b": 2.0, "c": None}
    items = [1, "x", shared]
    cell_of = lambda: (shared, items)  # noqa: E731
    slots = Slots()
    slots.a = shared
    plain, child, lazy, watched = Plain(), Child(), Lazy(), Watched()
    for number, value in enumerate((plain, child, lazy, watched)):
        value.a, value.b = number, (1, 2.5, "t")
    child.next = plain
    lazy.next = slots
    linear = torch.nn.Linear(2, 3)
    model = torch.nn.Sequential(linear, torch.nn.ReLU(), linear)
    module = types.ModuleType("sample")
    module.value = 4
    module.inner = shared
    tensor = torch.ones(2, 3)
    return [
        plain, child, slots, lazy, watched, Equal(), Table(a=1, z=tensor), Strange(a=2), Hidden(), Row([1, 2]),
        WithMeta, WithMeta(), Pair(1, [2]), shared, items, cell_of, model, linear, module, tensor, tensor[0],
        tensor.t(), torch.nn.Parameter(torch.zeros(3)), collections.OrderedDict(a=1, b=2), {1: "one", 2.5: Equal()},
        collections.defaultdict(list, a=1), {Equal(): 1, "a": 2}, types.MappingProxyType({"a": 1}), Plain, Child,
        torch.Size([2, 3]), torch.float32, torch.device("cpu"), float("nan"), -0.0, 10**40, "text", b"bytes", True,
        None, ..., (1, 1.0, True), frozenset({"a"}), {"a"}, 1j, range(3), slice(1, 2),
    ]  # fmt: skip


def steps(source: Source, value: Any, rng: random.Random) -> Iterator[Source]:
    """Sources one step from a value, with some that lead nowhere."""
    names = ["a", "b", "next", "lost", "limit", "method", "free", "prop", "kept", "shown", "value", "__dict__",
             "__code__", "__closure__", "__defaults__", "cell_contents", "training", "_modules", "_parameters",
             "weight", "__class__", "__name__"]  # fmt: skip
    yield AttrSource(source, rng.choice(names))
    yield TypeSource(source)
    yield DictSource(source)
    key = rng.choice(["a", "z", "0", 0, 1, -1, 2.5, True, "inner", "limit"])
    yield ItemSource(source, key)
    yield BaseItemSource(source, rng.choice([dict, list, tuple]), key)
    yield ShownSource(source)
    yield rng.choice([KeySource, ValueSource])(source, rng.randrange(3))
    if isinstance(value, dict) and value:
        yield ItemSource(source, rng.choice([k for k in dict.keys(value)]))
    if isinstance(value, torch.Tensor):
        yield SizeSource(source, 0)
    own = getattr(type(value), "__dict__", {}).get("__slots__") or (
        list(vars(value)) if isinstance(getattr(value, "__dict__", None), dict) else []
    )
    if own:
        yield AttrSource(source, rng.choice(list(own)))


def find(source: Source, function: Any, arguments: tuple) -> Any:
    from turret.frames.guards import read

    return read(source, function, arguments)


def guards_on(source: Source, value: Any, rng: random.Random, values: list[Any]) -> Iterator[Guard]:
    """Guards that hold or not, on what a source names."""
    yield Guard("TYPE", source, type(value))
    if type(value) not in (int, str, bytes):  # written out by the Python check: equal, not the same object
        yield Guard("ID", source, value)
    if not isinstance(value, (torch.Tensor, torch.nn.Module)):
        yield Guard("EQUALS", source, value if rng.random() < 0.9 else rng.choice(values))
    yield Guard(rng.choice(["HAS_KEY", "NO_KEY"]), source, rng.choice(["a", "b", "lost", 1, "limit"]))
    if isinstance(value, (list, tuple, dict, set, str)):
        yield Guard("LENGTH", source, len(value))
    if isinstance(value, (dict, set, types.MappingProxyType)):
        yield Guard("KEYS", source, tuple(value))
        yield Guard("KEYS", source, ())
    if isinstance(value, dict):
        yield Guard("OWN_KEYS", source, tuple(dict.keys(value)))
    if isinstance(value, (list, tuple)):
        yield Guard("OWN_LENGTH", source, own_length(value))
    if isinstance(value, torch.Tensor):
        yield Guard("TENSOR", source, TensorProperties.of(value, frozenset(rng.choice([(), (0,)]))))
        yield Guard("SIZES", SizeSource(source, 0), "{0} >= 2")


def some_guards(rng: random.Random, function: Any, arguments: tuple) -> GuardSet:
    """A random set over what is reachable; mostly of guards that hold."""
    values = list(arguments)
    found: list[tuple[Source, Any]] = [(FunctionSource(), function)]
    found += [(LocalSource(n, f"a{n}"), value) for n, value in enumerate(arguments)]
    found += [(BoundSource("bound", v), v) for v in rng.sample(values, 3) if type(v) is not int]
    for _ in range(rng.randrange(5, 40)):
        source, value = rng.choice(found)
        for step in steps(source, value, rng):
            reached = find(step, function, arguments)
            if not isinstance(reached, Exception) or rng.random() < 0.05:
                found.append((step, reached))
    guards = [Guard("GLOBAL_STATE", None, global_state())] if rng.random() < 0.7 else []
    for source, value in rng.sample(found, min(len(found), rng.randrange(1, 30))):
        guards += rng.sample(list(guards_on(source, value, rng, values)), 1)
    pairs = rng.sample(found, 2)
    guards.append(Guard("SAME" if pairs[0][1] is pairs[1][1] else "NOT_SAME", pairs[0][0], None, (pairs[1][0],)))
    tensors = [(s, v) for s, v in found if type(v) in (torch.Tensor, torch.nn.Parameter)]
    if tensors:
        pattern = storage_pattern([v for _, v in tensors])
        guards.append(Guard("STORAGE", tensors[0][0], pattern, tuple(s for s, _ in tensors[1:])))
    check = GuardSet(tuple(guards), len(arguments))
    if rng.random() < 0.8:  # drop those that do not hold
        check = GuardSet(tuple(g for g in guards if holds(g, function, arguments)), len(arguments))
    return check


def holds(guard: Guard, function: Any, arguments: tuple) -> bool:
    return GuardSet((guard,), len(arguments)).compile_python()(function, *arguments)


def mutate(rng: random.Random, arguments: tuple) -> Callable[[], None]:
    """Change something; what is returned changes it back (as far as that goes)."""
    value = rng.choice(arguments)
    name = rng.choice(["a", "b", "limit", "extra", "method", "kept", "value", "training"])
    new = rng.choice([1, 2, None, "x", 1.0, (1, 2.5, "t"), [1], {"a": 1}])
    missing = object()
    try:
        if isinstance(value, torch.Tensor) and rng.random() < 0.7:
            flag = value.requires_grad
            if rng.random() < 0.5:
                value.requires_grad_(not flag)
                return lambda: value.requires_grad_(flag)
            value.data = torch.zeros(rng.choice([(2, 3), (4,), (3,)]))
            return lambda: None
        if isinstance(value, dict) and rng.random() < 0.7:
            old = dict.copy(value)
            key = rng.choice(["a", "b", "z", 1, *dict.keys(value)])
            rng.choice(
                [lambda: dict.__setitem__(value, key, new), lambda: dict.pop(value, key), lambda: dict.clear(value)]
            )()
            if isinstance(value, collections.OrderedDict) and value:
                value.move_to_end(next(iter(value)))
            return lambda: (dict.clear(value), dict.update(value, old))[0]
        if isinstance(value, list):
            old = list(value)
            rng.choice([lambda: value.append(new), value.clear, lambda: value.insert(0, new), value.reverse])()
            return lambda: value.__setitem__(slice(None), old)
        if isinstance(value, types.FunctionType) and rng.random() < 0.5:
            held = value.__closure__[0].cell_contents
            value.__closure__[0].cell_contents = new
            return lambda: setattr(value.__closure__[0], "cell_contents", held)
        if rng.random() < 0.1 and hasattr(value, "__dict__") and not isinstance(value, type):
            before = value.__dict__
            value.__dict__ = dict(before)
            return lambda: setattr(value, "__dict__", before)
        if rng.random() < 0.1:
            kind = value.__class__
            value.__class__ = type(kind.__name__, (kind,), {})
            return lambda: setattr(value, "__class__", kind)
        of_class = rng.random() < 0.3 and "world" in type(value).__qualname__  # no class that other tests see
        target = type(value) if of_class else value
        before = vars(target).get(name, missing) if hasattr(target, "__dict__") else getattr(target, name, missing)
        if before is not missing and rng.random() < 0.4:
            delattr(target, name)
        else:
            setattr(target, name, rng.choice([new, property(lambda self: 1)]))
        if before is missing:
            return lambda: delattr(target, name)
        return lambda: setattr(target, name, before)
    except (TypeError, AttributeError, RuntimeError, KeyError, ValueError):
        return lambda: None


def agree(check: Any, python: Callable, function: Any, arguments: tuple) -> bool:
    RAN.clear()
    expected = python(function, *arguments)
    ran_in_python = collections.Counter(RAN)
    assert check(function, *arguments) == expected  # may write Python's part, for which keys are hashed
    RAN.clear()
    assert check(function, *arguments) == expected
    more = collections.Counter(RAN) - ran_in_python
    assert not more, f"the native check ran more of the user's code: {more}"
    return expected


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**48))
def test_native_and_python_checks_agree_on_random_guards_and_mutations(seed: int) -> None:
    rng = random.Random(seed)
    arguments = tuple(rng.sample(everything := world(), rng.randrange(4, 9)))
    function = next(v for v in everything if isinstance(v, types.FunctionType))
    guards = some_guards(rng, function, arguments)
    check, python = native(guards), guards.compile_python()
    undo: list[Callable[[], None]] = []
    for _ in range(20):
        agree(check, python, function, arguments)
        if undo and rng.random() < 0.4:
            try:
                undo.pop()()
            except (AttributeError, TypeError, RuntimeError):
                return  # a change that cannot be taken back: the objects are not what they were
        elif rng.random() < 0.7:
            undo.append(mutate(rng, arguments))


def check_of(*guards: Guard, parameters: int = 1) -> Any:
    return native(GuardSet(guards, parameters))


SELF = LocalSource(0, "self")


class Thing:
    """An object to hang guards on."""

    kind = "thing"

    def __init__(self) -> None:
        self.count, self.inner, self.table = 0, [1, 2], {"a": 1}


def warm(check: Any, *arguments: Any) -> None:
    """Have a check take its notes and use them."""
    for _ in range(3):
        assert check(None, *arguments)
    assert check.statistics()["short"] >= 2


def test_what_was_read_once_is_not_read_again() -> None:
    thing = Thing()
    check = check_of(Guard("ID", SELF, thing), Guard("EQUALS", AttrSource(SELF, "count"), 0))
    warm(check, thing)
    assert check.statistics()["full"] == 1


def test_an_attribute_stored_by_specialized_bytecode_is_seen() -> None:
    thing = Thing()
    check = check_of(Guard("ID", SELF, thing), Guard("EQUALS", AttrSource(SELF, "count"), 0))

    def store(value: int) -> None:
        thing.count = value

    for _ in range(200):  # enough for the interpreter to specialize the store
        store(0)
        assert check(None, thing)
        store(1)
        assert not check(None, thing)


def test_attributes_that_change_beside_those_guarded_do_not_cost_a_full_check() -> None:
    thing = Thing()
    check = check_of(Guard("ID", SELF, thing), Guard("EQUALS", AttrSource(SELF, "kind"), "thing"))
    for number in range(50):
        thing.count = number
        assert check(None, thing)
    assert check.statistics()["full"] <= 3
    thing.kind = "other"
    assert not check(None, thing)


def test_objects_that_are_others_at_each_call_do_not_cost_a_full_check() -> None:
    thing = Thing()
    state, last = AttrSource(SELF, "state"), AttrSource(AttrSource(SELF, "state"), "count")
    check = check_of(
        Guard("ID", SELF, thing),
        Guard("HAS_KEY", DictSource(SELF), "state"),
        Guard("TYPE", state, Thing),
        Guard("EQUALS", last, 0),
        Guard("EQUALS", LocalSource(1, "n"), 7),
        Guard("TYPE", LocalSource(2, "other"), Thing),
        parameters=3,
    )
    kept = []
    for _ in range(50):
        thing.state = Thing()
        kept.append(thing.state)
        assert check(None, thing, 7, Thing())
    assert check.statistics()["full"] <= 10
    thing.state.count = 1
    assert not check(None, thing, 7, Thing())
    del thing.state
    assert not check(None, thing, 7, Thing())


@pytest.mark.parametrize("name", ["kind", "__getattribute__", "count"])
def test_a_class_that_changes_is_seen(name: str) -> None:
    class Local(Thing): ...

    thing = Local()
    guards = GuardSet(
        (
            Guard("ID", SELF, thing),
            Guard("EQUALS", AttrSource(SELF, "kind"), "thing"),
            Guard("EQUALS", AttrSource(SELF, "count"), 0),
            Guard("EQUALS", ItemSource(DictSource(SELF), "count"), 0),
        ),
        1,
    )
    check, python = native(guards), guards.compile_python()
    warm(check, thing)
    replaced = {
        "kind": "another",
        "__getattribute__": lambda self, name: 5,
        "count": property(lambda self: 2),
    }
    setattr(Local, name, replaced[name])
    assert check(None, thing) is python(None, thing) is False
    delattr(Local, name)
    assert check(None, thing) is python(None, thing) is True


def test_another_class_or_namespace_of_an_instance_is_seen() -> None:
    class Other(Thing):
        kind = "other"

    thing = Thing()
    check = check_of(Guard("ID", SELF, thing), Guard("EQUALS", AttrSource(SELF, "kind"), "thing"))
    warm(check, thing)
    thing.__class__ = Other
    assert not check(None, thing)
    thing.__class__ = Thing
    assert check(None, thing)
    thing.__dict__ = {"kind": "mine"}
    assert not check(None, thing)


def test_contents_of_containers_are_seen_to_change() -> None:
    thing = Thing()
    check = check_of(
        Guard("ID", SELF, thing),
        Guard("LENGTH", AttrSource(SELF, "inner"), 2),
        Guard("EQUALS", ItemSource(AttrSource(SELF, "inner"), 1), 2),
        Guard("KEYS", AttrSource(SELF, "table"), ("a",)),
        Guard("EQUALS", ItemSource(AttrSource(SELF, "table"), "a"), 1),
    )
    warm(check, thing)
    for change, back in (
        (lambda: thing.inner.append(3), lambda: thing.inner.pop()),
        (lambda: thing.inner.__setitem__(1, 5), lambda: thing.inner.__setitem__(1, 2)),
        (lambda: thing.inner.extend(range(1000)), lambda: thing.inner.__delitem__(slice(2, None))),
        (lambda: thing.table.update(b=1), lambda: thing.table.pop("b")),
        (lambda: thing.table.update(a=2), lambda: thing.table.update(a=1)),
        (lambda: setattr(thing, "table", {"a": True}), lambda: setattr(thing, "table", {"a": 1})),
    ):
        change()
        assert not check(None, thing)
        back()
        assert check(None, thing)


def test_the_order_of_an_ordered_dict_is_seen_to_change() -> None:
    thing = Thing()
    thing.table = collections.OrderedDict(a=1, b=2)
    check = check_of(Guard("ID", SELF, thing), Guard("KEYS", AttrSource(SELF, "table"), ("a", "b")))
    warm(check, thing)
    thing.table.move_to_end("a")
    assert not check(None, thing)


def test_what_lies_in_containers_of_a_programs_classes_is_seen_natively_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Table(dict):
        def keys(self) -> Any:
            RAN.append("keys")
            return ()

    class Row(list):
        def __len__(self) -> int:
            RAN.append("__len__")
            return 0

    thing = Thing()
    thing.table, thing.row, thing.pair = Table(a=1, b=2), Row([1, 2]), collections.namedtuple("Pair", "a b")(1, 2)
    shown = types.MappingProxyType(collections.OrderedDict(a=1))
    thing.shown = shown
    check = check_of(
        Guard("ID", SELF, thing),
        Guard("OWN_KEYS", AttrSource(SELF, "table"), ("a", "b")),
        Guard("OWN_LENGTH", AttrSource(SELF, "row"), 2),
        Guard("OWN_LENGTH", AttrSource(SELF, "pair"), 2),
        Guard("TYPE", ShownSource(AttrSource(SELF, "shown")), collections.OrderedDict),
        Guard("KEYS", ShownSource(AttrSource(SELF, "shown")), ("a",)),
    )
    RAN.clear()
    monkeypatch.setattr(GuardSet, "compile_python", None)
    warm(check, thing)
    for change, back in (
        (lambda: thing.table.update(c=1), lambda: thing.table.pop("c")),
        (
            lambda: thing.table.__setitem__("a", thing.table.pop("a")),
            lambda: thing.table.update(b=thing.table.pop("b")),
        ),
        (lambda: thing.row.append(3), lambda: thing.row.pop()),
        (lambda: setattr(thing, "pair", (1,)), lambda: setattr(thing, "pair", (1, 2))),
        (lambda: setattr(thing, "shown", types.MappingProxyType({"a": 1})), lambda: setattr(thing, "shown", shown)),
        (lambda: setattr(thing, "shown", {"a": 1}), lambda: setattr(thing, "shown", shown)),
    ):
        change()
        assert not check(None, thing)
        back()
        assert check(None, thing)
    gc.get_referents(shown)[0]["b"] = 2
    assert not check(None, thing) and not RAN


def test_items_of_a_dict_with_defaults_are_seen_natively_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = Thing()
    thing.table = collections.defaultdict(list, {"a": 1, "b": 2})
    table = AttrSource(SELF, "table")
    first, key = Guard("EQUALS", ValueSource(table, 0), 1), Guard("EQUALS", KeySource(table, 1), "b")
    check = check_of(Guard("ID", SELF, thing), Guard("LENGTH", table, 2), first, key)
    monkeypatch.setattr(GuardSet, "compile_python", None)
    warm(check, thing)
    thing.table["a"] = 3
    assert not check(None, thing)
    thing.table["a"] = 1
    assert check(None, thing)
    _ = thing.table["c"]
    assert not check(None, thing)


def test_what_autograd_keeps_for_a_tensor_is_seen_natively_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    thing = Thing()
    thing.weight = weight = torch.nn.Parameter(torch.ones(2))
    gradient = torch.zeros(2)
    source = AttrSource(SELF, "weight")
    hooks = [Guard("EQUALS", AttrSource(source, n)) for n in ("_backward_hooks", "_post_accumulate_grad_hooks")]
    held = Guard("TENSOR", AttrSource(source, "grad"), TensorProperties.of(gradient))
    empty = check_of(Guard("ID", SELF, thing), Guard("EQUALS", AttrSource(source, "grad")), *hooks)
    full = check_of(Guard("ID", SELF, thing), held, Guard("NO_VIEW", AttrSource(source, "grad")), *hooks)
    monkeypatch.setattr(GuardSet, "compile_python", None)

    def answers() -> tuple[bool, bool]:
        return empty(None, thing), full(None, thing)

    for _ in range(3):
        assert answers() == (True, False)
        weight.grad = gradient
        assert answers() == (False, True)
        weight.grad = torch.zeros(4)[::2]  # of other strides
        assert answers() == (False, False)
        weight.grad = torch.zeros(4)[:2]
        assert answers() == (False, False)
        weight.grad = None
    for register in (weight.register_hook, weight.register_post_accumulate_grad_hook):
        handle = register(lambda value: None)
        assert answers() == (False, False)
        handle.remove()


def test_fields_of_functions_and_cells_are_seen_to_change() -> None:
    def make() -> Callable:
        held = 1

        def inner(x: int = 3) -> int:
            return held + x

        return inner

    function, other = make(), make()
    closure = ItemSource(AttrSource(FunctionSource(), "__closure__"), 0)
    check = check_of(
        Guard("ID", FunctionSource(), function),
        Guard("ID", AttrSource(FunctionSource(), "__code__"), function.__code__),
        Guard("EQUALS", ItemSource(AttrSource(FunctionSource(), "__defaults__"), 0), 3),
        Guard("EQUALS", AttrSource(closure, "cell_contents"), 1),
        parameters=0,
    )
    for _ in range(3):
        assert check(function)
    assert not check(other)
    cell = function.__closure__[0]
    cell.cell_contents = 2
    assert not check(function)
    del cell.cell_contents
    assert not check(function)
    cell.cell_contents = 1
    assert check(function)
    function.__defaults__ = (4,)
    assert not check(function)
    function.__defaults__ = (3,)
    function.__code__ = (lambda x=3: cell).__code__
    assert not check(function)


def test_attributes_of_functions_are_seen_natively_to_come_and_go() -> None:
    def make() -> Callable:
        return lambda: None

    attributes = AttrSource(SELF, "__dict__")
    none, one = check_of(Guard("KEYS", attributes, ())), check_of(Guard("KEYS", attributes, ("weight",)))
    function = make()
    warm(none, function)
    assert not one(None, function)
    function.weight = 1  # type: ignore[attr-defined]
    warm(one, function)
    assert not none(None, function)
    del function.weight  # type: ignore[attr-defined]
    assert none(None, function) and not one(None, function)
    for _ in range(3):
        assert none(None, make())
    function.__dict__ = {"weight": 2}
    assert one(None, function) and not none(None, function)


def test_what_is_done_to_a_guarded_tensor_is_seen() -> None:
    layer = torch.nn.Linear(2, 3)
    weight = ItemSource(AttrSource(SELF, "_parameters"), "weight")
    facts = TensorProperties.of(layer.weight)
    check = check_of(
        Guard("GLOBAL_STATE", None, global_state()), Guard("ID", SELF, layer), Guard("TENSOR", weight, facts)
    )
    warm(check, layer)
    original = layer.weight.data
    for data in (torch.zeros(3, 3), torch.zeros(3, 2, dtype=torch.float64), torch.zeros(2, 3).t()):
        other = torch.nn.Linear(2, 3)
        other.weight.data = data
        layer._parameters["weight"] = other.weight
        assert not check(None, layer)
        layer._parameters["weight"] = torch.nn.Parameter(original)
        assert check(None, layer)
    layer.weight.requires_grad_(False)
    assert not check(None, layer)
    layer.weight.requires_grad_(True)
    assert check(None, layer)
    layer._parameters["weight"] = layer.weight.data
    assert not check(None, layer)


def test_a_tensor_that_lies_in_anothers_storage_is_seen() -> None:
    first, second = torch.ones(4), torch.ones(4)
    pattern = Guard("STORAGE", SELF, (0, 1), (LocalSource(1, "b"),))
    check = check_of(pattern, parameters=2)
    for _ in range(3):
        assert check(None, first, second)
    assert not check(None, first, first.view(2, 2))
    assert not check(None, first, torch.ones(3).to_sparse())


def _modes() -> list[Any]:
    return [
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.autocast("cpu", dtype=torch.float16),
        torch.autocast("cuda", enabled=True, dtype=torch.float16) if torch.cuda.is_available() else torch.no_grad(),
        torch.device("meta"),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION),
        torch.autograd.set_grad_enabled(True),
    ]


@pytest.mark.parametrize("number", range(len(_modes())))
def test_torchs_modes_are_seen(number: int) -> None:
    guards = GuardSet((Guard("GLOBAL_STATE", None, global_state()),), 0)
    check, python = native(guards), guards.compile_python()
    for _ in range(3):
        assert check(None)
    with _modes()[number]:
        assert check(None) is python(None)
        inside = GuardSet((Guard("GLOBAL_STATE", None, global_state()),), 0)
        assert native(inside)(None) is True
    assert check(None)


def _switch_dtype(kind: str, usual: torch.dtype, on: bool) -> None:
    torch.set_autocast_dtype(kind, torch.float64 if on else usual)


@pytest.mark.parametrize(
    "switch",
    [
        lambda on: torch.use_deterministic_algorithms(on),
        lambda on: torch.set_default_dtype(torch.float64 if on else torch.float32),
        lambda on: torch.backends.cuda.enable_cudnn_sdp(not on),
        lambda on: torch.set_autocast_cache_enabled(not on),
        lambda on: setattr(torch.utils.deterministic, "fill_uninitialized_memory", not on),
        *(functools.partial(torch.set_autocast_enabled, kind) for kind in AUTOCAST_DEVICES),
        *(functools.partial(_switch_dtype, kind, torch.get_autocast_dtype(kind)) for kind in AUTOCAST_DEVICES),
        lambda on: forward_ad.enter_dual_level() if on else forward_ad.exit_dual_level(),
    ],
)
def test_torchs_settings_are_seen(switch: Callable[[bool], None]) -> None:
    check = check_of(Guard("GLOBAL_STATE", None, global_state()), parameters=0)
    assert check(None)
    try:
        switch(True)
        assert not check(None)
    finally:
        switch(False)
    assert check(None)


def test_autocast_of_one_thread_is_not_taken_for_that_of_another() -> None:
    check = check_of(Guard("GLOBAL_STATE", None, global_state()), parameters=0)
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        for kind in AUTOCAST_DEVICES:
            assert check(None) and other.submit(check, None).result()
            other.submit(torch.set_autocast_enabled, kind, True).result()
            assert check(None) and not other.submit(check, None).result() and check(None)
            other.submit(torch.set_autocast_enabled, kind, False).result()


def test_tensors_are_checked_natively_under_a_default_device() -> None:
    with torch.device("cpu"):
        x = torch.ones(2)
        guards = (Guard("GLOBAL_STATE", None, global_state()), Guard("TENSOR", SELF, TensorProperties.of(x)))
        check = check_of(*guards)
        warm(check, x)
        assert check.statistics()["python"] == 1
        assert not check(None, torch.ones(3))
    assert not check(None, x)


def test_dispatch_modes_and_transforms_are_seen() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    check = check_of(Guard("GLOBAL_STATE", None, global_state()), parameters=0)
    found: list[bool] = []
    with TorchDispatchMode():
        found.append(check(None))
    torch.func.vmap(lambda x: (found.append(check(None)), x)[1])(torch.ones(2))
    assert found == [False, False] and check(None)


def test_a_check_keeps_none_of_the_arguments_alive() -> None:
    thing = Thing()
    check = check_of(Guard("TYPE", SELF, Thing), Guard("EQUALS", ItemSource(AttrSource(SELF, "table"), "a"), 1))
    warm(check, thing)
    gone = weakref.ref(thing), weakref.ref(tensor := torch.ones(2))
    assert not check(None, tensor)
    del thing, tensor
    gc.collect()
    assert [r() for r in gone] == [None, None]
    for _ in range(20):  # others may lie where it lay
        assert check(None, Thing())


def test_calls_leave_reference_counts_as_they_were() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    inner = ItemSource(AttrSource(SELF, "_modules"), "0")
    weight = ItemSource(AttrSource(inner, "_parameters"), "weight")
    guards = (
        Guard("TYPE", SELF, type(model)),
        Guard("ID", inner, model[0]),
        Guard("NO_KEY", DictSource(inner), "forward"),
        Guard("TENSOR", weight, TensorProperties.of(model[0].weight)),
        Guard("EQUALS", AttrSource(inner, "in_features"), 2),
        Guard("KEYS", AttrSource(inner, "_forward_hooks"), ()),
        Guard("CALL", inner, (id, id(model[0]))),
    )
    check = check_of(*guards, Guard("EQUALS", LocalSource(1, "n"), 7), parameters=2)
    watched = [model, model[0], model[0].weight, model.__dict__, model[0].__dict__, type(model), 10**30, "a name"]

    def counts() -> list[int]:
        return [sys.getrefcount(w) for w in watched]

    warm(check, model, 7)
    before = counts()
    for number in range(300):
        assert check(None, model, 7)
        assert not check(None, model, 8)
        assert not check(None, model[0], 7)
        model.extra = number % 2  # a full check now and then
    assert counts() == before


def test_a_check_that_refers_to_itself_is_freed() -> None:
    thing = Thing()
    thing.check = check_of(Guard("ID", SELF, thing), Guard("CALL", SELF, (id, id(thing))))
    warm(thing.check, thing)
    gone = weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is None


def test_code_of_the_users_runs_where_python_would_have_run_it() -> None:
    ran = []

    class Noisy:
        other = 1

        @property
        def value(self) -> int:
            ran.append("value")
            return 4

        def __len__(self) -> int:
            ran.append("len")
            return 2

    noisy = Noisy()
    check = check_of(
        Guard("EQUALS", AttrSource(SELF, "value"), 4),
        Guard("LENGTH", SELF, 2),
        Guard("TYPE", LocalSource(1, "n"), int),
        parameters=2,
    )
    assert not check(None, noisy, "text") and ran == []
    assert check(None, noisy, 1) and ran == ["value", "len"]
    Noisy.value = property(lambda self: ran.append("other") or 5)
    assert not check(None, noisy, 1) and ran == ["value", "len", "other"]


def test_an_exception_while_checking_fails_the_check() -> None:
    class Angry:
        @property
        def value(self) -> int:
            raise OSError("no")

    assert not check_of(Guard("EQUALS", AttrSource(SELF, "value"), 1))(None, Angry())
    assert not check_of(Guard("EQUALS", AttrSource(SELF, "value"), 1))(None, 3)
    assert not check_of(Guard("EQUALS", ItemSource(SELF, 4), 1))(None, (1, 2))


def test_a_call_with_other_than_its_arguments_is_an_error() -> None:
    check = check_of(Guard("EQUALS", SELF, 1))
    with pytest.raises(TypeError, match="1 arguments"):
        check(None)
    with pytest.raises(TypeError):
        check(None, 1, other=2)


def test_a_finalizer_that_checks_in_the_middle_of_a_check_gets_its_answer() -> None:
    answers = []

    class Final:
        def __del__(self) -> None:
            answers.append((check(None, 1), check(None, Holder)))

    class Holder:
        def method(self) -> None: ...

    method = AttrSource(SELF, "method")
    check = check_of(Guard("TYPE", method, types.MethodType), Guard("TYPE", AttrSource(method, "__func__"), type(warm)))
    holder, threshold = Holder(), gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            final = Final()
            final.itself = final
            del final
            assert check(None, holder)  # makes bound methods, and so has the collector run (before 3.12)
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert answers == [(False, False)] * 50


def test_threads_check_at_once() -> None:
    things = [Thing() for _ in range(4)]
    check = check_of(Guard("TYPE", SELF, Thing), Guard("EQUALS", AttrSource(SELF, "count"), 0))
    wrong: list[Any] = []

    def work(thing: Thing) -> None:
        for number in range(2000):
            thing.count = number % 2
            if check(None, thing) != (number % 2 == 0):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(t,)) for t in things]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> guard_tree._Extension:
    """The state of a process whose cache does not hold the extension."""
    extension = guard_tree._Extension()
    monkeypatch.setattr(guard_tree, "_extension", extension)
    monkeypatch.setattr(guard_tree, "is_built", lambda: False)
    return extension


def test_guards_are_checked_in_python_where_nothing_can_be_built(
    monkeypatch: pytest.MonkeyPatch, unbuilt: guard_tree._Extension
) -> None:
    from turret.errors import CodegenError

    def fail() -> Any:
        raise CodegenError("there is no C++ compiler")

    monkeypatch.setattr(guard_tree, "load", fail)
    for _ in range(2):
        check = guard_tree.check_of(GuardSet((Guard("EQUALS", SELF, 1),), 1))
        assert isinstance(check, types.FunctionType) and check(None, 1) and not check(None, 2)
        join_builders()
    assert "no C++ compiler" in guard_tree.unavailable()
    assert "no C++ compiler" in guard_tree.unreported() and guard_tree.unreported() == ""


def test_nothing_waits_for_the_extension_to_be_built(
    monkeypatch: pytest.MonkeyPatch, unbuilt: guard_tree._Extension
) -> None:
    built, load, done = threading.Event(), guard_tree.load, []

    def load_slowly() -> Any:
        built.wait(60)
        return load()

    monkeypatch.setattr(guard_tree, "load", load_slowly)
    guards = GuardSet((Guard("EQUALS", SELF, 1),), 1)
    assert isinstance(guard_tree.check_of(guards), types.FunctionType)
    guard_tree.when_built(lambda: done.append(guard_tree.check_of(guards)))
    assert not done and guard_tree.unavailable() == ""
    built.set()
    join_builders()
    assert done[0].statistics() and done[0](None, 1) and not done[0](None, 2)


def join_builders() -> None:
    for thread in threading.enumerate():
        if thread.name == "turret-guard-tree":
            thread.join()
