"""Errors that Turret raises on purpose.

Every message says what was given, what was expected and what to do.  Errors of the user's own program
(an index out of range, a shape mismatch) keep torch's own types; these are for Turret itself.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Literal

Stage = Literal[
    "backward",
    "capture",
    "codegen",
    "compile_graph",
    "decompositions",
    "device",
    "graph",
    "graph_cache",
    "graph_pass",
    "guards",
    "ir_pass",
    "joint",
    "load",
    "lower",
    "lowerings",
    "partition",
    "pipeline",
    "place",
    "run",
    "runtime",
    "schedule",
    "wrap_runtime",
]
"""Where something happens, in events and errors: hooks by their names without the prefix, and what lies between them.

``"guards"`` are those of one captured frame; ``"graph"`` is a compiled graph as a whole, ``"graph_cache"`` its entry in
the artifact cache; ``"load"`` makes a callable of a plan; ``"run"`` is a call of what was compiled; ``"pipeline"`` any
other.
"""


class TurretError(Exception):
    """Base of all errors raised by Turret on purpose."""


class TurretWarning(UserWarning):
    """Category of all warnings of Turret: something runs eagerly, or is not kept, and why."""


class OptionError(TurretError, ValueError):
    """An unknown or ill-typed mode, option, plugin or backend name."""


class PluginError(TurretError):
    """A plugin could not be found, loaded, or broke the contract of its hook."""


class CaptureError(TurretError):
    """The program could not be captured as asked for (``fullgraph=True`` and a graph break, say)."""


class MarkError(CaptureError, RuntimeError):
    """A size that the program marked as dynamic cannot be what the mark promised: the program assumes what it is."""


class RecompileError(TurretError, RuntimeError):
    """A call needs a compilation, and the stance is ``"fail_on_recompile"``."""


class UnsupportedError(TurretError):
    """A stage met a program that it cannot compile; the pipeline then falls back to eager.

    ``call`` is the node of the captured graph that it is about, by its name, where it is about one that Python can
    make in its place; ``is_of_control_flow``: it came up within a branch or the body of a loop of the graph.
    """

    call: str | None = None
    is_of_control_flow: bool = False


class VerificationError(TurretError):
    """A product broke the invariants of its level; a bug in the stage that made it.

    ``where`` is the part of the product that it is about, if any.
    """

    where: object = None


class TextError(TurretError, ValueError):
    """The text of a program, a schedule or a plan does not read as one."""


class CodegenError(TurretError):
    """Generated source did not compile, or the compiler is missing or broken."""


class FakeImplementationError(TurretError):
    """A real op returned another shape or dtype than its fake implementation foretold."""


class CacheError(TurretError):
    """A cache folder is unusable or not private to the user."""


class OutOfBoundsError(TurretError):
    """A generated kernel was about to touch memory outside of what it was given (``check_bounds``): a bug of Turret's
    or of a plugin's."""


class DoubleBackwardError(TurretError, RuntimeError):
    """A gradient of a compiled backward was asked for."""


class RecomputationError(TurretError, RuntimeError):
    """A checkpointed region took another path through compiled code when it was computed again for the backward."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the recomputation of a checkpoint is not what its forward was: {reason}")


class StageError(TurretError):
    """A stage failed on a program it should have taken.

    Carries the stage, the plugin at fault and the way to reproduce it; with ``on_error="fallback"`` the
    pipeline warns once with this message and runs the program eagerly.
    """

    def __init__(self, stage: Stage, plugin: str, reason: str, hint: str = "") -> None:
        self.stage: Stage = stage
        self.plugin, self.reason, self.hint = plugin, reason, hint
        message = f"stage {stage!r} (plugin {plugin}) failed: {reason}"
        super().__init__(message + (f"\n  {hint}" if hint else ""))

    @property
    def refused_call(self) -> str | None:
        """The node of the captured graph whose call the stage refused, by its name; None where it failed otherwise."""
        return self.__cause__.call if isinstance(self.__cause__, UnsupportedError) else None


def warn(message: str) -> None:
    """Issue a ``TurretWarning`` at the innermost line of the running program that is neither Turret's nor torch's."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and is_internal(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, TurretWarning, stacklevel=level)


def is_internal(filename: str) -> bool:
    """Whether a file is one of Turret's or torch's, or was made by Turret."""
    return filename.startswith(("<turret", *_internal_folders()))


def _internal_folders() -> tuple[str, ...]:
    """Folders of Turret and of torch, with a separator at the end; those of packages that are loaded."""
    names = [n for n in ("turret", "turret.plugins", "torch") if n in sys.modules]
    return tuple(os.path.join(folder, "") for n in names for folder in sys.modules[n].__path__)
