"""What a side of an ``if`` must leave as it was, as the other one is followed from the same state."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from turret.frames.trace_modes import mode_values
from turret.plugins.capture.branches.undecided import Undecided
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Lazy, Tracer, Value, existed
from turret.plugins.capture.values.functions import Cell
from turret.plugins.capture.values.tensors import Tensor

_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_NO_PARTS = frozenset({"object", "real", "fake", "node", "tracer", "t", "source", "scope", "builtins"})
"""Attributes of values and frames that hold no values, and change for the copies alone that a side has of tensors."""


class Watched:
    """The values that the frames under way lead to, and all else that a side may change, as they are now."""

    def __init__(self, t: Tracer, frame: Any) -> None:
        self.t, self.frame = t, frame
        self.values = reachable(t)
        cells = [v for v in self.values.values() if isinstance(v, Cell) and not existed(v)]
        self.cells = [(c, c.content) for c in cells]
        """Cells that the program made, whose contents are variables as those of the frame are."""
        apart = {id(frame), *map(id, cells)}
        self.parts = [(v, _parts(v)) for v in self.values.values() if id(v) not in apart and _is_new(v)]
        self.modes = mode_values()
        self.state = self._state()
        self.tensors = self._tensors()
        self.symbols = dict(t.recorder.shape_env.var_to_range)
        self.replacements = dict(t.recorder.shape_env.replacements)
        self.asserted = {s: len(a) for s, a in t.recorder.shape_env.deferred_runtime_asserts.items()}
        self.known = set(t.recorder.by_fake)

    def around(self) -> list[Any]:
        """The graphs that are being recorded."""
        return [self.t.recorder.root_graph, *(r.graph for r in self.t.recorder.open_regions)]

    def sharing(self, fake: torch.Tensor) -> list[Tensor]:
        """Tensors of the program that lie in the memory of another, and that a side may come to."""
        storage, around = fake.untyped_storage()._cdata, self.around()
        found = {
            id(v): v
            for number, v in self.t.recorder.by_fake.items()
            if v.node.graph in around and (id(v) in self.values or number not in self.known)
        }
        return [v for v in found.values() if _storage(v.fake) == storage]

    def check(self) -> None:
        """Raise ``Unsupported``, which names what is not as it was."""
        for value, before in self.parts:
            if not _same(before, _parts(value)):
                name = value.describe() if isinstance(value, Value) else "a generator"
                raise Unsupported(f"a branch on data of which a side changes {name} that was made ahead of it")
        after, around = self._state(), self._tensors()
        for name, known in self.state.items():
            if after[name] != known:
                raise Unsupported(f"a branch on data of which a side changes {name}")
        for number, (value, layout) in self.tensors.items():
            if around[number][1] != layout:
                raise Unsupported(f"a branch on data of which a side changes {value.describe()}")
        self._check_symbols()

    def _check_symbols(self) -> None:
        """What a side assumes of data does not hold outside of it."""
        env = self.t.recorder.shape_env
        for symbol, before in self.symbols.items():
            learnt = env.var_to_range.get(symbol) != before or symbol in env.replacements.keys() - self.replacements
            asserted = len(env.deferred_runtime_asserts.get(symbol, ())) != self.asserted.get(symbol, 0)
            if asserted or (learnt and env.is_unbacked_symint(symbol)):
                raise Unsupported("a branch on data of which a side assumes something of a number that depends on data")

    def restore(self) -> None:
        """Bring back what is no part of the check: modes, and contents of cells."""
        now = mode_values()
        for (setter, lead), before in self.modes.items():
            if now[setter, lead] != before:
                setter(*lead, *before)
        for cell, content in self.cells:
            cell.content = content

    def _state(self) -> dict[str, Any]:
        """By words for people, what can be compared."""
        t, recorder = self.t, self.t.recorder
        return {
            "globals": {key: id(value) for key, (_, value) in t.effects.globals.items()},
            "attributes of functions or classes": {key: id(value) for key, value in t.effects.attributes.items()},
            "what is called behind the graph": len(t.effects.later),
            "modes": mode_values(),
            "blocks of modes": (
                t.state.nesting, *map(len, (t.state.dual_levels, t.state.inference_blocks, t.state.recordings)),
                list(recorder.devices), dict(recorder.tags), t.hooks_refused, len(t.ignored), len(t.state.switched),
            ),
            "data of tensors": (len(recorder.data_copies), len(recorder.resized_data)),
            "gradients": (len(recorder.freed.steps), len(recorder.retained)),
            "objects with finalizers": len(t.finalized),
            "arrays": tuple(map(len, (t.shared_arrays, t.tensors_of_arrays, t.copied_views, t.arrays_made))),
        }  # fmt: skip

    def _tensors(self) -> dict[int, tuple[Tensor, tuple]]:
        recorder, around = self.t.recorder, self.around()
        found = {n: v for n, v in recorder.by_fake.items() if v.node.graph in around}
        return {n: (v, (recorder.versions.of(v.fake), *_layout(v.fake))) for n, v in found.items()}


def _storage(fake: torch.Tensor) -> int:
    return fake.untyped_storage()._cdata if fake.layout is torch.strided else id(fake)


def _layout(fake: torch.Tensor) -> tuple:
    sizes = (str(fake.shape), str(fake.stride()), str(fake.storage_offset())) if fake.layout is torch.strided else ()
    return (*sizes, fake.dtype, fake.requires_grad, fake.grad_fn)


def _is_new(value: Any) -> bool:
    """Whether it is one that the program made, of whose changes effects are not told."""
    return not isinstance(value, (Lazy, Value)) or (not isinstance(value, Lazy) and value.source is None)


def reachable(t: Tracer, *held: Value) -> dict[int, Any]:
    """Values, and frames of generators, that the program may still come to, by id; ``held`` among them."""
    effects, frames = t.effects, t.call_stack.frames
    pending: list[Any] = [*held, *frames, *t.objects.values(), *effects.changed.values(), *effects.attributes.values()]
    pending += [*effects.globals.values(), *t.generators, *t.remembered.values(), *t.call_stack.handed_on]
    pending += [call.args for call in effects.later]
    kinds: tuple[type, ...] = (Value, *{type(f) for f in frames})
    found: dict[int, Any] = {}
    seen: dict[int, Any] = {}
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        if isinstance(value, kinds):
            seen[id(value)] = found[id(value)] = value
            if isinstance(value, Lazy) and not isinstance(value, Undecided):
                pending.append(value.made)
            else:
                pending += [v for _, v in _attributes(value)]
        elif isinstance(value, _CONTAINERS):
            seen[id(value)] = value
            pending += [*value.keys(), *value.values()] if isinstance(value, dict) else value
    return found


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    return ((name, v) for name, v in getattr(value, "__dict__", {}).items() if name not in _NO_PARTS)


def _parts(value: Any) -> dict[str, Any]:
    """What a value is made of, and for containers among that, what they hold."""
    return {name: _held(v) if isinstance(v, _CONTAINERS) else v for name, v in _attributes(value)}


def _held(container: Any) -> tuple:
    if isinstance(container, dict):
        return (dict, *(p for k, v in container.items() for p in (k, v)))
    return (type(container), *container)


def _same(one: Any, other: Any, depth: int = 3) -> bool:
    if one is other:
        return True
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(v, other[k], depth) for k, v in one.items())
    if type(one) is tuple and type(other) is tuple and depth:
        return len(one) == len(other) and all(_same(a, b, depth - 1) for a, b in zip(one, other, strict=True))
    plain = (int, str, float, bool, type(None))
    return type(one) is type(other) and isinstance(one, plain) and one == other


@contextlib.contextmanager
def counting_changes(t: Tracer, *held: Value) -> Iterator[Callable[[], bool]]:
    """Within, changes of whatever the program may come to are counted, objects that its frames made among them.

    What is handed out says whether one was made.  ``held``: values that are still to be handed on.
    """
    effects = t.effects
    outer, count = effects.watched, effects.count
    effects.watched = {**outer, **reachable(t, *held)}
    try:
        yield lambda: effects.count != count
    finally:
        effects.watched = outer
