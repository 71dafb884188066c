"""How the guards of a unit are checked on every call: what cannot have changed since it was last checked is not.

Guards stay data (core/guards.py), and their plain check says what they mean; a ``GuardChecker`` gives the same answer
sooner.  Guards that rest on objects that stamps watch (core/guard_grounds.py) are checked again when one of these
changed; properties of tensors are compared by native code; the rest is the plain check.  Without the native parts
(while they are being built, or where they cannot be) everything is the plain check.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch

from turret.errors import TurretError
from turret.guard_grounds import Grounds, Key
from turret.guards import KINDS, Guard, GuardSet, TensorProperties, check_text, write_guard
from turret.native.extension import Extension
from turret.sources import BoundSource, SourceWriter

_FOLDER = Path(__file__).with_name("native")
_WORTHWHILE = 3
"""Checks of one unit, the one right after its capture included, after which the native parts are built."""
_QUIET = 10
"""Calls without a change after which an object counts as settled again: a walk costs about as many plain checks."""
_PATIENCE = 5
"""Changes, one shortly after the other, after which an object is watched no more."""


@attrs.frozen(eq=False)
class Natives:
    """The native parts: stamps of objects, checks of tensors."""

    stamps: Any
    tensors: Any

    def tensor_check(self, expected: TensorProperties) -> Callable[[Any], bool] | None:
        """A native ``expected.holds``; None where there is none for such tensors."""
        number = _scalar_type(self.tensors, expected.dtype)
        if number is None or not issubclass(expected.type, torch.Tensor):
            return None
        return self.tensors.TensorCheck(
            expected.type, expected.keys.raw_repr(), number, str(expected.device), expected.requires_grad,
            expected.is_leaf, expected.shape, expected.stride,
        )  # fmt: skip

    def tensor_test(self, guard: Guard, writer: SourceWriter, held: list[str]) -> str:
        """As in ``KINDS``."""
        check = self.tensor_check(guard.expected)
        return KINDS["TENSOR"](guard, writer, held) if check is None else f"{writer.constant(check)}({held[0]})"

    def storage_test(self, guard: Guard, writer: SourceWriter, held: list[str]) -> str:
        """As in ``KINDS``."""
        pattern = writer.constant(self.tensors.storage_pattern)
        return f"{pattern}({', '.join(held)}) == {writer.constant(guard.expected)}"


@functools.cache
def _scalar_type(tensors: Any, dtype: torch.dtype) -> int | None:
    """Torch's number of a dtype; None for those of quantized tensors."""
    try:
        return tensors.scalar_type(torch.empty(0, dtype=dtype, device="meta"))
    except (RuntimeError, NotImplementedError):
        return None


@functools.cache
def _extensions() -> tuple[Extension, Extension]:
    torch_folder = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    flags = (f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}", abi, "-lc10")
    purpose = "Turret's check of guards"
    return (
        Extension(_FOLDER / "stamps.cpp", purpose),
        Extension(_FOLDER / "tensor_checks.cpp", purpose, flags, (torch.__version__, abi)),
    )


_lock = threading.Lock()
_found: list[Natives | None] = []
_builder: threading.Thread | None = None
_waiting: weakref.WeakSet[GuardChecker] = weakref.WeakSet()


def natives() -> Natives | None:
    """The native parts, or None where they are not there: not yet, the first time on a machine, or for good."""
    if not _found:
        with _lock:
            if not _found and _builder is None and all(extension.is_built() for extension in _extensions()):
                _found.append(_load())
    return _found[0] if _found else None


def start_building() -> None:
    """Build the native parts in the background, where they are not there; the plain check serves until then."""
    global _builder
    with _lock:
        if not _found and _builder is None:
            _builder = threading.Thread(target=_build, name="turret-guard-checks", daemon=True)
            _builder.start()


def wait() -> None:
    """Wait until the native parts are there, where they can be."""
    if natives() is None:
        start_building()
    if _builder is not None:
        _builder.join()


def _load() -> Natives | None:
    """Built where need be; None where that fails, for whatever reason: only speed depends on them."""
    try:
        stamps, tensors = (extension.load() for extension in _extensions())
    except (TurretError, OSError, ImportError):
        return None
    samples = (torch.empty(1), torch.nn.Parameter(torch.empty(2)), torch.empty(3)[1:])
    return Natives(stamps, tensors) if tensors.prepare(torch._C.TensorBase, samples) else None


