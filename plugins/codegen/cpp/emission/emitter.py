"""Expressions to C++: every node becomes one named temporary, in the outermost scope that can compute it.

What needs no mask is plain arithmetic, so that loops stay free of branches and vectorise.
"""

from __future__ import annotations

import torch

from turret.ir.emit.c_emitter import CEmitter
from turret.ir.emit.emitter import Mask
from turret.ir.expr import Expr, expr_of
from turret.ir.index import Div, Mod, Size, Value, Var
from turret.ir.nest import FlatStore, Nest
from turret.plugins.codegen.cpp.emission.dtypes import accumulator, ctype
from turret.plugins.codegen.cpp.emission.facts import Facts
from turret.plugins.codegen.cpp.emission.operators import bitcast_text, combine_text, scalar_text
from turret.plugins.codegen.cpp.emission.scopes import Scope

EXTENT_WORDS = 3
"""What a kernel that checks its accesses is told of a buffer: first element, one past the last, number of its slot."""


class Emitter(CEmitter):
    """The state of writing one kernel."""

    language = "C++"

    def __init__(self, nest: Nest, facts: Facts, check_bounds: bool = False) -> None:
        super().__init__(nest, facts, Scope())
        self.check_bounds = check_bounds
        self.stored = {store.tensor for store in nest.stores}
        # Where scans keep their running values; an ``@`` stands for the index of the lane within its block.
        self.scan_states: dict[Expr, str] = {}
        self.lane_slot = "0"

    # ------------------------------------------------------------ the language's words

    ctype = staticmethod(ctype)
    scalar_text = staticmethod(scalar_text)
    bitcast_text = staticmethod(bitcast_text)
    combine_text = staticmethod(combine_text)

    # ------------------------------------------------------------ sizes and indices

    def term(self, atom: Var | Div | Mod | Value, coefficient: Size, scope: Scope, mask: Mask) -> str:  # type: ignore[override]
        text = super().term(atom, coefficient, scope, mask)
        if not isinstance(atom, Value) or not _is_made_of_truth(expr_of(atom)):
            return text
        # GCC (12.2 seen) addresses elements of a vector by a truth value as it has it, which is -1 for true.
        return f"({text} | {self.named(self.base, 'no bits', 'none', 'no_bits()')})"

    # ------------------------------------------------------------ nodes

    def element(self, tensor: str, offset: str) -> str:
        """The text of an element in memory; where accesses are checked, of a spare word instead of one outside."""
        pointer = self.pointer(tensor)
        return (
            f"*checked_place({pointer}, {offset}, {self.extent(tensor)})"
            if self.check_bounds
            else f"{pointer}[{offset}]"
        )

    def extent(self, tensor: str) -> str:
        """What a check is handed: the words that say how far a tensor's memory reaches, and the report."""
        return f"bounds + {EXTENT_WORDS * list(self.pointers).index(tensor)}, report"

    def write_scan(self, expr: Expr, scope: Scope, mask: Mask) -> str:  # type: ignore[override]
        state = self.scan_states[expr].replace("@", self.lane_slot)
        wide = accumulator(expr.payload[0], expr.dtype)
        value = self.value(expr.args[0], scope)
        step = combine_text(expr.payload[0], wide, state, f"({wide.value}){value}")
        scope.line(f"{state} = {step};")
        return ctype(expr.dtype).round(f"({ctype(expr.dtype).value}){state}")

    def write_row(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        raise AssertionError(f"row reduction {expr} is used before its phase")

    def packed(self, store: FlatStore, scope: Scope) -> str:  # type: ignore[override]
        return self._narrowed(store, scope) or super().packed(store, scope)

    def _narrowed(self, store: FlatStore, scope: Scope) -> str:
        """The packed half of a wider value that is stored and nothing else: rounded and packed in one go."""
        half, root = ctype(store.expr.dtype).half, store.expr
        if not half or root.op != "cast" or store.mode not in (None, "set"):
            return ""
        source = root.args[0]
        if source.dtype != torch.float32 or scope.named((root, None), self.base) is not None:
            return ""
        return f"{half}_narrow({self.value(source, scope)})"


def _is_made_of_truth(index: Expr) -> bool:
    """Whether an index may be a truth value as a number, or a sum or multiple of one."""
    stack = [index]
    while stack:
        node = stack.pop()
        if node.dtype is torch.bool:
            return True
        if node.op != "load":
            stack += node.args
    return False
