"""What a program puts in place of functions, members of classes and code between two calls is noticed."""

from __future__ import annotations

import enum
import functools
import math
import operator
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import turret
from tests.plugins.capture.capture_lab import Observed

X = torch.linspace(-2, 2, 8).reshape(2, 4)


class Frozen(Observed):
    """Graphs become operations on the numbers of their first call, as in the stages after capture."""

    def keep(self, captured: Any) -> Callable:
        self.graphs.append(captured)
        made: list[Callable] = []

        def run(*inputs: Any) -> Any:
            if not made:
                made.append(make_fx(fx.Interpreter(captured.module).run)(*inputs).forward)
            return made[0](*inputs)

        return run


def stays_right(program: Callable, change: Callable[[], Any], undo: Callable[[], Any]) -> None:
    """Calls before the change, after it, and after it is taken back give what eager gives; the change matters."""
    observed = Frozen(program, dynamic=False)
    before = program(X)
    for _ in range(3):
        assert torch.equal(observed(X), before)
    change()
    try:
        expected = program(X)
        assert not torch.equal(expected, before)
        for _ in range(2):
            assert torch.equal(observed(X), expected)
    finally:
        undo()
    assert torch.equal(observed(X), before)
    assert len(observed.graphs) == 2 and not observed.fallbacks


def ten_times(found: Any, *rest: Any, **named: Any) -> Any:
    return torch.mul(found, 10)


linear = nn.Linear(4, 4)

PATCHES: dict[str, tuple[str, Any, Callable]] = {
    "a function of torch": ("torch.relu", ten_times, lambda x: torch.relu(x) + 1),
    "a function of nn.functional": ("torch.nn.functional.relu", ten_times, lambda x: F.relu(x) + 1),
    "one that a module of torch calls": ("torch.nn.functional.relu", ten_times, nn.ReLU()),
    "one that a function of the graph calls": ("torch.relu", ten_times, lambda x: F.relu(x) + 1),
    "a method that a function of the graph calls": ("torch.Tensor.softmax", ten_times, lambda x: F.softmax(x, -1)),
    "one in the wrapper of another": (
        "torch.nn.functional.relu", functools.wraps(F.relu)(lambda x: x * 10), lambda x: F.relu(x),
    ),
    "a method of tensors": ("torch.Tensor.relu", ten_times, lambda x: x.relu() + 1),
    "an operator of tensors": ("torch.Tensor.__add__", ten_times, lambda x: x + 1),
    "a reflected operator": ("torch.Tensor.__rsub__", ten_times, lambda x: 2 - x),
    "a method of a module's class": ("torch.nn.Linear.forward", lambda self, x: x * 3, lambda x: linear(x)),
    "the call of modules": ("torch.nn.Module.__call__", lambda self, x: x * 3, lambda x: linear(x)),
    "what the call of modules calls": ("torch.nn.Module._call_impl", lambda self, x: x * 3, lambda x: linear(x)),
    "a constant of the standard library": ("math.pi", 3, lambda x: x * math.pi),
    "a builtin": ("builtins.divmod", lambda a, b: (9, 9), lambda x: x * divmod(7, 2)[0]),
}  # fmt: skip


AROUND = {
    "__add__": lambda x: x + 1, "__rsub__": lambda x: 2 - x, "__iadd__": lambda x: operator.iadd(x * 1, 1),
    "__matmul__": lambda x: x @ x.t(), "__and__": lambda x: (x > 0) & (x < 1), "__neg__": lambda x: -x + 1,
    "__abs__": lambda x: abs(x) + 1, "__pos__": lambda x: +x + 1, "__lt__": lambda x: x < 1, "__eq__": lambda x: x == 1,
    "__setitem__": lambda x: operator.setitem(y := x * 1, 0, 5.0) or y,
    "__len__": lambda x: x * len(x), "__iter__": lambda x: [t + 1 for t in x][1], "relu": lambda x: x.relu() + 1,
    "add_": lambda x: (x - 2).add_(1), "sum": lambda x: x.sum(0) - 2, "dim": lambda x: x * x.dim(),
    "shape": lambda x: x * x.shape[0], "ndim": lambda x: x * x.ndim, "T": lambda x: x.T + 1, "real": lambda x: x.real + 1,
}  # fmt: skip


def another(found: Any) -> Any:
    """What a method gives, made other than torch's."""
    if isinstance(found, torch.Tensor):
        return torch.logical_not(found) if found.dtype == torch.bool else torch.mul(found, 3)
    if isinstance(found, torch.Size):
        return torch.Size([n + 1 for n in found])
    return found + 1 if isinstance(found, int) else found


