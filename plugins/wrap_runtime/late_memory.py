"""What a backward reads of memory from before as it is then, and writes back: ``GraphSignature.late_memory``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turret.errors import UnsupportedError
from turret.hooks.products import BoxedCallable
from turret.hooks.signature import GraphSignature


class LateTensors:
    """Keeps the tensors that the backward of one graph reads when it runs, finds them again, and writes to them."""

    def __init__(self, signature: GraphSignature) -> None:
        self._memory = signature.late_memory
        self._made = tuple(m.index for m in self._memory if m.made)
        self._checked = sum(m.checked for m in self._memory)
        self.writes = any(m.written for m in self._memory)

    def keep(self, ctx: Any, inputs: Sequence[Any], results: Sequence[Any]) -> tuple[list[Any], list[torch.Tensor]]:
        """Keep the tensors; gives the results without those that nobody else sees, and tensors for autograd to save."""
        results = list(results)
        tensors = [(results if m.made else inputs)[m.index] for m in self._memory]
        for index in self._made:
            results[index] = None
        ctx.places = list(map(_place, tensors))
        ctx.tensors = [None if m.checked else v for v, m in zip(tensors, self._memory, strict=True)]
        return results, [v for v, m in zip(tensors, self._memory, strict=True) if m.checked]

    def around(
        self, function: BoxedCallable, ctx: Any, saved: Sequence[Any], tangents: Sequence[Any], gradients: Sequence[Any]
    ) -> tuple[list[Any], BoxedCallable]:
        """What a backward is given of ``saved``, of which the last are these tensors, and it with its writes.

        ``UnsupportedError`` where the backward would not do what eager's does.
        """
        first = len(saved) - self._checked
        left = iter(saved[first:])
        tensors = [next(left) if m.checked else v for v, m in zip(ctx.tensors, self._memory, strict=True)]
        if list(map(_place, tensors)) != ctx.places:
            raise UnsupportedError(_REASON.format("finds elsewhere, or laid out anew"))
        places = {v.untyped_storage().data_ptr() for v, m in zip(tensors, self._memory, strict=True) if m.written}
        given = (g for g in gradients if isinstance(g, torch.Tensor) and g.layout is torch.strided and g.numel())
        if any(g.untyped_storage().data_ptr() in places for g in given):
            raise UnsupportedError(_REASON.format("is given the gradient in"))

        def run(args: list[Any]) -> list[Any]:
            results = function(args)
            with torch.no_grad():
                written = results[len(results) - len(tensors) :]
                for target, value, memory in zip(tensors, written, self._memory, strict=True):
                    if value is not None:
                        (target if memory.counted else target.data).copy_(value)
            return list(results[: len(results) - len(tensors)])

        return [*saved[:first], *tangents, *tensors], run


def _place(value: torch.Tensor) -> tuple:
    """Where a tensor lies: one that was given other memory is not where its views still are."""
    return value.data_ptr(), value.shape, value.stride(), value.dtype


_REASON = (
    "a compiled backward uses a tensor from before as it is by then, which it {}; run the forward without "
    "turret.compile where that is needed"
)
