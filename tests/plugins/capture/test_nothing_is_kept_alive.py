"""Compiled code keeps no module and no weight alive, and what it leaves behind when it is dropped does not grow."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import linecache
import math
import operator
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import graph_module

import turret
from tests.plugins.capture.capture_lab import Observed
from turret.frames import guard_tree

X = torch.linspace(-2, 2, 8).reshape(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers[:2]:
            x = layer(x)
        return self.norm(self.lin(x))


def call(module, x):
    return module(x) * 2


def is_ours(value: Any) -> bool:
    """Whether an object is of a kind that compiling makes."""
    kind = type(value)
    package = kind.__module__.partition(".")[0] if isinstance(kind.__module__, str) else ""
    return package in ("turret", "torch", "sympy") or isinstance(value, (types.FunctionType, types.CodeType))


@pytest.fixture(autouse=True)
def few_objects():
    """What was there before the test is not looked at by the many collections of garbage in it."""
    gc.collect()
    gc.freeze()


def parts(module: nn.Module) -> list[weakref.ref]:
    return [weakref.ref(v) for v in (*module.modules(), *module.parameters(), *module.buffers())]


def gone(references: list[weakref.ref]) -> bool:
    gc.collect()
    return all(reference() is None for reference in references)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("make", [Net, lambda: nn.Linear(4, 4)], ids=["net", "linear"])
def test_a_module_that_was_an_argument_is_let_go_of(make, backward):
    compiled = turret.compile(call, options={"cache": False, "on_error": "raise"})
    for _ in range(2):
        module = make().eval()
        result = compiled(module, X)
        torch.testing.assert_close(result, call(module, X))
        if backward:
            result.sum().backward()
        references = parts(module)
        del module, result
        assert gone(references)


def test_units_of_modules_that_are_gone_make_room_for_others():
    observed = Observed(call)
    for _ in range(6):
        module = Net().eval()
        assert torch.equal(observed(module, X), call(module, X))
        del module
        gc.collect()
    assert len(observed.graphs) == 6 and len(observed.units) == 1 and not observed.fallbacks


@pytest.mark.parametrize("kind", ["module", "parameter", "buffer", "in a list"])
def test_what_was_replaced_in_a_module_is_let_go_of(kind):
    module = Net().eval()
    compiled = turret.compile(module, options={"cache": False, "on_error": "raise"})
    replace: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "module": (lambda: module.lin, lambda: setattr(module, "lin", nn.Linear(4, 4))),
        "parameter": (lambda: module.lin.weight, lambda: setattr(module.lin, "weight", nn.Parameter(torch.ones(4, 4)))),
        "buffer": (lambda: module.norm.running_mean, lambda: setattr(module.norm, "running_mean", torch.ones(4))),
        "in a list": (lambda: module.layers[0], lambda: module.layers.__setitem__(0, nn.Linear(4, 4))),
    }
    held, change = replace[kind]
    for _ in range(2):
        compiled(X)
        reference = weakref.ref(held())
        change()
        torch.testing.assert_close(compiled(X), module(X))
        assert gone([reference])


def test_a_unit_serves_again_when_a_module_that_somebody_kept_comes_back():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    observed = Observed(lambda x: module(x))
    first, other = module[0], nn.Linear(4, 4)
    for layer in (first, other, first, other):
        module[0] = layer
        assert torch.equal(observed(X), module(X))
    assert len(observed.graphs) == 2


@pytest.mark.parametrize("make", [lambda: lambda x: x + 1, lambda: Net().eval()], ids=["function", "module"])
def test_compiled_callables_that_are_dropped_leave_nothing_behind(make):
    def rounds(count: int) -> tuple[int, ...]:
        for _ in range(count):
            target = make()
            compiled = turret.compile(target, options={"cache": False, "on_error": "raise"})
            compiled(X)
            references.append(weakref.ref(target))
            del compiled, target
        gc.collect()
        return len(linecache.cache), len(graph_module._loader.eval_cache), sum(map(is_ours, gc.get_objects()))

    guard_tree.load()  # while it is being built, units wait for it
    references: list[weakref.ref] = []
    rounds(3)
    lines, generated, objects = rounds(3)
    later = rounds(6)
    assert later[:2] == (lines, generated)
    assert later[2] - objects < 6  # one a round would be a leak
    assert gone(references)


def test_lines_of_captured_code_are_shown_as_long_as_it_is_there():
    compiled = turret.compile(lambda x: x + 1, options={"cache": False})
    compiled(X)
    (unit,) = compiled.turret_settings.root.units
    name = unit.run.__code__.co_filename
    assert linecache.getline(name, 1).startswith("def compiled")
    del unit
    turret.reset()
    gc.collect()
    assert name not in linecache.cache


def closure() -> tuple[Callable, torch.Tensor]:
    held = torch.ones(4)
    return lambda x: x * held, held


def default() -> tuple[Callable, torch.Tensor]:
    held = torch.ones(4)
    return lambda x, by=held: x * by, held


def attribute() -> tuple[Callable, torch.Tensor]:
    function, held = closure()

    @functools.wraps(function)
    def outer(x):
        return outer.__wrapped__(x) + 1

    return outer, held


def partial() -> tuple[Callable, torch.Tensor]:
    held = torch.ones(4)
    return functools.partial(torch.mul, held), held


@pytest.mark.parametrize("make", [closure, default, attribute, partial])
def test_a_function_that_was_an_argument_is_let_go_of(make):
    compiled = turret.compile(call, options={"cache": False, "on_error": "raise"})
    function, held = make()
    for _ in range(2):
        torch.testing.assert_close(compiled(function, X), call(function, X))
    references = [weakref.ref(function), weakref.ref(held)]
    del function, held
    assert gone(references)


def as_hook(module: nn.Module, function: Callable) -> Callable[[], None]:
    return module[1].register_forward_hook(lambda *args: function(args[-1])).remove


def as_attribute(module: nn.Module, function: Callable) -> Callable[[], None]:
    module[1].function = lambda v: function(v)
    return lambda: delattr(module[1], "function")


@pytest.mark.parametrize("make", [closure, default, attribute])
@pytest.mark.parametrize("hang", [as_hook, as_attribute])
def test_a_function_that_was_taken_off_a_module_is_let_go_of(make, hang):
    def program(module, x):
        function = getattr(module[1], "function", None)
        return module(x) if function is None else function(module(x))

    compiled = turret.compile(program, options={"cache": False, "on_error": "raise"})
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for _ in range(3):  # each time another function hangs on the same module
        function, held = make()
        take_off = hang(module, function)
        torch.testing.assert_close(compiled(module, X), program(module, X))
        take_off()
        references = [weakref.ref(function), weakref.ref(held)]
        del function, held, take_off
        assert gone(references)


class Plain(torch.Tensor):
    """A tensor class of which torch asks whether it overrides a function."""


def waiting(log):
    try:
        yield 1
    finally:
        log.append("closed")


def test_what_torch_was_asked_while_capturing_holds_nothing_until_a_collection() -> None:
    def program(x, log):
        generator = waiting(log)
        log.append(next(generator))
        return torch.cat([x.as_subclass(Plain)])

    log: list[Any] = []
    gc.disable()
    try:
        Observed(program).call(X, log)
        assert log == [1, "closed"]
    finally:
        gc.enable()


def argument_ends(call: Callable, make: Callable[[torch.Tensor], Any], *raised: type[Exception]) -> bool:
    """Whether a tensor that a call is given, in what ``make`` makes of it, ends with its last reference.

    ``raised``: what the call may end with.
    """
    x = torch.ones(3)
    found = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(*raised):
            call(make(x))
        del x
        return found() is None
    finally:
        gc.enable()


def put_into_itself(items):
    items[0] = items
    gc.isenabled()
    del items[1:]


def held_by_itself(items):
    table: dict[str, Any] = {"items": items}
    table["table"] = table
    found = items[0] + 1
    gc.isenabled()
    table.clear()
    return found


@pytest.mark.parametrize(
    "program", [lambda items: (itertools.tee(items), items[0] * 2)[1], put_into_itself, held_by_itself]
)
def test_a_tensor_in_a_circle_of_what_capture_knew_ends_with_its_last_reference(program) -> None:
    compiled = turret.compile(program)
    turret.compile(torch.sin)(X)

    assert argument_ends(program, lambda x: [x, x])
    for _ in range(3):
        assert argument_ends(compiled, lambda x: [x, x])


class Holder:
    def __init__(self, held):
        self.held = held


def noted(holder):
    holder.note = lambda: holder
    gc.isenabled()
    found = holder.held + 1
    holder.note = None
    return found


def noted_and_replaced(holder):
    holder.note = lambda: holder
    held = holder.held

    class Other(Holder):
        pass

    holder = Other(held + 1)
    return holder.held


@pytest.mark.parametrize("program", [noted, noted_and_replaced])
def test_an_object_with_a_function_that_returns_it_ends_with_its_last_reference(program) -> None:
    compiled = turret.compile(program)
    turret.compile(torch.sin)(X)

    assert argument_ends(program, Holder)
    for _ in range(3):
        assert argument_ends(compiled, Holder)


def marked(x):
    def function():
        return gc.isenabled(), x + 1

    function()
    function.mark = 1
    return x + 2


@pytest.mark.parametrize(
    "program",
    [
        marked,
        lambda x: x.as_subclass(Plain).as_subclass(torch.Tensor) + 1,
        lambda x: torch.cat([x.as_subclass(Plain)]).sum(),
        lambda x: (kept := x.as_subclass(Plain), gc.isenabled(), kept.sum()),
        lambda x: [kept := x.as_subclass(Plain), kept.sum(), [][1]],
        lambda x: torch.from_numpy(x.numpy() * 2) + torch.from_numpy(x.numpy()),
    ],
    ids=[
        "closure",
        "subclass",
        "subclass in a list",
        "subclass over a break",
        "subclass in a call that raises",
        "array",
    ],
)
def test_a_tensor_that_the_program_saw_as_something_else_ends_with_its_last_reference(program) -> None:
    compiled = turret.compile(program)
    turret.compile(torch.sin)(X)

    for _ in range(3):
        assert argument_ends(compiled, lambda x: x, IndexError)


def recursive(depth: int) -> int:
    return recursive(depth + 1)


@pytest.mark.parametrize(
    "statement",
    [
        "1 / 0", "int('q')", "[][1]", "{}['k']", "x.absent", "x.view(7)", "next(iter(()))", "a, b = (1,)", "len(4)",
        "raise KeyError('k')", "raise KeyError('k') from ValueError('v')", "raise ExceptionGroup('g', [KeyError(1)])",
        "assert not x.shape", "math.sqrt(-1)", "int.from_bytes('a', 'big')", "(lambda: [][1])()", "''.join([1])",
        "sorted([1, ''])", "recursive(0)", "absent", "torch.cat([])", "x.add_(x.expand(2, 3))", "held()",
        "operator.index('')", "range(0, 1, 0)", "setattr(4, 'a', 1)", "super().absent", "x[5]", "3 @ 4",
        *(f"try: {what}\n    except Exception: pass" for what in (
            "1 / 0", "int('q')", "opaque(); ''.join([1])", "torch.ones(2) + torch.ones(3)", "opaque(); x @ x.view(3, 1, 1, 1)",
        )),
    ],
)  # fmt: skip
@pytest.mark.parametrize("before", ["", "opaque()", "y = x + 1", "y = x + 1; opaque()"])
def test_an_argument_of_a_call_that_raises_ends_with_its_exception(statement, before):
    class Held:
        pass

    scope = {"torch": torch, "math": math, "operator": operator, "opaque": gc.isenabled, "recursive": recursive}
    exec(f"def program(x, held):\n    {before}\n    {statement}\n    return x + 1\n", scope)
    program = scope["program"]
    compiled = turret.compile(program)
    turret.compile(torch.sin)(X)  # what is imported at the first capture of a process keeps frames, and what they hold

    def ends(call):
        held = Held()
        found = weakref.ref(held)
        with contextlib.suppress(Exception):
            call(torch.ones(3), held)
        del held
        return found() is None

    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", turret.TurretWarning)
            assert ends(program)
            for _ in range(3):
                assert ends(compiled)
    finally:
        gc.enable()


@pytest.mark.parametrize("marked", [False, True])
def test_functions_that_a_call_made_and_left_with_its_caller_are_not_kept(marked):
    def program(x, items):
        def made(value):
            return x + value

        if marked:
            made.mark = 1
        known = [item for item in items if item == 3]
        items.append(made)
        return x * 2 + len(known)

    compiled, held = turret.compile(program), []
    for count in (1, 1, 1, 2):
        items = []
        for _ in range(count + 1):
            x = torch.ones(3)
            compiled(x, items)
            held.append(weakref.ref(x))
        del x, items
    gc.collect()
    assert not [reference for reference in held if reference() is not None]
