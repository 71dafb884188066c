"""``autograd.Function``: followed where no gradient is wanted; else its forward and backward become graphs."""

from __future__ import annotations

import builtins
from typing import Any

import attrs
import torch
from torch import fx

from turret.frames.annotations import applied, is_in_graph
from turret.plugins.capture.autograd.autograd_region import AutogradRegion, OfNothing
from turret.plugins.capture.autograd.later import RunsLater
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.python import polyfills
from turret.plugins.capture.record.graph import Subgraph
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.exceptions import ExceptionInstance
from turret.plugins.capture.values.functions import Function
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import NamedTuple, Sequence, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.modes import set_grad_enabled

_HINT = "mark its operation as a custom op of torch.library"


@registry.function(vars(torch.autograd.Function)["apply"].__func__)
def apply(t: Tracer, /, cls: Value, *args: Value, **kwargs: Value) -> Value:
    """A user's autograd function: its forward followed like any call, or both of its parts as graphs; one call of the
    graph where it is marked so."""
    if is_in_graph(cls.constant()):
        return t.recorder.call(applied(cls.constant()), list(args), kwargs)
    if under := t.recorder.transforms():
        # Its own derivatives and its own vmap take part there, and what they may do is another contract's.
        raise Unsupported(f"an autograd.Function under torch.func.{under[-1]}", _HINT)
    values = [a.realize() for a in args]
    wanted = [isinstance(v, Tensor) and v.fake.requires_grad for v in values]
    context = t.call(t.wrap_known(polyfills.FunctionContext), [t.made(tuple(wanted))], {}).realize()
    assert isinstance(context, Instance)
    if not torch.is_grad_enabled() or not any(wanted):
        result = _forward(t, cls, context, values, kwargs).realize()
        return own_results(t, values, context.get_attr(t, "dirty").realize().unpack(t), result)
    if kwargs:
        raise Unsupported("an autograd.Function with keyword arguments", _HINT)
    return _Differentiated(t, cls, context, values).run()


