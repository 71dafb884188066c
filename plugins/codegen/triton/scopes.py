"""Blocks of Triton source under construction, and where in them a value belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from turret.ir.index import Var


class Scope:
    """The body of the kernel or of a loop in it: its lines so far, the variables bound, the values that have names.

    A child's text reaches its parent when the child is closed, so what a child hoists into its parent meanwhile
    comes before it.  ``level`` counts the passes over the row whose reductions can be used.
    """

    def __init__(self, parent: Scope | None = None, header: str = "") -> None:
        self.parent, self.header = parent, header
        self.variables: dict[Var, str] = {}
        self.names: dict[Any, str] = {}
        self.lines: list[str] = []
        self.level = 0 if parent is None else parent.level

    def chain(self) -> Iterator[Scope]:
        """This scope, its parent, and so on."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    @property
    def depth(self) -> int:
        return sum(1 for _ in self.chain())

    def variable(self, variable: Var) -> str:
        """The name of a bound variable."""
        for scope in self.chain():
            if variable in scope.variables:
                return scope.variables[variable]
        raise AssertionError(f"{variable} is not bound")

    def home(self, variables: Iterable[Var], level: int) -> Scope:
        """The outermost scope in which something that needs these variables and passes can be computed."""
        needed = frozenset(variables)
        scope = self
        while scope.parent is not None and not needed & scope.variables.keys() and level <= scope.parent.level:
            scope = scope.parent
        return scope

    def named(self, key: Any, outermost: Scope) -> str | None:
        """The name of a value in the nearest scope from here out to ``outermost``."""
        for scope in self.chain():
            if key in scope.names:
                return scope.names[key]
            if scope is outermost:
                return None
        return None

    def line(self, text: str) -> None:
        self.lines.append(text)

    def close(self) -> None:
        """Hand the finished block to the parent."""
        self.parent.lines += [self.header, *(f"    {line}" for line in self.lines or ["pass"])]
