"""What compilers of others made, as it is called: boxed, its failures named; and loaded from where it is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from turret.errors import CacheError, Stage, StageError
from turret.hooks.products import BoxedCallable
from turret.pipeline.graph_compilers.assembly import Assembly, Part, assembled, bytes_of, outer_of
from turret.pipeline.stage_calls import Pipeline
from turret.plan.executor import load

STAGE: Stage = "compile_graph"
HOOK = "turret_compile_graph"
LOAD = "turret_load_graph"


def boxed(function: Callable[..., Any]) -> BoxedCallable:
    """A plugin's callable, taking a list; it is emptied by then."""
    if getattr(function, "_boxed_call", False):
        return function

    def run(args: list[Any]) -> Any:
        results = function(*args)
        args.clear()
        return results

    return run


def guarded(
    pipeline: Pipeline, name: str, plugin: str, run: BoxedCallable, module: fx.GraphModule | None
) -> BoxedCallable:
    """``run``, or where it raises and has not consumed its inputs, ``module`` call by call from then on.

    Without a ``module`` what it raises is named, and that is all.  An error that eager raises too is the program's;
    under ``on_error="raise"`` any other is the plugin's, named.
    """
    failed = False

    def call(args: list[Any]) -> Any:
        nonlocal failed
        if failed and module is not None:
            return fx.Interpreter(module).run(*args)
        count = len(args)
        try:
            return run(args)
        except Exception as error:
            reason = f"{name} raised {type(error).__name__}: {error}"
            fault = StageError(STAGE, plugin, reason)
            if module is None or len(args) != count:
                raise fault from error
            results = fx.Interpreter(module).run(*args)
            if pipeline.config.on_error == "raise":
                raise fault from error
        failed = True
        pipeline.policy.report_fallback(fault)
        return results

    return call


def load_assembly(pipeline: Pipeline, assembly: Assembly) -> BoxedCallable:
    """The function of a stored assembly.  Raises ``CacheError`` where a part's compiler is not there."""
    store = pipeline.context.store("load")
    parts = []
    for part in assembly.parts:
        run = load(part.plan, store) if part.plan is not None else _load_part(pipeline, part)
        parts.append((part, run))
    return assembled(assembly.name, outer_of(assembly), parts, assembly.interface, assembly.visible)


def _load_part(pipeline: Pipeline, part: Part) -> BoxedCallable:
    for impl in pipeline.manager.hook.turret_load_graph.get_hookimpls():
        if impl.plugin_name == part.compiler:
            arguments = {"context": pipeline.context, "saved": bytes_of(part.saved), "name": part.name}
            function = impl.function(*(arguments[name] for name in impl.argnames))
            if not callable(function):
                raise CacheError(f"{part.compiler} loads {part.name} as a {type(function).__name__}, not as a callable")
            return guarded(pipeline, part.name, part.compiler, boxed(function), None)
    raise CacheError(f"no plugin {part.compiler!r} that implements {LOAD} is here to load {part.name}")
