"""Stances: what compiled functions do on a call for which no compiled code holds.

``torch.compiler.set_stance`` holds for Turret's functions as it does for torch's; its state is read where torch keeps
it, if that part of torch is loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import attrs

from turret.errors import OptionError
from turret.hooks.config import nearest

STANCES = (
    "default", "eager_then_compile", "aot_eager_then_compile", "force_eager", "eager_on_recompile", "fail_on_recompile",
)  # fmt: skip


@attrs.frozen(eq=False)
class Stance:
    """What compiled functions do, from one setting of it to the next.

    ``skips_guards``: of the guards of what is compiled only those are checked that tell one compiled code of a function
    from another; a call for which none of them holds raises.
    """

    name: str = "default"
    skips_guards: bool = False

    @property
    def is_default(self) -> bool:
        return self.name == "default" and not self.skips_guards


DEFAULT = Stance()
_own = DEFAULT
_torchs: tuple[Any, Stance] = (None, DEFAULT)
"""Torch's stance, as it was last looked at, and the same in Turret's terms."""
_loaded = sys.modules.get


def stance() -> Stance:
    """The stance that holds: Turret's own, or torch's where Turret's is the default; ``DEFAULT`` where both are."""
    if _own is not DEFAULT:
        return _own
    theirs = _loaded("torch._dynamo.eval_frame")
    try:
        return DEFAULT if theirs is None else _translated(theirs._stance)
    except AttributeError:  # another thread is about to load it
        return DEFAULT


def _translated(theirs: Any) -> Stance:
    global _torchs
    if theirs is not _torchs[0]:
        made = Stance(theirs.stance, theirs.skip_guard_eval_unsafe)
        _torchs = theirs, DEFAULT if made.is_default else made
    return _torchs[1]


def _set(stance: Stance) -> Stance:
    """Set Turret's own stance; returns the one before."""
    global _own
    before, _own = _own, stance
    return before


class set_stance:
    """Set the stance of all functions that Turret compiled: by a call, for a ``with`` block, or for a function.

    - ``"default"``: compile where nothing compiled holds.
    - ``"force_eager"``: run everything as Python.
    - ``"eager_on_recompile"``: run what is compiled and holds, all else as Python.
    - ``"fail_on_recompile"``: the same, but raise ``RecompileError``.
    - ``"eager_then_compile"``: the first call of a function runs as Python, and what changes until the second is
      dynamic from the start.
    - ``"aot_eager_then_compile"``: the first call runs operation by operation, with forward and backward traced.

    Args:
        stance: one of the above.
        skip_guard_eval_unsafe: after a warm-up with all kinds of calls that are to come, check those guards alone that
            told the compiled codes of a function apart, and those of tensors that are arguments
            (``frames.few_guards``).  What the other guards watch must not change any more; that is not checked.  A call
            that would have to be compiled raises ``RecompileError``.

    Raises:
        OptionError: for another stance.
    """

    def __init__(self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False) -> None:
        if stance not in STANCES:
            known = ", ".join(STANCES)
            raise OptionError(f"unknown stance {stance!r}{nearest(str(stance), STANCES)}; known: {known}")
        made = Stance(stance, bool(skip_guard_eval_unsafe))
        self.stance = DEFAULT if made.is_default else made
        self.before = _set(self.stance)

    def __enter__(self) -> None:
        _set(self.stance)

    def __exit__(self, *exception: object) -> None:
        _set(self.before)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` under the stance; outside of its calls the one before holds again."""
        _set(self.before)

        @functools.wraps(function)
        def under_stance(*args: Any, **kwargs: Any) -> Any:
            before = _set(self.stance)
            try:
                return function(*args, **kwargs)
            finally:
                _set(before)

        return under_stance


def breaks_are_errors() -> bool:
    """Whether ``torch._dynamo.error_on_graph_break(True)`` holds."""
    return getattr(_loaded("torch._dynamo.utils"), "_error_on_graph_break", None) is True
