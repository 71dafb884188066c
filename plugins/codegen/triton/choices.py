"""Ways to compute a matrix product, timed on the device; times are remembered for its name and driver."""

from __future__ import annotations

import hashlib
import json
import math
from statistics import median

import torch

from turret.errors import CodegenError, UnsupportedError
from turret.hooks.context import CompileContext
from turret.hooks.devices import Device, device_for
from turret.hooks.products import Target
from turret.ir import AttentionCandidate, Extern, ProductCandidate
from turret.pipeline.keys.graph_key import source_fingerprint
from turret.plan.executor import load
from turret.plugins.codegen.triton.compilation.autotune import FLUSH_BYTES, REPEATS, WARM_UPS, sample
from turret.plugins.codegen.triton.compilation.compile import triton_version
from turret.plugins.codegen.triton.stage import codegen

ROLE = "choice"
CALL_GAP = 1.0
"""Microseconds that a call of the library waits for what is ahead of it to end, where a generated kernel is launched
while that still runs: what is timed alone does not show it.  A step of four tokens through 16 layers took 795 us on an
H200 where products that were equally fast alone stayed calls, and 748 us where they did not."""
_TIME = "time.json"


def timed_cost(
    context: CompileContext, candidate: ProductCandidate | AttentionCandidate, target: Target
) -> float | None:
    """Microseconds that a candidate's schedule takes; infinite where it cannot run, None where sizes are symbolic.

    Each of its kernels runs in its fastest configuration.  Times that another version measured are not asked for, which
    may have had other kernels.
    """
    device = device_for(target.device_type)
    if not candidate.is_static or not device.is_available():
        return None
    index = device.current_index() if target.index is None else target.index
    name = f"{device.properties(index).name} {device.driver(index)} torch {torch.__version__}"
    made_by = f"triton {triton_version()} turret {source_fingerprint()}"
    key = hashlib.sha256(f"product {name} {made_by} {candidate.schedule}".encode()).hexdigest()
    store = context.store("codegen")
    stored = store.get(key, ROLE)
    if stored is not None:
        return float(json.loads(stored[_TIME]))
    try:
        found = _microseconds(context, candidate, target, device, index)
    except (CodegenError, UnsupportedError, RuntimeError) as failure:
        context.emit("perf_hint", stage="schedule", message=f"a product was not timed as {candidate.form}: {failure}")
        return math.inf
    store.keep(key, ROLE, {_TIME: json.dumps(found).encode()})
    return found


def _microseconds(
    context: CompileContext,
    candidate: ProductCandidate | AttentionCandidate,
    target: Target,
    device: Device,
    index: int,
) -> float:
    plan = codegen(context, candidate.schedule, target)
    run = load(plan, context.store("codegen"))
    with device.selected(index):
        ends = {candidate.ends: candidate.rows} if isinstance(candidate, ProductCandidate) else {}
        given = [decl for decl in candidate.schedule.program.inputs if decl is not None]
        inputs = [sample(decl, plan.device, ends.get(decl.name)) for decl in given]
        # While it is cleared the host gets ahead of the device, whose times hold no waiting then.
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=plan.device)
        times = device.times(index, lambda: run([*inputs]), flush.zero_, WARM_UPS + REPEATS)
    calls = sum(isinstance(step, Extern) for step in candidate.schedule.steps)
    return 1e3 * median(times[WARM_UPS:]) + CALL_GAP * calls
