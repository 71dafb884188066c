"""The autograd node of a compiled forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.errors import DoubleBackwardError
from turret.plugins.wrap_runtime.epilogue import evaluate, size_reader
from turret.products import BoxedCallable
from turret.signature import GraphOutput, GraphSignature

_DOUBLE = (
    "a gradient of a gradient was asked for, but this backward was compiled and keeps no graph of its own; "
    "run the forward without turret.compile where double backward (create_graph=True) is needed"
)


def autograd_function(
    signature: GraphSignature,
    outputs: int,
    saved_tensors: int,
    saved_sizes: int,
    forward: BoxedCallable,
    backward: Callable[[], BoxedCallable],
) -> Callable[[Sequence[Any]], list[Any]]:
    """``run(inputs) -> graph outputs``, recorded in autograd where gradients are on and an input needs one.

    Tensors go to the backward through ``save_for_backward``, so hooks on saved tensors and version checks hold;
    sizes lie beside them.  With gradients off the forward runs alone.
    """
    split = outputs + saved_tensors
    frozen = tuple(n for n, o in enumerate(signature.graph_outputs) if not o.differentiable)
    tangents = _tangent_reader(signature)

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            results = forward(list(inputs))
            ctx.save_for_backward(*results[outputs:split])
            ctx.sizes = results[split:]
            ctx.symbols = read_sizes(inputs)
            ctx.set_materialize_grads(False)
            if frozen:
                ctx.mark_non_differentiable(*(results[n] for n in frozen if isinstance(results[n], torch.Tensor)))
            return tuple(results[:outputs])

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if torch.is_grad_enabled():
                raise DoubleBackwardError(_DOUBLE)
            args = [*ctx.sizes, *ctx.saved_tensors, *tangents(gradients, ctx.symbols)]
            return tuple(backward()(args))

    read_sizes = size_reader(signature)
    apply = Compiled.apply

    def run(inputs: Sequence[Any]) -> list[Any]:
        if torch.is_grad_enabled():
            return list(apply(*inputs))
        return forward(list(inputs))[:outputs]

    return run


def _tangent_reader(signature: GraphSignature) -> Callable[[Sequence[Any], dict[str, int]], list[Any]]:
    """Gradients as autograd hands them over to tangents in the layouts that the backward was compiled for."""
    wanted = [(n, o) for n, o in enumerate(signature.graph_outputs) if o.differentiable]

    def read(gradients: Sequence[Any], sizes: dict[str, int]) -> list[Any]:
        return [_tangent(gradients[n], output, sizes) for n, output in wanted]

    return read


def _tangent(gradient: torch.Tensor | None, output: GraphOutput, sizes: dict[str, int]) -> torch.Tensor:
    stride = tuple(evaluate(v, sizes) for v in output.stride)
    if gradient is None:
        shape = tuple(evaluate(v, sizes) for v in output.shape)
        made = torch.empty_strided(shape, stride, dtype=getattr(torch, output.dtype), device=output.device)
        return made.zero_()
    if gradient.stride() == stride:
        return gradient
    made = torch.empty_strided(gradient.shape, stride, dtype=gradient.dtype, device=gradient.device)
    return made.copy_(gradient)
