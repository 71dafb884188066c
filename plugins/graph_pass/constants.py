"""Fold pointwise ops whose operands are all one constant value into one ``full``."""

from __future__ import annotations

import torch
from torch import fx

from turret.graph.op_set import Family, family_of, is_compiled_dtype
from turret.graph.op_traits import is_pure_call
from turret.hooks.context import CompileContext
from turret.hooks.devices import uses_host_kernels
from turret.torch_compat.operators.layouts import is_contiguous_or_false
from turret.torch_compat.operators.ops import OpOverload

aten = torch.ops.aten
MOVES = frozenset(
    {
        aten.view.default,
        aten.expand.default,
        aten.permute.default,
        aten.alias.default,
        aten.unsqueeze.default,
        aten.squeeze.dims,
        aten.slice.Tensor,
        aten.select.int,
    }
)
"""Views, as decompositions leave them, whose elements are elements of what they view."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_EXACT = _words(
    """
    add sub mul div neg abs where clone convert_element_type eq ne lt le gt ge maximum minimum logical_not
    logical_and logical_or bitwise_not bitwise_and bitwise_or bitwise_xor floor ceil trunc round sqrt
    """
)
"""Correctly rounded or exact on every device."""


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Replace every fresh contiguous tensor that has one value everywhere by a ``full`` of it.

    The value comes from running the op on one-element tensors of the CPU, so it is eager's to the bit; for
    another device only ops are folded that every device rounds alike.
    """
    uniform: dict[fx.Node, torch.Tensor] = {}
    changed = False
    for node in list(module.graph.nodes):
        value = _uniform_value(node, uniform)
        if value is None:
            continue
        uniform[node] = value
        fake = node.meta["val"]
        if node.target is aten.full.default or node.target in MOVES or not is_contiguous_or_false(fake):
            continue
        with module.graph.inserting_before(node):
            full = module.graph.call_function(
                aten.full.default,
                (_shape(fake), value.item()),
                {"dtype": fake.dtype, "device": fake.device, "pin_memory": False},
            )
        full.meta = dict(node.meta)
        node.replace_all_uses_with(full)
        module.graph.erase_node(node)
        uniform[full] = value
        changed = True
    return changed


def _op_name(node: fx.Node) -> str:
    return node.target._schema.name.split("::")[-1] if isinstance(node.target, OpOverload) else ""


def _shape(fake: torch.Tensor) -> list[int]:
    return list(fake.shape)


def _uniform_value(node: fx.Node, uniform: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """The one value of a node's tensor as a scalar tensor, or None when it has several or is not known."""
    fake = node.meta.get("val")
    if node.op != "call_function" or not isinstance(fake, torch.Tensor):
        return None
    if not all(isinstance(size, int) for size in fake.shape) or not is_compiled_dtype(fake.dtype):
        return None
    if node.target is aten.full.default:
        fill = node.args[1]
        return torch.full((), fill, dtype=fake.dtype) if isinstance(fill, (int, float, bool)) else None
    if node.target in MOVES:
        moved = node.args[0]
        return uniform.get(moved) if isinstance(moved, fx.Node) else None
    inputs = node.all_input_nodes
    if not inputs or any(source not in uniform for source in inputs) or not _can_be_evaluated(node, fake.device):
        return None
    return _evaluate(node, uniform)


def _can_be_evaluated(node: fx.Node, device: torch.device) -> bool:
    """Whether a call computes each element by itself, and the host computes it to the bit as the device would."""
    if family_of(node.target) is not Family.POINTWISE or not is_pure_call(node):
        return False
    return uses_host_kernels(device) or _op_name(node) in _EXACT


def _evaluate(node: fx.Node, uniform: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """Run a pointwise op on tensors of one element each, of the operands' ranks (which type promotion sees)."""

    def operand(source: fx.Node) -> torch.Tensor:
        rank = source.meta["val"].dim()
        return uniform[source].reshape([1] * rank)

    args, kwargs = fx.node.map_arg((node.args, node.kwargs), operand)
    kwargs = {key: value for key, value in kwargs.items() if key != "device"}
    assert callable(node.target), node
    result = node.target(*args, **kwargs)
    return result.reshape(()) if result.dtype == node.meta["val"].dtype else None
