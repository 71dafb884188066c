"""From boxed executables and a signature to the callable over the graph's flat inputs.

The wrapper is specialised when it is built: a graph without mutations and aliases calls its executable and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.hooks.products import BoxedCallable
from turret.hooks.signature import GraphSignature, SyntheticBase
from turret.plan.sizes import Sizes, compile_size, number_reader, size_reader
from turret.plugins.wrap_runtime.autograd import autograd_function
from turret.plugins.wrap_runtime.autograd_outputs import AutogradOutputs
from turret.plugins.wrap_runtime.derived import DerivedOutputs
from turret.plugins.wrap_runtime.epilogue import Writer, finisher, hidden_writes
from turret.plugins.wrap_runtime.modes import without_autocast, without_gradients


def build_runtime(
    signature: GraphSignature,
    saved_tensors: int,
    saved_sizes: int,
    forward: BoxedCallable,
    backward: Callable[..., BoxedCallable | None],
) -> Callable[..., Sequence[Any]]:
    """The callable ``fn(*flat inputs) -> the user's outputs`` (a list or tuple).

    ``forward`` returns the graph's forward outputs, then (training) ``saved_tensors`` tensors and
    ``saved_sizes`` ints for the backward, which ``backward()`` compiles when it is first needed, and
    ``backward(given)`` for the gradients of some graph outputs alone (None: it cannot).  ``forward`` may return the
    very input as the input's new value, having written to it in place.  Safe to call from several threads.
    All that is needed beside the executables is in the signature, which is plain data.
    """
    forward = _taking_values(signature, forward)
    derived = DerivedOutputs(signature) if signature.visible else None
    write, finish = hidden_writes(signature), finisher(signature, derived)
    bases = _common_memories(signature)
    if signature.training:
        run = autograd_function(signature, saved_tensors, saved_sizes, forward, backward, write, derived)
    else:
        run = _inference(signature, forward, write)
    if finish is None and bases is None and signature.grad_enabled:
        return lambda *args: run(args)
    read_sizes = size_reader(signature) if signature.symbols else None
    read_numbers = number_reader(signature)
    no_sizes: Sizes = {}

    def call(*args: Any) -> Sequence[Any]:
        sizes = no_sizes if read_sizes is None else read_sizes(args)
        inputs = args if bases is None else (*args, *bases(args, sizes))
        results = run(inputs)
        if read_numbers is not None:
            sizes = read_numbers(sizes, results)
        return results if finish is None else finish(inputs, results, sizes)

    if signature.gives_history and not signature.grad_enabled:
        return torch.enable_grad()(call)
    return call


def _inference(
    signature: GraphSignature, forward: BoxedCallable, write: Writer | None
) -> Callable[[Sequence[Any]], Sequence[Any]]:
    outputs = len(signature.graph_outputs)
    forward, fit_outputs = without_autocast(forward), AutogradOutputs(outputs, 0)
    if write is None:
        if any(i.requires_grad for i in signature.inputs):
            forward = without_gradients(forward)
        return lambda inputs: fit_outputs(inputs, forward(list(inputs)))

    def run(inputs: Sequence[Any]) -> Sequence[Any]:
        with torch.no_grad():
            results = forward(list(inputs))
            write(inputs, results)
        return fit_outputs(inputs, results)[:outputs]

    return run


def _taking_values(signature: GraphSignature, forward: BoxedCallable) -> BoxedCallable:
    """``forward``, given copies of those inputs whose memory holds the negative of their values."""
    places = [n for n, info in enumerate(signature.inputs) if info.negated]
    if not places:
        return forward

    def run(args: list) -> Any:
        with torch.no_grad():
            for n in places:
                args[n] = _copy_in_same_strides(args[n])
        return forward(args)

    return run


def _copy_in_same_strides(value: torch.Tensor) -> torch.Tensor:
    """A tensor that is not negated, of the same values, shape and strides (which may overlap or leave gaps)."""
    if value.numel() == 0:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    length = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    memory = value.as_strided((length,), (1,)).resolve_neg()
    return memory.as_strided(value.shape, value.stride())


def _common_memories(signature: GraphSignature) -> Callable[[Sequence[Any], Sizes], list[torch.Tensor]] | None:
    """Flat views of the memory that inputs share; None where none is needed."""
    if not signature.bases:
        return None
    makers = tuple(map(_common_memory, signature.bases))
    return lambda args, sizes: [make(args, sizes) for make in makers]


def _common_memory(base: SyntheticBase) -> Callable[[Sequence[Any], Sizes], torch.Tensor]:
    member, joined = base.members[0], base.joined
    offset, length = compile_size(base.layouts[0].offset), compile_size(base.length)

    def make(args: Sequence[Any], sizes: Sizes) -> torch.Tensor:
        first = args[member]
        start = first.storage_offset() - offset(sizes)
        if joined:
            root = first._base if first._is_view() else first
            return root.as_strided((length(sizes),), (1,), start)
        return first.detach().as_strided((length(sizes),), (1,), start)

    return make
