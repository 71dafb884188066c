"""The debug folder: every product of every stage, as text, one file each.

Switched on by the option ``debug_dir`` (``TURRET_DEBUG_DIR``).
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

from turret.events import Event
from turret.hookspecs import hookimpl

_numbers = itertools.count()


@hookimpl
def turret_event(event: Event) -> None:
    """Write a product to ``<folder>/<compile>/<number>_<stage>_<name>.txt``."""
    folder = event.debug_dir or os.environ.get("TURRET_DEBUG_DIR", "")
    if event.kind != "product" or not folder:
        return
    target = Path(folder, f"compile{event.compile_id}_pid{os.getpid()}")
    target.mkdir(parents=True, exist_ok=True)
    stem = f"{next(_numbers):03d}_{event.stage}_{event.name}"
    (target / f"{stem}.txt").write_text(str(event.product))
    source = getattr(event.product, "source", "")
    if event.stage == "codegen" and source:
        (target / f"{stem}.cpp").write_text(source)
