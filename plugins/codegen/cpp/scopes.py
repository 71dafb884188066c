"""Blocks of C++ under construction, and where in them a value belongs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from turret.ir.index import Var


class Scope:
    """A block: its lines so far, the loops open in it, and the values that have names in it.

    A child's text reaches its parent when the child is closed, so what a child hoists into its parent meanwhile
    comes before it.  ``level`` counts the phases of row reductions whose results can be used.
    """

    def __init__(self, parent: Scope | None = None, header: str = "", pragma: str = "") -> None:
        self.parent, self.header, self.pragma = parent, header, pragma
        self.variables: dict[Var, str] = {}
        self.names: dict[Any, str] = {}
        self.lines: list[str] = []
        self.level = 0 if parent is None else parent.level
        self.depth: int = 0 if parent is None else parent.depth + 1

    def chain(self) -> Iterator[Scope]:
        """This scope, its parent, and so on."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def bind(self, variable: Var, name: str) -> None:
        """Say which C++ variable a loop variable is from here on."""
        self.variables[variable] = name

    def variable(self, variable: Var) -> str:
        """The C++ name of an open loop variable."""
        for scope in self.chain():
            if variable in scope.variables:
                return scope.variables[variable]
        raise AssertionError(f"loop {variable} is not open")

    def home(self, variables: Iterable[Var], level: int) -> Scope:
        """The outermost scope in which something that needs these loops and phases can be computed."""
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
        self.parent.lines += self.text()

    def text(self) -> list[str]:
        """The block's lines, header and braces included."""
        body = [line if line.startswith("#") else "  " + line for line in self.lines]
        block = [f"{self.header} {{".lstrip(), *body, "}"]
        if not self.pragma:
            return block
        clause = " reduction(|:error)" if any("error |=" in line for line in body) else ""
        return [f"#pragma {self.pragma}{clause}", *block]
