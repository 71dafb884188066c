"""Compiled modules that are alike: layers of one class, each given to ``turret.compile`` by itself, share units."""

from __future__ import annotations

import hashlib
import types
import weakref
from typing import Any

import attrs
from torch import nn

from turret.hooks.context import CompileContext
from turret.plugins.capture.facts import fingerprints
from turret.plugins.capture.facts.module_tensors import (
    DEPTH,
    addresses_are_held,
    children,
    has_few_tensors,
    own_tensors,
)
from turret.plugins.capture.facts.policy import History
from turret.plugins.capture.store.unit import CompileUnit


@attrs.define(eq=False, weakref_slot=True)
class Alike:
    """What modules of one class and outline, compiled in the same way, share.

    Once there are two of them, units know them by what they hold instead of by identity, so that one stands for all.
    """

    made_by: tuple[Any, ...] = attrs.field(repr=False)
    """Kept alive as long as this: ids of these are a part of the key."""
    units: list[CompileUnit] = attrs.field(factory=list)
    history: History = attrs.field(factory=History)
    members: weakref.WeakSet[Any] = attrs.field(factory=weakref.WeakSet)

    @property
    def are_several(self) -> bool:
        """Whether more than one of them was compiled."""
        return len(self.members) > 1

    def forget(self) -> None:
        """Drop the units and what was learned of sizes."""
        self.units.clear()
        self.history.forget()


_groups: weakref.WeakValueDictionary[Any, Alike] = weakref.WeakValueDictionary()


def find_alike(
    member: Any, context: CompileContext, asked_for: tuple[Any, ...], module: nn.Module, root: types.CodeType
) -> Alike | None:
    """The group that a compiled module belongs to, of which ``member`` becomes one; None for one that shares nothing.

    ``asked_for``: what capture was asked for beside the options; ``root``: the code of the frame that is captured.

    CUDA graphs hold the addresses of parameters, and large models gain more from parameters that stay where they are
    than a second capture costs.
    """
    config, hooks = context.config, context.hooks
    if addresses_are_held(config) or not has_few_tensors(module):
        return None
    key = (root, repr(config), id(hooks), *asked_for, id(type(module)), outline(module))
    group = _groups.get(key)
    if group is None:
        group = _groups[key] = Alike((hooks, root, type(module)))
    group.members.add(member)
    return group


def outline(module: nn.Module) -> str:
    """A digest of a module's classes, training flags, and its tensors' names, shapes, dtypes and ``requires_grad``."""
    return hashlib.sha256("\n".join(_lines(module, DEPTH)).encode()).hexdigest()


def _lines(module: nn.Module, depth: int) -> list[str]:
    shapes = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in own_tensors(module)]
    lines = [f"{fingerprints.name_of(type(module))} {vars(module).get('training')} {shapes}"]
    for name, child in children(module, depth):
        lines += [name, *_lines(child, depth - 1)]
    return lines
