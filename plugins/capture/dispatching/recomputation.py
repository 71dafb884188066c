"""Checkpointed regions: their recomputation runs, call by call, the units that the forward ran.

``torch.utils.checkpoint`` counts the tensors that a region saves in its forward and takes those that the recomputation
saves for them, by position.  What a compiled graph saves is its own affair, so another unit of the same frame (a
dynamic one that was captured since), or plain Python where the forward ran a graph, would hand wrong tensors to the
backward.  The forward therefore notes what ran, and the recomputation does the same or says that it cannot.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import torch.utils.checkpoint

from turret.errors import RecomputationError
from turret.frames.saved_tensor_hooks import enclosed
from turret.plugins.capture.store.unit import CompileUnit
from turret.torch_compat.autograd import top_saved_tensor_hooks

_CHECKPOINT = torch.utils.checkpoint.__name__
_NOTES = "_turret_calls"


@attrs.define(eq=False)
class CheckpointedRegion:
    """What frames of one checkpointed region ran, in order: the code, and its unit (None: as Python)."""

    calls: list[tuple[types.CodeType, CompileUnit | None]] = attrs.field(factory=list)
    made: weakref.WeakKeyDictionary[Callable, int] = attrs.field(factory=weakref.WeakKeyDictionary)
    """For each recomputation, by its pack hook, how many of the calls it has made."""


@attrs.frozen
class Position:
    """A place in a region: in its forward, or in the recomputation that ``hook`` packs the tensors of."""

    region: CheckpointedRegion
    hook: Callable | None

    def note(self, function: types.FunctionType, unit: CompileUnit | None) -> None:
        """The forward calls a function and runs a unit for it."""
        self.region.calls.append((function.__code__, unit))

    def unit(self, function: types.FunctionType, arguments: tuple) -> CompileUnit | None:
        """The unit that the forward ran at this place; ``RecomputationError`` where it does not stand for this call."""
        assert self.hook is not None, "a forward runs what it finds"
        number = self.region.made.get(self.hook, 0)
        self.region.made[self.hook] = number + 1
        name = function.__qualname__
        if number >= len(self.region.calls) or self.region.calls[number][0] is not function.__code__:
            raise RecomputationError(f"it called {name}, which the forward did not call at this point; {_ADVICE}")
        unit = self.region.calls[number][1]
        if unit is not None and not unit.check(function, *arguments):
            reason = unit.checked_guards().explain(function, arguments)
            raise RecomputationError(f"{name} ran compiled in the forward, and now {reason}; {_ADVICE}")
        return unit


_ADVICE = (
    "what a checkpointed function reads beside its arguments has to be the same in both; "
    "leave the function uncompiled where it is not"
)


def position() -> Position | None:
    """Where this thread is in a checkpointed region; None outside of one."""
    hooks = top_saved_tensor_hooks(False)
    if hooks is None or getattr(hooks[0], "__module__", None) != _CHECKPOINT:
        return None
    pack = hooks[0]
    frame = enclosed(pack, "frame")
    if frame is not None:
        return Position(_region_of(frame), None)
    reference = enclosed(pack, "target_frame_ref")
    frame = None if reference is None else reference()
    return None if frame is None else Position(_region_of(frame), pack)


def _region_of(frame: Any) -> CheckpointedRegion:
    found = vars(frame).get(_NOTES)
    if found is None:
        found = vars(frame)[_NOTES] = CheckpointedRegion()
    return found
