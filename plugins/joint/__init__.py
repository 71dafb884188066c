"""The built-in joint trace: captured calls to a functional ATen graph of forward and backward."""

from __future__ import annotations

from collections.abc import Mapping

from turret.hookspecs import hookimpl
from turret.products import CapturedGraph, JointGraph


@hookimpl
def turret_joint(captured: CapturedGraph, decompositions: Mapping) -> JointGraph:
    """Run the captured module once under the tracer."""
    from turret.plugins.joint.trace import trace

    return trace(captured, decompositions)
