"""What autograd is handed: outputs that the user may write to, and saved tensors whose versions mean something."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turret.torch_compat.operators.ops import neg_view


class AutogradOutputs:
    """Makes a forward's results fit for autograd and for the user.

    A plan may return an output as a view of a buffer, which is its own affair: eager's result is no view of a hidden
    tensor, and autograd forbids writing to views that a custom function made.  So the output becomes a tensor of its
    own in the same memory, and saved tensors in that memory become views of it, so that a write to the output is
    seen as one to them.

    Saved tensors without elements are parted from the tensors that they come from: eager's formulas save none of
    them or others, and a write to an empty view of an input changes nothing.

    Which results are such is taken from the first call; ``idle`` says after it that there are none.
    """

    def __init__(self, outputs: int, saved: int) -> None:
        self._outputs, self._end = outputs, outputs + saved
        self._views: tuple[tuple[int, tuple[int, ...]], ...] = ()
        self._empty: tuple[int, ...] = ()
        self._known = self.idle = False

    def __call__(self, inputs: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
        """``results`` (outputs, saved tensors, sizes) as they are, or a list with some replaced."""
        if not self._known:
            self._views = tuple(self._find_views(inputs, results))
            self._empty = tuple(n for n in range(self._outputs, self._end) if results[n].numel() == 0)
            self._known, self.idle = True, not self._views and not self._empty
        if self.idle:
            return results
        made = list(results)
        for n, partners in self._views:
            own = made[n] = results[n].data
            for m in partners:
                made[m] = _view_as(own, results[m])
        for n in self._empty:
            made[n] = results[n].data
        return made

    def _find_views(self, inputs: Sequence[Any], results: Sequence[Any]) -> list[tuple[int, tuple[int, ...]]]:
        """Numbers of outputs that are views of a plan's buffer, each with those of the saved tensors in that memory."""
        given = {_memory(x) for x in inputs if isinstance(x, torch.Tensor)}
        found = []
        for n in range(self._outputs):
            output = results[n]
            if not isinstance(output, torch.Tensor) or not output._is_view() or _memory(output) in given:
                continue
            partners = [m for m in range(self._end) if m != n and _shares(results[m], output)]
            if all(m >= self._outputs and results[m].dtype == output.dtype for m in partners):
                found.append((n, tuple(partners)))
        return found


def _view_as(own: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    """A view of ``own`` that reads as ``saved``, which lies in the same memory: conjugated or negated where that is."""
    view = own.as_strided(saved.size(), saved.stride(), saved.storage_offset())
    if view.is_conj() != saved.is_conj():
        view = view.conj()
    return view if view.is_neg() == saved.is_neg() else neg_view(view)


def _memory(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata


def _shares(value: Any, output: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and _memory(value) == _memory(output)
