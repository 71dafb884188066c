"""Graph capture: calls of compiled graphs recorded once and replayed; options by which users choose how."""

from __future__ import annotations

from turret.hooks.context import CompileContext
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import BoxedCallable
from turret.plugins.cudagraphs.options import turret_options

__all__ = ["turret_options", "turret_wrap_runtime"]


@hookimpl
def turret_wrap_runtime(context: CompileContext, function: BoxedCallable, role: str) -> BoxedCallable | None:
    """Record and replay an executable, where the option ``cudagraphs`` asks for it and nothing stands in the way."""
    if not context.config.cudagraphs:
        return None
    from turret.plugins.cudagraphs.wrap import wrapped  # a start without recordings does without their machinery

    return wrapped(context, function, role)
