"""What emission asks about the expressions of one tiling; every answer is computed once."""

from __future__ import annotations

from turret.ir.emit.emitter import ExprFacts
from turret.ir.expr import Expr, walk
from turret.ir.index import Index, Size, Value, Var
from turret.ir.program import TensorDecl
from turret.plugins.codegen.triton.tiles.split_kernel import is_scratch
from turret.plugins.codegen.triton.tiles.tiling import Tiling

NARROW = (1 << 31) - (1 << 18)
"""Offsets and extents below this, blocks that reach beyond the end included, fit 32-bit indices."""


class Facts(ExprFacts):
    """Answers about expressions: passes over the row that must be over, need of a mask, need of 64-bit indices."""

    def __init__(self, tiling: Tiling) -> None:
        super().__init__(tiling.nest.tensors)
        self.tiling = tiling
        self._levels: dict[Expr, int] = {}
        self._spans: dict[Expr, frozenset[Var]] = {}
        # Reductions computed in the same pass as one that they use (sums of an online softmax).
        self.together: dict[Expr, Expr] = {}

    def _used(self) -> list[TensorDecl]:
        """The tensors that the kernel reads or writes, in an order that every process finds."""
        tensors, stores = self.tensors, self.tiling.stores
        read = [node.tensor for node in walk(*(r for s in stores for r in s.roots)) if node.op == "load"]
        return [tensors[name] for name in dict.fromkeys([*read, *(store.tensor for store in stores)])]

    def is_wide(self) -> bool:
        """Whether an index or an offset may not fit 32 bits (taken for granted where a size is symbolic)."""
        extents = [tile.extent for tile in self.tiling.tiles] + self.reaches()
        if not all(isinstance(extent, int) and extent < NARROW for extent in extents):
            return True
        return any(isinstance(end, int) and end >= NARROW for end in self.ends())

    def ends(self) -> list[Size | None]:
        """Ends, the lower ones negated, of the numbers that indices are as values, and of what indices divide; None
        where unknown.  An offset has none: it lies within its tensor's reach."""
        found: list[Size | None] = []
        for node in walk(*(root for store in self.tiling.stores for root in store.roots)):
            if node.op == "index":
                found += _ends(node.payload)
        for index in self.tiling.nest.indices():
            found += _inner_ends(index)
        return found

    def reaches(self) -> list[Size]:
        """Largest offset of an element of each tensor, or more where that is symbolic."""
        return [_reach(decl) for decl in self._used()]

    def is_half(self) -> bool:
        """Whether all numbers that the kernel reads and writes are of half types (and there are some).

        Partial results that stages hand on count as what they are made of.
        """
        used = [decl for decl in self._used() if not is_scratch(decl)]
        floats = [decl.dtype for decl in used if decl.dtype.is_floating_point]
        return bool(floats) and all(dtype.itemsize == 2 for dtype in floats)

    def is_row(self, expr: Expr) -> bool:
        """Whether a node is a reduction along the row."""
        row = self.tiling.row
        return expr.op == "reduce" and row is not None and expr.payload.variables == (row.variable,)

    def level(self, expr: Expr) -> int:
        """As in the base, 0 where the row lies in one block."""
        if self.tiling.persistent:
            return 0
        found = self._levels.get(expr)
        if found is None:
            partner = self.together.get(expr)
            if partner is not None:
                found = self.level(partner)
            else:
                found = max(map(self.level, expr.children()), default=0) + self.is_row(expr)
            self._levels[expr] = found
        return found

    def span(self, expr: Expr) -> frozenset[Var]:
        """Along what the block of a value has more than one element: that of a row's result has all tiles but the row,
        also those that the value does not vary along."""
        found = self._spans.get(expr)
        if found is None:
            found = expr.variables.union(*map(self.span, expr.children()))
            if self.is_along_row(expr):
                found |= {tile.variable for tile in self.tiling.tiles}
            if self.tiling.row is not None and self.is_row(expr):
                found -= {self.tiling.row.variable}
            self._spans[expr] = found
        return found

    def is_along_row(self, expr: Expr) -> bool:
        return expr.op == "scan" or self.is_row(expr)


def _ends(index: Index) -> list[Size | None]:
    low, high = index.bounds()
    ends = [high, None if low is None else -low]
    # A number that the program computes has 64 bits, unless its ends are known.
    return [end for end in ends if isinstance(end, int)] if index.values else ends


def _inner_ends(index: Index) -> list[Size | None]:
    """Ends of what an index divides."""
    found: list[Size | None] = []
    for atom, _ in index.terms:
        if not isinstance(atom, (Var, Value)):
            found += [*_ends(atom.numerator), *_inner_ends(atom.numerator)]
    return found


def _reach(decl: TensorDecl) -> Size:
    if all(isinstance(v, int) for v in (*decl.shape, *decl.stride)):
        return sum(max(n - 1, 0) * abs(s) for n, s in zip(decl.shape, decl.stride, strict=True))
    return sum(n * abs(s) if isinstance(s, int) else n * s for n, s in zip(decl.shape, decl.stride, strict=True))
