"""One frame, captured: traced (again up to the break, where there is one), its graph compiled, its code rebuilt."""

from __future__ import annotations

import itertools
import linecache
import types
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeGuard

import attrs
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from turret.errors import CaptureError, StageError, is_internal
from turret.frames import frame_hook, guard_tree, stances
from turret.frames.guards import Guard, global_state, storage_pattern
from turret.frames.sources import AttrSource, BoundSource, FunctionSource, ItemSource, LocalSource, Source
from turret.frames.torch_settings import dynamic_argument
from turret.frames.trace_modes import has_modes, program_put_aside
from turret.graph.fakes.histories import with_history
from turret.hooks.devices import HOST
from turret.hooks.products import CapturedGraph
from turret.pipeline.gc_pause import full_gc_paused
from turret.plugins.capture.autograd import leaves
from turret.plugins.capture.autograd.hooks import register_behind
from turret.plugins.capture.autograd.tensor_data import check_copies
from turret.plugins.capture.branches.conditional import check_merged
from turret.plugins.capture.errors import (
    NOWHERE,
    AskedFor,
    ChecksDecide,
    FloatNeeded,
    NotConstant,
    Raised,
    TextNeeded,
    Unsupported,
)
from turret.plugins.capture.facts.module_tensors import addresses_are_held
from turret.plugins.capture.facts.policy import History, Policy
from turret.plugins.capture.facts.provenance import guards_of
from turret.plugins.capture.facts.refused_symbols import refuses_floats
from turret.plugins.capture.handlers import library
from turret.plugins.capture.handlers.storages import check_resized
from turret.plugins.capture.interpreter.frame import RETURNED, Frame, Signal
from turret.plugins.capture.interpreter.tracer import FrameTracer
from turret.plugins.capture.python import lookups
from turret.plugins.capture.python.lifetimes import LETS_GO, clear_frames, has_observable_finalizer, keeps_waiting
from turret.plugins.capture.python.places import at_line
from turret.plugins.capture.python.resume import is_resume
from turret.plugins.capture.rebuilding import breaks, failures
from turret.plugins.capture.rebuilding.rebuild import FrameRebuilder
from turret.plugins.capture.record.gradient_buckets import gradient_buckets
from turret.plugins.capture.record.graph import GraphInput, metadata
from turret.plugins.capture.record.marks import check_marks
from turret.plugins.capture.record.sizes import size_guards
from turret.plugins.capture.store import units
from turret.plugins.capture.store.unit import CompileUnit, filtered, load_source, make_unit
from turret.plugins.capture.values.arrays import check_arrays, check_views
from turret.plugins.capture.values.base import Lazy, Value
from turret.plugins.capture.values.exceptions import ExceptionInstance
from turret.storage.source_lines import new_graph_module
from turret.torch_compat.autograd import CreationMeta, creation_meta_of
from turret.torch_compat.distributed import forget_shardings

if TYPE_CHECKING:
    from turret.plugins.capture.store.settings import Settings

assert library.registry.functions, "handlers register what they know when they are loaded"
_numbers = itertools.count()
_RECURSION = 20_000


@attrs.define(eq=False)
class _Break:
    """Why and where the first attempt stopped."""

    step: int
    reason: str
    hint: str
    stack: list[tuple[types.CodeType, int]]
    asked_for: bool = False
    needs_floats: bool = False

    def __str__(self) -> str:
        """The line that broke the graph, the reason, the calls that led there (innermost first), and what to do."""
        lines = [_location(*frame) for frame in reversed(self.stack)]
        lines[1:1] = [f"  {self.reason}"]
        lines[2:] = [f"  called from {line}" for line in lines[2:]]
        return "\n".join([*lines, *([f"  hint: {self.hint}"] if self.hint else [])])


def compile_frame(settings: Settings, history: History, function: types.FunctionType, arguments: tuple) -> CompileUnit:
    """The unit of one call.  Raises ``Unsupported`` where the frame can only run as Python."""
    with full_gc_paused(), settings.context.devices():
        return _compile_frame(settings, history, function, arguments)


