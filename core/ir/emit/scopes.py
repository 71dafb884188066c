"""Blocks of source text under construction, and where in them a value belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Self

from turret.ir.index import Var


class Scope:
    """The body of a kernel or of a loop in it: its lines so far, the loops open in it, the values that have names.

    A child's text reaches its parent when the child is closed, so what a child hoists into its parent meanwhile
    comes before it.  ``level`` counts the phases of row reductions whose results can be used.  Each language's scope
    adds how a block is written, and ``close``.
    """

    def __init__(self, parent: Self | None = None) -> None:
        self.parent = parent
        self.variables: dict[Var, str] = {}
        self.names: dict[Any, str] = {}
        self.lines: list[str] = []
        self.level: int = 0 if parent is None else parent.level
        self.depth: int = 0 if parent is None else parent.depth + 1

    def chain(self) -> Iterator[Self]:
        """This scope, its parent, and so on."""
        scope: Self | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def variable(self, variable: Var) -> str:
        """The name that an open loop's variable has in the source."""
        for scope in self.chain():
            if variable in scope.variables:
                return scope.variables[variable]
        raise AssertionError(f"loop {variable} is not open")

    def home(self, variables: Iterable[Var], level: int) -> Self:
        """The outermost scope in which something that needs these loops and phases can be computed."""
        needed = frozenset(variables)
        scope = self
        while scope.parent is not None and not needed & scope.variables.keys() and level <= scope.parent.level:
            scope = scope.parent
        return scope

    def named(self, key: Any, outermost: Self) -> str | None:
        """The name of a value in the nearest scope from here out to ``outermost``."""
        for scope in self.chain():
            if key in scope.names:
                return scope.names[key]
            if scope is outermost:
                return None
        return None

    def line(self, text: str) -> None:
        self.lines.append(text)