@pytest.mark.parametrize("name", AROUND)
def test_what_a_program_puts_around_torchs_own_is_called_once(name, monkeypatch):
    own, program = getattr(torch.Tensor, name), AROUND[name]
    wrapped: Any = lambda self, *args: another(own(self, *args))  # noqa: E731 (what programs write)
    if not callable(own):
        wrapped = property(lambda self: another(own.__get__(self)))
    before = turret.compile(program, options={"cache": False})
    assert torch.equal(before(X), program(X))
    with monkeypatch.context() as patches:
        patches.setattr(torch.Tensor, name, wrapped, raising=False)
        after = turret.compile(program, options={"cache": False})
        expected = program(X)
        for compiled in (before, after, before, after):
            assert torch.equal(compiled(X), expected)


ITEMS = """
import torch, turret
own = torch.Tensor.__getitem__
def program(x):
    return x[1:] - 2
x = torch.arange(6.0).reshape(3, 2)
before = turret.compile(program, options={"cache": False, "on_error": "raise"})
assert torch.equal(before(x), program(x))
torch.Tensor.__getitem__ = lambda self, key: torch.mul(own(self, key), 3)
after = turret.compile(program, options={"cache": False, "on_error": "raise"})
for compiled in (before, after, before, after):
    assert torch.equal(compiled(x), x[1:] - 2) and x[1, 1] == 9
"""


def test_items_by_what_a_program_puts_around_torchs_own_are_asked_for_once():
    # In a process of its own: put back, the method leaves tensors of no dimension sequences to torch's constructors.
    subprocess.run([sys.executable, "-c", ITEMS], check=True, timeout=200)


@pytest.mark.parametrize("name", PATCHES)
def test_what_is_patched_in_a_library_is_noticed(name):
    target, replacement, program = PATCHES[name]
    patch = mock.patch(target, replacement)
    stays_right(program, patch.start, patch.stop)


def test_a_module_of_sys_modules_is_noticed(monkeypatch):
    def program(x):
        import math

        return x * math.e

    other = types.SimpleNamespace(e=2)
    stays_right(program, lambda: monkeypatch.setitem(sys.modules, "math", other), monkeypatch.undo)


def test_an_answer_of_torch_about_itself_is_asked_anew():
    threads = torch.get_num_threads()
    stays_right(
        lambda x: x * torch.get_num_threads(),
        lambda: torch.set_num_threads(threads + 1),
        lambda: torch.set_num_threads(threads),
    )


class Base:
    def shift(self):
        return 5


class Other:
    def shift(self):
        return 6


class Thing(Base):
    def absent(self, x):
        return x * getattr(self, "extra", 7)

    def asked(self, x):
        return x + (1 if hasattr(self, "extra") else 2)

    def inherited(self, x):
        return x * self.shift() + isinstance(self, Other)

    def above(self, x):
        return x * super().shift()


THING = Thing()


@pytest.mark.parametrize("owner", [Thing, Base], ids=["class", "base"])
@pytest.mark.parametrize("program", [THING.absent, THING.asked], ids=["getattr", "hasattr"])
def test_an_attribute_that_was_absent_is_noticed(owner, program):
    stays_right(program, lambda: setattr(owner, "extra", 3), lambda: delattr(owner, "extra"))


def test_bases_that_are_assigned_are_noticed():
    for program in (THING.inherited, THING.above):
        stays_right(
            program, lambda: setattr(Thing, "__bases__", (Other,)), lambda: setattr(Thing, "__bases__", (Base,))
        )


def test_a_method_between_a_class_and_the_one_that_super_finds_is_noticed():
    class Middle(Base):
        pass

    class Last(Middle):
        def program(self, x):
            return x * super().shift()

    stays_right(Last().program, lambda: setattr(Middle, "shift", lambda self: 9), lambda: delattr(Middle, "shift"))


@pytest.mark.parametrize("kind", ["parameter", "buffer", "module"])
def test_what_a_module_did_not_have_is_noticed(kind):
    module = nn.Linear(4, 4)
    add = {
        "parameter": lambda: module.register_parameter("extra", nn.Parameter(X)),
        "buffer": lambda: module.register_buffer("extra", X),
        "module": lambda: module.add_module("extra", nn.ReLU()),
    }[kind]
    stays_right(lambda x: x * (2 if hasattr(module, "extra") else 3), add, lambda: delattr(module, "extra"))


def test_the_class_of_a_module_is_noticed():
    class Doubled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 2

    module = nn.Linear(4, 4)
    stays_right(
        lambda x: module(x),
        lambda: setattr(module, "__class__", Doubled),
        lambda: setattr(module, "__class__", nn.Linear),
    )


def called(x, by=3, *, more=4):
    return x * by + more


def other(x, by=3, *, more=4):
    return x - by - more


