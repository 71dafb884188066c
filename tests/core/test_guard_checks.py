"""Guard checkers answer what the plain check answers, whatever happened since they last did."""

from __future__ import annotations

import collections
import functools
import random
import threading
import time
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from turret import guard_checks
from turret.guard_checks import GuardChecker
from turret.guards import Guard, GuardSet, TensorProperties, storage_pattern
from turret.sources import (
    AttrSource,
    BoundSource,
    DictSource,
    ItemSource,
    LocalSource,
    TypeSource,
)


@pytest.fixture(scope="module", autouse=True)
def native() -> None:
    guard_checks.wait()
    assert guard_checks.natives() is not None


class Config:
    mode = "fast"

    def __init__(self) -> None:
        self.width, self.names = 3, ("a", "b")

    @property
    def depth(self) -> int:
        return self.width + 1


class Slotted:
    __slots__ = ("size",)


class Block(nn.Module):
    scale = 2.0

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.config = Config()
        self.slotted = Slotted()
        self.slotted.size = 1
        self.table = collections.OrderedDict(a=1, b=2)
        self.weight = nn.Parameter(torch.ones(2, 3))
        self.register_buffer("mean", torch.zeros(3))
        self.inner = nn.ModuleList([Block(depth - 1) for _ in range(2)] if depth else [])


def with_default(a: int = 1) -> int:
    return a


def make_cell() -> tuple[Callable, Callable]:
    value: Any = 1

    def read() -> Any:
        return value

    def write(new: Any) -> None:
        nonlocal value
        value = new

    return read, write


class World:
    """Objects that guards speak of, guards that hold, and ways to change the objects."""

    def __init__(self) -> None:
        self.kind = type("Kind", (Block,), {"own": 1})
        self.root = self.kind(2)
        self.blocks = [m for m in self.root.modules() if isinstance(m, Block)]
        self.function = types.FunctionType(with_default.__code__, globals(), "function", (1,))
        self.read, self.write_cell = make_cell()
        self.scope: dict[str, Any] = {"x": 1, "f": with_default}
        self.argument = torch.ones(2, 2)

    def guards(self) -> GuardSet:
        made: list[Guard] = []
        for block in self.blocks:
            source = BoundSource("block", block)
            config, own = AttrSource(source, "config"), DictSource(source)
            weight = ItemSource(AttrSource(source, "_parameters"), "weight")
            made += [
                Guard("EQUALS", AttrSource(source, "training"), block.training),
                Guard("KEYS", AttrSource(source, "_forward_hooks"), ()),
                Guard("KEYS", AttrSource(source, "_modules"), ("inner",)),
                Guard("KEYS", AttrSource(source, "table"), ("a", "b")),
                Guard("NO_KEY", own, "forward"),
                Guard("HAS_KEY", own, "config"),
                Guard("EQUALS", AttrSource(source, "scale"), 2.0),
                Guard("TYPE", config, Config),
                Guard("ID", TypeSource(source), type(block)),
                Guard("EQUALS", AttrSource(config, "width"), 3),
                Guard("EQUALS", AttrSource(config, "depth"), 4),
                Guard("EQUALS", AttrSource(config, "names"), ("a", "b")),
                Guard("LENGTH", AttrSource(config, "names"), 2),
                Guard("EQUALS", AttrSource(config, "mode"), "fast"),
                Guard("EQUALS", AttrSource(AttrSource(source, "slotted"), "size"), 1),
                Guard("NOT_SAME", config, None, (AttrSource(source, "table"),)),
                Guard("ID", weight, block.weight),
                Guard("TENSOR", BoundSource("weight", block.weight), TensorProperties.of(block.weight)),
                Guard("TENSOR", ItemSource(AttrSource(source, "_buffers"), "mean"), TensorProperties.of(block.mean)),
            ]
        kind, function = BoundSource("kind", self.kind), BoundSource("function", self.function)
        local, mean = LocalSource(0, "x"), ItemSource(AttrSource(BoundSource("root", self.root), "_buffers"), "mean")
        cell = AttrSource(BoundSource("cell", self.read.__closure__[0]), "cell_contents")
        made += [
            Guard("EQUALS", ItemSource(AttrSource(kind, "__dict__"), "own"), 1),
            Guard("NO_KEY", AttrSource(kind, "__dict__"), "forward"),
            Guard("EQUALS", ItemSource(AttrSource(function, "__defaults__"), 0), 1),
            Guard("ID", AttrSource(function, "__code__"), with_default.__code__),
            Guard("EQUALS", cell, 1),
            Guard("EQUALS", ItemSource(BoundSource("scope", self.scope), "x"), 1),
            Guard("ID", ItemSource(BoundSource("scope", self.scope), "f"), with_default),
            Guard("NO_KEY", BoundSource("scope", self.scope), "len"),
            Guard("TENSOR", local, TensorProperties.of(self.argument)),
            Guard("STORAGE", local, storage_pattern([self.argument, self.root.mean]), (mean,)),
        ]
        return GuardSet(tuple(made), 1)

    def changes(self, chance: random.Random) -> list[Callable[[], Any]]:
        """Things to do, most of which break a guard, and each of which another of them undoes."""
        block, config = chance.choice(self.blocks), chance.choice(self.blocks).config
        ones = functools.partial(torch.ones, 2, 3)
        return [
            lambda: block.train(chance.random() < 0.5),
            lambda: self.root.train(),
            lambda: block.register_forward_hook(print),
            lambda: block._forward_hooks.clear(),
            lambda: setattr(config, "width", chance.choice((3, 3, 4, "3"))),
            lambda: setattr(config, "names", chance.choice((("a", "b"), ("a", "c"), ["a", "b"]))),
            lambda: setattr(config, "__class__", chance.choice((Config, type("Config", (Config,), {})))),
            lambda: setattr(config, "__dict__", dict(vars(config))),
            lambda: setattr(config, "mode", "slow"),
            lambda: vars(config).pop("mode", None),
            lambda: setattr(block, "config", config),
            lambda: setattr(block, "config", Config()),
            lambda: setattr(block, "forward", print),
            lambda: vars(block).pop("forward", None),
            lambda: block.table.move_to_end("a"),
            lambda: block.table.move_to_end("b"),
            lambda: setattr(block.slotted, "size", chance.choice((1, 1, 2))),
            lambda: block._modules.update(other=None),
            lambda: block._modules.pop("other", None),
            lambda: setattr(block.weight, "data", chance.choice((ones(), torch.ones(3, 2).T, ones().double(), ones()))),
            lambda: block.weight.requires_grad_(chance.random() < 0.6),
            lambda: setattr(block, "mean", torch.zeros(chance.choice((3, 3, 4)))),
            lambda: setattr(self.root, "mean", chance.choice((torch.zeros(3), self.argument.view(-1)[:3]))),
            lambda: setattr(self.kind, "own", chance.choice((1, 1, 2))),
            lambda: setattr(self.kind, "scale", 3.0),
            lambda: hasattr(self.kind, "scale") and "scale" in vars(self.kind) and delattr(self.kind, "scale"),
            lambda: setattr(self.function, "__defaults__", (chance.choice((1, 1, 2)),)),
            lambda: setattr(self.function, "__code__", chance.choice((with_default.__code__, print_code))),
            lambda: self.write_cell(chance.choice((1, 1, 2, True))),
            lambda: self.scope.update(x=chance.choice((1, 1, 1.0))),
            lambda: self.scope.update(len=len),
            lambda: self.scope.pop("len", None),
        ]

    def repair(self) -> None:
        """Undo what is likely to be broken."""
        for block in self.blocks:
            block.train()
            block._forward_hooks.clear()
            block._modules.pop("other", None)
            vars(block).pop("forward", None)
            block.table, block.slotted.size, block.config, block.mean = (
                collections.OrderedDict(a=1, b=2), 1, Config(), torch.zeros(3),
            )  # fmt: skip
            block.weight.requires_grad_()
            block.weight.data = torch.ones(2, 3)
        self.kind.own = 1
        if "scale" in vars(self.kind):
            del self.kind.scale
        self.function.__defaults__, self.function.__code__ = (1,), with_default.__code__
        self.write_cell(1)
        self.scope.clear()
        self.scope.update(x=1, f=with_default)