def _build() -> None:
    loaded = _load()
    with _lock:
        _found.append(loaded)
        waiting = list(_waiting)
        _waiting.clear()
    for checker in waiting:
        with checker._settling:
            checker.write()


class GuardChecker:
    """Checks a guard set: ``check(f, *arguments)`` answers what ``guards.compile()`` answers, but sooner."""

    check: Callable[..., bool]

    def __init__(self, guards: GuardSet) -> None:
        self.guards = guards
        self.resting: tuple[Guard, ...] = ()
        """Guards that the present text of the check leaves to the stamps."""
        self.stamps: Any = None
        self._texts, self._calls = 0, 0
        self._keys: list[Key] = []
        self._streaks: Counter[Key] = Counter()
        self._restless: set[Key] = set()
        self._scope: dict[str, Any] = {}
        self._settling = threading.RLock()
        if natives() is None:
            with _lock:
                if not _found:
                    _waiting.add(self)
        if natives() is None or not self.settle(()):
            self.write()

    def settle(self, resting: tuple[Guard, ...]) -> bool:
        """Check what rests, and watch what it rests on from now; whether all of it holds, and all of ``resting``.

        ``resting`` are the guards that the text which calls this leaves to the stamps.
        """
        native = natives()
        assert native is not None
        with self._settling:
            if self.stamps is not None:
                self._note_changes()
            grounds = Grounds(native.stamps.Stamps(), self._restless)
            found = []
            for guard in self.guards.guards:
                holds = grounds.holds(guard)
                if holds is False:
                    return False
                if holds:
                    found.append(guard)
            if tuple(found) != self.resting or self.stamps is None:
                self.resting = tuple(found)
                self.write()
            self.stamps, self._keys = grounds.stamps, list(grounds.keys)
            self._scope[f"fresh{self._texts}"] = self.stamps.fresh
        kept = set(map(id, found))
        restless = tuple(guard for guard in resting if id(guard) not in kept)
        return not restless or GuardSet(restless, 0).compile()(None)

    def _note_changes(self) -> None:
        """Give up watching what keeps changing: what rests on that is checked on every call."""
        if self.stamps.hits >= _QUIET:
            self._streaks.clear()
        changed = [self._keys[number] for number in self.stamps.stale()]
        self._streaks.update(changed)
        self._restless.update(key for key in changed if self._streaks[key] >= _PATIENCE)

    def write(self) -> None:
        """Write the check of what does not rest; functions given out before change as well.

        Names of earlier texts stay as they are, for threads that are in the middle of one.
        """
        native, writer, kinds = natives(), SourceWriter(self._scope), KINDS
        passed = set(map(id, self.resting))
        if native is not None:
            self._texts += 1
            kinds = {**KINDS, "TENSOR": native.tensor_test, "STORAGE": native.storage_test}
            self._scope[f"fresh{self._texts}"] = bool  # nothing was looked at yet
            self._scope[f"settle{self._texts}"] = functools.partial(self.settle, self.resting)
            writer.lines.append(f"if not fresh{self._texts}() and not settle{self._texts}(): return False")
            passed |= self._write_bound_tensors(native, writer)
        elif not _found:
            self._scope["note_call"] = self._note_call
            writer.lines.append("note_call()")
        for guard in self.guards.guards:
            if id(guard) not in passed:
                write_guard(guard, writer, kinds)
        exec(compile(check_text(writer.lines, self.guards.parameters), "<turret guards>", "exec"), self._scope)
        made = self._scope["check"]
        if hasattr(self, "check"):
            self.check.__code__ = made.__code__  # type: ignore[attr-defined]
        else:
            self.check = made

    def _note_call(self) -> None:
        """A unit that is called again is worth the native parts; until then the compiler is needed for kernels."""
        self._calls += 1
        if self._calls == _WORTHWHILE:
            start_building()

    def _write_bound_tensors(self, native: Natives, writer: SourceWriter) -> set[int]:
        """Write one call that checks all tensors that the unit holds; returns which guards that checks."""
        pairs, passed = [], set()
        for guard in self.guards.guards:
            if guard.kind == "TENSOR" and isinstance(guard.source, BoundSource):
                check = native.tensor_check(guard.expected)
                if check is not None:
                    pairs.append((check, guard.source.value))
                    passed.add(id(guard))
        if pairs:
            everything = writer.constant(native.tensors.all_hold), writer.constant(tuple(pairs))
            writer.lines.append("if not {}({}): return False".format(*everything))
        return passed
