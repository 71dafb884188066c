"""Layouts of tensors that loops alone read and write: eager's, or dense rows where that leaves more side by side.

Eager's elementwise operations keep the order in which the dimensions of their operands lie.  What comes out of a
convolution stays turned through all of a network, whose norms read it across.  Such a tensor's layout is the program's
only where something else takes it from memory: an output, a call, a view, a copy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import attrs

from turret.hooks.text.notation import row_major
from turret.ir import Definition, Index, LoopProgram, Statement, TensorDecl, Var
from turret.ir.expr import loads
from turret.ir.index import hinted
from turret.ir.nest import flat_offset
from turret.plugins.schedule.fusion.inline import inline
from turret.plugins.schedule.fusion.units import Unit, units_of

ACROSS = 4
"""How many times the bytes of an access count that does not go along its memory: of what a transaction or cache line
brings, little is used before it goes."""
LEAST_GAIN = 0.9
"""What share of these bytes another layout may have at most to be taken."""
_SEEN = 1 << 10
"""What a size is taken for of which nothing is known."""

Declarations = dict[str, TensorDecl]


def choose_layouts(program: LoopProgram, needed: Collection[str], elide_casts: bool) -> LoopProgram:
    """The program with dense rows where they pay; ``needed``: tensors that lie in memory as they are declared."""
    made = [s.tensor for s in program.statements if isinstance(s, Definition) and s.tensor.name not in needed]
    rows = {decl.name: attrs.evolve(decl, stride=row_major(decl.shape)) for decl in made if _is_turned(decl)}
    if not rows:
        return program
    now = program.declarations()
    accesses = [_accesses(u) for u in inline(units_of(program), set(needed), elide_casts, program.hints) if u.is_loop]
    chosen: Declarations = {}
    for names, units in _connected(accesses, rows):
        other = now | {name: rows[name] for name in names}
        before, after = (sum(_bytes(unit, table, program.hints) for unit in units) for table in (now, other))
        if after < LEAST_GAIN * before:
            chosen |= {name: rows[name] for name in names}
    if not chosen:
        return program
    return attrs.evolve(program, statements=tuple(_laid_out(s, chosen) for s in program.statements))


def _is_turned(decl: TensorDecl) -> bool:
    """Whether a tensor of several dimensions lies in another order than row-major."""
    wanted = row_major(decl.shape)
    pairs = zip(decl.shape, decl.stride, wanted, strict=True)
    return len(decl.shape) > 1 and 0 not in decl.shape and any(n != 1 and s != w for n, s, w in pairs)


def _laid_out(statement: Statement, chosen: Declarations) -> Statement:
    if isinstance(statement, Definition) and statement.tensor.name in chosen:
        return attrs.evolve(statement, tensor=chosen[statement.tensor.name])
    return statement


@attrs.frozen(eq=False)
class _Accesses:
    """What the loops of a unit read and write: tensors, each with the coordinates of an element."""

    loops: tuple[Var, ...]
    elements: tuple[tuple[str, tuple[Index, ...]], ...]

    @property
    def tensors(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.elements)


def _accesses(unit: Unit) -> _Accesses:
    written = unit.tensor.name, tuple(v.index for v in unit.variables)
    read = ((node.tensor, node.coords) for node in loads(unit.expr))
    return _Accesses((*unit.variables, *unit.rows), (written, *read))


def _connected(units: Sequence[_Accesses], rows: Collection[str]) -> list[tuple[set[str], list[_Accesses]]]:
    """Tensors that units have in common, which lie alike or not at all, each with these units."""
    groups: list[tuple[set[str], list[_Accesses]]] = []
    for unit in units:
        names, together = set(unit.tensors.intersection(rows)), [unit]
        if not names:
            continue
        apart = []
        for group in groups:
            if names.isdisjoint(group[0]):
                apart.append(group)
            else:
                names |= group[0]
                together = [*group[1], *together]
        groups = [*apart, (names, together)]
    return groups


def _bytes(unit: _Accesses, declarations: Declarations, hints: Mapping[str, int]) -> float:
    """Bytes that a unit reads and writes, if the loop runs innermost that leaves fewest of them across."""
    loops = [v for v in unit.loops if v.extent != 1]
    accesses = [(declarations[name], flat_offset(name, coords, declarations)) for name, coords in unit.elements]
    weights = [decl.dtype.itemsize * _points(offset, hints) for decl, offset in accesses]
    if not loops:
        return sum(weights)
    return min(
        sum(w * (1 if _goes_along(offset, v) else ACROSS) for w, (_, offset) in zip(weights, accesses, strict=True))
        for v in loops
    )


def _points(offset: Index, hints: Mapping[str, int]) -> int:
    return math.prod(hinted(v.extent, hints) or _SEEN for v in offset.variables)


def _goes_along(offset: Index, loop: Var) -> bool:
    """Whether neighbours of a loop read neighbours in memory, or one element; unknown where they go unevenly."""
    if any(loop in atom.variables for atom, _ in offset.terms if not isinstance(atom, Var)):
        return True
    return offset.coefficient(loop) in (0, 1, -1)