print_code = (lambda a=1: print(a)).__code__


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_the_plain_check(seed: int):
    chance, world = random.Random(seed), World()
    guards = world.guards()
    plain, checker = guards.compile(), GuardChecker(guards)
    answers: collections.Counter = collections.Counter()
    for _ in range(120):
        expected = plain(None, world.argument)
        assert checker.check(None, world.argument) is expected, guards.explain(None, (world.argument,))
        answers[expected] += 1
        if not expected and chance.random() < 0.5:
            world.repair()
        else:
            chance.choice(world.changes(chance))()
    assert min(answers[True], answers[False]) > 10


def test_what_did_not_change_is_not_read_again():
    module = Block(1)
    looked = []

    class Watching(dict):
        def __getitem__(self, key: Any) -> Any:
            looked.append(key)
            return dict.__getitem__(self, key)

    source = BoundSource("module", module)
    live = ItemSource(BoundSource("watching", Watching(a=1)), "a")
    checker = GuardChecker(
        GuardSet((Guard("EQUALS", AttrSource(source, "training"), True), Guard("EQUALS", live, 1)), 0)
    )
    for _ in range(3):
        assert checker.check(None)
    assert len(checker.resting) == 1 and len(looked) == 3
    assert checker.stamps.hits == 3
    module.eval()
    assert not checker.check(None) and not checker.check(None)
    module.train()
    assert checker.check(None) and checker.check(None) and checker.stamps.hits == 1


