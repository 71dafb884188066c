"""Blocks of Triton source under construction."""

from __future__ import annotations

from turret.ir.emit.scopes import Scope as TextScope


class Scope(TextScope):
    """The body of a Triton kernel, or of a loop in it under its ``header``."""

    def __init__(self, parent: Scope | None = None, header: str = "") -> None:
        super().__init__(parent)
        self.header = header

    def close(self) -> None:
        """Hand the finished block to the parent."""
        assert self.parent is not None
        self.parent.lines += [self.header, *(f"    {line}" for line in self.lines or ["pass"])]
