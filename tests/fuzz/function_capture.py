"""Turret's own capture as a compile function: its graphs run as they are, or compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turret.frames.eager_graphs import eagerly
from turret.hooks import plugin_manager
from turret.hooks.events import Event
from turret.hooks.hookspecs import hookimpl
from turret.pipeline.stage_calls import create_context
from turret.plugins.capture.dispatching.entry import turret_capture


class Watch:
    """Collects what capture reports: events by kind."""

    def __init__(self) -> None:
        self.events: dict[str, list[str]] = {}

    @hookimpl
    def turret_event(self, event: Event) -> None:
        if event.kind in ("graph_break", "fallback", "recompile"):
            self.events.setdefault(event.kind, []).append(event.message)


def captured(target: Callable, watch: Watch) -> Callable:
    """``target`` with its frames captured and its graphs run eagerly; internal errors of capture are raised."""
    return _captured(target, watch, False, None, "raise")


def captured_whole(target: Callable, watch: Watch, dynamic: bool | None, on_error: str) -> Callable:
    """``target`` captured as one graph, or not at all; the graph runs eagerly."""
    return _captured(target, watch, True, dynamic, on_error)


def _captured(target: Callable, watch: Watch, fullgraph: bool, dynamic: bool | None, on_error: str) -> Callable:
    manager = plugin_manager.create((watch,))
    options = {"on_error": on_error}
    context = create_context(plugin_manager.configure(manager, None, options), manager)

    def compile_graph(graph: Any) -> Callable:
        watch.events.setdefault("graph", []).append(graph.name)
        return eagerly(graph.module)

    return turret_capture(
        context=context, target=target, compile_graph=compile_graph, fullgraph=fullgraph, dynamic=dynamic
    )  # type: ignore[return-value]


def compiled(target: Callable, watch: Watch) -> Callable:
    """``target`` captured, its graphs compiled; a graph that is refused by name runs as it is."""
    import turret

    return turret.compile(
        target, options={"capture": "turret", "on_error": "fallback", "fallback_random": True}, plugins=[watch]
    )


def compiled_whole(target: Callable, watch: Watch, dynamic: bool | None, on_error: str) -> Callable:
    """``target`` compiled as one graph, or not at all; kernels check their accesses, and are not optimised."""
    import turret

    options = {"on_error": on_error, "cache": False, "check_bounds": True, "cpp_flags": "-O0"}
    return turret.compile(target, fullgraph=True, dynamic=dynamic, options=options, plugins=[watch])
