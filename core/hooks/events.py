"""Events: what observers (logs, progress, reports, the debug folder) are told while a compile runs."""

from __future__ import annotations

from typing import Any, Literal, cast, get_args

import attrs

from turret.errors import Stage

EventKind = Literal[
    "compile_started",
    "compile_ended",
    "stage_started",
    "stage_ended",
    "product",
    "graph_break",
    "recompile",
    "fallback",
    "cache_hit",
    "cache_miss",
    "cache_failure",
    "perf_hint",
    "reuse",
    "progress",
    "graph_capture",
    "direct_calls",
    "guard_audit",
]


@attrs.frozen(eq=False)
class Event:
    """One thing that happened.

    ``compile_id`` numbers the compilation within the process; ``stage`` is where it happened, empty for a whole
    compilation; ``name`` is that of a graph or a function; ``product`` is the stage's result (printable by ``str``) on
    ``"product"``; ``seconds`` is wall time on ``*_ended``; ``message`` is one sentence for people (of ``"progress"``:
    how far a stage has come); ``debug_dir`` is the option of that name.  A ``"cache_failure"`` is an entry of the
    artifact cache that was there and could not be used, or one that could not be written; a ``"graph_capture"`` a
    recording, whose decisions are its ``product``, or a reason against one; ``"direct_calls"`` says how many library
    calls of a graph are launched by themselves from now on, and why others are not; a ``"guard_audit"`` is a call for
    which a guard that a filter dropped did not hold.
    """

    kind: EventKind
    compile_id: int
    stage: Stage | Literal[""] = ""
    name: str = ""
    product: Any = None
    seconds: float | None = None
    message: str = ""
    debug_dir: str = ""


def stage_of(hook: str) -> Stage:
    """The stage that a hook of the pipeline decides, by the hook's name."""
    stage = hook.removeprefix("turret_")
    if stage not in get_args(Stage):
        raise ValueError(f"{hook!r} is no hook of a stage")
    return cast(Stage, stage)


def product_text(event: Event) -> str:
    """The product of an event for people; of a function, its source where it was generated."""
    product = event.product
    if callable(product):
        return getattr(product, "source", None) or repr(product)
    return str(product)
