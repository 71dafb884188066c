"""Which size symbols count samples that steps treat one by one: a call of more samples gives the same first ones.

A tensor of a batch has ``count * symbol`` rows along its first dimension, which is also the outermost in memory; a
sample is ``count`` of them.  A step treats samples one by one where each element that it makes depends on the sample it
belongs to, on tensors that have nothing to do with the symbol, and on the symbol in no other way.  Such a call may be
padded: what it makes of added samples is dropped, and where those are copies of one that is there, nothing that they do
(an index that is checked, an address that is read) is what the call would not have done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import sympy
import torch

from turret.graph.externs import drops_out
from turret.ir.analysis.symbols import symbols_of_size, symbols_of_sizes
from turret.ir.expr import Expr, walk
from turret.ir.index import Div, Index, Mod, Size, Value, Var, divide_exactly, provably_less, provably_nonnegative
from turret.ir.program import CopyInto, Extern, Number, Ref, StridedView, TensorDecl, references
from turret.ir.schedule import Kernel, Step, Store

_aten = torch.ops.aten
_BATCHED: dict[Any, tuple[int, ...]] = {
    _aten.mm.default: (0,),
    _aten.addmm.default: (1,),
    _aten._addmm_activation.default: (1,),
    _aten.bmm.default: (0, 1),
    _aten.baddbmm.default: (0, 1, 2),
    _aten.convolution.default: (0,),
    _aten._scaled_dot_product_flash_attention.default: (0, 1, 2),
    _aten._scaled_dot_product_efficient_attention.default: (0, 1, 2),
    _aten._scaled_dot_product_cudnn_attention.default: (0, 1, 2),
    _aten._scaled_dot_product_flash_attention_for_cpu.default: (0, 1, 2),
    _aten._scaled_dot_product_fused_attention_overrideable.default: (0, 1, 2),
}
"""Library calls that treat samples one by one, with the arguments that are batches; others have none of the symbol."""


def batch_symbols(
    steps: Sequence[Step], declarations: Mapping[str, TensorDecl], symbols: Iterable[str]
) -> tuple[str, ...]:
    """Those of ``symbols`` (names) along which all of ``steps`` treat samples one by one."""
    return tuple(symbol for symbol in symbols if _Batch(symbol, declarations).separates(steps))


class _Batch:
    """Tensors and steps with regard to one symbol."""

    def __init__(self, symbol: str, declarations: Mapping[str, TensorDecl]) -> None:
        self.symbol, self.declarations = symbol, declarations
        self.counts: dict[str, int | None] = {}

    def separates(self, steps: Sequence[Step]) -> bool:
        return all(map(self._step, steps))

    def _step(self, step: Step) -> bool:
        match step:
            case Kernel():
                return all(self._store(step, store) for store in step.stores)
            case Extern():
                return self._call(step)
            case StridedView():
                return self._view(step)
            case CopyInto():
                return self._count(step.target) == self._count(step.source) == 0
            case Number():
                return not self._in_sizes((step.value,))
        return False

    def _in_sizes(self, sizes: Iterable[Any]) -> bool:
        return self.symbol in symbols_of_sizes(sizes)

    def _count(self, name: str) -> int | None:
        """Rows of a sample in a tensor; 0 where it has nothing to do with the symbol, None where it is no batch."""
        if name not in self.counts:
            self.counts[name] = self._counted(self.declarations[name])
        return self.counts[name]

    def _counted(self, decl: TensorDecl) -> int | None:
        if self._in_sizes((*decl.shape[1:], *decl.stride)):
            return None
        if not decl.shape or not self._in_sizes(decl.shape[:1]):
            return 0
        (symbol,) = (s for s in sympy.sympify(decl.shape[0]).free_symbols if s.name == self.symbol)
        count = divide_exactly(decl.shape[0], symbol)
        if not isinstance(count, int) or count < 1:
            return None
        return count if provably_less(_last(decl, count), count * decl.stride[0]) else None

    def _store(self, kernel: Kernel, store: Store) -> bool:
        count, shape = self._count(store.tensor), self.declarations[store.tensor].shape
        if count is None or store.mode is not None:
            return False
        along = frozenset(v for v in (*kernel.outer, *kernel.inner) if self._in_sizes((v.extent,)))
        nodes = [node for root in store.roots for node in walk(root)]
        if count:
            place = _Place(store.coords[0], count, along, _looks_up(nodes))
            inside = self._inside(store.coords[1:], shape[1:], place)
        else:
            place = _Place(None, count, along, _looks_up(nodes))
            moved = [coord.variables for coord in store.coords] + [root.variables for root in store.roots]
            inside = all(map(along.isdisjoint, moved)) and self._inside(store.coords, shape, place)
        return inside and all(self._node(node, place) for node in nodes)

    def _node(self, node: Expr, place: _Place) -> bool:
        """Whether a node of an expression for one sample is the same however many there are."""
        if node.op in ("size", "check_index", "wrap_index"):
            return not self._in_sizes((node.payload,))
        if node.op == "random":
            return False
        if node.op == "index":
            return place.along.isdisjoint(node.payload.variables) and not self._mentions(node.payload)
        if node.op in ("reduce", "scan"):
            bound = node.payload.variables if node.op == "reduce" else (node.payload[1],)
            return not self._in_sizes(v.extent for v in bound)
        if node.op != "load":
            return True
        count, shape = self._count(node.tensor), self.declarations[node.tensor].shape
        if not count:
            return count == 0 and self._inside(node.coords, shape, place)
        return place.is_of(node.coords[0], count) and self._inside(node.coords[1:], shape[1:], place)

    def _inside(self, coords: Sequence[Index], shape: Sequence[Size], place: _Place) -> bool:
        """Whether coordinates are inside a tensor for samples that were added, as they are for those that are there."""
        for coord, extent in zip(coords, shape, strict=True):
            if self._mentions(coord):
                return False
            if all(isinstance(atom, Value) or place.along.isdisjoint(atom.variables) for atom, _ in coord.terms):
                continue  # what it looks up is the same as for the sample that is copied
            low, high = coord.bounds()
            if place.looks_up or low is None or high is None:
                return False
            if not provably_nonnegative(low) or not provably_less(high, extent):
                return False
        return True

    def _mentions(self, index: Index) -> bool:
        """Whether an index mentions the symbol itself, beside loops that count its samples."""
        if self.symbol in symbols_of_size(index.const):
            return True
        for atom, coefficient in index.terms:
            if self.symbol in symbols_of_size(coefficient):
                return True
            if isinstance(atom, Div | Mod) and (
                self.symbol in symbols_of_size(atom.divisor) or self._mentions(atom.numerator)
            ):
                return True
        return False

    def _call(self, step: Extern) -> bool:
        values = (step.args, list(step.kwargs.values()))
        if step.symbol_bindings or step.mutates or self._mentioned_in(values) or self._draws(step):
            return False
        made = {self._count(o.name) for o in step.outputs if o is not None}
        if made | {self._count(ref.name) for ref in references(values)} <= {0}:
            return True
        batched = _BATCHED.get(step.op, ())
        if not batched or len(step.args) <= max(batched):
            return False
        others = [*(a for n, a in enumerate(step.args) if n not in batched), *step.kwargs.values()]
        alone = {self._count(ref.name) for ref in references(others)} <= {0}
        return alone and self._keeps_samples([step.args[n] for n in batched], made)

    def _keeps_samples(self, batches: Sequence[Any], made: set[int | None]) -> bool:
        """Whether all batches that a call takes have as many rows for a sample as what it makes of them."""
        counts = {self._count(batch.name) if isinstance(batch, Ref) else None for batch in batches}
        (count, *others) = counts
        return not others and bool(count) and count in made and made <= {0, count}

    def _draws(self, step: Extern) -> bool:
        """Whether a call draws random numbers, which depend on how many there are."""
        tags = getattr(step.op, "tags", None)
        if tags is None:
            return True  # control flow, in whose branches anything may be
        if torch.Tag.nondeterministic_seeded not in tags:
            return False
        return step.op not in _BATCHED or drops_out(step.op, step.args, step.kwargs)

    def _mentioned_in(self, value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(map(self._mentioned_in, value))
        return self._in_sizes((value,))

    def _view(self, step: StridedView) -> bool:
        """A view keeps samples apart where each of its samples lies in the base's."""
        base, decl = self.declarations[step.base], step.tensor
        ours, theirs = self._count(decl.name), self._count(step.base)
        if ours is None or theirs is None or self._in_sizes((step.offset,)):
            return False
        if not ours or not theirs:
            return ours == theirs
        apart = theirs * base.stride[0]
        inside = provably_nonnegative(step.offset) and provably_less(_last(decl, ours) + step.offset, apart)
        return ours * decl.stride[0] == apart and inside


@attrs.frozen(eq=False)
class _Place:
    """What a kernel makes at once: the element's row (None: of no batch), rows of a sample, and loops along the batch.

    ``looks_up``: values decide which elements are read, or may be errors.  Then a sample has to find what the one finds
    that it is a copy of, so that its rows are read in the order in which they are made.
    """

    row: Index | None
    count: int
    along: frozenset[Var]
    looks_up: bool

    def is_of(self, row: Index, count: int) -> bool:
        """Whether a row of a tensor that has ``count`` for each sample is of the sample that is made."""
        if self.row is None or row // count != self.row // self.count:
            return False
        return not self.looks_up or count == 1 or row == self.row


def _looks_up(nodes: Sequence[Expr]) -> bool:
    """Whether values decide where a kernel reads, or may be errors."""
    return any(node.reports or any(coord.values for coord in node.coords) for node in nodes)


def _last(decl: TensorDecl, rows: int) -> Size:
    """How far the last element of so many rows lies from the first."""
    last: Size = (rows - 1) * decl.stride[0]
    for extent, stride in zip(decl.shape[1:], decl.stride[1:], strict=True):
        last = last + (extent - 1) * stride
    return last
