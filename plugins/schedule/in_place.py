"""When a kernel may write a result over a tensor that it reads, or over an input that takes the result anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from turret.graph.externs import is_trusted, op_name
from turret.graph.op_traits import refuses_data
from turret.hooks.devices import KernelFamily, device_for
from turret.ir import (
    CopyInto,
    Expr,
    Extern,
    Index,
    Kernel,
    LoopProgram,
    Ref,
    Size,
    Step,
    Store,
    TensorDecl,
    loads,
    walk,
)


def can_reuse_buffer(kernel: Kernel, output: TensorDecl, input_: TensorDecl) -> bool:
    """Whether the kernel may store ``output`` in the memory of ``input_``, which nothing reads after it.

    Each element is written once, by the iteration that alone reads the old one, and no later store of the same
    iteration reads it.  In a kernel with rows, whose loops a code generator splits into phases, only the store
    itself may read the input_, so that it comes after whatever needs the old values.
    """
    stores = [store for store in kernel.stores if store.tensor == output.name]
    if len(stores) != 1 or input_.dtype.itemsize != output.dtype.itemsize:
        return False
    (store,) = stores
    if store.mode is not None or _is_gathered(store.coords) or not _once(kernel, store):
        return False
    if kernel.inner and any(node.op == "scan" for s in kernel.stores for node in walk(s.expr)):
        return False
    return _read_where_written(kernel, store, _offset(store.coords, output.stride), input_)


def _read_where_written(kernel: Kernel, store: Store, target: Index, input_: TensorDecl) -> bool:
    """Whether the kernel reads ``input_`` at the offset ``target`` of a store alone, and not after it."""
    position = kernel.stores.index(store)
    for number, other in enumerate(kernel.stores):
        reads = [node for root in other.roots for node in loads(root) if node.tensor == input_.name]
        if any(_is_gathered(n.coords) or _offset(n.coords, input_.stride) is not target for n in reads):
            return False
        if reads and (number > position or (kernel.inner and other is not store)):
            return False
    return True


def _is_gathered(coords: tuple[Index, ...]) -> bool:
    return any(coord.values for coord in coords)


def overwritable(program: LoopProgram, roots: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """Outputs that may be made in the memory of the input which takes their elements afterwards, once it is dead."""
    if not program.overwritten:
        return {}
    declarations = program.declarations()
    memory = [(o.name, roots.get(o.name, frozenset((o.name,)))) for o in program.outputs if isinstance(o, Ref)]
    return {
        name: target
        for name, target in program.overwritten.items()
        if _is_dense(declarations[name])
        and not any(target in own or (name in own and output != name) for output, own in memory)
    }


def may_stop(step: Step, declarations: Mapping[str, TensorDecl]) -> bool:
    """Whether a call may end here with an error that a program can live through; one of a GPU's kernels ends it.

    No input may be overwritten before: a program that is run again in Python, or that catches the error, would find new
    elements in some inputs and old ones in others.
    """
    match step:
        case Kernel():
            return step.reports and _is_host(declarations[step.stores[0].tensor])
        case Extern():
            made = [o for o in step.outputs if o is not None]
            if not made or step.mutates or step.symbol_bindings or not is_trusted(op_name(step.op)):
                return True
            return _is_host(made[0]) and refuses_data(step.op)
    return isinstance(step, CopyInto)


def _is_host(decl: TensorDecl) -> bool:
    return device_for(decl.device.type).eager_kernels is KernelFamily.HOST


def _is_dense(decl: TensorDecl) -> bool:
    """Whether the layout is static, and has a place of its own for each element."""
    if not decl.is_static or 0 in decl.shape:
        return False
    extent = 1
    for size, stride in sorted(zip(decl.shape, decl.stride, strict=True), key=lambda d: (d[1], d[0])):
        if size != 1 and stride != extent:
            return False
        extent *= size
    return True


def readers_first(step: Step, targets: Mapping[str, str]) -> Step:
    """A kernel with its stores in an order in which as many as can be follow all that read what they may overwrite.

    ``targets``: for outputs, the input where they may be made.
    """
    if not isinstance(step, Kernel) or targets.keys().isdisjoint(store.tensor for store in step.stores):
        return step
    names = [store.tensor for store in step.stores]
    if len(set(names)) < len(names):
        return step
    reads = {store.tensor: {node.tensor for node in loads(*store.roots)} for store in step.stores}
    waiting, ordered = list(step.stores), []
    while waiting:
        free = [
            store
            for store in waiting
            if all(targets.get(store.tensor) not in reads[other.tensor] for other in waiting if other is not store)
        ]
        chosen = free[0] if free else waiting[0]
        waiting.remove(chosen)
        ordered.append(chosen)
    return attrs.evolve(step, stores=tuple(ordered))


def without_self_copies(steps: Sequence[Step], reuses: Mapping[str, str]) -> tuple[list[Step], dict[str, str]]:
    """The steps without kernels that write elements of an input where they are, and the outputs that begin with them.

    ``reuses``: outputs that lie where an input does; the kernels left write to them, too.
    """
    kept: list[Step] = []
    found: dict[str, str] = {}
    written = [store.tensor for step in steps if isinstance(step, Kernel) for store in step.stores]
    for step in steps:
        if isinstance(step, Kernel) and len(step.stores) == 1:
            (store,) = step.stores
            node, target = store.expr, reuses.get(store.tensor)
            if target is not None and written.count(store.tensor) > 1 and _is_load(node, target, store):
                found[store.tensor] = target
                continue
        kept.append(step)
    return kept, found


def _is_load(node: Expr, tensor: str, store: Store) -> bool:
    """Whether a store writes elements of a tensor at the coordinates at which they are read."""
    plain = store.mode is None and store.condition is None and node.op == "load" and node.tensor == tensor
    return plain and all(a is b for a, b in zip(node.coords, store.coords, strict=True))


def _once(kernel: Kernel, store: Store) -> bool:
    """Whether each iteration that runs the store writes an element of its own."""
    written = frozenset().union(*(c.variables for c in store.coords)) if store.coords else frozenset()
    mentions = written | store.expr.variables
    loops = kernel.outer + (kernel.inner if mentions & frozenset(kernel.inner) else ())
    return all(v.extent == 1 or v in written for v in loops)


def _offset(coords: tuple[Index, ...], stride: tuple[Size, ...]) -> Index:
    offset = Index.constant(0)
    for coord, step in zip(coords, stride, strict=True):
        offset = offset + coord * step
    return offset
