"""The built-in joint trace: captured calls to a functional ATen graph of forward and backward."""

from __future__ import annotations

from collections.abc import Mapping

from turret.hooks.context import CompileContext
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import CapturedGraph, JointGraph


@hookimpl
def turret_joint(context: CompileContext, captured: CapturedGraph, decompositions: Mapping) -> JointGraph:
    """Run the captured module once under the tracer."""
    from turret.plugins.joint.trace import trace

    def report(message: str) -> None:
        context.emit("reuse", stage="joint", name=captured.name, message=message)

    return trace(captured, decompositions, replay=not captured.stops, report=report)
