"""The autograd node of a compiled forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.frames.frame_hook import keep_torch_out, set_torchs_callback
from turret.graph.autograd import nodes
from turret.hooks.products import BoxedCallable
from turret.hooks.signature import GraphSignature
from turret.plan.sizes import Sizes, compile_layout, number_reader, size_reader
from turret.plugins.wrap_runtime import edges, leaf_hooks
from turret.plugins.wrap_runtime.autograd_outputs import AutogradOutputs
from turret.plugins.wrap_runtime.derived import DerivedOutputs, FromAbove
from turret.plugins.wrap_runtime.differentiation import Differentiation
from turret.plugins.wrap_runtime.epilogue import Writer
from turret.plugins.wrap_runtime.late_memory import LateTensors
from turret.plugins.wrap_runtime.modes import without_autocast
from turret.torch_compat.modes import functorch_is_active


def autograd_function(
    signature: GraphSignature,
    saved_tensors: int,
    saved_sizes: int,
    forward: BoxedCallable,
    backward: Callable[..., BoxedCallable | None],
    write: Writer | None,
    derived: DerivedOutputs | None = None,
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """``run(inputs) -> graph outputs``, recorded in autograd where gradients are on and an input needs one.

    Tensors go to the backward through ``save_for_backward``, so hooks on saved tensors and version checks hold;
    sizes lie beside them.  ``write`` (writes that autograd does not see) runs inside the node, before tensors are
    saved.  With gradients off the forward runs alone.  ``derived`` outputs get nodes of their own later.
    """
    outputs = len(signature.graph_outputs)
    split = outputs + saved_tensors
    frozen = tuple(n for n, o in enumerate(signature.graph_outputs) if not o.differentiable)
    read_sizes = size_reader(signature) if _needs_sizes(signature) else None
    read_numbers = number_reader(signature)
    differentiate = Differentiation(signature, backward)
    given, apart = differentiate.inputs, differentiate.apart
    if derived is not None:
        derived.bind(differentiate.until)
    save = _saver(outputs, split, differentiate.late)
    compute = _computation(signature, forward, write, AutogradOutputs(outputs, saved_tensors))
    no_sizes: Sizes = {}

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            given_inputs = inputs
            if apart:
                inputs = edges.values(inputs)
            results = save(ctx, inputs, compute(inputs))
            if not differentiate.saved_inputs.noted:
                differentiate.note(given_inputs, inputs, results[outputs:split])
            if given is not None:
                ctx.given = given.keep(inputs, results[outputs:split])
            ctx.sizes = results[split:]
            ctx.symbols = no_sizes if read_sizes is None else read_sizes(inputs)
            if read_numbers is not None:
                ctx.symbols = read_numbers(ctx.symbols, results)
            ctx.set_materialize_grads(False)
            if frozen:
                ctx.mark_non_differentiable(*(results[n] for n in frozen if isinstance(results[n], torch.Tensor)))
            if derived is not None:
                ctx.from_above = FromAbove()
            return tuple(results[:outputs])

        backward = staticmethod(_backward(differentiate, derived is not None))

    keep_torch_out(Compiled.backward)
    ends = tuple(n for n in differentiate.differentiable if derived is None or not derived.levels[n])
    return _recorded(Compiled, lambda inputs: compute(inputs)[:outputs], apart, ends if len(ends) > 1 else ())


def _backward(differentiate: Differentiation, has_derived: bool) -> Callable[..., Any]:
    """The backward of the node that leads to the inputs."""

    def backward(ctx: Any, *gradients: Any) -> Any:
        for gradient in gradients:
            if gradient is not None:
                torchs_callback = set_torchs_callback(None)
                try:
                    found = differentiate(ctx, gradients)
                finally:
                    set_torchs_callback(torchs_callback)
                break
        else:
            found = differentiate.nothing(len(ctx.needs_input_grad))
        if has_derived:
            found = ctx.from_above.added(found)
        for n in differentiate.differentiable:
            if gradients[n] is None:
                leaf_hooks.spare(ctx, found, differentiate.led_to)
                break
        return found

    return backward


def _computation(
    signature: GraphSignature, forward: BoxedCallable, write: Writer | None, fit_outputs: AutogradOutputs
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """``compute(inputs) -> results`` of the forward, with the writes that autograd does not see."""
    forward, in_place_of = without_autocast(forward), _own_views(signature)

    def compute(inputs: Sequence[Any]) -> Sequence[Any]:
        made = forward(list(inputs))
        if write is not None:
            write(inputs, made)
        results = made if fit_outputs.idle else fit_outputs(inputs, made)
        return results if in_place_of is None else in_place_of(inputs, results)

    return compute


def _saver(outputs: int, split: int, late: LateTensors | None) -> Callable[[Any, Sequence[Any], Sequence[Any]], Any]:
    """``save(ctx, inputs, results) -> results``: keep for the backward what it is to be given."""

    def save(ctx: Any, inputs: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        ctx.save_for_backward(*results[outputs:split])
        return results

    def save_all(ctx: Any, inputs: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        assert late is not None
        results, checked = late.keep(ctx, inputs, results)
        ctx.save_for_backward(*results[outputs:split], *checked)
        return results

    return save if late is None else save_all


def _recorded(
    node: type[torch.autograd.Function],
    run_alone: Callable[[Sequence[Any]], Sequence[Any]],
    apart: tuple[int, ...],
    parted: tuple[int, ...],
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """``run(inputs)``: a node of autograd, without edges to inputs ``apart``, where gradients are on; else it runs
    alone.

    The ``parted`` results get nodes of their own in front, so that hooks of one are not called for the gradients
    of others.
    """
    part = nodes.native().part if parted else None
    # What lies above the binding looks at each argument in Python for what guards have ruled out (0.3 us each).
    apply = super(torch.autograd.Function, node).apply  # type: ignore[misc]  # of the classes in C

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        if torch.is_grad_enabled():
            if apart:
                inputs = edges.without_edges(inputs, apart)
            if functorch_is_active():
                return node.apply(*inputs)
            results = apply(*inputs)
            if part is not None:
                part([results[n] for n in parted])
            return results
        return run_alone(inputs)

    return run


def _own_views(signature: GraphSignature) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]] | None:
    """``replace(inputs, results)``: outputs that lie in an input's memory as views of that input, or None."""
    views = []
    for number, output in enumerate(signature.graph_outputs):
        if output.view_of is not None:
            assert output.view_layout is not None
            views.append((number, output.view_of, compile_layout(output.view_layout)))
    if not views:
        return None
    read_sizes = size_reader(signature)

    def replace(inputs: Sequence[Any], results: Sequence[Any]) -> list[Any]:
        sizes, made = read_sizes(inputs), list(results)
        for number, source, layout in views:
            shape, stride, offset = layout(sizes)
            base = inputs[source]
            made[number] = base.as_strided(shape, stride, base.storage_offset() + offset)
        return made

    return replace


def _needs_sizes(signature: GraphSignature) -> bool:
    """Whether shapes or strides of tangents depend on size symbols."""
    return any(
        isinstance(s, str)
        for o in signature.graph_outputs
        if o.differentiable
        for s in (*o.shape, *(o.tangent_stride or ()))
    )