def test_what_changes_all_the_time_is_checked_on_every_call():
    first, second = Block(0), Block(0)
    guards = GuardSet(
        tuple(Guard("EQUALS", AttrSource(BoundSource("block", b), "training"), True) for b in (first, second)), 0
    )
    checker = GuardChecker(guards)
    assert checker.check(None) and len(checker.resting) == 2
    for number in range(20):
        first.counter = number
        assert checker.check(None)
    assert checker.resting == guards.guards[1:]
    hits = checker.stamps.hits
    assert hits > 10
    for number in range(20):
        first.counter, first.training = number, number % 3 > 0
        assert checker.check(None) is first.training
    for block in (first, second):
        block.eval()
        assert not checker.check(None)
        block.train()
        assert checker.check(None)


@pytest.mark.parametrize("value", [3, [1], None, torch.ones(2, 2).to_sparse(), nn.Parameter(torch.ones(2, 2))])
def test_other_things_than_the_tensor_do_not_hold(value: Any):
    guard = Guard("TENSOR", LocalSource(0, "x"), TensorProperties.of(torch.ones(2, 2)))
    checker = GuardChecker(GuardSet((guard,), 1))
    assert checker.check(None, torch.zeros(2, 2)) and not checker.check(None, value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2, 3),
        lambda: torch.ones(3, 2).T,
        lambda: torch.ones(2, 3, dtype=torch.bfloat16),
        lambda: torch.ones(2, 3, requires_grad=True),
        lambda: torch.ones(2, 3, requires_grad=True) * 2,
        lambda: torch.ones(2, 3, dtype=torch.complex64).conj(),
        lambda: torch.ones(2, 3, device="meta"),
        lambda: nn.Parameter(torch.ones(2, 3)),
        lambda: torch.ones(2, 3, dtype=torch.bool),
        lambda: torch._efficientzerotensor((2, 3)),
        lambda: torch.ones(6)[1:].view(5),
    ],
)
def test_native_checks_of_tensors_agree_with_the_data(make: Callable[[], torch.Tensor]):
    others = [t for t in (test_native_checks_of_tensors_agree_with_the_data.pytestmark[0].args[1])]
    properties = TensorProperties.of(make())
    native = guard_checks.natives()
    assert native is not None
    check = native.tensor_check(properties)
    assert check is not None
    for other in others:
        value = other()
        assert check(value) is properties.holds(value)
    with torch.inference_mode():
        assert check(make()) is properties.holds(make())


def test_sizes_left_open_may_be_anything():
    properties = TensorProperties.of(torch.ones(2, 3), frozenset({0}))
    check = guard_checks.natives().tensor_check(properties)  # type: ignore[union-attr]
    for value in (torch.ones(5, 3), torch.ones(3, 7).T, torch.ones(3)):
        assert check(value) is properties.holds(value)  # type: ignore[misc]


def test_tensors_whose_insides_were_swapped_are_looked_at_again():
    held, other = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(3))
    checker = GuardChecker(GuardSet((Guard("TENSOR", BoundSource("p", held), TensorProperties.of(held)),), 0))
    assert checker.check(None)
    torch.utils.swap_tensors(held, other)
    assert not checker.check(None)


def test_threads_that_check_while_objects_change_agree_in_the_end():
    blocks = [Block(0) for _ in range(3)]
    guards = tuple(Guard("EQUALS", AttrSource(BoundSource("block", b), "training"), True) for b in blocks)
    checker, stop = GuardChecker(GuardSet(guards, 0)), threading.Event()

    def churn(block: Block) -> None:
        while not stop.is_set():
            block.counter = time.perf_counter()
            checker.check(None)

    threads = [threading.Thread(target=churn, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for number in range(200):
        blocks[number % 3].training = False
        assert not checker.check(None)
        blocks[number % 3].training = True
        assert checker.check(None)
    stop.set()
    for thread in threads:
        thread.join()


def test_the_native_parts_are_built_for_units_that_are_called_again(monkeypatch):
    found = guard_checks.natives()
    monkeypatch.setattr(guard_checks, "_found", [])
    monkeypatch.setattr(guard_checks, "_builder", None)
    monkeypatch.setattr(guard_checks, "_load", lambda: found)
    monkeypatch.setattr(guard_checks.Extension, "is_built", lambda extension: False)
    module = Block(0)
    guards = GuardSet((Guard("EQUALS", AttrSource(BoundSource("block", module), "training"), True),), 0)
    checker = GuardChecker(guards)
    check = checker.check
    for _ in range(2):
        assert check(None) and not checker.resting and guard_checks._builder is None
    assert check(None)
    guard_checks.wait()
    assert check(None) and checker.check is check and len(checker.resting) == 1
    module.eval()
    assert not check(None)


def test_without_native_parts_the_check_stays_plain(monkeypatch):
    monkeypatch.setattr(guard_checks, "_found", [None])
    guard = Guard("TENSOR", LocalSource(0, "x"), TensorProperties.of(torch.ones(2)))
    checker = GuardChecker(GuardSet((guard,), 1))
    assert checker.check(None, torch.ones(2)) and not checker.check(None, torch.ones(3))
