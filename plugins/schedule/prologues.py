"""Prologues of matrix products: operands that a product computed as loops need not have in memory.

A call wants its operands there, so that weights which are stored in fewer bits, or picked by indices, are first written
out by a kernel and then read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs

from turret.ir import Definition, LoopProgram, Ref, Statement, StridedView, TensorDecl, loads, used, walk
from turret.ir.index import hinted, product
from turret.plugins.schedule.fusion.inline import REPEATED_WORK
from turret.plugins.schedule.fusion.units import work
from turret.plugins.schedule.operands import Declarations, Views


@attrs.frozen(eq=False)
class Prologue:
    """What makes an operand that nothing else reads.

    ``statements`` are the definition and the view through which the product reads it.  ``bytes``: memory traffic of the
    definition as a kernel of its own.  ``spared_bytes``: by how much less the product reads if it reads what the
    definition is made of.
    """

    statements: tuple[Statement, ...]
    bytes: int
    spared_bytes: int

    @property
    def kind(self) -> tuple[Any, ...]:
        """What prologues of layers that are alike have in common."""
        definition = self.statements[0]
        assert isinstance(definition, Definition)
        return str(definition.expr.op), self.bytes, self.spared_bytes


class Prologues:
    """The prologues of the products of one program."""

    def __init__(self, program: LoopProgram, views: Views, declarations: Declarations) -> None:
        self.hints, self.views, self.declarations = program.hints, views, declarations
        self.makers = {s.tensor.name: s for s in program.statements if isinstance(s, Definition)}
        self.readers = Counter(name for statement in program.statements for name in used(statement))
        self.readers.update(output.name for output in program.outputs if isinstance(output, Ref))

    def of(self, operands: Sequence[TensorDecl]) -> list[Prologue]:
        """Those of some operands of one product."""
        found = (self._of(operand) for operand in operands)
        return [prologue for prologue in found if prologue is not None]

    def _of(self, operand: TensorDecl) -> Prologue | None:
        statements: list[Statement] = []
        view: StridedView | None = self.views.get(operand.name)
        name = operand.name
        if view is not None:
            statements.append(view)
            name = view.base
        maker = self.makers.get(name)
        if maker is None or self.readers[name] != 1 or self.readers[operand.name] != 1:
            return None
        picked = any(coord.values for node in loads(maker.expr) for coord in node.coords)
        own, read = self._bytes(maker), self._read(maker)
        # What is computed of as many bytes is as well computed once.
        is_read_in_place = maker.expr.op == "load" if picked else work(maker.expr) <= REPEATED_WORK and read < own
        if any(node.op in ("reduce", "scan") for node in walk(maker.expr)) or not is_read_in_place:
            return None
        return Prologue((maker, *statements), own + read, own - read)

    def _bytes(self, maker: Definition) -> int:
        return (hinted(product(maker.tensor.shape), self.hints) or 0) * maker.tensor.dtype.itemsize

    def _read(self, maker: Definition) -> int:
        """Bytes of the elements that a definition reads; picked ones are all taken to be different."""
        read: dict[str, int] = {}
        for node in loads(maker.expr):
            elements = hinted(product(v.extent for v in node.variables), self.hints) or 0
            whole = hinted(product(self.declarations[node.tensor].shape), self.hints)
            picked = any(coord.values for coord in node.coords)
            least = elements if picked or whole is None else min(elements, whole)
            read[node.tensor] = least * node.dtype.itemsize
        return sum(read.values())
