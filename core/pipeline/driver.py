"""The pipeline driver: one captured graph through every stage to a callable, or from the cache.

What happens where a stage fails is the policy of ``on_error`` (``failure_policy``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import pluggy

from turret.errors import StageError
from turret.frames.eager_graphs import eagerly
from turret.frames.trace_modes import switches_settings
from turret.hooks.config import Config
from turret.hooks.devices import devices_of
from turret.hooks.products import CapturedGraph
from turret.pipeline.cache_policy import CachePolicy
from turret.pipeline.compiled_graph import Backward, CachedGraph, CompiledGraph
from turret.pipeline.failures.fake_mismatch import fallback_on_fake_mismatch, trusts_fake_implementations
from turret.pipeline.keys.graph_cache import Artifact, CacheEntry
from turret.pipeline.stage_calls import Pipeline
from turret.plan.aliasing import fallback_on_alias_mismatch, sharing_check, writes_inputs


def compile_captured(manager: pluggy.PluginManager, config: Config, captured: CapturedGraph) -> Callable[..., Any]:
    """Compile one captured graph to a callable over its flat inputs, by the failure policy of ``config``."""
    return _compile_with_key(manager, config, captured, False)[0]


def _compile_with_key(
    manager: pluggy.PluginManager, config: Config, captured: CapturedGraph, keep_graph: bool
) -> tuple[Callable[..., Any], str | None]:
    """The callable of one captured graph, and a key by which ``Compiler.stored`` finds it again (None: it cannot)."""
    pipeline = Pipeline(manager, config)
    if switches_settings(captured.module.graph):
        from turret.pipeline.sections.settings import cut as cut_at_settings

        parts = cut_at_settings(captured)
        if parts is not None:
            made = parts.compiled(lambda graph: _compile_with_key(manager, config, graph, False)[0])
            return parts.join(captured, made), None
    elif captured.gradient_buckets is not None:
        from turret.pipeline.sections.gradient_buckets import cut
        from turret.pipeline.sections.sections import join

        sections = cut(captured)
        if sections:
            functions = [_compile_with_key(manager, config, section.graph, False)[0] for section in sections]
            return join(captured, sections, functions), None
    try:
        with pipeline.failures("pipeline"), devices_of(manager):
            return _compile(pipeline, captured, keep_graph)
    except StageError as error:
        if pipeline.policy.raises() or (captured.can_break and error.refused_call is not None):
            raise
        pipeline.policy.report_fallback(error)
        return eagerly(captured.module), None


def _compile(pipeline: Pipeline, captured: CapturedGraph, keep_graph: bool) -> tuple[Callable[..., Any], str | None]:
    """The callable of one captured graph, from the cache where an equal graph was compiled before.

    With it comes the key under which all of it is stored, or None.  ``keep_graph``: store the graph, too.
    """
    policy = CachePolicy(pipeline)
    with pipeline.compilation(captured.name):
        inputs, captured = captured.real_inputs, attrs.evolve(captured, real_inputs=())
        pipeline.context.emit("product", stage="capture", name=captured.name, product=captured)
        taken = _taken_as_captured(pipeline, captured, inputs or captured.example_inputs)
        if taken is not None:
            return taken, None
        del inputs
        if pipeline.without_kernels(captured):
            return eagerly(captured.module), None
        with pipeline.failures("graph_cache"):
            entry = policy.entry_of(captured)
            found = None if entry is None else policy.loaded(entry, "forward")
        kept = keep_graph and entry is not None and policy.keep_graph(entry, captured)
        work = CompiledGraph(pipeline, captured, entry)
        pipeline.context.emit("cache_miss" if found is None else "cache_hit", stage="graph", name=captured.name)
        stored, forward = work.compile_forward() if found is None else found
        function = pipeline.runtime(
            captured.name, stored.forward_signature, stored.saved, forward, Backward(work, stored)
        )
    function, needs_graph = _with_fallbacks(pipeline, captured, stored, function)
    alone = keep_graph and entry is not None and _stands_alone(pipeline, captured, stored, kept, needs_graph)
    return function, work.entry.key if work.entry is not None and alone else None


def _stands_alone(pipeline: Pipeline, captured: CapturedGraph, stored: Artifact, kept: bool, needs_graph: bool) -> bool:
    """Whether what a graph compiles to can be had from the cache without capturing the graph first.

    One that is trained is stored itself (``kept``), or not: gradients of some results alone, or of gradients, come from
    it.
    """
    needs_graph |= stored.forward_signature.training
    if needs_graph and not kept:
        pipeline.policy.report_recaptured(captured.name)
        return False
    return not trusts_fake_implementations(stored.plan)


def _taken_as_captured(pipeline: Pipeline, captured: CapturedGraph, inputs: Sequence[Any]) -> Callable[..., Any] | None:
    """A captured graph in the hands of a plugin's compiler, before it is traced; None where nobody takes it."""
    if not pipeline.asks_graph_compilers():
        return None
    from turret.pipeline.graph_compilers.ask import compile_captured

    return compile_captured(pipeline, captured, inputs)


