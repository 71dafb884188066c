"""From the gradients of a graph's outputs to those of its inputs: which backward runs, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any

import attrs
import torch
from torch.autograd import forward_ad

from turret.errors import DoubleBackwardError, UnsupportedError
from turret.graph.wrapper_tensors import TangentForm, WholeGradient, assembler, is_wrapper
from turret.hooks.products import BoxedCallable
from turret.hooks.signature import GraphOutput, GraphSignature, OutputKind
from turret.plan.sizes import Sizes, compile_sizes
from turret.plugins.wrap_runtime import double_backward, edges
from turret.plugins.wrap_runtime.late_memory import LateTensors
from turret.plugins.wrap_runtime.modes import without_autocast
from turret.plugins.wrap_runtime.saved_tensors import SavedInputs, SavedTensors
from turret.storage.fork_safety import Lock
from turret.torch_compat.autograd import forward_ad_level

_COMPILED_STOPS = 4
"""How many backwards between results of a graph are compiled; for more of them a graph runs once more, once for all in
one backward."""


_Stops = tuple[tuple[int, ...], tuple[int, ...], bool]
"""The graph outputs whose gradients are given, where these end, and whether algorithms are deterministic."""


class Differentiation:
    """From the gradients of a graph's outputs to those of its inputs, for the context of one call of its forward.

    Where gradients of some outputs alone are there, a backward of their own computes them: autograd runs no formula
    for those that are not, and zeros in their place may meet infinities.
    """

    def __init__(self, signature: GraphSignature, backward: Callable[..., BoxedCallable | None]) -> None:
        self.signature, self.backward = signature, backward
        self.differentiable = tuple(n for n, o in enumerate(signature.graph_outputs) if o.differentiable)
        read_tangents = _tangent_reader(signature, self.differentiable)
        self.assemble = _gradients_of(signature)
        self.whole = tuple(_Backward(_Once(backward), read_tangents, self.assemble) for _ in (False, True))
        """By whether algorithms are deterministic when gradients are computed, as the forward need not have had it."""
        self.late = LateTensors(signature) if signature.late_memory else None
        self.saved = SavedTensors(signature)
        self.saved_inputs = SavedInputs(signature)
        self.obstacle = double_backward.obstacle(signature)
        if not self.obstacle and not hasattr(backward, "recorded"):
            self.obstacle = "this backward was compiled and keeps no graph of its own"
        self.led_to: tuple[int, ...] = ()
        """Inputs that the node is given as tensors, once a call has told."""
        self.apart = edges.unreached(signature)
        """Inputs without an edge from the node."""
        self.inputs = None if self.obstacle else double_backward.Inputs(self.apart)
        self.partial: dict[tuple[tuple[int, ...], bool], _Backward] = {}
        self.by_forms: dict[tuple[Any, ...], _Backward | None] = {}
        self.by_stops: dict[_Stops, _Backward | None] = {}
        self.lock = Lock()

    def note(self, given: Sequence[Any], inputs: Sequence[Any], saved: Sequence[Any]) -> None:
        """What the first call tells: the inputs as the node was given them, and as they are, and what is saved."""
        self.led_to = tuple(n for n, v in enumerate(given) if isinstance(v, torch.Tensor))
        self.saved_inputs.note(inputs, saved)

    def __call__(self, ctx: Any, gradients: Sequence[Any]) -> tuple[Any, ...]:
        if forward_ad_level() >= 0:
            _refuse_duals(gradients)
        deterministic = torch.are_deterministic_algorithms_enabled()
        saved = self.saved.of(ctx, gradients)
        backward = self.whole[deterministic]
        if reason := self.why_by_calls(gradients):
            of_forms = self.for_forms(gradients, deterministic)
            if of_forms is None:
                return self.by_calls(ctx, gradients, reason)
            backward = of_forms
        else:
            for n in self.differentiable:
                if gradients[n] is None:
                    backward = self.for_gradients(gradients, deterministic)
                    break
        self.saved_inputs.check(saved)
        function = backward.compiled.made or backward.compiled()
        tangents = backward.read_tangents(gradients, ctx.symbols)
        args, run = [*ctx.sizes, *saved, *tangents], function
        if self.late is not None:
            args, run = self.late.around(function, ctx, [*ctx.sizes, *saved], tangents, gradients)
        if not torch.is_grad_enabled():
            del saved, tangents  # the function lets go of what it has read
            ctx.maybe_clear_saved_tensors()
            return backward.finish(run(args))
        sources = _sources(ctx, gradients, saved)
        with torch.no_grad():
            results = backward.finish(run(args))
        try:
            return self.recorded(ctx, results, gradients, tangents)
        except DoubleBackwardError as error:
            return _refusing_gradients(results, sources, double_backward.error(str(error)))
        finally:
            ctx.maybe_clear_saved_tensors()

    def until(
        self, ctx: Any, given: Mapping[int, Any], stops: tuple[int, ...], leading: Callable[[], list[torch.Tensor]]
    ) -> tuple[Any, ...]:
        """Gradients of the inputs, then of the ``stops``, from those of graph outputs that are computed of these.

        What flows through a stop is left out of the others.  ``leading()`` are tensors whose gradients go to the stops.
        """
        gradients = [given.get(n) for n in range(len(self.signature.graph_outputs))]
        if forward_ad_level() >= 0:
            _refuse_duals(gradients)
        saved = self.saved.of(ctx, gradients)
        key = tuple(sorted(given)), stops, torch.are_deterministic_algorithms_enabled()
        with torch.no_grad():
            results = self.by_calls_until(ctx, gradients, key)
            backward = None if results is not None else self.for_stops(key)
            if backward is not None:
                self.saved_inputs.check(saved)
                tangents = backward.read_tangents(gradients, ctx.symbols)
                results = backward.finish(backward.compiled()([*ctx.sizes, *saved, *tangents]))
            elif results is None:
                results = self.by_calls(ctx, gradients, "is to end at a result", stops)
        if not torch.is_grad_enabled():
            return results
        try:
            numbers = key[0]
            return _attached(self.once_more(ctx, numbers, stops), results, [given[n] for n in numbers], leading())
        except DoubleBackwardError as error:
            sources = _sources(ctx, gradients, saved)
            return _refusing_gradients(results, sources, double_backward.error(str(error)))

    def by_calls_until(self, ctx: Any, gradients: Sequence[Any], key: _Stops) -> tuple[Any, ...] | None:
        """Gradients as far as stops, op by op, where no compiled backward takes these, or so many were compiled that
        another costs more than to run the graph once more; None: they are for a compiled one."""
        _, stops, _ = key
        reason = self.why_by_calls(gradients)
        if reason:
            return self.by_calls(ctx, gradients, reason, stops)
        if key in self.by_stops or len(self.by_stops) < _COMPILED_STOPS or self.obstacle:
            return None
        try:
            return self.by_calls(ctx, gradients, f"ends at results in more than {_COMPILED_STOPS} ways", stops)
        except UnsupportedError:
            return None

    def once_more(
        self, ctx: Any, outputs: Iterable[int], stops: tuple[int, ...] = (), reason: str = ""
    ) -> double_backward.Again:
        """The program's graph, to run once more for gradients of graph outputs, which end at ``stops``.

        ``DoubleBackwardError`` where it would not give what the forward gave.  ``reason``: as of ``recorded``.
        """
        if self.inputs is None:
            raise DoubleBackwardError(self.obstacle)
        run = self.backward.recorded(reason)  # type: ignore[attr-defined]
        inputs = tuple(self.inputs.find(ctx, ctx.given))
        ends = tuple(self.signature.visible[n].index for n in stops)
        return double_backward.Again(run, inputs, self.shown(outputs), (), self.apart, ends)

    def why_by_calls(self, gradients: Sequence[Any]) -> str:
        """Why these gradients are not for a compiled backward; empty where they are."""
        if self.late is not None and self.late.writes and torch.is_grad_enabled():
            return "writes to tensors from before and has gradients of its own (create_graph=True)"
        for gradient in gradients:
            kind = type(gradient)
            if kind is not torch.Tensor and kind is not NoneType and kind is not torch.nn.Parameter:
                return f"is given a gradient of type {_class_name(gradient)}"
        return ""

    def by_calls(self, ctx: Any, gradients: Sequence[Any], reason: str, stops: tuple[int, ...] = ()) -> tuple[Any, ...]:
        """Gradients as eager takes them: the program's graph runs once more, op by op, and autograd goes back over it.

        ``UnsupportedError`` where it would not give what the forward gave.
        """
        try:
            once_more = self.once_more(ctx, self.differentiable, stops, reason)
        except DoubleBackwardError as error:
            raise UnsupportedError(
                f"a compiled backward {reason}, and the graph cannot run once more in its place: {error}; run "
                "the forward without turret.compile"
            ) from error
        tangents = [gradients[n] for n in self.differentiable]
        if stops:
            begun = ctx.from_above.begun(once_more.begin)
            return once_more.first(begun, tangents, torch.is_grad_enabled(), keeps_graph=True)
        found = once_more.first(once_more.begin(), tangents, torch.is_grad_enabled(), keeps_graph=False)
        ctx.maybe_clear_saved_tensors()
        return found

    def shown(self, given: Iterable[int]) -> tuple[int, ...]:
        """Where among the program's outputs some outputs of the graph are."""
        places = {o.index: k for k, o in reversed([*enumerate(self.signature.outputs)]) if o.kind is OutputKind.FRESH}
        return tuple(places[n] for n in given)

    def nothing(self, inputs: int) -> tuple[None, ...]:
        """The gradients where none has come: as in eager, what was saved is not looked at, which may have changed."""
        if self.late is not None and self.late.writes:
            raise UnsupportedError("a compiled backward that writes to tensors from before was given no gradients")
        return (None,) * inputs

    def recorded(
        self, ctx: Any, results: tuple[Any, ...], gradients: Sequence[Any], tangents: Sequence[torch.Tensor]
    ) -> tuple[Any, ...]:
        """Gradients that have gradients themselves; ``DoubleBackwardError`` where they cannot be had."""
        partial = any(gradients[n] is None for n in self.differentiable)
        given = [n for n in self.differentiable if not partial or gradients[n] is not None]
        if len(given) != len(tangents):
            given = list(self.differentiable)  # zeros stand in for the others
        return _attached(self.once_more(ctx, given), results, tangents)

    def for_gradients(self, gradients: Sequence[Any], deterministic: bool) -> _Backward:
        """The backward for those gradients that are there."""
        given = tuple(n for n in self.differentiable if gradients[n] is not None)
        found = self.partial.get((given, deterministic))
        if found is not None:
            return found
        with self.lock:
            if (given, deterministic) not in self.partial:
                self.partial[given, deterministic] = self.make_partial(given, deterministic)
            return self.partial[given, deterministic]

    def for_forms(self, gradients: Sequence[Any], deterministic: bool) -> _Backward | None:
        """The backward for gradients of which some are of other classes than their results; None: there is none."""
        if torch.is_grad_enabled() or self.late is not None or not hasattr(self.backward, "for_forms"):
            return None
        given = tuple(n for n in self.differentiable if gradients[n] is not None)
        forms = _forms_of(self.signature, {n: gradients[n] for n in given})
        if forms is None:
            return None
        key = given, forms, deterministic
        with self.lock:
            if key not in self.by_forms:
                made = self.backward.for_forms(given, forms)
                reader = _tangent_reader(self.signature, given, dict(forms))
                self.by_forms[key] = None if made is None else _Backward(_Once(lambda: made), reader, tuple)
            return self.by_forms[key]

    def for_stops(self, key: _Stops) -> _Backward | None:
        """The backward from graph outputs to what they are computed of; None: there is none."""
        if not hasattr(self.backward, "until"):
            return None
        given, stops, _ = key
        with self.lock:
            if key not in self.by_stops:
                made = self.backward.until(given, stops)
                reader = _tangent_reader(self.signature, given)
                self.by_stops[key] = None if made is None else _Backward(_Once(lambda: made), reader, tuple)
            return self.by_stops[key]

    def make_partial(self, given: tuple[int, ...], deterministic: bool) -> _Backward:
        made = self.backward(given)
        if made is not None:
            return _Backward(_Once(lambda: made), _tangent_reader(self.signature, given), tuple)
        if self.late is not None and self.late.writes:
            raise UnsupportedError(
                "a backward that writes to tensors from before could not be compiled for the gradients of some results "
                "alone, and zeros for the others would be written"
            )
        zeros = _tangent_reader(self.signature, self.differentiable)
        whole = self.whole[deterministic].compiled
        drop = _unreached_dropper(self.signature, given)
        return _Backward(whole, zeros, lambda results: drop(self.assemble(results)))


