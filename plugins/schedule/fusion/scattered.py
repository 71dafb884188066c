"""Writes to a few elements of an input in place, joined with the small kernels right ahead of them.

What a decoding step writes to its cache is a scatter, whose initial values are where the input lies: nothing is left of
it but a kernel of a few elements, which takes a GPU less time than its launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from turret.hooks.devices import device_for
from turret.ir import Expr, Kernel, Step, TensorDecl, loads, product, rewrite
from turret.ir.schedule import Store

MOST_ELEMENTS = 1 << 14
"""Points of the loops of kernels that take less time than a launch."""
MOST_STORES = 8


@attrs.frozen(eq=False)
class Joiner:
    """Joins kernels of one program.

    ``roots``: the tensors in whose memory each one lies; ``in_place``: outputs that are made where an input lies.
    """

    declarations: Mapping[str, TensorDecl]
    roots: Mapping[str, frozenset[str]]
    in_place: Mapping[str, str]

    def joined(self, steps: Sequence[Step]) -> list[Step]:
        """The steps, with each such write in the kernel right ahead of it where that may be."""
        kept: list[Step] = []
        for step in steps:
            before = kept[-1] if kept else None
            if isinstance(step, Kernel) and isinstance(before, Kernel) and self._fits(before, step):
                made = self._pair(before, step)
                if made is not None:
                    kept[-1] = made
                    continue
            kept.append(step)
        return kept

    def _fits(self, first: Kernel, second: Kernel) -> bool:
        small = all(map(_is_small, (first, second))) and first.outer == second.outer
        scatters = any(store.mode == "set" and store.tensor in self.in_place for store in second.stores)
        on = {self.declarations[store.tensor].device for store in (*first.stores, *second.stores)}
        alone = len(on) == 1 and all(device_for(device.type).asynchronous for device in on)
        return small and scatters and alone and len(first.stores) + len(second.stores) <= MOST_STORES

    def _pair(self, first: Kernel, second: Kernel) -> Kernel | None:
        """Both as one kernel; None where one might read or write what the other writes elsewhere."""
        made = {store.tensor: store for store in first.stores if store.mode is None and store.condition is None}

        def value(node: Expr) -> Expr | None:
            if node.op != "load" or node.tensor not in made:
                return None
            store = made[node.tensor]
            return store.expr if store.coords == node.coords else None

        stores = tuple(store.changed(lambda expr: rewrite(expr, replace=value)) for store in second.stores)
        written = [self._memory(store.tensor) for store in (*first.stores, *stores)]
        read = self._read(first.stores) | self._read(stores)
        if read & frozenset().union(*written) or sum(map(len, written)) > len(frozenset().union(*written)):
            return None
        origins = tuple(dict.fromkeys((*first.origins, *second.origins)))
        sources = tuple(dict.fromkeys((*first.sources, *second.sources)))
        return attrs.evolve(first, stores=(*first.stores, *stores), origins=origins, sources=sources)

    def _memory(self, name: str) -> frozenset[str]:
        """The tensors in whose memory one lies, that of an input among them where it is made there."""
        own = self.roots.get(name, frozenset((name,)))
        target = self.in_place.get(name)
        return own if target is None else own | {target} | self.roots.get(target, frozenset())

    def _read(self, stores: Sequence[Store]) -> frozenset[str]:
        names = {node.tensor for store in stores for node in loads(*store.roots)}
        return frozenset().union(*map(self._memory, names), frozenset())


def _is_small(kernel: Kernel) -> bool:
    points = product(v.extent for v in kernel.outer)
    plain = all(store.mode in (None, "set") for store in kernel.stores)
    return not kernel.inner and plain and isinstance(points, int) and points <= MOST_ELEMENTS
