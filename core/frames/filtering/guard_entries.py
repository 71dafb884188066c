"""Guards as a guard filter sees them: what they are about, by the names that torch's own filters ask for.

``torch.compiler.keep_tensor_guards_unsafe`` and its kin, and filters that serving engineers wrote for torch.compile,
look at ``guard_type``, ``name``, ``value``, ``is_global`` and ``orig_guard.source``; they work unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch

from turret.frames.guards import Guard
from turret.frames.sources import BoundSource, Source, SourceReader

TORCHS_NAMES = {
    "TYPE": "TYPE_MATCH",
    "ID": "ID_MATCH",
    "EQUALS": "EQUALS_MATCH",
    "TENSOR": "TENSOR_MATCH",
    "LENGTH": "SEQUENCE_LENGTH",
    "KEYS": "DICT_KEYS_MATCH",
    "OWN_LENGTH": "SEQUENCE_LENGTH",
    "OWN_KEYS": "DICT_KEYS_MATCH",
    "HAS_KEY": "DICT_CONTAINS",
    "NO_KEY": "DICT_NOT_CONTAINS",
    "IS": "ID_MATCH",
    "SAME": "DUPLICATE_INPUT",
    "NOT_SAME": "OBJECT_ALIASING",
    "SIZES": "SHAPE_ENV",
    "STORAGE": "STORAGE_OVERLAPPING",
    "GLOBAL_STATE": "GLOBAL_STATE",
}
"""Kinds of guards by the names that torch.compile has for them; other kinds keep their own."""


@attrs.frozen(eq=False)
class SourceEntry:
    """Where a guard's object was found: ``owners`` are the modules on the way to it, the root first."""

    text: str
    owners: tuple[torch.nn.Module, ...]

    def name(self) -> str:
        return self.text

    def is_unspecialized_nn_module(self) -> bool:
        """Whether it belongs to a module (and is not a plain argument, say)."""
        return bool(self.owners)

    def is_unspecialized_builtin_nn_module(self) -> bool:
        """Whether the module that it belongs to is one of torch's own classes."""
        return bool(self.owners) and type(self.owners[-1]).__module__.startswith(("torch.nn.", "torch.ao."))


@attrs.frozen(eq=False)
class OriginalGuard:
    """A guard beside its source."""

    guard: Guard
    source: SourceEntry

    @property
    def name(self) -> str:
        return self.source.text


@attrs.frozen(eq=False)
class GuardEntry:
    """One guard for a filter.

    ``name``: the expression that finds the object; ``guard_type``: torch's name of the guard's kind; ``value``: the
    object, if ``has_value``; ``is_global``: found through a module's globals.
    """

    name: str
    has_value: bool
    value: Any = attrs.field(repr=False)
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: OriginalGuard = attrs.field(repr=False)

    @property
    def kind(self) -> str:
        """Turret's own name of the guard's kind."""
        return self.orig_guard.guard.kind


def guard_entries(guards: Sequence[Guard], function: Any, arguments: tuple[Any, ...]) -> tuple[GuardEntry, ...]:
    """What a filter is shown of guards taken in a call of ``function``."""
    reader = SourceReader(function, arguments)

    def value_of(source: Source) -> Any:
        try:
            return reader.read(source)
        except Exception as error:
            return error

    def entry(guard: Guard) -> GuardEntry:
        source = guard.source
        value = None if source is None else value_of(source)
        name = "" if source is None else str(source)
        steps = [] if source is None else map(value_of, source.steps())
        owners = [step for step in steps if isinstance(step, torch.nn.Module)]
        return GuardEntry(
            name=name,
            has_value=source is not None,
            value=value,
            guard_type=TORCHS_NAMES.get(guard.kind, guard.kind),
            derived_guard_types=(),
            is_global=source is not None and _is_namespace(source.root()),
            orig_guard=OriginalGuard(guard, SourceEntry(name, tuple(owners))),
        )

    return tuple(map(entry, guards))


def _is_namespace(source: Source) -> bool:
    return isinstance(source, BoundSource) and isinstance(source.value, dict) and "__name__" in source.value
