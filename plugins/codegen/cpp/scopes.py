"""Blocks of C++ under construction."""

from __future__ import annotations

from turret.ir.index import Var
from turret.scopes import Scope as TextScope


class Scope(TextScope):
    """A block of C++, with what stands ahead of its brace."""

    def __init__(self, parent: Scope | None = None, header: str = "", pragma: str = "") -> None:
        super().__init__(parent)
        self.header, self.pragma = header, pragma

    def bind(self, variable: Var, name: str) -> None:
        """Say which C++ variable a loop variable is from here on."""
        self.variables[variable] = name

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
