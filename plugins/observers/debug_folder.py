"""The debug folder: every product of every stage, as text, one file each.

Switched on by the option ``debug_dir`` (``TURRET_DEBUG_DIR``).
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from turret.hooks.events import Event, EventKind, product_text
from turret.hooks.hookspecs import hookimpl

_numbers = itertools.count()


@hookimpl
def turret_event(event: Event) -> None:
    """Write a product to ``<folder>/<compile>/<number>_<stage>_<name>.txt``; breaks and the like to ``events.txt``."""
    if not event.debug_dir or event.kind not in ("product", *_NOTED):
        return
    target = Path(event.debug_dir, f"compile{event.compile_id}_pid{os.getpid()}")
    target.mkdir(parents=True, exist_ok=True)
    if event.kind in _NOTED:
        with (target / "events.txt").open("a") as file:
            file.write(f"{event.kind} {event.stage} {event.name}: {event.message}\n")
        return
    stem = f"{next(_numbers):03d}_{event.stage}_{event.name or event.stage}"
    (target / f"{stem}.txt").write_text(product_text(event))
    source = getattr(event.product, "source", "")
    if event.stage == "codegen" and source:
        (target / f"{stem}.cpp").write_text(source)


_NOTED: tuple[EventKind, ...] = ("graph_break", "recompile", "fallback", "perf_hint", "reuse")
