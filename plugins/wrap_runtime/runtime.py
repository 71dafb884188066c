"""From boxed executables and a signature to the callable over the graph's flat inputs.

The wrapper is specialised when it is built: a graph without mutations and aliases calls its executable and
nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.plugins.wrap_runtime.autograd import autograd_function
from turret.plugins.wrap_runtime.epilogue import build_epilogue, size_reader
from turret.products import BoxedCallable
from turret.signature import GraphSignature, SyntheticBase


def build_runtime(
    signature: GraphSignature,
    saved_tensors: int,
    saved_sizes: int,
    forward: BoxedCallable,
    backward: Callable[[], BoxedCallable],
) -> Callable[..., Any]:
    """The callable ``fn(*flat inputs) -> list of the user's outputs``.

    ``forward`` returns the graph's forward outputs, then (training) ``saved_tensors`` tensors and
    ``saved_sizes`` ints for the backward, which ``backward()`` compiles when it is first needed.  Safe to call
    from several threads.
    """
    count = len(signature.graph_outputs)
    if signature.training:
        run = autograd_function(signature, count, saved_tensors, saved_sizes, forward, backward)
    else:
        run = forward
    epilogue = build_epilogue(signature)
    prepare = _synthetic_bases(signature)
    if epilogue is None and prepare is None:
        if signature.training:
            return lambda *args: run(args)
        return lambda *args: run(list(args))
    read_sizes = size_reader(signature)

    def call(*args: Any) -> list[Any]:
        given = args if prepare is None else prepare(args)
        results = run(given) if signature.training else run(list(given))
        return results if epilogue is None else epilogue(args, given, results, read_sizes(args))

    return call


def _synthetic_bases(signature: GraphSignature) -> Callable[[Sequence[Any]], tuple[Any, ...]] | None:
    """Replace inputs that share memory by flat views of that memory; None where there are none."""
    if signature.kept is None:
        return None
    kept, bases = signature.kept, signature.bases

    def prepare(args: Sequence[Any]) -> tuple[Any, ...]:
        return (*(args[n] for n in kept), *(_common_memory(args, base) for base in bases))

    return prepare


def _common_memory(args: Sequence[Any], base: SyntheticBase) -> torch.Tensor:
    first = args[base.members[0]]
    start = first.storage_offset() - base.layouts[0].offset
    with torch.no_grad():
        return first.as_strided((base.length,), (1,), start)
