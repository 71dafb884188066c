"""When a kernel may write a result over a tensor that it reads."""

from __future__ import annotations

from turret.ir import Index, Kernel, Size, Store, TensorDecl, loads, walk


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
    if store.mode is not None or any(c.values for c in store.coords) or not _once(kernel, store):
        return False
    if kernel.inner and any(node.op == "scan" for s in kernel.stores for node in walk(s.expr)):
        return False
    target = _offset(store.coords, output.stride)
    position = kernel.stores.index(store)
    for number, other in enumerate(kernel.stores):
        reads = [node for root in other.roots for node in loads(root) if node.tensor == input_.name]
        if any(any(c.values for c in n.coords) or _offset(n.coords, input_.stride) is not target for n in reads):
            return False
        if reads and (number > position or (kernel.inner and other is not store)):
            return False
    return True


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
