"""Graph breaks, recompiles and guards of torch._dynamo as events and products of Turret."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import torch
from torch._dynamo.symbolic_convert import InstructionTranslatorBase

from turret.hooks.context import CompileContext


@attrs.frozen(eq=False)
class GuardList:
    """What one graph assumes of the world, one line a guard: its kind, its source, its code."""

    guards: tuple[Any, ...]

    def __str__(self) -> str:
        return "\n".join(map(_guard_text, self.guards)) or "none"


def _guard_text(guard: Any) -> str:
    kind = guard.create_fn_name() if callable(getattr(guard, "create_fn_name", None)) else ""
    code = "; ".join(guard.code_list or ())
    return " ".join(part for part in (kind, _source_name(guard), code) if part)


def _source_name(guard: Any) -> str:
    """A method in some versions of torch, a property in others."""
    name = getattr(guard, "name", "")
    return str(name() if callable(name) else name)


def emit_guards(context: CompileContext, guards: Iterable[Any]) -> None:
    """Report the guards of one compiled frame."""
    context.emit("product", stage="guards", product=GuardList(tuple(sorted(guards, key=_source_name))))


def emit_recompile(context: CompileContext, failure: Any) -> None:
    """Report why compiled code did not fit a call; another compiler's claim to the same function is no recompile."""
    if "BACKEND_MATCH" in failure.reason:
        return
    code = failure.orig_code
    location = f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"
    context.emit("recompile", stage="capture", name=code.co_name, message=f"{location}\n  {failure.reason}")


def guard_filter(context: CompileContext) -> Callable[[Any], list[bool]] | None:
    """The guard filter of the plugins of a callable, or None where no plugin has one."""
    if not context.hooks.turret_guard_filter.get_hookimpls():
        return None

    def keep(guards: Any) -> list[bool]:
        kept = [True] * len(guards)
        for answer in context.hooks.turret_guard_filter(context=context, guards=tuple(guards)):
            if len(answer) != len(guards):
                raise ValueError(f"a guard filter answered for {len(answer)} guards, it was given {len(guards)}")
            kept = [k and bool(a) for k, a in zip(kept, answer, strict=True)]
        return kept

    return keep


_OBSERVED = "_turret_observed"
"""Marks the wrapper of torch._dynamo's method."""


def observe_breaks(context_of: Callable[[Any], CompileContext | None]) -> None:
    """Report every graph break from now on; ``context_of`` gives the context of a backend, or None for another's.

    torch._dynamo has no hook for graph breaks, and its log is off, deduplicated and the user's own to
    configure; so its one method that every break passes through is wrapped, once a process.
    """
    original = getattr(InstructionTranslatorBase, "log_graph_break", None)
    if original is None or hasattr(original, _OBSERVED):
        return

    @functools.wraps(original)
    def observed(translator: Any, *args: Any, **kwargs: Any) -> Any:
        error = next((a for a in (*args, *kwargs.values()) if isinstance(a, BaseException)), None)
        known = bool(getattr(error, "logged", False))
        stack = getattr(error, "real_stack", None) or torch._guards.TracingContext.extract_stack()
        context = None if known else context_of(translator.output.compiler_fn)
        if context is not None:
            reason = kwargs.get("reason") or next((a for a in args if isinstance(a, str)), "") or str(error)
            context.emit("graph_break", stage="capture", name=translator.f_code.co_name, message=_break(reason, stack))
        return original(translator, *args, **kwargs)

    setattr(observed, _OBSERVED, True)
    InstructionTranslatorBase.log_graph_break = observed  # type: ignore[method-assign, assignment]


def _break(reason: str, stack: Any) -> str:
    if not stack:
        return reason
    frame = stack[-1]
    name = re.sub(r"^torch_dynamo_resume_in_(.+)_at_\d+$", r"\1", frame.name)
    line = f"\n    {frame.line}" if frame.line else ""
    return f"{frame.filename}:{frame.lineno} in {name}{line}\n  {reason.strip()}"
