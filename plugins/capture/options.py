"""The options of capture, its own and those that any capture plugin heeds."""

from __future__ import annotations

from turret.hooks.config import Option
from turret.hooks.hookspecs import hookimpl

RECOMPILE_LIMIT = 8
"""Captures of one function unless it is said otherwise; torch's own default, too."""


@hookimpl
def turret_options() -> tuple[Option, ...]:
    """Who captures, how often a function is captured, and which numbers and sizes stay in the graph."""
    return (
        Option(
            name="capture",
            default="turret",
            doc="who captures graphs: torch._dynamo through a bridge, or Turret itself",
            choices=("dynamo", "turret"),
        ),
        Option(
            name="capture_scalar_outputs",
            default=False,
            doc="numbers read from tensors (item, int, float, tolist) stay in the graph as symbols; "
            "fullgraph implies it",
        ),
        Option(
            name="capture_dynamic_output_shape_ops",
            default=False,
            doc="results whose size depends on data (nonzero, masks, unique) stay in the graph, their sizes as "
            "symbols; fullgraph implies it",
        ),
        Option(
            name="gradient_buckets",
            default=True,
            doc="inside DistributedDataParallel graphs are compiled in sections, one a bucket of gradients, so that "
            "sending these overlaps the backward (Turret's capture)",
        ),
        Option(
            name="recompile_limit",
            default=RECOMPILE_LIMIT,
            doc="captures of one function, after which it runs eagerly (Turret's capture)",
            low=1,
        ),
        Option(
            name="guard_audit",
            default=0.0,
            doc="share of the calls on which guards that a filter dropped are checked, too; one that does not hold is "
            "said in a warning and kept from then on (Turret's capture)",
            low=0,
            high=1,
        ),
    )
