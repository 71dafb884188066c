"""Where a capture is: the frames under way, and how many steps the root frame has taken."""

from __future__ import annotations

import linecache
import sys
import types
import weakref
from typing import Any, Protocol

from turret.plugins.capture.errors import NOWHERE, AskedFor, DecidedByData, NotConstant, Raised, Unsupported

MAX_LOOP = 200_000
"""Backward jumps in one capture: what runs longer is not unrolled."""
MAX_DEPTH = 400
"""Frames in one another."""


class Running(Protocol):
    """What is asked of a frame that is under way."""

    code: types.CodeType
    scope: dict[str, Any]
    handling: list[Any]
    locals: list[Any]

    def line(self) -> int: ...


Lines = list[tuple[types.CodeType, int]]
"""A stack, outermost frame first: the code of each frame and the line that it is at."""


class CallStack:
    """The frames of one capture, outermost first.  ``break_at`` is the step of the root at which to stop."""

    def __init__(self, break_at: int | None = None) -> None:
        self.break_at = break_at
        self.frames: list[Any] = []
        self.root: Running | None = None
        self.handed_on: list[Any] = []
        """What a break handed on to the root, which holds it: values of its parameters; empty where there was none."""
        self.step = -1
        """Instructions that the root has begun, less one."""
        self.loops = 0
        self.failed: Lines | None = None
        """Where something could not be captured, the first time."""
        self.raised: Lines | None = None
        """Where the program raised an exception that the innermost frame does not handle, the first time."""

    def check_held(self, object: Any) -> None:
        """Refuse to follow a weak reference to what a break handed on and the root's variables have let go of."""
        let_go = (v for v in self.handed_on if v not in self.root.locals)  # type: ignore[union-attr]
        if any(getattr(v, "object", None) is object for v in let_go):
            raise Unsupported("following a weak reference to what a variable held, and may be gone", step=NOWHERE)

    def enter(self, frame: Running) -> None:
        """Go into a frame; raises ``Unsupported`` where that is too deep."""
        self.frames.append(frame)
        if len(self.frames) > MAX_DEPTH:
            raise Unsupported(f"calls nested more than {MAX_DEPTH} deep")

    def leave(self) -> None:
        """Leave the innermost frame, by an exception perhaps."""
        kind = sys.exc_info()[0]
        if kind in (Unsupported, DecidedByData, AskedFor, NotConstant) and self.failed is None:
            self.failed = self.lines()
        if kind is Raised and self.raised is None:
            self.raised = self.lines()
        self.frames.pop()

    def catches(self) -> bool:
        """Whether some frame handles an exception of its current instruction, if only to raise it again."""
        return any(frame.catches() for frame in self.frames)

    def handles(self) -> bool:
        """Whether some frame handles an exception of its current instruction, blocks of ``with`` apart."""
        return any(frame.handles() for frame in self.frames)

    def stop_here(self) -> bool:
        """Count a step of the root frame; whether this is the one to stop at."""
        self.step += 1
        return self.step == self.break_at

    def count_loop(self) -> None:
        """Count a round of a loop; raises ``Unsupported`` where there are too many."""
        self.loops += 1
        if self.loops > MAX_LOOP:
            raise Unsupported(f"a loop of more than {MAX_LOOP} rounds")

    def in_optimizer(self) -> bool:
        """Whether the code under capture is that of one of torch's optimizers."""
        return bool(self.frames) and str(self.frames[-1].scope.get("__name__")).startswith("torch.optim.")

    def handled(self) -> Any:
        """The exception that the innermost frame, or else a caller of it, is handling, or None."""
        return self.frames[-1].handling[-1] if self.frames[-1].handling else self.handled_outside()

    def handled_outside(self) -> Any:
        """The exception that a caller of the innermost frame is handling, or None."""
        for outer in reversed(self.frames[:-1]):
            if outer.handling:
                return outer.handling[-1]
        return None

    def lines(self) -> Lines:
        """The code and the line of each frame."""
        return [(f.code, f.line()) for f in self.frames]

    def location(self) -> str:
        """File and line under capture, for messages."""
        if not self.frames:
            return ""
        frame = self.frames[-1]
        return f"{frame.code.co_filename}:{frame.line()}"


def as_text(lines: Lines) -> str:
    """A stack in the form of a traceback."""
    return "".join(_line_text(code, line) for code, line in lines)


_line_cache: weakref.WeakKeyDictionary[types.CodeType, dict[int, str]] = weakref.WeakKeyDictionary()


def _line_text(code: types.CodeType, line: int) -> str:
    known = _line_cache.setdefault(code, {})
    found = known.get(line)
    if found is None:
        source = linecache.getline(code.co_filename, line).strip()
        found = f'  File "{code.co_filename}", line {line}, in {code.co_name}\n' + (f"    {source}\n" if source else "")
        known[line] = found
    return found
