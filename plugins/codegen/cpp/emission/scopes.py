"""Blocks of C++ under construction."""

from __future__ import annotations

from turret.ir.emit.c_emitter import Block


class Scope(Block):
    """A block of C++, with what stands ahead of its brace, and above that."""

    def __init__(self, parent: Scope | None = None, header: str = "", pragma: str = "") -> None:
        super().__init__(parent, header)
        self.pragma = pragma

    def text(self) -> list[str]:
        block = super().text()
        if not self.pragma:
            return block
        clause = " reduction(|:error)" if any("error |=" in line for line in block) else ""
        return [f"#pragma {self.pragma}{clause}", *block]
