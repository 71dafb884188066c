"""Ops on the memory behind a tensor, with offsets counted from the tensor's own start.

ATen counts ``as_strided``'s offset from the start of the storage, which for a tensor inside a larger block of
memory is not the tensor's start.  Compiled graphs place tensors where they like, so they count from the tensor.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from turret.torch_compat.operators.ops import OpOverload

_library = torch.library.Library("turret", "FRAGMENT")
_library.define("as_strided(Tensor(a) x, SymInt[] size, SymInt[] stride, SymInt offset) -> Tensor(a)")
_library.define("as_strided_scatter(Tensor x, Tensor source, SymInt[] size, SymInt[] stride, SymInt offset) -> Tensor")


def _as_strided_scatter(
    x: torch.Tensor, source: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int
) -> torch.Tensor:
    """A copy of ``x`` in its layout, with ``source`` written to the given strides of it."""
    length = 1 + sum((e - 1) * s for e, s in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    reach = offset + 1 + sum((e - 1) * s for e, s in zip(size, stride, strict=True)) if source.numel() else 0
    memory = x.new_empty(max(length, reach))
    memory.copy_(x.as_strided((max(length, reach),), (1,), x.storage_offset()))
    memory.as_strided(size, stride, offset).copy_(source)
    return memory.as_strided(x.shape, x.stride(), 0)


def _as_strided(x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """A view of the memory that ``x`` lies in, ``offset`` elements after its first."""
    return x.as_strided(size, stride, x.storage_offset() + offset)


_library.impl("as_strided", _as_strided, "CompositeExplicitAutograd")
_library.impl("as_strided_scatter", _as_strided_scatter, "CompositeExplicitAutograd")

_COUNTED_FROM_TENSORS = {
    torch.ops.aten.as_strided.default: torch.ops.turret.as_strided.default,
    torch.ops.aten.as_strided_scatter.default: torch.ops.turret.as_strided_scatter.default,
}


def count_from_tensors(graph: fx.Graph) -> None:
    """Replace ATen's ops by those that count from the tensor, so that the graph is right wherever its inputs lie."""
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and node.target in _COUNTED_FROM_TENSORS:
            _count_from_tensor(node, node.target)


def _count_from_tensor(node: fx.Node, op: OpOverload) -> None:
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    offset = given.pop("storage_offset", None)
    source = given["self"]
    assert isinstance(source, fx.Node)
    start = 0 if offset is None else _less(node, offset, source)
    node.target, node.kwargs = _COUNTED_FROM_TENSORS[op], {}
    node.args = (*(given[name] for name in names if name in given), start)


def _less(node: fx.Node, offset: Any, x: fx.Node) -> Any:
    """An offset from the start of the storage as one from the tensor's own."""
    begin = x.meta["val"].storage_offset()
    if isinstance(offset, int) and isinstance(begin, int):
        return offset - begin
    with node.graph.inserting_before(node):
        if not isinstance(begin, int):
            value, begin = begin, node.graph.call_function(torch.ops.aten.sym_storage_offset.default, (x,))
            begin.meta["val"] = value
        made = node.graph.call_function(operator.sub, (offset, begin))
    made.meta["val"] = _value(offset) - _value(begin)
    return made


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument
