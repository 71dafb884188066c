"""The epilogue: new values into mutated inputs, and outputs that alias inputs or intermediates rebuilt as views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.signature import GraphSignature, InputInfo, Layout, Mutation, OutputInfo, OutputKind

Sizes = dict[str, int]
Epilogue = Callable[[Sequence[Any], Sequence[Any], list[Any], Sizes], list[Any]]


def size_reader(signature: GraphSignature) -> Callable[[Sequence[Any]], Sizes]:
    """A function of the user's inputs that gives the value of every size symbol."""
    if not signature.symbols:
        empty: Sizes = {}
        return lambda args: empty
    sources = tuple(signature.symbols.items())

    def read(args: Sequence[Any]) -> Sizes:
        sizes: Sizes = {}
        for name, source in sources:
            value = args[source.input]
            if source.kind == "offset":
                sizes[name] = value.storage_offset()
            elif source.dimension is None:
                sizes[name] = int(value)
            else:
                sizes[name] = value.shape[source.dimension] if source.kind == "size" else value.stride(source.dimension)
        return sizes

    return read


def evaluate(value: int | str, sizes: Sizes) -> int:
    """A size of the signature in one call."""
    return value if isinstance(value, int) else int(eval(value, _NAMES, sizes))


_NAMES = {"__builtins__": {}, "math": __import__("math"), "min": min, "max": max, "abs": abs, "int": int}


def build_epilogue(signature: GraphSignature) -> Epilogue | None:
    """The epilogue of a signature, or None where the graph's outputs are the user's and nothing is mutated."""
    mutated = tuple((n, i) for n, i in enumerate(signature.inputs) if i.mutation is not Mutation.NONE)
    outputs = signature.outputs
    plain = len(outputs) == len(signature.graph_outputs) and all(
        o.kind is OutputKind.FRESH and o.index == n for n, o in enumerate(outputs)
    )
    if plain and not mutated:
        return None

    def epilogue(args: Sequence[Any], given: Sequence[Any], results: list[Any], sizes: Sizes) -> list[Any]:
        for number, info in mutated:
            _mutate(given[number], info, results, sizes)
        made: list[Any] = []
        for info in outputs:
            same = info.kind is OutputKind.IS_OUTPUT
            made.append(made[info.index] if same else _output(info, args, results, sizes))
        return made

    return epilogue


def _mutate(target: torch.Tensor, info: InputInfo, results: list[Any], sizes: Sizes) -> None:
    """Do to an input what the program did to it: first its layout, then its data."""
    if info.mutation is Mutation.IN_GRAPH:
        torch.autograd.graph.increment_version(target)
        return
    with torch.set_grad_enabled(info.tracked):
        if info.layout is not None:
            shape, stride, offset = _layout(info.layout, sizes)
            if target.requires_grad and target.grad_fn is None:
                target = target.detach()
            target.as_strided_(shape, stride, offset)
        if info.updated is not None:
            value = results[info.updated]
            target.copy_(value if info.tracked else value.detach())


def _layout(layout: Layout, sizes: Sizes) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return (
        tuple(evaluate(v, sizes) for v in layout.shape),
        tuple(evaluate(v, sizes) for v in layout.stride),
        evaluate(layout.offset, sizes),
    )


def _output(info: OutputInfo, args: Sequence[Any], results: list[Any], sizes: Sizes) -> Any:
    match info.kind:
        case OutputKind.FRESH:
            return results[info.index]
        case OutputKind.CONSTANT:
            return info.value
        case OutputKind.SIZE:
            return evaluate(info.value, sizes)
        case OutputKind.IS_INPUT:
            return args[info.index]
        case OutputKind.ALIAS_OF_INPUT:
            return _view(args[info.index], info, sizes)
        case OutputKind.ALIAS_OF_INTERMEDIATE:
            return _view(results[info.index], info, sizes)


def _view(base: torch.Tensor, info: OutputInfo, sizes: Sizes) -> torch.Tensor:
    """The view of ``base`` that the program returned, with or without a way for gradients back to it."""
    shape, stride, offset = _layout(info.layout, sizes)
    if not info.requires_grad:
        base = base.detach()
    if info.dtype is not None:
        dtype = getattr(torch, info.dtype)
        if dtype.is_complex and not base.is_complex():
            pairs = base.as_strided((*shape, 2), (*(2 * s for s in stride), 1), base.storage_offset() + 2 * offset)
            return torch.view_as_complex(pairs)
        base = torch.view_as_real(base) if base.is_complex() and not dtype.is_complex else base.view(dtype)
    return base.as_strided(shape, stride, base.storage_offset() + offset)
