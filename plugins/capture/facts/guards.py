"""The guards that one capture takes, each with the line of the program that it was taken at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from turret.frames.guards import Guard
from turret.frames.sources import AttrSource, BoundSource, Source

_OF_THE_OBJECT = frozenset({"TYPE", "ID", "EQUALS", "SAME"})
"""Kinds that hold by themselves of an object that the unit holds."""


class Guards:
    """Assumptions in the order in which they were taken, each once."""

    def __init__(self, location: Callable[[], str]) -> None:
        """``location`` tells the file and line under capture."""
        self.location = location
        self.taken: dict[Guard, None] = {}
        self.watchers: list[Callable[[Guard], None]] = []
        """Told of each guard that the program's code led to, new or not."""
        self.no_global_hooks = False

    def __iter__(self) -> Iterator[Guard]:
        return iter(self.taken)

    def __len__(self) -> int:
        return len(self.taken)

    def add(self, guard: Guard) -> None:
        """Take an assumption of the capture's own."""
        self.taken.setdefault(guard)

    def take(self, kind: str, source: Source, expected: Any = None, others: tuple[Source, ...] = ()) -> None:
        """Take an assumption that the program's code led to."""
        if isinstance(source, BoundSource) and kind in _OF_THE_OBJECT:
            return
        guard = Guard(kind, source, expected, others, self.location())
        self.taken.setdefault(guard)
        for watcher in self.watchers:
            watcher(guard)

    def assume_no_global_hooks(self, module: Any, names: tuple[str, ...]) -> None:
        """Assume that the dicts of these names in a module, which hold hooks for all modules, stay empty."""
        if not self.no_global_hooks:
            self.no_global_hooks = True
            for name in names:
                self.take("KEYS", AttrSource(BoundSource(module.__name__, module), name), ())
