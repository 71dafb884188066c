"""The cache policy: what of a graph is stored, under which key, and what is taken from there."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import attrs
import torch

from turret.errors import CacheError
from turret.hooks import plugin_manager
from turret.hooks.products import BoxedCallable, CapturedGraph
from turret.pipeline import stored_graph
from turret.pipeline.graph_facts import target_of
from turret.pipeline.keys.graph_cache import Artifact, CacheEntry, GraphCache
from turret.pipeline.keys.graph_key import Unstable, graph_key
from turret.plan import Plan
from turret.plan.executor import fits_device, load
from turret.storage.libraries import forget_library

if TYPE_CHECKING:
    from turret.graph.wrapper_tensors import TangentForm
    from turret.pipeline.graph_compilers.assembly import Assembly
    from turret.pipeline.stage_calls import Pipeline

    Executable = Plan | Assembly


@attrs.frozen
class Asked:
    """Which backward of a graph is asked for.

    ``given`` are the graph outputs that it is given gradients of (None: all that are differentiable), ``forms`` say of
    which class some are where that is not their output's, and gradients end at ``stops`` (``CapturedGraph.stops``).
    """

    given: tuple[int, ...] | None = None
    forms: tuple[tuple[int, TangentForm], ...] = ()
    stops: tuple[int, ...] = ()

    @property
    def is_stored(self) -> bool:
        """Whether a backward goes to the cache: not one for classes of the program's own."""
        return not self.forms

    def __str__(self) -> str:
        until = f" until {self.stops}" if self.stops else ""
        return f"{self.given}{until}"


ALL = Asked()
"""The backward for the gradients of all graph outputs."""


_WITHOUT_A_SAY = {"turret_event", "turret_guard_filter", "turret_capture", "turret_options"}
"""Hooks that do not change what one captured graph compiles to."""


class CachePolicy:
    """The graph cache of one pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def entry_of(self, captured: CapturedGraph) -> CacheEntry | None:
        """Where a graph is stored; None where the cache is off or, on record, the graph has no key."""
        cache, settings = self.open(), self.settings()
        if cache is None or settings is None:
            return None
        try:
            return CacheEntry(cache, graph_key(captured, settings))
        except Unstable as error:
            self.pipeline.policy.report_unstored(captured.name, f"it has a part without a stable name ({error})")
            return None

    def keep_graph(self, entry: CacheEntry, captured: CapturedGraph) -> bool:
        """Store a graph, if what is read back from what is written is the same graph; whether it is stored."""
        if entry.graph() is not None:
            return True
        with self.pipeline.failures("graph_cache"):
            graph = stored_graph.stored(captured)
            if graph is None:
                return False
            again = stored_graph.restored(graph, captured.name)
            found = self.entry_of(again)
            same = target_of(again) == target_of(captured) and found is not None and found.key == entry.key
            return same and entry.cache.put_graph(entry.key, graph)

    def open(self) -> GraphCache | None:
        """The cache, unless it is off or a foreign plugin without a ``cache_key`` has a say in what is compiled.

        What is stored has no wrappers, and is wrapped when it is loaded, by plugins that can do without the graph.
        """
        wrappers = self.pipeline.manager.hook.turret_wrap_runtime.get_hookimpls()
        needs_graph = any("partitioned" in w.argnames for w in wrappers)
        if not self.pipeline.config.cache or self.settings() is None or needs_graph:
            return None
        report = functools.partial(self.pipeline.context.emit, "cache_failure", stage="graph")
        return GraphCache(self.pipeline.context.store("graph"), lambda text: report(message=text))

    def loaded(
        self, entry: CacheEntry, role: Literal["forward", "backward"], asked: Asked = ALL
    ) -> tuple[Artifact, BoxedCallable] | None:
        """A stored artifact and its executable; None where there is none, or, on record, none that loads."""
        cache, name = entry.cache, entry_name(role, asked)
        artifact = cache.get(entry.key, name)
        if artifact is None or not fits_device(artifact.plan.device, artifact.plan.arch):
            return None
        try:
            function = self.load(artifact.plan, cache)
        except CacheError as error:
            reason = str(error)
        except Exception as error:  # whatever is wrong with what was stored, it can be compiled anew
            reason = f"{type(error).__name__}: {error}"
            for plan in _plans(artifact.plan):
                if plan.library is not None:
                    forget_library(plan.library, cache.store)
        else:
            training = artifact.signature is None or artifact.signature.training
            return artifact, self.pipeline.wrapped(function, role if training else "inference", None)
        cache.discard(entry.key, name, reason)
        return None

    def load(self, executable: Executable, cache: GraphCache) -> BoxedCallable:
        """The function of what was stored."""
        if isinstance(executable, Plan):
            return load(executable, cache.store)
        from turret.pipeline.graph_compilers.loading import load_assembly

        return load_assembly(self.pipeline, executable)

    def settings(self) -> str | None:
        """Text of everything but the graph that decides what it compiles to; None where a plugin cannot be named."""
        names = []
        for plugin in self.pipeline.manager.get_plugins():
            name = self.pipeline.manager.get_name(plugin)
            hooks = {caller.name for caller in self.pipeline.manager.get_hookcallers(plugin) or ()}
            if name in plugin_manager.BUILTINS or hooks <= _WITHOUT_A_SAY:
                continue
            if getattr(plugin, "cache_key", None) is None:
                return None
            names.append(str(plugin.cache_key))
        return repr((attrs.evolve(self.pipeline.config, cache_dir="", cache_size_limit=0, debug_dir=""), names))


def entry_name(role: str, asked: Asked) -> str:
    """The role that an executable is stored as.

    The key of the graph holds the settings of its forward, and those of a backward are its own: the program may have
    asked for deterministic algorithms since.
    """
    settings = " deterministic" if role == "backward" and torch.are_deterministic_algorithms_enabled() else ""
    return (role if asked == ALL else f"{role} {asked}") + settings


def _plans(executable: Executable) -> Iterator[Plan]:
    """The plans in what was stored."""
    if isinstance(executable, Plan):
        yield executable
    else:
        yield from (part.plan for part in executable.parts if part.plan is not None)
