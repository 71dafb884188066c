"""The memory plan: how long tensors live, and where in the arena they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turret.externs import out_variant
from turret.ir import (
    BufferPlan,
    Extern,
    Kernel,
    LoopProgram,
    MemoryPlan,
    Ref,
    Step,
    StridedView,
    TensorDecl,
    defined,
    used,
)
from turret.ir.expr import loads
from turret.ir.index import Size

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector load of today's CPUs."""


def storage_bytes(decl: TensorDecl) -> int | None:
    """Bytes from a tensor's first element to the end of its last; None where symbolic."""
    last: Size = 0
    for extent, stride in zip(decl.shape, decl.stride, strict=True):
        if extent == 0:
            return 0
        last = last + (extent - 1) * stride
    return (last + 1) * decl.dtype.itemsize if isinstance(last, int) else None


def reads_and_writes(step: Step) -> tuple[set[str], set[str]]:
    """Names of tensors that a step reads, and that it makes."""
    if isinstance(step, Kernel):
        roots = [s.expr for s in step.stores]
        roots += [s.condition for s in step.stores if s.condition is not None]
        roots += [v for s in step.stores for c in s.coords for v in c.values]
        return {node.tensor for node in loads(*roots)}, {s.tensor for s in step.stores}
    return set(used(step)), {d.name for d in defined(step)}


def plan_memory(program: LoopProgram, steps: Sequence[Step], roots: Mapping[str, frozenset[str]]) -> MemoryPlan:
    """Place what the steps make: an arena for values that die inside the call, own memory for the rest."""
    declarations = program.declarations()
    born: dict[str, int] = {}
    dies: dict[str, int] = {}
    for number, step in enumerate(steps):
        reads, writes = reads_and_writes(step)
        for name in writes:
            born.setdefault(name, number)
        for name in reads | writes:
            for member in roots.get(name, frozenset((name,))):
                dies[member] = number
    outputs = {r.name for r in program.outputs if isinstance(r, Ref)}
    escaping = frozenset().union(outputs, *(roots.get(name, frozenset()) for name in outputs))
    planned = {
        name: size for name, size in _candidates(steps, declarations).items() if name not in escaping and name in born
    }
    offsets, arena = _place(planned, born, dies)
    buffers = {
        name: BufferPlan(declarations[name], storage_bytes(declarations[name]), offsets.get(name)) for name in born
    }
    views = {s.tensor.name for s in steps if isinstance(s, StridedView)}
    dead: dict[int, list[str]] = {}
    for name, number in dies.items():
        if name not in escaping and name not in offsets and name not in program.constants:
            dead.setdefault(number, []).append(name)
    own = sum(b.bytes or 0 for n, b in buffers.items() if b.arena_offset is None and n not in views)
    return MemoryPlan(buffers, arena, arena + own, {n: tuple(sorted(names)) for n, names in dead.items()})


def _candidates(steps: Sequence[Step], declarations: Mapping[str, TensorDecl]) -> dict[str, int]:
    """Tensors that may lie in the arena, with their bytes: made by kernels, or by calls that take ``out``."""
    found: dict[str, int] = {}
    for step in steps:
        if isinstance(step, Kernel):
            names = [s.tensor for s in step.stores]
        elif isinstance(step, Extern) and out_variant(step.op) is not None and step.outputs[0] is not None:
            names = [step.outputs[0].name]
        else:
            continue
        for name in names:
            size = storage_bytes(declarations[name])
            if size is not None:
                found[name] = size
    return found


def _place(sizes: Mapping[str, int], born: Mapping[str, int], dies: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Offsets by first fit, largest first, among tensors that live at the same time; and the arena's bytes."""
    placed: list[tuple[int, int, int, int]] = []
    offsets: dict[str, int] = {}
    arena = 0
    for name in sorted(sizes, key=lambda n: (-sizes[n], born[n], n)):
        size = -(-max(1, sizes[name]) // ALIGNMENT) * ALIGNMENT
        first, last = born[name], dies.get(name, born[name])
        offset = 0
        for start, end, low, high in sorted(placed):
            if high < first or last < low:
                continue
            if start - offset >= size:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, first, last))
        offsets[name] = offset
        arena = max(arena, offset + size)
    return offsets, arena
