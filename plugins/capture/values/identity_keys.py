"""Objects that are keys of dicts or members of sets by their identity: what is two at capture may be one later."""

from __future__ import annotations

from collections import defaultdict

import torch

from turret.frames.sources import BoundSource
from turret.plugins.capture.values.base import Tracer, Value


class IdentityKeys:
    """The objects from before the call that one capture hashed by identity, each told apart from the others."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
        self.known: set[int] = set()
        self.held: defaultdict[type, list[Value]] = defaultdict(list)
        """Objects that stay the same ones, by class."""
        self.given: defaultdict[type, list[Value]] = defaultdict(list)
        """Objects that the places they are at may exchange for others, by class."""

    def note(self, value: Value) -> None:
        """Guard that a key is none of the keys before it, where a later call may have one object at both places."""
        if value.source is None or id(value) in self.known:
            return
        self.known.add(id(value))
        kind, is_held = value.type(), isinstance(value.source, BoundSource)
        for other in self.given[kind] if is_held else (*self.given[kind], *self.held[kind]):
            if not self._differ_in_memory(value, other):
                self.t.assume_distinct(value, other)
        (self.held if is_held else self.given)[kind].append(value)

    @staticmethod
    def _differ_in_memory(value: Value, other: Value) -> bool:
        """Whether two are tensors that do not share memory, which guards of the graph's inputs tell."""
        one, two = getattr(value, "object", None), getattr(other, "object", None)
        if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
            return False
        plain = one.layout is torch.strided and two.layout is torch.strided
        held = isinstance(value.source, BoundSource) or isinstance(other.source, BoundSource)
        return plain and not held and one.untyped_storage()._cdata != two.untyped_storage()._cdata
