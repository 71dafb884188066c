"""What a forward saved, for the backwards of one output after another.

One node of autograd has saved the tensors of all outputs, and autograd frees them after the first backward that is not
told to keep them.  Eager frees those of the nodes that this backward went through: an output that goes through none of
them has its gradients afterwards.  So while there is such an output, what was saved is kept beside autograd.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import torch

from turret.graph.tensor_versions import version_of
from turret.hooks.signature import GraphSignature
from turret.torch_compat.autograd import keeps_graph


@attrs.frozen(eq=False)
class _Kept:
    """Saved tensors, their versions, and the outputs whose backwards have freed in eager what they went through."""

    tensors: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]
    freed: frozenset[int]


class SavedTensors:
    """Finds what the forward of one graph saved."""

    def __init__(self, signature: GraphSignature) -> None:
        differentiable = {n: o for n, o in enumerate(signature.graph_outputs) if o.differentiable}
        shares = {n: differentiable if o.shares_with is None else o.shares_with for n, o in differentiable.items()}
        self._shares = {n: frozenset(others) for n, others in shares.items()}
        self._always_shared = all(others == self._shares.keys() for others in self._shares.values())

    def of(self, node: Any, gradients: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """The tensors of a call whose autograd node this is, for the gradients of those outputs that are there.

        ``RuntimeError`` of autograd where eager has freed some, or where one was written to since.
        """
        if self._always_shared:
            saved: tuple[torch.Tensor, ...] = node.saved_tensors
            return saved
        given = frozenset(n for n in self._shares if gradients[n] is not None)
        freed = frozenset[int]()
        try:
            saved = node.saved_tensors
        except RuntimeError:
            kept = getattr(node, "kept", None)
            if kept is None or not self._are_apart(kept.freed, given) or _versions(kept.tensors) != kept.versions:
                raise
            saved, freed = kept.tensors, kept.freed
        if not keeps_graph():
            freed |= given
        node.kept = None
        if freed and any(self._are_apart(freed, (n,)) for n in self._shares):
            # Of an output of this node an alias: it would keep the node.
            tensors = tuple(v if v.grad_fn is None else v.detach() for v in saved)
            node.kept = _Kept(tensors, _versions(tensors), freed)
        return saved

    def _are_apart(self, freed: frozenset[int], given: Iterable[int]) -> bool:
        return all(freed.isdisjoint(self._shares[n]) for n in given)


class SavedInputs:
    """The inputs among what a forward saves, which are still the program's: it may set their data before the backward.

    Autograd counts no version for that, and kernels read memory as the types say that they were compiled for, and the
    layouts where sizes do not change.
    """

    def __init__(self, signature: GraphSignature) -> None:
        self.noted = False
        self._kind = _type if signature.symbols else _type_and_layout
        self._places: tuple[int, ...] = ()
        self._kinds: tuple[Any, ...] = ()

    def note(self, inputs: Sequence[Any], saved: Sequence[Any]) -> None:
        """What the first call of the forward saved, which is the same in all calls."""
        given = {id(v) for v in inputs if isinstance(v, torch.Tensor)}
        self._places = tuple(n for n, v in enumerate(saved) if id(v) in given)
        self._kinds = tuple(self._kind(saved[n]) for n in self._places)
        self.noted = True

    def check(self, saved: Sequence[Any]) -> None:
        """Raise ``RuntimeError`` for one that has another type or layout, or is elsewhere, since."""
        if tuple([self._kind(saved[n]) for n in self._places]) == self._kinds:
            return
        for n, expected in zip(self._places, self._kinds, strict=True):
            if (found := self._kind(saved[n])) != expected:
                was, now = (", ".join(map(str, kind)) for kind in (expected, found))
                raise RuntimeError(
                    f"a tensor that a compiled forward saved for its backward was {was}, and is {now} now: "
                    "set its data (Module.to, half, double, ...) after the backward"
                )


_type = operator.attrgetter("dtype", "device")


def _type_and_layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided:
        return tensor.dtype, tensor.device
    return tensor.dtype, tensor.device, tuple(tensor.shape), tensor.stride()


def _versions(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    return tuple(map(version_of, tensors))
