"""Scatters: which are atomic, how the last of several writes wins, and those that go one element after another.

``add`` (and integer ``min``, ``max``) are atomic instructions.  Writes (``set``) of several values to one element
keep the order of a loop: a first kernel notes for each element the number of the last point that hits it, a second
writes only the value of that point.  What has neither runs serially: points that may meet follow one another, in
blocks along loops that are coordinates themselves.
"""

from __future__ import annotations

import attrs
import torch

from turret.ir.expr import Expr, call, constant, index_value, load
from turret.ir.index import Index, Var, flatten, product
from turret.ir.program import TensorDecl
from turret.ir.schedule import Kernel, Store
from turret.plugins.codegen.triton.emission.body import has_atomic
from turret.plugins.codegen.triton.tiles.dtypes import triton_type
from turret.plugins.codegen.triton.tiles.split_kernel import Stages, scratch_of, scratch_tensor


def in_order(kernel: Kernel, declarations: dict[str, TensorDecl]) -> Stages:
    """``kernel`` with writes that may meet made one write each: the last."""
    meeting = [store for store in kernel.stores if store.mode == "set" and not _is_harmless(store, kernel)]
    if not meeting:
        return Stages((kernel,))
    linear = flatten([v.index for v in kernel.outer], [v.extent for v in kernel.outer])
    count = product(v.extent for v in kernel.outer)
    dtype = torch.int32 if isinstance(count, int) and count < (1 << 31) - 1 else torch.int64
    number = call("add", index_value(linear, dtype), constant(1, dtype))
    marks: list[Store] = []
    writes: list[Store] = []
    tensors: dict[str, TensorDecl] = {}
    for store in kernel.stores:
        if store not in meeting:
            writes.append(store)
            continue
        decl = declarations[store.tensor]
        last = scratch_tensor(f"{kernel.name}.last{len(tensors)}", decl.shape, dtype, decl.device)
        tensors[last.name] = last
        marks.append(attrs.evolve(store, tensor=last.name, expr=number, mode="max"))
        wins: Expr = call("eq", load(last.name, store.coords, dtype), number)
        if store.condition is not None:
            wins = call("masked", store.condition, wins, constant(False, torch.bool))
        writes.append(attrs.evolve(store, mode=None, condition=wins))
    return Stages(
        (
            attrs.evolve(kernel, name=f"{kernel.name}_last", stores=tuple(marks)),
            attrs.evolve(kernel, stores=tuple(writes)),
        ),
        tensors,
        tuple(scratch_of(decl, zeroed=True) for decl in tensors.values()),
    )


def _is_harmless(store: Store, kernel: Kernel) -> bool:
    """Whether every element is hit once, or always with the same value."""
    if not store.expr.variables:
        return True
    singles = {c.single_variable for c in store.coords}
    return all(v in singles or v.extent == 1 for v in kernel.outer)


def is_serial(kernel: Kernel, declarations: dict[str, TensorDecl]) -> bool:
    """Whether some update of a kernel has no atomic instruction."""
    return any(
        s.mode not in (None, "set", "sum") and not has_atomic(s.mode, triton_type(declarations[s.tensor].dtype).short)
        for s in kernel.stores
    )


def independent_loops(coords: tuple[tuple[Index, ...], ...], loops: tuple[Var, ...]) -> tuple[Var, ...]:
    """Loops whose points never meet in an element: those that are a coordinate of every scatter."""
    return tuple(v for v in loops if all(any(c.single_variable is v for c in own) for own in coords))
