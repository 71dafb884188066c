"""What is compiled by itself and is alike shares units: layers of one class, and functions made anew of one code."""

from __future__ import annotations

import collections
import hashlib
import types
import weakref
from collections.abc import Iterator
from typing import Any

import attrs
from torch import nn

from turret.frames import frame_hook
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
    """What modules of one class and outline, or functions of one code, share that are compiled in the same way.

    Once there are two modules, units know them by what they hold instead of by identity, so that one stands for all.
    Functions are known by their code and by what they look up at each call in any case.
    """

    made_by: tuple[Any, ...] = attrs.field(repr=False)
    """Kept alive as long as this: ids of these are a part of the key."""
    units: list[CompileUnit] = attrs.field(factory=list)
    history: History = attrs.field(factory=History)
    members: weakref.WeakSet[Any] = attrs.field(factory=weakref.WeakSet)
    frames: dict[Any, Any] | None = None
    """Of functions, the units of frames that are reached behind graph breaks; modules have each their own."""

    @property
    def are_several(self) -> bool:
        """Whether more than one module of them was compiled."""
        return self.frames is None and len(self.members) > 1

    def forget(self) -> None:
        """Drop the units and what was learned of sizes."""
        self.units.clear()
        self.history.forget()
        if self.frames is not None:
            self.frames.clear()


_groups: weakref.WeakValueDictionary[Any, Alike] = weakref.WeakValueDictionary()


def find_alike(
    member: Any, context: CompileContext, asked_for: tuple[Any, ...], module: nn.Module, root: types.CodeType
) -> Alike | None:
    """The group that a compiled module belongs to, of which ``member`` becomes one; None for one that shares nothing.

    ``asked_for``: what capture was asked for beside the options; ``root``: the code of the frame that is captured.

    CUDA graphs hold the addresses of parameters, and large models gain more from parameters that stay where they are
    than a second capture costs.
    """
    config = context.config
    if addresses_are_held(config) or not has_few_tensors(module):
        return None
    made_by = _made_by(context)
    key = (root, repr(config), tuple(map(id, made_by)), *asked_for, id(type(module)), outline(module))
    group = _groups.get(key)
    if group is None:
        group = _groups[key] = Alike((*made_by, root, type(module)))
    group.members.add(member)
    return group


def _made_by(context: CompileContext) -> tuple[Any, ...]:
    """What two compilations with the same plugins have in common: the objects given to both; else their hooks."""
    return context.given or (context.hooks,)


class _Functions:
    """The groups of functions that were compiled last, which outlive the functions: more are made of their code."""

    def __init__(self) -> None:
        self.groups: collections.OrderedDict[Any, Alike] = collections.OrderedDict()
        frame_hook.captures.add(self)

    def find(self, key: Any, made_by: tuple[Any, ...]) -> Alike:
        found = self.groups.get(key)
        if found is None:
            found = self.groups[key] = Alike(made_by, frames={})
        self.groups.move_to_end(key)
        while len(self.groups) > _MOST_FUNCTIONS:
            self.groups.popitem(last=False)
        return found

    def forget(self) -> None:
        """Let go of all of them; those whose functions live forget by these."""
        self.groups.clear()


_MOST_FUNCTIONS = 64
function_groups = _Functions()


def find_alike_functions(
    context: CompileContext, asked_for: tuple[Any, ...], function: types.FunctionType
) -> Alike | None:
    """The group that a compiled function belongs to: one of the same code, around functions of the same code.

    None where CUDA graphs are recorded: what a group keeps outlives the function, and recordings hold memory.
    """
    if addresses_are_held(context.config):
        return None
    made_by = (*_made_by(context), *_kinds(function, DEPTH))
    return function_groups.find((tuple(map(id, made_by)), repr(context.config), *asked_for), made_by)


def _kinds(function: types.FunctionType, depth: int) -> Iterator[Any]:
    """A function's code, and of what its closure holds the code of functions and the classes of modules."""
    yield function.__code__
    for cell in function.__closure__ or () if depth else ():
        try:
            held = cell.cell_contents
        except ValueError:
            continue
        if type(held) is types.FunctionType:
            yield from _kinds(held, depth - 1)
        elif issubclass(type(held), nn.Module):
            yield type(held)


def outline(module: nn.Module) -> str:
    """A digest of a module's classes, training flags, and its tensors' names, shapes, dtypes and ``requires_grad``."""
    return hashlib.sha256("\n".join(_lines(module, DEPTH)).encode()).hexdigest()


def _lines(module: nn.Module, depth: int) -> list[str]:
    shapes = [(n, tuple(p.shape), str(p.dtype), p.requires_grad) for n, p in own_tensors(module)]
    lines = [f"{fingerprints.name_of(type(module))} {vars(module).get('training')} {shapes}"]
    for name, child in children(module, depth):
        lines += [name, *_lines(child, depth - 1)]
    return lines