def _forward(t: Tracer, cls: Value, context: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    forward = cls.get_attr(t, "forward")
    if cls.constant().setup_context is torch.autograd.Function.setup_context:
        return t.call(forward, [context, *args], kwargs)
    result = t.call(forward, args, kwargs)
    t.call(cls.get_attr(t, "setup_context"), [context, t.new_tuple(args), result], {})
    return result


def own_results(t: Tracer, args: list[Value], written: list[Value], result: Value) -> Value:
    """What a call without gradients returns: an argument that is returned as it came is a tensor of its own, once each
    time, but for one that was ``written`` to."""
    dirty = [v.realize() for v in written]

    def own(value: Value) -> Value:
        value = value.realize()
        if not isinstance(value, Tensor) or not any(value is a for a in args) or any(value is d for d in dirty):
            return value
        if value.fake.requires_grad:
            return t.recorder.call_method("detach", [value], {})
        return t.recorder.call_method("view_as", [value, value], {})

    if isinstance(result, Tuple):
        return t.new_tuple([own(v) for v in result.items])
    return own(result)


@attrs.define(eq=False)
class _Differentiated:
    """One call whose gradient is wanted."""

    t: Tracer
    cls: Value
    context: Instance
    args: list[Value]
    outputs: list[Value] = attrs.field(factory=list)
    written: frozenset[int] = frozenset()
    """Which of what the backward uses of the forward it writes to."""

    def run(self) -> Value:
        t = self.t
        grad_mode = torch.is_grad_enabled()
        set_grad_enabled(False)
        try:
            with t.recorder.region() as forward:
                inputs = self.lift_arguments(forward)
                result = _forward(t, self.cls, self.context, self.args, {}).realize()
                self.outputs = self.tensors_of(result)
                with t.recorder.region() as backward:
                    gradients, failure = self.trace_backward(backward)
                ends = self.gradient_nodes(backward, inputs, gradients)
                saved = list(backward.lifted)
                of_nothing = None
                if failure is None and self.outputs and not self.is_set("materialize_grads"):
                    of_nothing = self.of_nothing(inputs, saved)
                target = self.close(forward, backward.close(ends), saved, inputs)
                target.failure, target.of_nothing = failure, of_nothing
        finally:
            set_grad_enabled(grad_mode)
        return self.result(result, t.recorder.call_region(target, forward.lifted).unpack(t))

    def lift_arguments(self, region: Subgraph) -> tuple[int | None, ...]:
        """For each argument the number of the input that it is."""
        for value in self.args:
            if isinstance(value, Tensor):
                self.t.recorder.node_here(value.node)
        order = list(region.lifted.values())
        return tuple(
            order.index(self.t.recorder.node_here(v.node)) if isinstance(v, Tensor) else None for v in self.args
        )

    def tensors_of(self, result: Value) -> list[Value]:
        """The tensors that the forward returned."""
        found = [v.realize() for v in result.items] if isinstance(result, Sequence) else [result]
        if isinstance(result, NamedTuple) or any(not isinstance(v, (Tensor, Constant)) for v in found):
            raise Unsupported(f"an autograd.Function that returns {result.describe()}", _HINT)
        tensors = [v for v in found if isinstance(v, Tensor)]
        constant = {id(v) for v in self.marked("not_differentiable")}
        if sum(id(v) not in constant for v in tensors) > 1 and not self.is_set("materialize_grads"):
            raise Unsupported("an autograd.Function with several results and set_materialize_grads(False)", _HINT)
        return list(tensors)

    def of_nothing(self, inputs: tuple[int | None, ...], saved: list[fx.Node]) -> OfNothing:
        """What the backward does with None for a gradient; what it uses of the forward is added to ``saved``."""
        written = self.written
        with self.t.recorder.region() as region:
            gradients, failure = self.trace_backward(region, defined=False)
        if self.written:
            raise Unsupported("an autograd.Function that writes to a tensor where it is given no gradient", _HINT)
        self.written = written
        if failure is not None:
            return OfNothing(None, failure)
        graph = region.close(self.gradient_nodes(region, inputs, gradients))
        added = [node for node in region.lifted if node not in saved]
        saved += added
        return OfNothing(graph, None, tuple(saved.index(node) for node in region.lifted), len(added))

    def given_gradients(self, region: Subgraph) -> list[Value]:
        """What the backward is given where there are gradients, as inputs of its graph."""
        given: list[Value] = []
        zeros = self.is_set("materialize_grads") and self.is_set("_materialize_non_diff_grads")
        never = set() if zeros else {id(v) for v in self.marked("not_differentiable")}
        for number, output in enumerate(self.outputs):
            fake = output.fake  # type: ignore[attr-defined]
            made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
            gradient = self.t.recorder.tensor(region.placeholder(f"gradient{number}", made), made)
            given.append(Constant(None) if id(output) in never else gradient)
        return given

    def trace_backward(
        self, region: Subgraph, defined: bool = True
    ) -> tuple[list[Value], tuple[str, str | None] | None]:
        """Gradients of the arguments, as values of the backward's graph; or what the backward raises.

        ``defined``: whether it is given gradients, and not None.
        """
        t, kind = self.t, self.cls.constant()
        before = RunsLater(t, self.context, self.cls, *self.args)
        given = self.given_gradients(region) if defined else [Constant(None) for _ in self.outputs]
        name = "vjp" if kind.backward is torch.autograd.Function.backward else "backward"
        method = _without_wrapper(t, self.cls.get_attr(t, name).realize())
        failure, found = None, []
        try:
            result = t.call(method, [self.context, *given], {}).realize()
        except Raised as raised:  # not an exception of the forward, which is what runs now
            failure = _failure_of(raised.value)
        else:
            found = [v.realize() for v in result.items] if isinstance(result, Sequence) else [result]
        self.written = before.writes(region, 2, "an autograd.Function with a backward", _HINT)
        if failure is not None and self.written:
            raise Unsupported("an autograd.Function whose backward writes to a tensor and raises", _HINT)
        count = len(self.args)
        if failure is None and (any(not t.is_none(v) for v in found[count:]) or len(found) < count):
            wrong = f"an incorrect number of gradients (expected {count}, got {len(found)})"
            failure = "RuntimeError", f"function {kind.__name__}Backward returned {wrong}"
        return ([Constant(None)] * count, failure) if failure else (found[:count], None)

    def gradient_nodes(
        self, region: Subgraph, inputs: tuple[int | None, ...], gradients: list[Value]
    ) -> list[fx.Node | None]:
        return [_gradient_node(self.t, region, v, n is not None) for v, n in zip(gradients, inputs, strict=True)]

    def close(
        self, forward: Subgraph, backward: fx.GraphModule, saved: list[fx.Node], inputs: tuple[int | None, ...]
    ) -> AutogradRegion:
        """Both graphs; what the backward uses of the forward is saved by it."""
        t = self.t
        fakes = [v.fake for v in self.outputs]  # type: ignore[attr-defined]
        dirty = [self.input_number(v, inputs) for v in self.marked("dirty")]
        constant = {id(v) for v in self.marked("not_differentiable")}
        nodes = [t.recorder.node_here(v.node) for v in self.outputs]  # type: ignore[attr-defined]
        tensors = [v for v in self.marked("saved_tensors") if isinstance(v, Tensor)]
        if any(v.fake.is_inference() for v in tensors):
            raise Unsupported("an inference tensor that is saved for the backward, which eager refuses")
        kept = {t.recorder.node_here(v.node) for v in tensors}
        return AutogradRegion(
            forward=forward.close([*nodes, *saved]),
            backward=backward,
            outputs=len(fakes),
            checked=frozenset(n for n, node in enumerate(saved) if node in kept),
            arguments=inputs,
            dirty=tuple(dirty),
            not_differentiable=tuple(n for n, v in enumerate(self.outputs) if id(v) in constant),
            written=self.written,
            label=t.recorder.label(),
            name=self.cls.constant().__name__,
        )

    def is_set(self, name: str) -> bool:
        """Whether a flag of the context is true."""
        return self.t.truth(self.context.get_attr(self.t, name))

    def marked(self, name: str) -> list[Value]:
        return [v.realize() for v in self.context.get_attr(self.t, name).realize().unpack(self.t)]

    def input_number(self, value: Value, inputs: tuple[int | None, ...]) -> int:
        for argument, number in zip(self.args, inputs, strict=True):
            if argument is value and number is not None:
                return number
        raise Unsupported("mark_dirty of what is no argument of the autograd.Function")

    def result(self, result: Value, tensors: list[Value]) -> Value:
        """What the forward returned, of the tensors that autograd knows of."""
        if isinstance(result, Tensor):
            return tensors[0]
        if not isinstance(result, Sequence):
            return result
        left = iter(tensors)
        items = [next(left) if isinstance(v.realize(), Tensor) else v for v in result.items]
        return self.t.new_tuple(items)


def _without_wrapper(t: Tracer, method: Value) -> Value:
    """The backward under ``once_differentiable``, which does nothing where gradients of gradients are not recorded."""
    if isinstance(method, Function) and method.object.__globals__.get("__name__") == "torch.autograd.function":
        return t.wrap_known(method.object.__wrapped__)
    return method


def _failure_of(error: Value) -> tuple[str, str | None]:
    """The name and message of an exception that a backward always raises."""
    if isinstance(error, ExceptionInstance) and getattr(builtins, error.kind.__name__, None) is error.kind:
        said = [a.value for a in error.args if isinstance(a, Constant) and isinstance(a.value, str)]
        if len(said) == len(error.args) <= 1 and error.cause is None:
            return error.kind.__name__, said[0] if said else None
    raise Unsupported(f"an autograd.Function whose backward raises {error.describe()}", _HINT)


def _gradient_node(t: Tracer, backward: Subgraph, value: Value, is_tensor: bool) -> Any:
    if t.is_none(value):
        return None
    if not isinstance(value, Tensor) or isinstance(value, Symbolic):
        raise Unsupported(f"{value.describe()} as a gradient of an autograd.Function")
    if not is_tensor:
        raise Unsupported("an autograd.Function with a gradient for an argument that is no tensor")
    with t.recorder.within(backward):
        return t.recorder.node_here(value.node)
