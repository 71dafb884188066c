"""Stances: what compiled functions do on a call for which no compiled code holds.

``torch.compiler.set_stance`` holds for Turret's functions as it does for torch's; its state is read where torch keeps
it, if that part of torch is loaded.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from turret.errors import OptionError
from turret.hooks.config import nearest

STANCES = (
    "default", "eager_then_compile", "aot_eager_then_compile", "force_eager", "eager_on_recompile", "fail_on_recompile",
)  # fmt: skip

_own = "default"
_loaded = sys.modules.get


def stance() -> str:
    """The stance that holds: Turret's own, or torch's where Turret's is the default."""
    if _own != "default":
        return _own
    theirs = _loaded("torch._dynamo.eval_frame")
    try:
        return "default" if theirs is None else theirs._stance.stance
    except AttributeError:  # another thread is about to load it
        return "default"


def _set(name: str) -> str:
    """Set Turret's own stance; returns the one before."""
    global _own
    before, _own = _own, name
    return before


class set_stance:
    """Set the stance of all functions that Turret compiled: by a call, for a ``with`` block, or for a function.

    ``"default"``: compile where nothing compiled holds.  ``"force_eager"``: run everything as Python.
    ``"eager_on_recompile"``: run what is compiled and holds, all else as Python.  ``"fail_on_recompile"``: the same,
    but raise ``RecompileError``.  ``"eager_then_compile"``: the first call of a function runs as Python, and what
    changes until the second is dynamic from the start.  ``"aot_eager_then_compile"``: the first call runs operation by
    operation, with forward and backward traced.

    ``skip_guard_eval_unsafe`` is taken and changes nothing: all guards are checked.  Raises ``OptionError`` for another
    stance.
    """

    def __init__(self, stance: str = "default", *, skip_guard_eval_unsafe: bool = False) -> None:
        if stance not in STANCES:
            known = ", ".join(STANCES)
            raise OptionError(f"unknown stance {stance!r}{nearest(str(stance), STANCES)}; known: {known}")
        self.stance = stance
        self.before = _set(stance)

    def __enter__(self) -> None:
        _set(self.stance)

    def __exit__(self, *exception: object) -> None:
        _set(self.before)

    def __call__(self, function: Callable) -> Callable:
        """``function`` under the stance; outside of its calls the one before holds again."""
        _set(self.before)

        @functools.wraps(function)
        def under_stance(*args: Any, **kwargs: Any) -> Any:
            with set_stance(self.stance):
                return function(*args, **kwargs)

        return under_stance


def breaks_are_errors() -> bool:
    """Whether ``torch._dynamo.error_on_graph_break(True)`` holds."""
    return getattr(_loaded("torch._dynamo.utils"), "_error_on_graph_break", None) is True
