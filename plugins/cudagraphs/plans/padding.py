"""Calls padded to a size that is recorded, where a plan treats the samples of a batch one by one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from turret.plan import Plan
from turret.plan.modes import below_autograd
from turret.plan.sizes import Sizes, compile_sizes
from turret.plugins.cudagraphs.recording.outputs import of_others
from turret.plugins.cudagraphs.recording.recorder import as_lazy
from turret.plugins.cudagraphs.work import Key, Shapes

_WORD = re.compile(r"[A-Za-z_]\w*")


@attrs.frozen(eq=False)
class _Batch:
    """An input that has samples along its first dimension, which symbol number ``symbol`` of the key counts."""

    input: int
    symbol: int
    shape: Callable[[Sizes], tuple[int, ...]]
    stride: Callable[[Sizes], tuple[int, ...]]

    def padded(self, tensor: torch.Tensor, samples: int, sizes: Sizes) -> torch.Tensor:
        """A tensor of more than the ``samples`` that are there.

        The first stands for each that is added: whatever a call does for those, it does for that one, too, so that
        nothing can go wrong which would not without them.
        """
        shape, stride = self.shape(sizes), self.stride(sizes)
        made = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
        there, stored = tensor.shape[0], as_lazy(tensor, tensor)  # what lies in memory
        rows = there // samples
        made[:there].copy_(stored)
        made[there:].unflatten(0, (-1, rows)).copy_(stored[:rows].expand(shape[0] // rows - samples, rows, *shape[1:]))
        return as_lazy(made, tensor)


@attrs.frozen(eq=False)
class Batches:
    """The inputs of a plan by the symbols that count samples.

    ``symbols``: those of the size key; ``padded_symbols``: positions of those that count samples; ``numbers``: inputs
    that are one of them themselves, with its position.
    """

    symbols: tuple[str, ...]
    padded_symbols: frozenset[int]
    inputs: tuple[_Batch, ...]
    numbers: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, plan: Plan, symbols: Sequence[str]) -> Batches | None:
        """What there is to pad of a plan whose size key are ``symbols``; None where no size can be padded."""
        positions = {symbol: n for n, symbol in enumerate(symbols) if symbol in plan.batch_symbols}
        if not positions:
            return None
        inputs = []
        for n, number in enumerate(plan.inputs):
            if number is None:
                continue
            slot = plan.slots[number]
            found = positions.keys() & _WORD.findall(str(slot.shape[0])) if slot.shape else ()
            shape, stride = compile_sizes(slot.shape), compile_sizes(slot.stride)
            inputs += [_Batch(n, positions[symbol], shape, stride) for symbol in found]
        sources = [(plan.size_sources[symbol], n) for symbol, n in positions.items()]
        numbers = tuple((source.input, n) for source, n in sources if source.dimension is None)
        return cls(tuple(symbols), frozenset(positions.values()), tuple(inputs), numbers)

    def padded_key(self, key: Key, sizes: Sequence[int]) -> Key | None:
        """A call's sizes, each that is not among ``sizes`` padded to the next of them; None where one cannot be."""
        found = []
        for n, size in enumerate(key):
            larger = [s for s in sizes if s >= size] if n in self.padded_symbols and size else []
            if size not in sizes and not larger:
                return None
            found.append(size if size in sizes else min(larger))
        return tuple(found)

    def padded(self, args: Sequence[Any], key: Key, larger: Key) -> list:
        """The inputs of a call of sizes ``larger``, of which ``args`` (sizes ``key``) are the first samples."""
        given, sizes = list(args), dict(zip(self.symbols, larger, strict=True))
        with below_autograd():
            for batch in self.inputs:
                if key[batch.symbol] != larger[batch.symbol]:
                    given[batch.input] = batch.padded(args[batch.input], key[batch.symbol], sizes)
        for position, symbol in self.numbers:
            given[position] = larger[symbol]
        return given


def first_samples(shapes: Shapes, results: Sequence[Any], inputs: Sequence[Any]) -> list:
    """Results of a call from those of a padded one: the first samples where they lie; ``shapes`` are the call's own."""
    found = []
    with below_autograd():
        for result, made in zip(shapes.results, results, strict=True):
            if result.kind == "buffer":
                layout = result.layout or shapes.buffers[result.source]
                found.append(made if made.shape == layout.shape else made.as_strided(layout.shape, layout.stride))
            else:
                found.append(of_others(result, inputs))
    return found