def _compile_frame(settings: Settings, history: History, function: types.FunctionType, arguments: tuple) -> CompileUnit:
    stop: _Break | None = None
    reuse = settings.reuse_blocks
    dynamic = _dynamic(settings)
    alike = settings.alike
    several = alike is not None and alike.history is history and alike.are_several
    recorded = addresses_are_held(settings.context.config)
    specialized: frozenset[str] = frozenset()
    whole, splits, decide = _never_breaks(settings), 0, False
    with lookups.at_recursion_limit(_RECURSION):
        while True:
            numbers = settings.data_dependent
            policy = Policy(
                dynamic,
                history,
                *numbers,
                reuse,
                several,
                specialized,
                whole=whole,
                splits=splits,
                checks_decide=decide,
                stays=recorded,
                is_bound=settings.binds(history),
            )
            attempt = _Attempt(settings, policy, function, arguments, stop)
            try:
                unit = attempt.run()
            except Unsupported as error:
                clear_frames(error)
                if attempt.tracer.blocks.reused:
                    reuse = False  # a layer that was repeated is not in the way of anything
                    continue
                if _takes_needed(policy, error):
                    specialized = frozenset(policy.specialized)
                    continue
                if _may_tell_apart(policy, attempt.tracer):
                    splits += 1  # a branch on data may leave what only a flag tells apart
                    continue
                if isinstance(error, ChecksDecide):
                    decide = True
                    continue
                wanted, stop = stop, _break_at(settings, attempt.tracer, error, stop)
                if stop is None:
                    if _takes_constants(policy, error, wanted):
                        continue
                    raise
            except RecursionError:
                raise Unsupported("calls nested too deeply") from None
            else:
                if stop is None and unit.run is not None:
                    taken = units.CaptureRecord(function, arguments, history, attempt.tracer, unit, *attempt.parts)
                    units.keep(settings, taken)
                return unit
            finally:
                if attempt.tracer.recorder.distributed:
                    forget_shardings()
                _let_go(attempt.tracer)


def _dynamic(settings: Settings) -> bool | None:
    """Which sizes are symbols; none beside a mode of the program's, which is to see numbers as they are."""
    return False if has_modes() else dynamic_argument(settings.dynamic)


def _let_go(tracer: FrameTracer) -> None:
    """Let go of the program's objects, which the cycles that frames and values form would keep alive."""
    for generator in tracer.generators:
        vars(generator.frame).clear()
    for tensor in tracer.recorder.by_fake.values():
        tensor.outer = tensor.real = None
    for value in tracer.lazy:
        value.object = value.made = None
    vars(tracer).clear()


def _may_tell_apart(policy: Policy, tracer: FrameTracer) -> bool:
    """Whether to try again with more of what branches on data leave told apart by flags."""
    return policy.whole and policy.splits < 2 and tracer.branched


def _takes_needed(policy: Policy, error: Unsupported) -> bool:
    """Whether to try again with numbers as constants that stand in a text which is read, or that an operation took no
    symbols for."""
    return (isinstance(error, TextNeeded) and policy.read_texts()) or policy.specialize(error.numbers)


def _takes_constants(policy: Policy, error: Unsupported, wanted: _Break | None) -> bool:
    """Whether to try again with numbers as constants that were unknown: they may be what stands in the way, of this
    attempt or of the one before it, for which a break was wanted."""
    needed = policy.big_ints or _needs_floats(error) or (wanted is not None and wanted.needs_floats)
    return bool(needed) and policy.take_for_constants()


def _needs_floats(error: Unsupported) -> bool:
    """Whether floats would have to be known, to the program or to an operation on fake tensors."""
    return isinstance(error, FloatNeeded) or refuses_floats(error.__cause__)


def _break_at(settings: Settings, tracer: FrameTracer, error: Unsupported, stop: _Break | None) -> _Break | None:
    """Where to break for a failed attempt; None where no break is possible (the caller raises the error then)."""
    stack = tracer.call_stack.failed or (stop.stack if stop is not None else [])
    error.stack = error.stack or "".join(f"  {_location(code, line)}\n" for code, line in stack)
    error.location = error.location or _location_in_program(stack)
    step = tracer.call_stack.step if error.step is None else error.step
    if stop is not None and step < stop.step and error.step is not None:
        stop = None
    if stop is not None:
        error.reason = f"no graph break is possible: {error.reason}; the break was wanted for: {stop.reason}"
        return None
    if step <= NOWHERE or _never_breaks(settings):
        return None
    return _Break(step, error.reason, error.hint, stack, isinstance(error, AskedFor), _needs_floats(error))


