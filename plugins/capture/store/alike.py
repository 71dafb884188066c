"""Compiled modules that are alike: layers of one class, each given to ``turret.compile`` by itself, share units."""

from __future__ import annotations

import hashlib
import itertools
import types
import weakref
from typing import TYPE_CHECKING, Any

import attrs
from torch import nn

from turret.plugins.capture.facts import fingerprints
from turret.plugins.capture.facts.policy import History
from turret.plugins.capture.store.unit import Unit

if TYPE_CHECKING:
    from turret.plugins.capture.store.settings import Settings

MOST_TENSORS = 64
"""Parameters and buffers of a module that may share units: a unit for several modules fetches them at each call."""


@attrs.define(eq=False, weakref_slot=True)
class Alike:
    """What modules of one class and outline, compiled in the same way, share.

    Once there are two of them, units know them by what they hold instead of by identity, so that one stands for all.
    """

    made_by: tuple[Any, ...] = attrs.field(repr=False)
    """Kept alive as long as this: ids of these are a part of the key."""
    units: list[Unit] = attrs.field(factory=list)
    history: History = attrs.field(factory=History)
    members: weakref.WeakSet[Settings] = attrs.field(factory=weakref.WeakSet)

    @property
    def are_several(self) -> bool:
        """Whether more than one of them was compiled."""
        return len(self.members) > 1

    def forget(self) -> None:
        """Drop the units and what was learned of sizes."""
        self.units.clear()
        self.history.forget()


_groups: weakref.WeakValueDictionary[Any, Alike] = weakref.WeakValueDictionary()


def find_alike(settings: Settings, module: nn.Module, root: types.CodeType) -> Alike | None:
    """The group that a compiled module belongs to; None for one that shares nothing.

    CUDA graphs hold the addresses of parameters, and large models gain more from parameters that stay where they are
    than a second capture costs.
    """
    config, hooks = settings.context.config, settings.context.hooks
    if config.cudagraphs or config.cudagraph_after_calls:
        return None
    tensors = itertools.islice(itertools.chain(module.parameters(), module.buffers()), MOST_TENSORS + 1)
    if len(list(tensors)) > MOST_TENSORS:
        return None
    key = (root, repr(config), id(hooks), settings.fullgraph, settings.dynamic, type(module), outline(module))
    group = _groups.get(key)
    if group is None:
        group = _groups[key] = Alike((hooks, root))
    group.members.add(settings)
    return group


def outline(module: nn.Module) -> str:
    """A digest of a module's classes, training flags, and its tensors' names, shapes, dtypes and ``requires_grad``."""
    return hashlib.sha256("\n".join(_lines(module, 12)).encode()).hexdigest()


def _lines(module: nn.Module, depth: int) -> list[str]:
    own = vars(module)
    tensors = [(n, p) for part in ("_parameters", "_buffers") for n, p in own.get(part, {}).items() if p is not None]
    shapes = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in tensors]
    lines = [f"{fingerprints.name_of(type(module))} {own.get('training')} {shapes}"]
    for name, child in own.get("_modules", {}).items():
        if isinstance(child, nn.Module) and depth:
            lines += [name, *_lines(child, depth - 1)]
    return lines
