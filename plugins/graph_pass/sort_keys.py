"""Sort indices as numbers of few bits: a GPU's radix sort passes over its data once for every eight bits of a key.

Indices that an op gave lie below the size that they index: the experts that a router took its tokens to are few, and
``int64`` (torch's dtype of indices) takes eight passes where one will do.  Order among equal keys does not depend on
their dtype, so that results hold to the bit.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from turret.graph.dtypes import INTEGERS
from turret.graph.fakes.values import compute_value, fake_mode_of, value_of, valued_call
from turret.hooks.context import CompileContext
from turret.hooks.devices import uses_host_kernels
from turret.plugins.graph_pass.constants import MOVES
from turret.torch_compat.operators.ops import OpOverload

aten, prims = torch.ops.aten, torch.ops.prims

_SORTS = frozenset((aten.sort.default, aten.sort.stable))
_INDEX_RESULTS = frozenset(
    (aten.topk.default, aten.sort.default, aten.sort.stable, aten.max.dim, aten.min.dim, aten.mode.default,
     aten.kthvalue.default, aten.median.dim)
)  # fmt: skip
"""Ops whose second result holds indices along the dimension that the op was given."""
_INDICES = frozenset((aten.argmax.default, aten.argmin.default))
_KEYS = (torch.uint8, torch.int16)


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Narrow the keys of all sorts on devices with kernels of their own."""
    graph, changed = module.graph, False
    mode = fake_mode_of(graph)
    for node in list(graph.nodes):
        dtype = _narrower(node) if node.target in _SORTS else None
        if dtype is not None:
            _narrow(node, dtype, mode)
            changed = True
    return changed


def _narrower(node: fx.Node) -> torch.dtype | None:
    """The dtype of fewest bits that holds all keys of a sort, where it has fewer than they have now."""
    keys = value_of(node.args[0])
    if uses_host_kernels(keys.device) or keys.dtype not in (torch.int64, torch.int32):
        return None
    bound = _bound(node.args[0])
    return next((dtype for dtype in _KEYS if bound is not None and bound - 1 <= torch.iinfo(dtype).max), None)


def _bound(node: Any) -> int | None:
    """A number that all elements of a tensor lie below, none of them below 0; None where nothing is known."""
    if node.target in MOVES or node.target is aten.clone.default:
        return _bound(node.args[0])
    if node.target is prims.convert_element_type.default:
        bound, dtype = _bound(node.args[0]), value_of(node).dtype
        holds = bound is not None and dtype in INTEGERS and bound - 1 <= torch.iinfo(dtype).max
        return bound if holds else None
    if node.target in _INDICES:
        return _size_along(node)
    source = node.args[0] if node.target is operator.getitem else None
    if isinstance(source, fx.Node) and source.target in _INDEX_RESULTS and node.args[1] == 1:
        return _size_along(source)
    return None


def _size_along(node: fx.Node) -> int | None:
    """The size of the dimension that an op gives indices of (all elements, without one), where it is a number."""
    assert isinstance(node.target, OpOverload)
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    operand = value_of(given["self"])
    dim: Any = given.get("dim", None if node.target in _INDICES else -1)
    size = operand.numel() if dim is None else operand.shape[dim] if operand.dim() else 1
    return size if isinstance(size, int) else None


def _narrow(node: fx.Node, dtype: torch.dtype, mode: Any) -> None:
    """Sort keys of ``dtype``, and give the sorted ones in the dtype that they had."""
    graph = node.graph
    keys: Any = node.args[0]
    wide = value_of(keys).dtype

    def converted(tensor: fx.Node, to: torch.dtype) -> fx.Node:
        return valued_call(graph, prims.convert_element_type.default, (tensor, to), mode, origin=node)

    with graph.inserting_before(node):
        node.args = (converted(keys, dtype), *node.args[1:])
    node.meta["val"] = compute_value(node, mode)
    for reader in list(node.users):
        if reader.args[1] != 0:
            continue
        reader.meta["val"] = value_of(node)[0]
        readers = list(reader.users)
        with graph.inserting_after(reader):
            back = converted(reader, wide)
        for other in readers:
            other.replace_input_with(reader, back)
