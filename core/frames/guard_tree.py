"""Guards checked natively: a guard set becomes a tree whose steps are taken once a call, or not at all.

The extension is built for the running interpreter and torch, at first use or ahead of it (``turret build``).  It
answers what ``GuardSet.compile_python`` would answer and runs no code of the user's; guards of which that cannot be
said are given back to Python, after all others hold.  Until the extension is built, and where it cannot be, guards are
checked in Python; ``unavailable`` says why it cannot.
"""

from __future__ import annotations

import collections
import enum
import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from turret.frames import sources
from turret.frames.class_members import ABSENT
from turret.frames.guards import Guard, GuardCheck, GuardSet
from turret.frames.sources import Source
from turret.frames.trace_modes import AUTOCAST_DEVICES
from turret.storage.extension import Extension
from turret.storage.fork_safety import Lock, after_fork


class StepKind(enum.IntEnum):
    """How a step leads from one object to the next; for ``DICT_ITEM`` and its like no subclass answers."""

    ARGUMENT = 0
    BOUND = 1
    ATTRIBUTE = 2
    ITEM = 3
    KEY = 4
    VALUE = 5
    DICT = 6
    TYPE = 7
    DICT_ITEM = 8
    LIST_ITEM = 9
    TUPLE_ITEM = 10
    WEAK = 11
    SHOWN = 12


class CheckKind(enum.IntEnum):
    """What a check compares."""

    TYPE = 0
    ID = 1
    EQUALS = 2
    TENSOR = 3
    LENGTH = 4
    EMPTY = 5
    KEYS = 6
    HAS_KEY = 7
    NO_KEY = 8
    SAME = 9
    NOT_SAME = 10
    STORAGE = 11
    GLOBAL_STATE = 12
    MEMBER = 13
    OWNER = 14
    MRO = 15
    ANSWER = 16
    NO_VIEW = 17
    OWN_LENGTH = 18
    OWN_KEYS = 19


def check_of(guards: GuardSet) -> GuardCheck:
    """The check of a guard set as a function of the frame's function and its arguments: native, or else in Python."""
    return compile_natively(guards) or guards.compile_python()


def compile_natively(guards: GuardSet) -> GuardCheck | None:
    """The check of a guard set as the extension makes it.

    None where the extension is not there, or not yet: see ``unavailable`` and ``when_built``.
    """
    native = _extension.get()
    try:
        return None if native is None else _translate(guards, native)
    except Exception as error:
        _extension.refuse(error)
        return None


def when_built(then: Callable[[], None]) -> None:
    """Call ``then`` as soon as the extension is there (in the thread that builds or first asks for it), or never."""
    _extension.when_built(then)


def unavailable() -> str:
    """Why guards are checked in Python; empty where they are not, or only until the extension is built."""
    _extension.get()
    return _extension.reason


def unreported() -> str:
    """The same, the first time that it is asked for in a process; empty from then on."""
    reason = "" if _extension.reported else unavailable()
    _extension.reported = _extension.reported or bool(reason)
    return reason


class _Extension:
    """The extension module: loaded from the cache at once, or built in a thread, so that no capture waits for it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.module: Any = None
        self.reason = ""
        self.reported = False
        self.waiting: list[Callable[[], None]] = []
        self.building = False

    def get(self) -> Any | None:
        """The module, or None where there is none (yet)."""
        with self.lock:
            if self.module is None and not self.reason and not self.building:
                if is_built():
                    self._load()
                    self._tell()
                else:
                    self._start()
        return self.module

    def _start(self) -> None:
        # Not a daemon: a short program that ended first would leave the next one to build it again.
        builder = threading.Thread(target=self._build, name="turret-guard-tree")
        try:
            builder.start()
            self.building = True
        except RuntimeError as error:
            self.refuse(error)

    def refuse(self, error: Exception) -> None:
        self.reason = f"guards are checked in Python, not natively: {type(error).__name__}: {error}"

    def when_built(self, then: Callable[[], None]) -> None:
        with self.lock:
            if self.module is None and not self.reason:
                self.waiting.append(then)
                return
        if self.module is not None:
            then()

    def _load(self) -> None:
        try:
            self.module = load()
        except Exception as error:
            self.refuse(error)

    def _build(self) -> None:
        self._load()
        with self.lock:
            self.building = False
        self._tell()

    def _tell(self) -> None:
        """Call all who wait for the module, now that it is there or known not to come."""
        waiting, self.waiting = self.waiting, []
        for then in waiting if self.module is not None else ():
            then()

    def in_forked_child(self) -> None:
        """The thread that builds is the parent's: another one builds when the extension is next asked for."""
        self.building = False


