"""Functions that run later than they are traced (a backward, a gradient hook): what they may change from before."""

from __future__ import annotations

from typing import Any

import torch

from turret.graph.wrapper_tensors import parts_of
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.record.graph import Subgraph, metadata
from turret.plugins.capture.values.base import Lazy, Tracer, Value
from turret.torch_compat.autograd import set_version_counters


class RunsLater:
    """What there is when the trace of such a function begins.

    A change that the trace makes to it would be made once and now, and not each time that the function runs: to objects
    of the program, and to those that the frames made so far.  Writes to tensors are part of the function's graph: to
    capture they are as if they had not happened.
    """

    def __init__(self, t: Tracer, *held: Value) -> None:
        """``held``: values that the function may reach beside those in variables of the frames."""
        self.t, self.outer = t, t.effects.watched
        variables = (v for f in t.call_stack.frames for v in (*f.locals, *f.stack))
        t.effects.watched = self.outer | reachable([*held, *variables])
        self.count = t.effects.count
        self.inputs = len(t.recorder.inputs)
        self.before = [(v.fake, t.recorder.versions.of(v.fake), _form(v.fake)) for v in t.recorder.by_fake.values()]

    def writes(self, region: Subgraph, own: int, what: str, hint: str = "") -> frozenset[int]:
        """Which inputs of ``region``, the function's graph, lie in memory that it writes to.

        Raises ``Unsupported`` where it changes what is no tensor, or where the write cannot be left to the graph.
        ``own``: how many of the open regions are the function's; ``what`` is the function, for people.
        """
        t = self.t
        t.effects.watched = self.outer
        if t.effects.count != self.count:
            raise Unsupported(f"{what} that changes what existed before", hint)
        written = self._written()
        if any(laid_out for _, _, laid_out in written):
            raise Unsupported(f"{what} that lays out a tensor from before anew", hint)
        if not written:
            return frozenset()
        fakes = [fake for fake, _, _ in written]
        if len(t.recorder.open_regions) > own or t.recorder.tags or any(fake.is_inference() for fake in fakes):
            raise Unsupported(f"{what} that writes to a tensor from before, in a part of the graph", hint)
        set_version_counters(tuple(fakes), tuple(version for _, version, _ in written))
        t.recorder.versions.later.update(_memory(part) for fake in fakes for part in parts_of(fake))
        t.blocks.refuse(f"{what} that writes to a tensor from before")
        changed = set(map(id, fakes))
        return frozenset(n for n, node in enumerate(region.lifted) if id(node.meta["example_value"]) in changed)

    def _written(self) -> list[tuple[torch.Tensor, int, bool]]:
        """Tensors that have changed, with the versions that they had, and whether they are laid out anew."""
        recorder = self.t.recorder
        met = [i.example for i in recorder.inputs[self.inputs :] if isinstance(i.example, torch.Tensor)]
        known = (*self.before, *((fake, 0, _form(fake)) for fake in met))
        now = ((fake, version, _form(fake) != form) for fake, version, form in known)
        return [(f, version, anew) for f, version, anew in now if anew or recorder.versions.of(f) != version]


def _memory(fake: torch.Tensor) -> int:
    return fake.untyped_storage()._cdata


def _form(fake: torch.Tensor) -> tuple:
    """What a change of a tensor's layout in place shows up in."""
    return fake.layout, metadata(fake) if fake.layout is torch.strided else None


def reachable(pending: list[Any]) -> dict[int, Value]:
    """All values that these hold and that were looked at, by id."""
    found: dict[int, Value] = {}
    while pending:
        value = pending.pop()
        if type(value) in (list, tuple):
            pending += value
        elif type(value) is dict:
            pending += [*value.keys(), *value.values()]
        elif isinstance(value, Lazy):
            pending.append(value.made)
        elif isinstance(value, Value) and id(value) not in found:
            found[id(value)] = value
            pending += [part for name, part in vars(value).items() if name not in _REAL]
    return found


_REAL = frozenset(("cell", "fake", "object", "real", "scope", "value"))
"""Attributes of values that hold the program's own objects, which are noted when they change."""
