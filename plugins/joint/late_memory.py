"""What a program's own backwards read from memory from before as it is when they run, and write to it.

The trace runs a backward ahead of its time.  Memory that it writes to may have changed by then, and so may an input
that the forward changed, of which the graph holds the value and nobody would notice.  What lies there is therefore one
more input of the backward, and what is to lie there one more result, which the runtime writes.  Formulas of autograd
save what they read, and find (here as at run time) that it was not changed; they read the saved value.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import fx

from turret.errors import UnsupportedError
from turret.graph.fakes.sizes import guarded_apart, same_layout, same_sizes
from turret.graph.tensor_versions import version_of
from turret.graph.wrapper_tensors import parts_of
from turret.hooks.signature import GraphSignature, LateMemory, Mutation
from turret.plugins.joint.inputs import Inputs
from turret.plugins.joint.outputs import ForwardOutputs
from turret.plugins.joint.repeating.replay import CannotReplay
from turret.plugins.joint.storage import Storage
from turret.plugins.joint.tracer import JointTracer


@attrs.define(eq=False)
class LateMemories:
    """Storages that a backward reads when it runs, as they are met; ``replayed``: segments of the forward may be
    copies."""

    tracer: JointTracer
    inputs: Inputs
    forward: ForwardOutputs
    signature: GraphSignature
    replayed: bool
    found: dict[Storage, LateMemory] = attrs.field(factory=dict)
    _before: dict[Storage, tuple[torch.Tensor, int]] = attrs.field(factory=dict)

    def take(self, tensor: torch.Tensor, written: bool, checked: bool, label: str) -> None:
        """From here on the memory of ``tensor`` holds what it holds when the backward runs."""
        storage = self.tracer.tracked(tensor).storage
        known = self.found.get(storage)
        if known is not None:
            self.found[storage] = attrs.evolve(known, written=known.written or written)
            return
        if not written and not self._is_changed(storage):
            return  # saved, and found to be what it was
        if self.replayed:
            raise CannotReplay
        whole = storage.tensor
        if whole is None or storage.group is not None:
            raise UnsupportedError("a backward of the program's own writes to an input that shares memory with others")
        if storage.restrided:
            raise UnsupportedError("a backward of the program's own writes to memory that was laid out anew")
        if storage.input is None:
            made, index = True, self.forward.keep(storage)
        else:
            made, index = False, storage.input
            self._check_input(index)
        self.found[storage] = LateMemory(index, made, written, checked, label)
        self._before[storage] = self.tracer.alias(whole), version_of(whole)
        storage.base = self.tracer.recorder.placeholder(f"memory_{len(self.found)}", self.tracer.alias(whole))
        storage.version += 1

    def _is_changed(self, storage: Storage) -> bool:
        """Whether the forward writes to an input: the backward then finds no more whether others did, too."""
        members = () if storage.input is None else (storage.input,)
        if storage.group is not None:
            members = storage.group.members
        return any(self.signature.inputs[n].mutation is not Mutation.NONE for n in members)

    def _check_input(self, number: int) -> None:
        info, before = self.signature.inputs[number], self.inputs.before[number]
        assert before is not None  # a tensor
        if info.mutation is not Mutation.NONE and not info.is_hidden_write:
            raise UnsupportedError(
                f"a backward of the program's own reads input {number} late, which autograd sees the forward change"
            )
        if info.layout is not None or info.replaced_by is not None or info.negated:
            raise UnsupportedError(f"a backward of the program's own reads input {number} late, which lies elsewhere")
        if not guarded_apart(*before.layout[:2]):
            raise UnsupportedError(f"input {number} has several elements in one place in memory, which is written to")

    def described(self) -> GraphSignature:
        """The signature of the graph, with this memory."""
        moved = [version_of(storage.tensor) != self._before[storage][1] for storage in self.found]
        late = tuple(attrs.evolve(w, counted=m) for w, m in zip(self.found.values(), moved, strict=True))
        return attrs.evolve(self.signature, graph_outputs=tuple(self.forward.described), late_memory=late)

    def values(self, gradients: Sequence[torch.Tensor | None]) -> list[fx.Node | None]:
        """What is to lie there after the backward that gave ``gradients``; None for memory that is only read."""
        for storage, (before, _) in self._before.items():
            whole = storage.tensor
            known = self.tracer.tracked(whole)
            same = same_sizes(whole.shape, before.shape) and same_layout(whole, before)
            if known.storage is not storage or known.layout_changes or not same:
                raise UnsupportedError("a backward of the program's own changes the layout of a tensor from before")
        parts = [part for gradient in gradients if gradient is not None for part in parts_of(gradient)]
        if any(self.tracer.tracked(part).storage in self.found for part in parts):
            raise UnsupportedError("a backward of the program's own returns a tensor that it reads late")
        return [self.tracer.base_of(s) if late.written else None for s, late in self.found.items()]
