"""Events: what observers (logs, progress, reports, the debug folder) are told while a compile runs."""

from __future__ import annotations

from typing import Any, Literal

import attrs

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
]


@attrs.frozen(eq=False)
class Event:
    """One thing that happened.

    ``compile_id`` numbers the compilation within the process; ``stage`` is the hook's name without its
    prefix; ``product`` is the stage's result (printable by ``str``) on ``"product"``; ``seconds`` is wall
    time on ``*_ended``; ``message`` is one sentence for people (of ``"progress"``: how far a stage has come);
    ``debug_dir`` is the option of that name.  A ``"cache_failure"`` is an entry of the artifact cache that was there
    and could not be used, or one that could not be written; a ``"graph_capture"`` a recording, or a reason against one.
    """

    kind: EventKind
    compile_id: int
    stage: str = ""
    name: str = ""
    product: Any = None
    seconds: float | None = None
    message: str = ""
    debug_dir: str = ""


def product_text(event: Event) -> str:
    """The product of an event for people; of a function, its source where it was generated."""
    product = event.product
    if callable(product):
        return getattr(product, "source", None) or repr(product)
    return str(product)
