"""What recomputing a node in the backward costs, in bytes of memory traffic that would take as long.

A cost of a kernel that can be fused is its arithmetic alone; one that cannot be fused also reads and
writes memory, weighted so that saving its result is always the cheaper choice.  Only a lowered memory budget
or a checkpoint tag makes such a node be recomputed.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

from turret.graph.op_set import Family, family_of
from turret.graph.op_traits import (
    defines_unbacked_symbols,
    has_custom_code,
    is_effectful,
    is_random_call,
    is_view,
    overload_of,
    size_hint,
    tensor_bytes,
)
from turret.graph.scalar_ops import Cost, aten_ops
from turret.hooks.devices import HOST, Costs, device_for
from turret.torch_compat.operators.ops import OpOverload

BARRIER = 4.0
"""Traffic factor of a kernel that cannot be fused; above what saving its result can cost (see ``min_cut``)."""


_MATMULS = frozenset(["mm", "bmm", "addmm", "baddbmm"])


def recompute_cost(node: fx.Node) -> float:
    """Cost of one node; ``inf`` when running it again could give another result or another effect."""
    if node.op != "call_function" or node.target is operator.getitem or is_view(node):
        return 0.0 if node.op in ("call_function", "get_attr") else math.inf
    if is_effectful(node) or is_random_call(node) or has_custom_code(node.target) or _equates_rounded(node):
        return math.inf
    if defines_unbacked_symbols(node):
        return math.inf
    family = family_of(node.target)
    if family in (Family.VIEW, Family.SIZE, Family.CREATION) or not _has_tensor(node):
        return 0.0
    rule = None if family is None else _RULES.get(family)
    return (rule or _library_kernel)(node)


def _equates_rounded(node: fx.Node) -> bool:
    """Whether a node asks for the equality of floats one of which a function of libm makes.

    The last place of such a function may differ between two kernels (vectors and the rest of a loop call different
    code), so that nothing would equal the minimum that the forward found.
    """
    if not isinstance(node.target, OpOverload) or _op_name(node) not in ("eq", "ne"):
        return False
    if len(node.all_input_nodes) < 2:
        return False
    stack, seen = list(node.all_input_nodes), set(node.all_input_nodes)
    while stack:
        source = stack.pop()
        if not isinstance(source.target, OpOverload):
            continue
        pointwise = family_of(source.target) is Family.POINTWISE
        if pointwise and _cost_class(source) == "transcendental":
            return True
        if pointwise or is_view(source):
            stack += [above for above in source.all_input_nodes if above not in seen]
            seen.update(source.all_input_nodes)
    return False


def _has_tensor(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) or (isinstance(value, (tuple, list)) and len(value) > 0)


def _elements(node: fx.Node) -> int:
    value = node.meta["val"]
    return size_hint(value.numel()) if isinstance(value, torch.Tensor) else 0


def _costs(node: fx.Node) -> Costs:
    """Of the device that a node computes on."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        value = next((v for v in value if isinstance(v, torch.Tensor)), None)
    return device_for(value.device.type if isinstance(value, torch.Tensor) else HOST.type).costs


def _op_name(node: fx.Node) -> str:
    return overload_of(node)._schema.name.split("::")[-1]


def _cost_class(node: fx.Node) -> Cost:
    op = aten_ops().get(_op_name(node))
    return "cheap" if op is None else op.cost


def _pointwise(node: fx.Node) -> float:
    of_an_element: float = getattr(_costs(node), _cost_class(node))
    return _elements(node) * of_an_element


def _index(node: fx.Node) -> float:
    """Indirect or shifted reads inside a fused kernel: the elements that it reads."""
    return float(tensor_bytes(node.meta["val"]))


def _random(node: fx.Node) -> float:
    return _elements(node) * _costs(node).random


def _traffic(node: fx.Node) -> float:
    """Bytes that a kernel of its own reads and writes."""
    read = sum(tensor_bytes(source.meta.get("val")) for source in node.all_input_nodes)
    return BARRIER * (read + tensor_bytes(node.meta["val"]))


def _library_kernel(node: fx.Node) -> float:
    return _traffic(node) + _flops(node) / _costs(node).flops_per_byte


def _flops(node: fx.Node) -> float:
    """Floating-point operations of a matmul, convolution or attention; 0 for other library calls."""
    if not isinstance(node.target, OpOverload):
        return 0.0
    name = _op_name(node)
    values = [_value(argument) for argument in node.args]
    if name in _MATMULS:
        left, right = values[-2:] if name in ("mm", "bmm") else values[1:3]
        return 2.0 * size_hint(left.numel()) * size_hint(right.shape[-1])
    if name == "convolution":
        weight = values[1]
        return 2.0 * _elements(node) * size_hint(weight.numel()) / max(size_hint(weight.shape[0]), 1)
    if name.startswith("_scaled_dot_product") and not name.endswith("backward"):
        query, key = values[:2]
        return 4.0 * size_hint(query.numel()) * size_hint(key.shape[-2])
    return 0.0


def _value(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, fx.Node) else argument


_RULES = {
    Family.POINTWISE: _pointwise,
    Family.INDEX: _index,
    Family.RANDOM: _random,
    Family.REDUCTION: _traffic,
    Family.SCAN: _traffic,
    Family.SCATTER: _traffic,
    Family.WINDOW: _traffic,
}
