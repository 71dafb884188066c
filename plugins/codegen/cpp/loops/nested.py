"""Loops: nested, or flattened into tasks that threads share."""

from __future__ import annotations

import attrs
import torch

from turret.ir.expr import Expr, loads, walk
from turret.ir.index import Index, Size, Var, product
from turret.ir.nest import Nest
from turret.plugins.codegen.cpp.emission.emitter import Emitter
from turret.plugins.codegen.cpp.emission.scopes import Scope

SIMD = "omp simd"
PARALLEL_WORK = 65536
"""Element operations worth another thread; ``team`` in the prelude has the same number."""


@attrs.frozen
class Blocks:
    """A loop cut into blocks of ``step`` elements."""

    variable: Var
    step: int

    @property
    def count(self) -> Size:
        """How many blocks, where static."""
        extent = self.variable.extent
        return -(-extent // self.step) if isinstance(extent, int) else 0

    @property
    def even(self) -> bool:
        """Whether all blocks are whole."""
        return isinstance(self.variable.extent, int) and self.variable.extent % self.step == 0


@attrs.frozen
class Range:
    """The part of a loop that one task does: C++ text of its bounds, and how many elements it has where all parts of
    the loop have as many."""

    low: str
    high: str
    count: int | None = None


def open_loop(emitter: Emitter, scope: Scope, variable: Var, part: Range | None = None, pragma: str = "") -> Scope:
    """A scope with the loop over ``variable`` (or over a part of its range) open.

    One of a known count is written as such: ``i < a + 2048`` may hold for no ``i`` where additions wrap around, and
    compilers would make a loop for the rest, too.
    """
    name = step = emitter.fresh("i")
    low, high = ("0", emitter.size(variable.extent)) if part is None else (part.low, part.high)
    begin = ""
    if part is not None and part.count is not None:
        step, begin, low, high = emitter.fresh("n"), low, "0", str(part.count)
    scalar = _groups_of_conditions(emitter.nest, variable)
    inside = Scope(scope, f"for (int64_t {step} = {low}; {step} < {high}; {step}++)", "" if scalar else pragma)
    if scalar:
        inside.line('__asm__ volatile("");  // not to be vectorised: compilers repeat what a group shares wrongly')
    if begin:
        inside.line(f"const int64_t {name} = {begin} + {step};")
    inside.bind(variable, name)
    return inside


def _groups_of_conditions(nest: Nest, variable: Var) -> bool:
    """Whether a loop decides something, or uses its own index, beside neighbouring accesses that are not contiguous.

    GCC (12.2 seen, with AVX-512) vectorises such neighbours as one group, and repeats for its members what they share
    wrongly: in ``for (i) for (k of 2, unrolled) out[2 * i + k] = c[2 * i] ? x[2 * i + k] : 0`` the condition is off
    from the second element on, and so is ``i >= 3`` in place of it.
    """
    if not any(node.dtype == torch.bool or _is_index(node, variable) for node in walk(*nest.roots)):
        return False
    neighbours = {(node.tensor, node.coords[0]) for node in loads(*nest.roots)}
    neighbours |= {(store.tensor, store.offset) for store in nest.stores}
    apart = [(tensor, offset.terms) for tensor, offset in neighbours if stride(offset, variable) not in (0, 1, None)]
    return len(apart) > len(set(apart))


def _is_index(node: Expr, variable: Var) -> bool:
    return node.op == "index" and variable in node.payload.variables


def close_all(scope: Scope, until: Scope) -> None:
    """Close the scopes from ``scope`` out to, but not including, ``until``."""
    while scope is not until:
        scope.close()
        assert scope.parent is not None
        scope = scope.parent


def block_range(emitter: Emitter, scope: Scope, blocks: Blocks, number: str) -> Range:
    """Bounds of block ``number``."""
    low = emitter.fresh("a")
    scope.line(f"const int64_t {low} = {number} * {blocks.step};")
    if blocks.even:
        return Range(low, f"{low} + {blocks.step}", blocks.step)
    high = emitter.fresh("z")
    end = emitter.size(blocks.variable.extent)
    scope.line(f"const int64_t {high} = {low} + {blocks.step} < {end} ? {low} + {blocks.step} : {end};")
    return Range(low, high)


def open_tasks(
    emitter: Emitter, scope: Scope, loops: tuple[Var, ...], blocks: Blocks | None, work: str | int
) -> tuple[Scope, Range | None]:
    """Loops whose iterations are independent, as one loop of tasks over all threads.

    ``work`` is the cost of all of it.  Returns the scope with the loops open and, with ``blocks``, the range of
    the block at hand.
    """
    counts = [emitter.size(v.extent) for v in loops]
    if blocks is not None:
        end = emitter.size(blocks.variable.extent)
        counts.append(str(blocks.count) if blocks.count else f"(({end} + {blocks.step - 1}) / {blocks.step})")
    if not counts:
        return scope, None
    tasks, task = emitter.fresh("tasks"), emitter.fresh("task")
    scope.line(f"const int64_t {tasks} = {' * '.join(counts)};")
    pragma = ""
    if isinstance(work, str) or work >= PARALLEL_WORK:
        workers = emitter.fresh("workers")
        scope.line(f"const int {workers} = team(threads, {tasks}, {work});")
        pragma = f"omp parallel for num_threads({workers}) schedule(static)"
    inside = Scope(scope, f"for (int64_t {task} = 0; {task} < {tasks}; {task}++)", pragma)
    numbers = _decode(emitter, inside, task, counts)
    for variable, number in zip(loops, numbers, strict=False):
        inside.bind(variable, number)
    return inside, None if blocks is None else block_range(emitter, inside, blocks, numbers[-1])


def _decode(emitter: Emitter, scope: Scope, task: str, counts: list[str]) -> list[str]:
    names: list[str] = []
    rest = task
    for position in reversed(range(len(counts))):
        if position == 0:
            names.append(rest)
            break
        name, left = emitter.fresh("i"), emitter.fresh("d")
        scope.line(f"const int64_t {name} = {rest} % {counts[position]}, {left} = {rest} / {counts[position]};")
        names.append(name)
        rest = left
    return names[::-1]


def work_of(emitter: Emitter, loops: tuple[Var, ...], cost: int) -> str | int:
    """Cost of a loop nest: a number, or C++ text where extents are symbolic."""
    count = product(v.extent for v in loops)
    return count * cost if isinstance(count, int) else f"{cost} * {emitter.size(count)}"


def static_extent(variable: Var, otherwise: int) -> int:
    """The extent, or a guess where it is symbolic."""
    return variable.extent if isinstance(variable.extent, int) else otherwise


def accesses(nest: Nest) -> tuple[list[Index], list[Index]]:
    """Offsets of all loads, and of all stores."""
    return [node.coords[0] for node in loads(*nest.roots)], [store.offset for store in nest.stores]


def stride(offset: Index, variable: Var) -> Size | None:
    """How far ``offset`` moves with ``variable``; None where it does not move evenly."""
    if any(variable in atom.variables for atom, _ in offset.terms if not isinstance(atom, Var)):
        return None
    return offset.coefficient(variable)


def vector_fitness(nest: Nest, variable: Var) -> float:
    """How well a loop suits vector lanes, from 0 to 1: contiguous or constant accesses, and enough of them.

    An access counts by how often its place changes: a value a row weighs little beside one an element.
    """
    reads, writes = accesses(nest)
    good = total = 0.0
    for offset, weight in [(offset, 1.0) for offset in reads] + [(offset, 2.0) for offset in writes]:
        for loop in nest.loops:
            weight /= 1 if loop in offset.variables else max(1, static_extent(loop, 64))
        total += weight
        good += weight * (1.0 if stride(offset, variable) in (0, 1) else 0.2)
    return good / total * min(static_extent(variable, 64), 16) / 16
