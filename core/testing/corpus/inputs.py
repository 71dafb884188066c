"""Inputs of a call on a device: layouts, memory that tensors share, leaves and identities stay as they are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from turret.hooks.devices import HOST
from turret.testing.corpus.program import Inputs


class Mover:
    """Copies tensors to a device; those that share memory share it there, and one given twice is one there."""

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self._memory: dict[tuple[int, torch.dtype], Tensor] = {}
        self._done: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, value: Any) -> Any:
        """A copy of a tensor, a leaf if it is one (else it keeps its history); anything else as it is."""
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self._done:
            self._done[id(value)] = value, self._copied(value)
        return self._done[id(value)][1]

    def _copied(self, tensor: Tensor) -> Tensor:
        if tensor.grad_fn is not None:
            return tensor.to(self.device, copy=True)
        plain = tensor.detach()
        if plain.layout is not torch.strided or plain.is_conj() or plain.is_neg():
            return plain.to(self.device, copy=True).requires_grad_(tensor.requires_grad)
        memory = self._moved(plain)
        made = memory.new_empty(0).set_(memory.untyped_storage(), plain.storage_offset(), plain.shape, plain.stride())
        return made.requires_grad_(tensor.requires_grad)

    def _moved(self, tensor: Tensor) -> Tensor:
        """The whole memory behind a tensor, as elements of its dtype."""
        storage = tensor.untyped_storage()
        key = storage.data_ptr() if storage.nbytes() else id(tensor), tensor.dtype
        if key not in self._memory:
            count = storage.nbytes() // tensor.element_size()
            whole = tensor.new_empty(0).set_(storage, 0, (count,), (1,))
            self._memory[key] = whole.to(self.device, copy=True)
        return self._memory[key]


def inputs_on(device: str, inputs: Inputs) -> Inputs:
    """Fresh inputs on a device.  A leaf that is no argument stays where it is; its gradient comes back to it."""
    if device == HOST.type:
        return inputs
    moved = Mover(device)
    args = tuple(map(moved, inputs.args))
    given = {id(arg) for arg in inputs.args}
    return Inputs(args, tuple(moved(leaf) if id(leaf) in given else leaf for leaf in inputs.leaves))