_extension = _Extension()
after_fork(_extension.in_forked_child)


def _translate(guards: GuardSet, native: Any) -> GuardCheck:
    made = _Translation(native)
    for number, guard in enumerate(guards.guards):
        made.add(number, guard)
    made.checks.sort(key=lambda check: made.ranks[check[4]])

    # A guard on torch's modes holds for tensors, wherever it is checked: no mode in Python answers for them.
    modes_checked = any(guard.kind == "GLOBAL_STATE" for guard in guards.guards)
    left = tuple(made.left)
    check: GuardCheck = native.tree(
        made.steps, made.checks, left, guards.compile_python, guards.parameters, modes_checked
    )
    return check


class _Left(Exception):
    """A guard that is for Python to check."""


class _Translation:
    """The steps and the checks of a tree, gathered guard by guard."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.steps: list[tuple[int, int, Any, int]] = []
        self.checks: list[tuple[int, tuple[int, ...], Any, tuple[Any, ...], int]] = []
        self.left: list[int] = []
        self.ranks: dict[int, int] = {}
        self.numbers: dict[Source, int] = {}
        self.ways: dict[Source, int] = {}
        """For what is known weakly the step by which it is found."""

    def add(self, number: int, guard: Guard) -> None:
        """Translate one guard, or leave it to Python."""
        try:
            if guard.kind == "IS" and guard.source is not None:
                self.ways.setdefault(guard.others[0], self.step(guard.source))
            kind, expected, numbers = self.check(guard)
            steps = tuple(self.step(s) for s in (guard.source, *guard.others) if s is not None)
        except _Left:
            self.left.append(number)
            return
        self.ranks[number] = 0 if not steps else 1 if self._on_arguments(steps) else 2
        self.checks.append((CheckKind[kind].value, steps, expected, numbers, number))

    def _on_arguments(self, steps: tuple[int, ...]) -> bool:
        """Whether a check looks at an argument or at what lies right in it: it is cheap, and the likeliest to fail."""
        for step in steps:
            base = self.steps[step][1]
            root = self.steps[base if base >= 0 else step]
            if root[0] != StepKind.ARGUMENT:
                return False
        return True

    def check(self, guard: Guard) -> tuple[str, Any, tuple[Any, ...]]:
        """Kind, expected object and numbers of a native check."""
        expected = guard.expected
        match guard.kind:
            case "TYPE" | "ID" | "EQUALS" | "HAS_KEY" | "NO_KEY":
                return guard.kind, expected, ()
            case "MEMBER" | "OWNER":
                name, found = sys.intern(expected[0]), expected[1]
                nothing = ABSENT if guard.kind == "MEMBER" else None
                return guard.kind, (name,) if found is nothing else (name, found), ()
            case "MRO" | "ANSWER" | "OWN_KEYS":
                return guard.kind, expected, ()
            case "NO_VIEW":
                return guard.kind, None, ()
            case "IS":
                return "SAME", None, ()
            case "SAME" | "NOT_SAME":
                return guard.kind, None, ()
            case "LENGTH" | "OWN_LENGTH":
                return guard.kind, None, (expected,)
            case "KEYS":
                return ("KEYS" if expected else "EMPTY"), tuple(expected), ()
            case "STORAGE":
                return guard.kind, None, tuple(expected)
            case "TENSOR":
                return guard.kind, self.tensor(expected), ()
            case "GLOBAL_STATE":
                return guard.kind, None, self.modes(expected)
        raise _Left

    def tensor(self, facts: Any) -> tuple[Any, ...]:
        """Properties of a tensor as the extension takes them."""
        dtype = str(facts.dtype).removeprefix("torch.")
        if facts.type not in (torch.Tensor, torch.nn.Parameter) or self.native.dtype_number(dtype) < 0:
            raise _Left
        keys = facts.keys.raw_repr()
        if any(n > 62 for n in facts.marks or ()):
            raise _Left
        return (
            facts.type, dtype, str(facts.device), facts.requires_grad, facts.is_leaf, keys, facts.shape, facts.stride,
            facts.marks is not None, sum(1 << n for n in facts.marks or ()),
        )  # fmt: skip

    def modes(self, state: tuple[Any, ...]) -> tuple[int, ...]:
        """Torch's modes as numbers, in the extension's order; only where there are no modes in Python."""
        *flags, functions, dispatch, level = state
        if functions or level is not None:
            raise _Left
        numbers = (self._mode(flag) for flag in flags)
        return (*numbers, dispatch, 1, 0)

    def _mode(self, flag: Any) -> int:
        if isinstance(flag, torch.dtype):
            flag = self.native.dtype_number(str(flag).removeprefix("torch."))
        return int(flag)

    def step(self, source: Source) -> int:
        """The number of the step to a source."""
        found = self.numbers.get(source)
        if found is None:
            kind, base, key, index = self._step(source)
            found = self.numbers[source] = len(self.steps)
            self.steps.append((StepKind[kind].value, base, key, index))
        return found

    def _step(self, source: Source) -> tuple[str, int, Any, int]:
        match source:
            case sources.FunctionSource():
                return "ARGUMENT", -1, None, 0
            case sources.LocalSource(index):
                return "ARGUMENT", -1, None, index + 1
            case sources.WeakSource():
                return "WEAK", -1, source.reference, self.ways.get(source, -1) + 1
            case sources.BoundSource(_, value):
                return "BOUND", -1, value, 0
            case sources.AttrSource(base, name):
                return "ATTRIBUTE", self.step(base), sys.intern(name), 0
            case sources.ItemSource(base, key):
                return "ITEM", self.step(base), key, 0
            case sources.KeySource(base, index):
                return "KEY", self.step(base), None, index
            case sources.ValueSource(base, index):
                return "VALUE", self.step(base), None, index
            case sources.DictSource(base):
                return "DICT", self.step(base), None, 0
            case sources.ShownSource(base):
                return "SHOWN", self.step(base), None, 0
            case sources.TypeSource(base):
                return "TYPE", self.step(base), None, 0
            case sources.BaseItemSource(base, cast, key) if cast in (dict, list, tuple):
                return f"{cast.__name__.upper()}_ITEM", self.step(base), key, 0
        raise _Left


class _Sample:
    """A class written in Python, for what gives its instances their ``__dict__``."""


@functools.cache
def load() -> Any:
    """The extension module; builds it where there is none for this interpreter and torch.

    Raises ``CodegenError`` with what is missing, ``ImportError`` or ``RuntimeError`` where torch is not as expected.
    """
    module = extension().load()
    samples = [torch.Tensor(), torch.Tensor(2, 3), torch.nn.Parameter(torch.Tensor(2))]
    descriptor = _Sample.__dict__["__dict__"]
    module.setup(
        tuple(samples), tuple(s._cdata for s in samples), torch.nn.Parameter, collections.OrderedDict,
        collections.defaultdict, torch.device,
        torch.Size, descriptor, AUTOCAST_DEVICES, vars(torch.autograd.forward_ad),
    )  # fmt: skip
    return module


def is_built() -> bool:
    """Whether the extension is there, built for this interpreter and torch."""
    try:
        return extension().is_built()
    except OSError:
        return False


def extension() -> Extension:
    """The extension, as the running interpreter and torch need it."""
    folder = Path(__file__).parent
    headers, enums = tuple(sorted(folder.glob("guard_*.h"))), (StepKind, CheckKind)
    return Extension.of_torch(folder / "guard_tree.cpp", "checking guards natively", headers=headers, enums=enums)