def _with_fallbacks(
    pipeline: Pipeline, captured: CapturedGraph, stored: Artifact, function: Callable[..., Any]
) -> tuple[Callable[..., Any], bool]:
    """The function, which runs the captured graph where inputs or results are not as it takes them to be.

    With it comes whether that asks the inputs of each call, so that the graph is needed wherever the function is.
    """
    check = sharing_check(stored.forward_signature, captured.example_inputs, captured.static_inputs)
    if check is not None:
        report = functools.partial(pipeline.context.emit, "fallback", stage="runtime", name=captured.name)
        function = fallback_on_alias_mismatch(function, eagerly(captured.module), check, report)
    if trusts_fake_implementations(stored.plan) and pipeline.config.on_error == "fallback":
        mismatch = pipeline.policy.report_fallback
        function = fallback_on_fake_mismatch(function, eagerly(captured.module), stored.plan, mismatch)
    return function, check is not None


def _stored(pipeline: Pipeline, key: str, name: str) -> Callable[..., Any] | None:
    """The callable of a graph that another process compiled under ``key``; None where a part of it is missing."""
    policy = CachePolicy(pipeline)
    with pipeline.failures("graph_cache"), devices_of(pipeline.manager):
        cache = policy.open()
        entry = None if cache is None else CacheEntry(cache, key)
        found = None if entry is None else policy.loaded(entry, "forward")
        if entry is None or found is None or found[0].signature is None:
            return None
        artifact, forward = found
        signature = found[0].signature
        backward = policy.loaded(entry, "backward")
        needed = writes_inputs(signature) or (signature.training and backward is None)
        graph = entry.graph() if needed else None
        if needed and graph is None:
            return None
    later = CachedGraph(pipeline, graph, entry, name, None if backward is None else backward[1])
    with pipeline.compilation(name):
        pipeline.context.emit("cache_hit", stage="graph", name=name)
        function = pipeline.runtime(name, signature, artifact.saved, forward, Backward(later, artifact))
    if graph is None or not writes_inputs(signature):
        return function
    check = sharing_check(signature, graph.examples(), frozenset(graph.static_inputs))
    if check is None:
        return function
    report = functools.partial(pipeline.context.emit, "fallback", stage="runtime", name=name)
    return fallback_on_alias_mismatch(function, later.eagerly, check, report)


@attrs.frozen
class Compiler:
    """A manager and a configuration: what a capture plugin is handed to compile graphs with.

    Two with the same plugins and equal configurations are equal: they compile a graph to the same.
    """

    manager: pluggy.PluginManager
    config: Config

    def __call__(self, captured: CapturedGraph) -> Callable[..., Any]:
        return compile_captured(self.manager, self.config, captured)

    def with_key(self, captured: CapturedGraph) -> tuple[Callable[..., Any], str | None]:
        """The callable of a graph, and the key by which ``stored`` finds it in another process (None: not at all)."""
        return _compile_with_key(self.manager, self.config, captured, True)

    def stored(self, key: str, name: str) -> Callable[..., Any] | None:
        """What ``with_key`` gave a key for, from the cache; None where a part of it is not there (any more)."""
        return _stored(Pipeline(self.manager, self.config), key, name)

    def settings(self) -> str | None:
        """Text of all that decides what a graph compiles to, beside the graph; None where nothing can be stored."""
        policy = CachePolicy(Pipeline(self.manager, self.config))
        return None if policy.open() is None else policy.settings()
