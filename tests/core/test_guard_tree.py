"""The native guard tree answers what the Python check answers, whatever is done to the objects in between."""

from __future__ import annotations

import collections
import gc
import random
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turret import guard_tree
from turret.guards import Guard, GuardSet, TensorProperties, global_state, storage_pattern
from turret.sources import (
    AttrSource,
    BaseItemSource,
    BoundSource,
    DictSource,
    FunctionSource,
    ItemSource,
    KeySource,
    LocalSource,
    SizeSource,
    Source,
    TypeSource,
    ValueSource,
)

RAN: list[str] = []
"""Names of the user's code that ran."""


def native(guards: GuardSet) -> Any:
    check = guard_tree.compile(guards)
    assert check is not None, guard_tree.unavailable()
    return check


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
        plain, child, slots, lazy, watched, Equal(), Table(a=1, z=tensor), Strange(a=2), Row([1, 2]), WithMeta,
        WithMeta(), Pair(1, [2]), shared, items, cell_of, model, linear, module, tensor, tensor[0], tensor.t(),
        torch.nn.Parameter(torch.zeros(3)), collections.OrderedDict(a=1, b=2), {1: "one", 2.5: Equal(), "a": 0},
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
    from turret.guards import read

    return read(source, function, arguments)


def guards_on(source: Source, value: Any, rng: random.Random, values: list[Any]) -> Iterator[Guard]:
    """Guards that hold or not, on what a source names."""
    yield Guard("TYPE", source, type(value))
    yield Guard("ID", source, value if rng.random() < 0.9 else rng.choice(values))
    if not isinstance(value, (torch.Tensor, torch.nn.Module)):
        yield Guard("EQUALS", source, value if rng.random() < 0.9 else rng.choice(values))
    yield Guard(rng.choice(["HAS_KEY", "NO_KEY"]), source, rng.choice(["a", "b", "lost", 1, "limit"]))
    if isinstance(value, (list, tuple, dict, set, str)):
        yield Guard("LENGTH", source, len(value))
    if isinstance(value, (dict, set, types.MappingProxyType)):
        yield Guard("KEYS", source, tuple(value))
        yield Guard("KEYS", source, ())
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


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
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
