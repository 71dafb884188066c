"""Blocks of Triton source under construction."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from turret.ir.emit.scopes import Scope as TextScope
from turret.ir.index import Var


class Scope(TextScope):
    """The body of a Triton kernel, or of a loop in it under its ``header``.

    ``whole``: tile variables of which every block in it lies within the tile's extent.
    """

    vectors: str = ""
    """Where the vectors of a row lie in memory, in a block of some; nothing where its elements may begin anywhere."""

    def __init__(self, parent: Scope | None = None, header: str = "", whole: Collection[Var] = ()) -> None:
        super().__init__(parent)
        self.header, self.whole = header, whole

    def close(self) -> None:
        """Hand the finished block to the parent."""
        assert self.parent is not None
        self.parent.lines += [self.header, *(f"    {line}" for line in self.lines or ["pass"])]


class RowPart(Scope):
    """Values of some elements of a row, written among those of the block around them.

    ``block``: how many elements.
    """

    ahead: tuple[RowPart, RowPart] | None = None
    """In a loop over rows: the same elements of the program's first row, and of the row behind the one in hand."""

    def __init__(self, parent: Scope, block: str) -> None:
        super().__init__(parent)
        self.lines, self.block = parent.lines, block


class WalkedPart(RowPart):
    """The same of each row in a loop over rows.

    ``shared``: the part of what all those rows share, which is written in front of the loop.
    """

    def __init__(self, loop: Scope, shared: RowPart) -> None:
        super().__init__(loop, shared.block)
        self.shared = shared

    def chain(self) -> Iterator[Scope]:  # type: ignore[override]
        """This scope, what rows share, the loop, and so on."""
        assert self.parent is not None
        yield self
        yield self.shared
        yield from self.parent.chain()

    def home(self, variables: Iterable[Var], level: int) -> Scope:  # type: ignore[override]
        """As in the base; what varies along the row alone is the same for all rows."""
        assert self.parent is not None
        needed = frozenset(variables)
        if not needed & self.shared.variables.keys():
            return self.parent.home(needed, level)
        return self if needed & self.parent.variables.keys() else self.shared
