"""The built-in ``turret_graph_pass`` hook: small passes over the FX graph, by phase.

Each pass is ``run(module, context) -> bool`` (whether it changed something) and can be run alone.  All of them keep
the graph's inputs and outputs, what the user can see of aliasing and strides, and eager's results to the bit (attention
that is written out, and convolutions of single pixels: up to rounding).
"""

from __future__ import annotations

import importlib

from torch import fx

from turret.hooks.config import Option
from turret.hooks.context import CompileContext
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import GraphPhase

PASSES: dict[str, tuple[str, ...]] = {
    "captured": ("attention",),
    "joint": (
        "replayable_random",
        "dead_code",
        "simplify",
        "constants",
        "common_subexpressions",
        "convolutions.channels_last",
        "convolutions.pointwise",
        "sort_keys",
        "dead_code",
    ),
    "forward": ("packed_weights", "dead_code", "memory_order", "overlap_collectives"),
    "backward": ("dead_code", "memory_order", "overlap_collectives"),
}
"""Names of the modules of this folder to run at each phase, in order."""


@hookimpl
def turret_options() -> tuple[Option, ...]:
    """Whether weights stay as they are."""
    freezing = (
        "pack weights of products and convolutions on the CPU for inference (grad mode off), once for all calls; what "
        "is written to a weight in place, or assigned to it, is noticed, what is written through its .data is not"
    )
    return (Option(name="freezing", default=False, doc=freezing),)


@hookimpl
def turret_graph_pass(context: CompileContext, phase: GraphPhase, module: fx.GraphModule) -> bool:
    """Run the passes of one phase."""
    changed = False
    for name in PASSES.get(phase, ()):
        changed |= importlib.import_module(f"turret.plugins.graph_pass.{name}").run(module, context)
    if changed:
        module.graph.lint()
        module.recompile()
    return changed
