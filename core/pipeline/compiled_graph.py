"""Graphs behind callables: one that was captured here, and one that was taken from the cache."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch

from turret.errors import DoubleBackwardError, StageError, UnsupportedError
from turret.frames.eager_graphs import eagerly
from turret.frames.trace_modes import TraceModes, attention_by, autocast_disabled
from turret.graph.wrapper_tensors import TangentForm, assembler
from turret.hooks.devices import devices_of
from turret.hooks.products import BoxedCallable, CapturedGraph, PartitionedGraph, Role
from turret.pipeline import stored_graph
from turret.pipeline.cache_policy import ALL, Asked, CachePolicy, entry_name
from turret.pipeline.executables import executable
from turret.pipeline.graph_facts import guard_count, interpreted, target_of
from turret.pipeline.keys.executed_code import recorded
from turret.pipeline.keys.graph_cache import Artifact, CacheEntry
from turret.pipeline.keys.op_code import runs_own_code, traced_code
from turret.pipeline.stage_calls import SHOWN, Pipeline
from turret.plan import Plan
from turret.storage.fork_safety import Lock

if TYPE_CHECKING:
    from turret.graph.partitioning.partial import SavedValues
    from turret.pipeline.graph_compilers.assembly import Assembly

    Executable = Plan | Assembly


def _saved_names(parts: PartitionedGraph) -> list[str]:
    return [node.name for node in (*parts.saved_sizes, *parts.saved_tensors)]


@attrs.frozen(eq=False)
class Backward:
    """What the runtime differentiates a graph with: its compiled backwards, and the graph as autograd records it."""

    graph: CompiledGraph | CachedGraph
    forward: Artifact

    def __call__(self, given: tuple[int, ...] | None = None) -> BoxedCallable | None:
        """The backward for the gradients of all graph outputs, or of those given; None where there is none of these."""
        return self.graph.backward(self.forward, Asked(given))

    def for_forms(self, given: tuple[int, ...], forms: tuple[tuple[int, TangentForm], ...]) -> BoxedCallable | None:
        """The backward for gradients of the graph outputs given, some of which are of other classes; None, on record,
        where there is none."""
        return self.graph.backward(self.forward, Asked(given, forms))

    def until(self, given: tuple[int, ...], stops: tuple[int, ...]) -> BoxedCallable | None:
        """The backward from the graph outputs given to tensors that they are computed of, whose gradients come behind
        those of the inputs; None, on record, where there is none."""
        return self.graph.backward(self.forward, Asked(given, stops=stops))

    def recorded(self, reason: str = "") -> Callable[..., Sequence[Any]]:
        """``fn(*flat inputs) -> the outputs``, recorded by autograd; ``DoubleBackwardError`` where it cannot be.

        ``reason``: why it takes the place of a compiled backward, for the record.
        """
        run = self.graph.recorded()
        if reason:
            self.graph.pipeline.policy.report_backward_by_calls(self.graph.name, reason)
        return run


class CompiledGraph:
    """A captured graph that is compiled here: traced once, and its backward compiled when first asked for."""

    def __init__(self, pipeline: Pipeline, captured: CapturedGraph, entry: CacheEntry | None) -> None:
        self.pipeline, self.captured, self.entry = pipeline, captured, entry
        self.target = target_of(captured)
        self.modes = TraceModes.now()
        self.lock = Lock()
        self.partitioned: PartitionedGraph | None = None
        self.saved: SavedValues | None = None
        self.backwards: dict[tuple[Asked, bool], BoxedCallable | None] = {}
        """By what is asked for, and whether algorithms are deterministic."""

    @property
    def name(self) -> str:
        """That of the captured graph."""
        return self.captured.name

    def partition(self) -> PartitionedGraph:
        """Trace and cut the graph; once."""
        if self.partitioned is not None:
            return self.partitioned
        pipeline, captured = self.pipeline, self.captured
        assumed = guard_count(captured)
        table = pipeline.decompositions(self.target)
        with self.modes.restored(), self.covered_by_the_key():
            joint = pipeline.traced(captured, table)
        self.partitioned = pipeline.partitioned(pipeline.simplified(joint))
        if sum(o.differentiable for o in joint.signature.graph_outputs) > 1:
            from turret.graph.partitioning.partial import SavedValues  # brings sympy, which a warm start does without

            with pipeline.failures("partition"):
                self.saved = SavedValues(joint, self.partitioned)
        if guard_count(captured) != assumed:
            # What the trace assumed of sizes became guards of this capture; a stored artifact would skip them.
            self.entry = None
        return self.partitioned

    @contextlib.contextmanager
    def covered_by_the_key(self) -> Iterator[None]:
        """Store nothing, on record, where the trace inside runs code of the program that its key does not cover."""
        if self.entry is None or not runs_own_code(self.captured.module):
            yield
            return
        known = traced_code(self.captured.module)
        with recorded() as record:
            yield
        keyed = [p for p in self.pipeline.manager.get_plugins() if getattr(p, "cache_key", None) is not None]
        plugins = {getattr(p, "__name__", type(p).__module__) for p in keyed}  # their keys are part of this one
        unknown = [code for code, module in record.codes.items() if code not in known and module not in plugins]
        if unknown or not record.complete:
            self.entry = None
            named = ", ".join(sorted(f"{c.co_qualname} ({c.co_filename}:{c.co_firstlineno})" for c in unknown)[:SHOWN])
            self.pipeline.policy.report_unstored(self.captured.name, f"its trace ran {named or 'under a profiler'}")

    def compile_forward(self) -> tuple[Artifact, BoxedCallable]:
        """Compile (and store) the forward, or the whole of an inference graph."""
        partitioned = self.partition()
        role: Role = "inference" if partitioned.backward is None else "forward"
        plan, function = executable(self.pipeline, partitioned, role, self.target, self.captured)
        artifact = Artifact(plan, partitioned.signature, len(partitioned.saved_tensors), len(partitioned.saved_sizes))
        self.store("forward", artifact)
        return artifact, function

    def store(self, role: str, artifact: Artifact) -> None:
        """Store what a graph compiled to; nothing more of a graph whose executable cannot be."""
        unstored = getattr(artifact.plan, "unstored", "")
        if unstored and self.entry is not None:
            self.entry = None
            self.pipeline.policy.report_unstored(self.captured.name, unstored)
        if self.entry is not None:
            with self.pipeline.failures("graph_cache"):
                self.entry.cache.put(self.entry.key, role, artifact)

    def recorded(self) -> Callable[..., Sequence[Any]]:
        """The captured graph as a function of its flat inputs that autograd records op by op.

        Raises ``DoubleBackwardError`` where running the graph once more would not give what it gave.
        """
        from turret.graph.op_traits import is_collective, is_random_call

        calls = self.partition().forward.graph.nodes
        if any(map(is_random_call, calls)):
            raise DoubleBackwardError("the forward draws random numbers, and running it once more draws others")
        if any(is_collective(node.target) for node in calls):
            raise DoubleBackwardError("the forward talks to other processes, which do not run it once more")
        module, modes = self.captured.module, self.modes

        def run(*args: Any) -> Sequence[Any]:
            # Of the kernels for attention this one alone has gradients of its gradients.
            with modes.restored(), attention_by("math"):
                outputs: Sequence[Any] = module(*args)
                return outputs

        return run

    def backward(self, forward: Artifact, asked: Asked = ALL) -> BoxedCallable | None:
        """The backward that belongs to a forward, from the cache or compiled; all threads get the same.

        None where there is none for these gradients alone, on record.
        """
        key = (asked, torch.are_deterministic_algorithms_enabled())
        if key not in self.backwards:
            with self.lock:
                if key not in self.backwards:
                    with self.pipeline.compilation(f"{self.captured.name}.backward"):
                        self.backwards[key] = self.make_backward(forward, asked)
        return self.backwards[key]

    def make_backward(self, forward: Artifact, asked: Asked) -> BoxedCallable | None:
        if self.entry is not None and asked.is_stored:
            found = CachePolicy(self.pipeline).loaded(self.entry, "backward", asked)
            if found is not None:
                return found[1]
        partitioned = self.partition()
        saved = (len(partitioned.saved_tensors), len(partitioned.saved_sizes))
        if saved != forward.saved or partitioned.signature != forward.signature:
            raise StageError(
                "partition",
                "turret",
                "the graph was cut in another way than when its stored forward was compiled",
                "turret cache clear removes the stored forward",
            )
        try:
            partitioned = partitioned if asked.given is None else self.partial(partitioned, asked)
        except StageError as error:
            if asked.forms or asked.stops:  # which the program's graph takes op by op
                self.pipeline.policy.report_backward_by_calls(self.captured.name, f"cannot be compiled: {error}")
                return None
            if self.pipeline.policy.raises():
                raise
            self.pipeline.policy.report_zeros(self.captured.name, str(error))
            return None
        function = self.run_backward(partitioned, asked)
        if asked.given is None or not partitioned.signature.wrapped:
            return function
        assemble = assembler(partitioned.signature)  # of classes of its own, which the runtime does not know
        return lambda args: assemble(function(args))

    def run_backward(self, partitioned: PartitionedGraph, asked: Asked) -> BoxedCallable:
        """The backward of a cut, compiled, or run op by op where it does not compile."""
        if self.pipeline.policy.past_limit(len(self.backwards), partitioned.name):
            return interpreted(partitioned.graph_of("backward"))
        try:
            plan, function = executable(self.pipeline, partitioned, "backward", self.target, self.captured)
        except StageError as error:
            if self.pipeline.policy.raises():
                raise
            self.pipeline.policy.report_fallback(error)
            return interpreted(partitioned.graph_of("backward"))
        if asked.is_stored:
            self.store(entry_name("backward", asked), Artifact(plan))
        return function

    def saved_values(self) -> SavedValues:
        """What the cut hands from forward to backward; traced and cut once more where nobody has asked so far."""
        from turret.graph.partitioning.partial import SavedValues

        if self.saved is None:
            assert self.partitioned is not None  # its forward runs
            table = self.pipeline.decompositions(self.target)
            with self.modes.restored():
                joint = self.pipeline.stage(
                    "turret_joint", self.captured.name, captured=self.captured, decompositions=table
                )
            parts = self.pipeline.partitioned(self.pipeline.simplified(joint))
            if _saved_names(parts) != _saved_names(self.partitioned):
                raise UnsupportedError("the graph was cut in another way than when its forward was compiled")
            self.saved = SavedValues(joint, parts)
        return self.saved

    def partial(self, partitioned: PartitionedGraph, asked: Asked) -> PartitionedGraph:
        """The cut, with the backward for the gradients of some graph outputs over what the forward saves for all."""
        from turret.graph.partitioning import costs

        pipeline, given, forms = self.pipeline, asked.given or (), asked.forms
        words = ("given", *given, *(("until", *asked.stops) if asked.stops else ()))
        name = f"{self.captured.name}.{'_'.join(map(str, words))}"
        captured = attrs.evolve(self.captured, tangents=given, tangent_forms=forms, stops=asked.stops, name=name)
        assumed = guard_count(captured)
        table = pipeline.decompositions(self.target)
        with self.modes.restored(), contextlib.nullcontext() if forms else self.covered_by_the_key():
            # Passes over the captured graph have run: it was traced before.
            joint = pipeline.stage("turret_joint", name, captured=captured, decompositions=table)
        joint = pipeline.simplified(joint)
        with pipeline.failures("partition"), autocast_disabled():
            count = len(given) + sum(form.form.count() - 1 for _, form in forms)
            backward = self.saved_values().backward(joint, count, costs(pipeline.context))
            if guard_count(captured) != assumed:
                raise UnsupportedError("the backward of fewer gradients assumes more of sizes than that of all")
        signature = attrs.evolve(partitioned.signature, wrapped=joint.signature.wrapped, stops=asked.stops)
        return attrs.evolve(partitioned, backward=backward, signature=signature, name=name)


class CachedGraph:
    """A stored graph, made again where it is needed: for a backward that nobody compiled yet, or to run eagerly.

    ``graph`` is None where it has not been read; ``loaded`` is the backward for all gradients, if it was stored.
    """

    def __init__(
        self, pipeline: Pipeline, graph: Any, entry: CacheEntry, name: str, loaded: BoxedCallable | None
    ) -> None:
        self.pipeline, self.graph, self.entry, self.name = pipeline, graph, entry, name
        self.modes = TraceModes.now()
        self.lock = Lock()
        self.made: CompiledGraph | None = None
        self.loaded = loaded
        self.deterministic = torch.are_deterministic_algorithms_enabled()
        """Whether ``loaded`` was compiled for deterministic algorithms."""

    def work(self) -> CompiledGraph | None:
        """The graph under compilation; None where it is not stored any more."""
        with self.lock:
            graph = self.graph or self.entry.graph()
            if self.made is None and graph is not None:
                captured = stored_graph.restored(graph, self.name)
                self.made = CompiledGraph(self.pipeline, captured, self.entry)
                self.made.modes = self.modes
            return self.made

    def backward(self, forward: Artifact, asked: Asked = ALL) -> BoxedCallable | None:
        as_loaded = asked == ALL and self.deterministic == torch.are_deterministic_algorithms_enabled()
        if as_loaded and self.loaded is not None:
            return self.loaded
        if not as_loaded and asked.is_stored:
            with devices_of(self.pipeline.manager):
                found = CachePolicy(self.pipeline).loaded(self.entry, "backward", asked)
            if found is not None:
                return found[1]
        work = self.work()
        if work is None:
            reason = "the graph that it was compiled from is not in the cache any more"
            if not asked.forms and not asked.stops:
                self.pipeline.policy.report_zeros(self.name, reason)
            return None
        return work.backward(forward, asked)

    def recorded(self) -> Callable[..., Sequence[Any]]:
        """As ``CompiledGraph.recorded``."""
        work = self.work()
        if work is None:
            raise DoubleBackwardError("the graph that it was compiled from is not in the cache any more")
        return work.recorded()

    def eagerly(self, *args: Any) -> Any:
        """The graph call by call; ``graph`` has been read where this may be asked for."""
        work = self.work()
        assert work is not None
        return eagerly(work.captured.module)(*args)