def _never_breaks(settings: Settings) -> bool:
    return settings.fullgraph or stances.breaks_are_errors()


def _is_new_exception(value: Any) -> TypeGuard[ExceptionInstance]:
    return isinstance(value, ExceptionInstance) and value.object is None


def view_kind(value: torch.Tensor) -> str:
    """How a tensor became a view, which decides whether autograd lets it be changed in place; empty for no view."""
    return str(creation_meta_of(value)) if value._is_view() else ""


def _view_guard(source: Source, value: torch.Tensor) -> Guard:
    kind = view_kind(value)
    return Guard("CALL", source, (view_kind, kind)) if kind else Guard("NO_VIEW", source, None)


_PLAIN_VIEWS = ("", str(CreationMeta.DEFAULT))


def _location_in_program(stack: list[tuple[types.CodeType, int]]) -> str:
    """The innermost line that is the program's own, else the innermost one."""
    own = [frame for frame in stack if not is_internal(frame[0].co_filename)] or stack
    return _location(*own[-1]).partition("\n")[0] if own else "a place not known"


def _location(code: types.CodeType, line: int) -> str:
    source = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_filename}:{line} in {code.co_name}" + (f"\n    {source}" if source else "")


class _Attempt:
    """One trace of the frame, up to its end or to a break that is known by now."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        function: types.FunctionType,
        arguments: tuple,
        stop: _Break | None,
    ) -> None:
        self.settings, self.function, self.arguments, self.stop = settings, function, arguments, stop
        self.tracer = FrameTracer(policy, None if stop is None else stop.step)
        self.modes = global_state()
        self.parts: tuple[dict[str, Any], str | None] = ({}, None)
        """Of the rebuilt code: its scope, and the key of its graph in the cache."""

    def run(self) -> CompileUnit:
        tracer = self.tracer
        try:
            tracer.overrides.start()
            with tracer.recorder.fake_mode, tracer.state.whole_inference_blocks():
                frame = self.start()
                signal = self.trace(frame)
                check_copies(tracer)
                check_resized(tracer)
                check_arrays(tracer)
                check_views(tracer)
                rebuilder = FrameRebuilder(tracer)
                tail = self.tail(frame, rebuilder, signal)
                if tail is not None:
                    tracer.effects.write(rebuilder)
                    register_behind(tracer, rebuilder)
                    tracer.state.finish(rebuilder)
                    tracer.overrides.finish(rebuilder)
        finally:
            tracer.state.restore()
        self.tidy_guards()
        if tail is None or (signal is RETURNED and not self.does_something()):
            unit = self.unit(None, "")
            unit.is_empty = tail is not None
            return unit
        for generator in tracer.generators:
            generator.check_end(rebuilder)
        for made, step, location in tracer.finalized:
            if id(made) not in rebuilder.names:
                raise Unsupported(LETS_GO, step=step, location=location)
        if any(map(breaks.ends_visibly, frame.locals)) and any(map(_is_new_exception, rebuilder.kept)):
            raise Unsupported("a kept exception, whose traceback keeps a generator waiting", step=NOWHERE)
        self.check_arguments(frame, rebuilder, signal)
        if signal is not RETURNED:
            self.check_exceptions(rebuilder)
        for item in tracer.recorder.inputs:
            if (
                isinstance(item.real, torch.Tensor)
                and tracer.recorder.versions.of(item.example)
                and view_kind(item.real) not in _PLAIN_VIEWS
            ):
                raise Unsupported("a change in place of a view that was made without gradients")
        return self.finish(rebuilder, tail)

    def does_something(self) -> bool:
        """Whether captured code does what Python would not: it computes, or told the program that it is compiled."""
        return bool(self.tracer.recorder.calls) or self.tracer.told_of_compiling

    def start(self) -> Frame:
        """The root frame with its parameters as values not looked at yet."""
        tracer, function = self.tracer, self.function
        tracer.guards.add(Guard("GLOBAL_STATE", None, self.modes))
        tracer.guards.add(Guard("ID", AttrSource(FunctionSource(), "__globals__"), function.__globals__))
        closure_source = AttrSource(FunctionSource(), "__closure__")
        closure = [tracer.wrap_cell(c, ItemSource(closure_source, n)) for n, c in enumerate(function.__closure__ or ())]
        frame = Frame(tracer, function.__code__, function.__globals__, None, closure)
        for number, value in enumerate(self.arguments):
            source = LocalSource(number, function.__code__.co_varnames[number])
            is_cell = isinstance(value, types.CellType)  # on the stack of the frame that a resume function continues
            frame.locals[number] = tracer.wrap_cell(value, source) if is_cell else Lazy(tracer, value, source)
        self.first = list(frame.locals[: len(self.arguments)])
        tracer.call_stack.root = frame
        tracer.call_stack.handed_on = self.first if is_resume(function.__code__) else []
        return frame

    def trace(self, frame: Frame) -> Signal | None:
        """Run the root frame; None where the program raises."""
        try:
            return frame.run()
        except Raised as raised:
            clear_frames(raised)
            self.note_exception(raised.value)
            return None
        except NotConstant as unknown:  # where something in a call has to be known
            raise Unsupported(f"{unknown.args[0].describe()} where a constant is needed") from None
        except GuardOnDataDependentSymNode as error:
            raise Unsupported(f"a decision on an unbacked symbol: {error.cond}") from error

    def note_exception(self, exception: Any) -> None:
        """Put on record that the frame raised, and so runs as Python; for a program that does not raise there."""
        stack = self.tracer.call_stack.raised or [(self.function.__code__, self.function.__code__.co_firstlineno)]
        reason = f"it raises {exception.type().__name__} while it is captured (at {_location_in_program(stack)})"
        self.settings.obstacle = self.settings.obstacle or reason
        name = self.function.__qualname__
        message = f"{name} runs as Python: {reason}"
        self.settings.context.emit("fallback", stage="capture", name=name, message=message)

    def tail(self, frame: Frame, r: FrameRebuilder, signal: Signal | None) -> list[str] | None:
        """The last lines of the rebuilt code; None where the frame raised and so runs as Python."""
        if signal is None:
            return None
        if signal is RETURNED:
            return [f"return {r.load(frame.result)}"]
        return breaks.write(frame, r)

    def check_arguments(self, frame: Frame, r: FrameRebuilder, signal: Signal | None) -> None:
        """Refuse where the frame lets go of an argument of its whose end can be seen: that has its moment."""
        kept = frame.locals if signal is RETURNED else ()
        for number, value in enumerate(self.arguments):
            held = self.first[number]
            if has_observable_finalizer(value) and id(held) not in r.names and held not in kept:
                raise Unsupported(LETS_GO)
            if isinstance(value, BaseException):
                if keeps_waiting(value):
                    raise Unsupported("an exception that holds a generator which waits in a try block", step=NOWHERE)
                self.tracer.guards.add(Guard("CALL", held.source, (keeps_waiting, False)))

    def check_exceptions(self, r: FrameRebuilder) -> None:
        """Refuse to break where an exception that this frame raised is kept by more than the frame's variables.

        Its traceback should hold the frame from then on, which a resume function does not continue.  A cause or context
        of an exception that variables alone keep ends with these."""
        found = {id(value): value for value in r.kept if _is_new_exception(value)}
        linked = Counter(id(v.realize()) for e in found.values() for v in (e.cause, e.context) if v is not None)
        for number, value in found.items():
            if value.raised and r.loads[number] > r.variables[number] + linked[number]:
                raise Unsupported("a graph break while an exception is kept that the frame raised", step=NOWHERE)

    def tidy_guards(self) -> None:
        """Guards that relate inputs to one another: which of them share memory, which changed objects are distinct."""
        tracer = self.tracer
        tensors = [i for i in tracer.recorder.inputs if isinstance(i.real, torch.Tensor)]
        changed = any(tracer.recorder.versions.is_written(i.example) for i in tensors)
        for item in tensors:
            if tracer.recorder.versions.is_written(item.example):
                tracer.guards.add(_view_guard(item.source, item.real))
        related = [i for i in tensors if changed or not i.static]
        if len(related) > 1 and not all(i.static for i in related):
            pattern = storage_pattern([i.real for i in related])
            first, *others = (i.source for i in related)
            tracer.guards.add(Guard("STORAGE", first, pattern, tuple(others)))
        for value in tracer.effects.changed.values():
            if value.source is not None and not isinstance(value.source, BoundSource):
                self.tell_apart(value, value.source)

    def tell_apart(self, value: Value, source: Source) -> None:
        """Guard that a changed object is none of the others of its kind."""
        for other in self.tracer.objects.values():
            if other is not value and type(other) is type(value) and other.source not in (None, source):
                self.tracer.guards.add(Guard("NOT_SAME", source, None, (other.source,)))

    def finish(self, r: FrameRebuilder, tail: list[str]) -> CompileUnit:
        """Compile the graph and the rebuilt code."""
        tracer = self.tracer
        check_merged(tracer, list(r.outputs))
        with tracer.recorder.fake_mode:
            outputs = leaves.expose(tracer, list(r.outputs), r.parameters)
            tracer.recorder.freed.mark(tracer.recorder.root_graph, outputs)
            tracer.recorder.retained.check(outputs, tracer.recorder.made_at)
            tracer.recorder.hooked.check(tracer.recorder.root_graph, outputs)
        for message in tracer.blocks.report():
            self.settings.context.emit("reuse", stage="capture", name=self.function.__code__.co_name, message=message)
        runs = bool(tracer.recorder.calls or r.outputs)
        again = runs and self.may_run_again()
        if runs:
            inputs = self.close_graph(outputs)
            r.scope["graph"], key = self.compile_graph(inputs)
            self.settings.graphs += 1
        else:
            inputs, key = [], None
        if self.stop is not None:
            if not self.stop.asked_for and not self.settings.obstacle:
                self.settings.obstacle = f"{self.stop.reason} (at {_location_in_program(self.stop.stack)})"
            self.settings.context.emit(
                "graph_break", stage="capture", name=self.function.__code__.co_name, message=str(self.stop)
            )
        check_marks(tracer)
        for guard in size_guards(tracer):
            tracer.guards.add(guard)
        r.scope["tail"] = frame_hook.load().tail
        r.scope["at_line"] = at_line
        writes = tracer.recorder.versions.changed(tracer.recorder.inputs)
        draws = self.draws() if again and tracer.leaves_checks else None
        if again:
            r.scope["rerun"] = failures.AsPython(self.settings.context)
        if draws is not None:
            r.scope["random_states"] = failures.random_states
        text = r.text(len(self.arguments), [i.source for i in inputs], tail, runs, again, writes, draws)
        self.parts = (r.scope, key)
        return self.unit(load_source(text, r.scope, self.function), text)

    def may_run_again(self) -> bool:
        """Whether the call may run as Python where the graph raises, which a graph that checks something has to allow.

        A whole one has no choice: what it raises then is the graph's.
        """
        recorder = self.tracer.recorder
        again = failures.leaves_no_trace(recorder.root_module, recorder.graph)
        policy = self.tracer.policy
        must = self.tracer.leaves_checks and not (policy.data_dependent or policy.whole)
        if must and not (again and failures.have_random_states(self.draws() or ())):
            raise ChecksDecide("a check on data beside an operation that must not run twice")
        return again

    def draws(self) -> list[str] | None:
        """Devices beside the host that the graph draws random numbers on, by name; None where it draws none at all."""
        found = {device for device in self.tracer.recorder.fake_mode.draws_on if device.type != "meta"}
        return sorted(str(device) for device in found if device.type != HOST.type) if found else None

    def close_graph(self, outputs: list[fx.Node]) -> list[GraphInput]:
        """Add the outputs; drop inputs that nothing uses."""
        tracer = self.tracer
        tracer.recorder.graph.output(tuple(outputs))
        used = []
        for item in tracer.recorder.inputs:
            if item.node.users:
                used.append(item)
            else:
                tracer.recorder.graph.erase_node(item.node)
        return used

    def compile_graph(self, inputs: list[GraphInput]) -> tuple[Any, str | None]:
        """The compiled graph as a callable that runs with the frame hook suspended; its key, if it is stored."""
        tracer = self.tracer
        for item in inputs:
            if tracer.recorder.versions.changed((item,)):
                item.node.meta["written"] = True
        module = new_graph_module(tracer.recorder.root_module, tracer.recorder.graph)
        captured = CapturedGraph(
            module=module,
            example_inputs=tuple(_pristine(tracer, item) for item in inputs),
            fake_mode=tracer.recorder.fake_mode,
            static_inputs=frozenset(n for n, item in enumerate(inputs) if item.static),
            steady_inputs=frozenset(n for n, item in enumerate(inputs) if item.steady),
            grad_enabled=self.modes[0],
            inference_mode=self.modes[1],
            name=f"graph{next(_numbers)}",
            real_inputs=tuple(i.real if isinstance(i.example, torch.Tensor) else i.example for i in inputs),
            gradient_buckets=gradient_buckets(tracer, inputs) if self._cuts_at_buckets() else None,
            can_break=not _never_breaks(self.settings),
        )
        try:
            function, key = self._compiled(captured)
        except StageError as error:
            name = error.refused_call
            if not captured.can_break or name is None:
                raise
            if name in tracer.recorder.made_at:
                raise self._break_before(name, error) from None
            function, key = self._compiled(attrs.evolve(captured, can_break=False))
        function = tracer.overrides.asking_nobody(function)
        return frame_hook.load().suspend(function), key

    def _compiled(self, captured: CapturedGraph) -> tuple[Any, str | None]:
        storing = self.settings.storing
        with program_put_aside():
            return (self.settings.compile_graph(captured), None) if storing is None else storing.with_key(captured)

    def _break_before(self, name: str, error: StageError) -> Unsupported:
        """A break before a call of the graph that a stage refuses: most of these eager refuses too, and in their place
        among the effects of the frame."""
        step, self.tracer.call_stack.failed = self.tracer.recorder.made_at[name]
        return Unsupported(f"a call that stage {error.stage!r} does not compile: {error.__cause__}", step=step)

    def _cuts_at_buckets(self) -> bool:
        return self.modes[0] and not self.modes[1] and self.settings.context.config.gradient_buckets

    def unit(self, run: Any, text: str) -> CompileUnit:
        facts = guards_of(self.tracer.provenance.facts.values())
        settings, audit = self.settings, self.settings.audit
        every = (*self.tracer.guards, *facts)
        guards = filtered(settings.context, every, self.function, self.arguments, audit)
        made = guards.kept
        settings.context.emit("product", stage="guards", name=self.function.__qualname__, product=made)
        if reason := guard_tree.unreported():
            settings.context.emit("fallback", stage="capture", name="guards", message=reason)
        if not guards.check(self.function, *self.arguments):
            reason = made.explain(self.function, self.arguments)
            raise CaptureError(f"a guard of {self.function.__qualname__} fails right after capture: {reason}")
        return make_unit(guards, run, text, not self.tracer.effects.reaches(made.guards), audit)


def _pristine(tracer: FrameTracer, item: GraphInput) -> Any:
    """An input's fake value as it was before the graph ran on it."""
    if item.state is None or metadata(item.example) == item.state:
        return item.example
    if any(o is not item and _share(o, item) for o in tracer.recorder.inputs):
        raise Unsupported("a change of shape of an input that shares memory with another")
    shape, stride, offset, requires_grad, dtype = item.state
    with tracer.recorder.fake_mode:
        if offset != 0:
            raise Unsupported("a change of shape of an input that is a view")
        made = torch.empty_strided(shape, stride, dtype=dtype, device=item.example.device)
        made = made.conj() if item.real.is_conj() else made
        if not requires_grad or item.real.is_leaf:
            return made.requires_grad_(requires_grad)
        return with_history(made)  # not a leaf, which may be written to


def _share(first: GraphInput, second: GraphInput) -> bool:
    if not isinstance(first.real, torch.Tensor) or not isinstance(second.real, torch.Tensor):
        return False
    return first.real.untyped_storage()._cdata == second.real.untyped_storage()._cdata