def _attached(
    again: double_backward.Again,
    results: tuple[Any, ...],
    tangents: Sequence[torch.Tensor],
    leading: Sequence[torch.Tensor] = (),
) -> tuple[Any, ...]:
    """Gradients of the inputs, then of where gradients end, with a node behind them; ``leading`` lead to the latter."""
    split, made = len(results) - len(leading), list(results)
    wanted = tuple(n for n, r in enumerate(results[:split]) if isinstance(r, torch.Tensor))
    places = (*wanted, *range(split, len(results)))
    attached = attrs.evolve(again, wanted=wanted).attach([results[n] for n in places], tangents, leading)
    for n, value in zip(places, attached, strict=True):
        made[n] = value
    return tuple(made)


@attrs.frozen(eq=False)
class _Backward:
    """A backward, how it is given the tangents, and how its results become gradients of the inputs."""

    compiled: _Once
    read_tangents: Callable[[Sequence[Any], Sizes], Sequence[Any]]
    finish: Callable[[Sequence[Any]], tuple[Any, ...]]


def _refuse_duals(gradients: Sequence[Any]) -> None:
    """Raise where a gradient carries a tangent of forward-mode AD, which a compiled backward would lose."""
    for gradient in gradients:
        if gradient is not None and forward_ad.unpack_dual(gradient).tangent is not None:
            raise UnsupportedError(
                "a gradient with a tangent of forward-mode AD reached a compiled backward, which knows of none; "
                "run the forward without turret.compile where forward-mode AD goes over its backward"
            )