@pytest.mark.parametrize(
    ("name", "value"), [("__code__", other.__code__), ("__defaults__", (5,)), ("__kwdefaults__", {"more": 7})]
)
def test_parts_of_a_function_that_are_assigned_are_noticed(name, value):
    before = getattr(called, name)
    stays_right(lambda x: called(x), lambda: setattr(called, name, value), lambda: setattr(called, name, before))


def test_the_code_of_a_method_and_of_a_function_that_is_no_part_of_the_graph_are_noticed():
    for function, program in ((nn.ReLU.forward, nn.ReLU()), (F.relu, lambda x: F.relu(x))):
        scope: dict[str, Any] = {}
        exec(f"def made({', '.join(function.__code__.co_varnames[:2])}): return input * 3", scope)
        before = function.__code__
        stays_right(
            program,
            lambda f=function, s=scope: setattr(f, "__code__", s["made"].__code__),
            lambda f=function, b=before: setattr(f, "__code__", b),
        )


def test_a_closure_variable_that_had_no_value_is_noticed():
    def make():
        def inner(x):
            try:
                return x * late
            except NameError:
                return x + 1

        if False:
            late = 1
        return inner

    inner = make()
    cell = inner.__closure__[0]
    stays_right(inner, lambda: setattr(cell, "cell_contents", 3), lambda: delattr(cell, "cell_contents"))


def test_the_value_of_a_member_of_an_enumeration_is_noticed():
    class Color(enum.Enum):
        RED = 2

    stays_right(
        lambda x: x * Color.RED.value,
        lambda: setattr(Color.RED, "_value_", 3),
        lambda: setattr(Color.RED, "_value_", 2),
    )


def test_a_mark_that_comes_after_a_static_capture_makes_a_size_dynamic():
    observed = Observed(lambda x: x * 2)
    observed(torch.ones(4, 3))
    marked = torch.ones(4, 3)
    marked._dynamo_dynamic_indices = {0}  # as mark_dynamic leaves it
    observed(marked)
    assert len(observed.graphs) == 2
    for rows in (5, 6, 4):
        assert torch.equal(observed(torch.ones(rows, 3)), torch.full((rows, 3), 2.0))
    observed(marked)
    assert len(observed.graphs) == 2


def test_a_class_that_counts_its_calls_is_not_captured_anew():
    class Counted:
        calls = 0
        scale = 2

        def program(self, x):
            return x * self.scale

    counted = Counted()
    observed = Observed(counted.program)
    for number in range(5):
        Counted.calls = number
        torch.late = number
        assert torch.equal(observed(X), X * 2)
    del torch.late
    assert len(observed.graphs) == 1


def test_a_slot_that_gets_a_value_is_noticed():
    class Slotted:
        __slots__ = ("spare",)

    slotted = Slotted()
    stays_right(
        lambda x: x + (1 if hasattr(slotted, "spare") else 2),
        lambda: setattr(slotted, "spare", 3),
        lambda: delattr(slotted, "spare"),
    )


HELD = {"relu": F.relu}


def test_a_function_that_was_kept_is_what_runs_where_another_has_its_name_unless_a_mode_asks_by_name():
    compiled = turret.compile(lambda x: HELD["relu"](x) + 1, options={"cache": False})
    kept, replaced = torch.relu(X) + 1, X * 10 + 1
    for _ in range(2):
        assert torch.equal(compiled(X), kept)
        with mock.patch("torch.nn.functional.relu", ten_times):
            assert torch.equal(compiled(X), kept)
            with torch.device("cpu"):
                assert torch.equal(compiled(X), replaced)
        with torch.device("cpu"):
            assert torch.equal(compiled(X), kept)
            with mock.patch("torch.nn.functional.relu", ten_times):
                assert torch.equal(compiled(X), replaced)


KEPT: dict[str, tuple[Any, tuple]] = {
    "torch.nn.functional.silu": (F.silu, ()),
    "torch.nn.functional.softmax": (F.softmax, (-1,)),
    "torch.nn.functional.layer_norm": (F.layer_norm, ((4,),)),
    "torch.nn.functional.max_pool1d": (F.max_pool1d, (2,)),
    "torch.Tensor.unflatten": (torch.Tensor.unflatten, (0, (1, 2))),
    "torch.Tensor.norm": (torch.Tensor.norm, ()),
    "torch.norm": (torch.norm, ()),
    "torch.sin": (torch.sin, ()),
    "torch.Tensor.cos": (torch.Tensor.cos, ()),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_replaces_a_function_may_call_it(name):
    function, arguments = KEPT[name]

    def program(x):
        return function(x, *arguments) + 1

    expected = program(X)
    compiled = [turret.compile(program, options={"cache": False}) for _ in range(2)]
    torch.testing.assert_close(compiled[0](X), expected)
    with mock.patch(name, lambda x, *rest: function(x, *rest) * 2):
        for number in (0, 1):
            torch.testing.assert_close(compiled[number](X), expected)
