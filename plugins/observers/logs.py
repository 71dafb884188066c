"""Logs: named artifacts of a compile, written to stderr as they are made.

``TURRET_LOGS="schedule,output_code"`` or ``turret.set_logs(schedule=True)``; ``+stage`` (``+joint``, say) writes
every product of one stage.  The names follow torch's, and what ``TORCH_LOGS`` or ``torch._logging.set_logs`` switch on
is written, too, where it means something here.
"""

from __future__ import annotations

import os
import sys

from turret.errors import OptionError, Stage
from turret.hooks.config import nearest
from turret.hooks.events import Event, product_text
from turret.hooks.hookspecs import hookimpl
from turret.storage.fork_safety import Lock
from turret.torch_compat.logs import enabled_torch_logs

ARTIFACTS: dict[str, str] = {
    "graph_breaks": "where capture left the graph, and why",
    "recompiles": "graphs compiled again, and why",
    "guards": "what capture assumed of its inputs",
    "aot_graphs": "the joint graph, and the forward and backward it was cut into",
    "schedule": "kernels, their order and the memory plan",
    "fusion": "each fusion considered: made or not, bytes saved, why; and how products are computed",
    "output_code": "generated source and the plan that runs it",
    "perf_hints": "what would make the program faster",
    "cudagraphs": "what was recorded for replay, what was decided for each input and output, and what was not, and why",
    "cache": "what the artifact cache had, lacked and could not use, and why",
}

STAGES: tuple[Stage, ...] = (
    "capture",
    "guards",
    "joint",
    "graph_pass",
    "partition",
    "place",
    "lower",
    "ir_pass",
    "schedule",
    "codegen",
    "load",
    "runtime",
)
"""What ``+stage`` may name."""

TORCHS_NAMES: dict[str, str] = {
    "aot_joint_graph": "aot_graphs",
    "graph": "+capture",
    "graph_code": "+capture",
    "kernel_code": "output_code",
    "recompiles_verbose": "recompiles",
    "verbose_guards": "guards",
    **{name: name for name in ARTIFACTS if name != "cache"},
}
"""Artifacts of torch's logs, and which of these they are."""

_enabled: set[str] = set()
_lock = Lock()


def set_logs(*names: str, **switches: bool) -> None:
    """Switch artifacts on (``set_logs("schedule", fusion=True)``) or off (``fusion=False``).

    Names are those of ``ARTIFACTS``, or ``+stage``.  Raises ``OptionError`` for another.
    """
    wanted = {**dict.fromkeys(names, True), **switches}
    known = [*ARTIFACTS, *(f"+{stage}" for stage in STAGES)]
    for name, on in wanted.items():
        if name not in known:
            raise OptionError(f"unknown log artifact {name!r}{nearest(name, known)}; known: {', '.join(known)}")
        (_enabled.add if on else _enabled.discard)(name)


def _from_environment() -> None:
    names = [name.strip() for name in os.environ.get("TURRET_LOGS", "").split(",") if name.strip()]
    if "help" in names:
        names.remove("help")
        print(_help(), file=sys.stderr)
    if names:
        set_logs(*names)


def _help() -> str:
    lines = ["TURRET_LOGS takes names with commas between them:"]
    lines += [f"  {name:<14}{meaning}" for name, meaning in ARTIFACTS.items()]
    return "\n".join([*lines, f"  +stage        what one stage made: {', '.join(STAGES)}"])


def _wanted() -> set[str]:
    """What is switched on, here or in torch's logs."""
    theirs = enabled_torch_logs()
    return _enabled | {TORCHS_NAMES[name] for name in theirs if name in TORCHS_NAMES} if theirs else _enabled


@hookimpl
def turret_event(event: Event) -> None:
    """Write what is switched on."""
    wanted = _wanted()
    if not wanted:
        return
    for name, text in _texts(event):
        if name in wanted:
            with _lock:
                print(f"[turret {event.compile_id} {name}] {event.name}\n{text}", file=sys.stderr, flush=True)


def _texts(event: Event) -> list[tuple[str, str]]:
    """Artifacts that an event holds, with their text."""
    if event.kind in ("graph_break", "recompile", "perf_hint"):
        return [(f"{event.kind}s", event.message)]
    if event.kind in ("graph_capture", "direct_calls"):
        return [("cudagraphs", event.message)]
    if event.kind in ("cache_hit", "cache_miss", "cache_failure"):
        said = f"{event.stage}: {event.kind.removeprefix('cache_')}"
        return [("cache", f"{said}: {event.message}" if event.message else said)]
    if event.kind != "product":
        return []
    texts = [(f"+{event.stage}", product_text(event))]
    if event.stage == "guards":
        texts.append(("guards", str(event.product)))
    elif event.stage in ("joint", "partition"):
        texts.append(("aot_graphs", str(event.product)))
    elif event.stage == "schedule":
        texts.append(("schedule", str(event.product)))
        texts.append(("fusion", "\n".join(map(str, (*event.product.choices, *event.product.decisions)))))
    elif event.stage == "codegen":
        texts.append(("output_code", f"{event.product.source}\n{event.product}"))
    return texts


_from_environment()