class _Once:
    """Compiles the backward when it is first asked for; threads that ask meanwhile wait for the same one.

    ``made`` is None before, so that a caller need not call for what is there."""

    def __init__(self, make: Callable[[], BoxedCallable | None]) -> None:
        self._make, self._lock = make, Lock()
        self.made: BoxedCallable | None = None

    def __call__(self) -> BoxedCallable:
        with self._lock:
            if self.made is None:
                function = self._make()
                assert function is not None  # there is one for the gradients of all outputs, or it was asked for before
                self.made = without_autocast(function)
            return self.made


class _Refuse(torch.autograd.Function):
    """Hands gradients on and raises when a gradient of them is asked for, with regard to any of ``sources``."""

    @staticmethod
    def forward(ctx: Any, error: DoubleBackwardError, values: Sequence[torch.Tensor], *sources: torch.Tensor) -> Any:
        ctx.error = error
        return tuple(v.view_as(v) for v in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ctx.error


def _sources(ctx: Any, gradients: Sequence[Any], saved: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors that gradients of gradients may be asked for with regard to, as far as they can be found: what the
    backward is given, and the leaves that autograd leads to from the node.

    Who asks for one that autograd does not find is told that it does not matter, or gets zeros (``allow_unused``).
    """
    given = [v for v in (*gradients, *saved) if v is not None and v.requires_grad]
    leaves, met, waiting = [], set(), [ctx]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in met:
                met.add(node)
                waiting.append(node)
                leaf = getattr(node, "variable", None)
                if leaf is not None:
                    leaves.append(leaf)
    return [*given, *leaves]


def _refusing_gradients(
    results: Sequence[Any], sources: Sequence[torch.Tensor], error: DoubleBackwardError
) -> tuple[Any, ...]:
    """Gradients under ``create_graph=True``: they require one, and taking it is an error that says why."""
    places = [n for n, r in enumerate(results) if isinstance(r, torch.Tensor)]
    anchor = torch.zeros((), requires_grad=True)
    joined = _Refuse.apply(error, [results[n] for n in places], anchor, *sources)
    made = list(results)
    for number, value in zip(places, joined, strict=True):
        made[number] = value
    return tuple(made)


def _gradients_of(signature: GraphSignature) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Results of the backward for all gradients as these gradients."""
    if not signature.wrapped:
        return tuple
    assemble = assembler(signature)
    return lambda results: tuple(assemble(results))


def _unreached_dropper(signature: GraphSignature, given: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Results as a tuple, None for inputs that no gradient flows to from the outputs ``given``: eager does not touch
    inputs that only others were computed from, for which zeros stand."""
    reached = tuple(not set(given).isdisjoint(i.reached_from) for i in signature.inputs)
    return lambda results: tuple(r if flows else None for flows, r in zip(reached, results, strict=True))


def _tangent_reader(
    signature: GraphSignature, outputs: Sequence[int], forms: Mapping[int, TangentForm] | None = None
) -> Callable[[Sequence[Any], Sizes], Sequence[Any]]:
    """Gradients as autograd hands them over to tangents of ``outputs``, in the layouts (and ``forms``) that the
    backward was compiled for."""
    if forms:
        return _reader_of_forms(signature, outputs, forms)
    wanted = tuple((n, _tangent(signature.graph_outputs[n])) for n in outputs)
    if len(wanted) == 1:
        ((only, make_it),) = wanted
        return lambda gradients, sizes: (make_it(gradients[only], sizes),)
    return lambda gradients, sizes: [make(gradients[n], sizes) for n, make in wanted]


_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


def _forms_of(signature: GraphSignature, gradients: Mapping[int, Any]) -> tuple[tuple[int, TangentForm], ...] | None:
    """The forms of those gradients that are wrappers; None where one is of a class, or of a size, that none tells."""
    found = []
    for n, gradient in gradients.items():
        if type(gradient) in _PLAIN:
            continue
        form = TangentForm.of(gradient) if is_wrapper(type(gradient)) else None
        if form is None or any(isinstance(size, str) for size in signature.graph_outputs[n].shape):
            return None
        found.append((n, form))
    return tuple(found)


def _reader_of_forms(
    signature: GraphSignature, outputs: Sequence[int], forms: Mapping[int, TangentForm]
) -> Callable[[Sequence[Any], Sizes], Sequence[Any]]:
    plain = {n: _tangent(signature.graph_outputs[n]) for n in outputs if n not in forms}

    def read(gradients: Sequence[Any], sizes: Sizes) -> list[torch.Tensor]:
        tangents: list[torch.Tensor] = []
        for n in outputs:
            tangents += forms[n].parts(gradients[n]) if n in forms else [plain[n](gradients[n], sizes)]
        return tangents

    return read


def _tangent(output: GraphOutput) -> Callable[[Any, Sizes], torch.Tensor]:
    """A gradient of one output as the backward takes it: zeros where there is none, copied where strides differ."""
    assert output.tangent_stride is not None  # every differentiable output has one
    shape, stride = compile_sizes(output.shape), compile_sizes(output.tangent_stride)
    dtype, device = getattr(torch, output.dtype), torch.device(output.device)

    def make(gradient: Any, sizes: Sizes) -> torch.Tensor:
        if gradient is None:
            return torch.empty_strided(shape(sizes), stride(sizes), dtype=dtype, device=device).zero_()
        if type(gradient) is not torch.Tensor and type(gradient) is not torch.nn.Parameter:
            raise UnsupportedError(
                f"a gradient of type {_class_name(gradient)} reached a compiled backward, which takes plain tensors; "
                "convert it before calling backward"
            )
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        wanted = stride(sizes)
        if _same_strides(gradient, wanted) and not gradient.is_neg() and not gradient.is_conj():
            return gradient
        made = torch.empty_strided(gradient.shape, wanted, dtype=gradient.dtype, device=gradient.device)
        return made.copy_(gradient)

    return make


def _class_name(gradient: Any) -> str:
    return type(gradient.gradient if isinstance(gradient, WholeGradient) else gradient).__name__


def _same_strides(value: torch.Tensor, wanted: tuple[int, ...]) -> bool:
    given = value.stride()
    if given == wanted:
        return True
    return all(a == b or size == 1 for a, b, size in zip(given, wanted, value.shape, strict=True))
