"""Remove ops that change nothing, and fold chains of views and of dtype conversions.

A rule looks at one node and returns what its readers may read instead, or None.  Rules hold to the bit, for
-0.0 and NaN too: ``x + 0`` is not ``x`` for floats, ``x * 1`` and ``x - 0`` are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import fx

from turret.graph.fakes.values import compute_value, fake_mode_of, same_layout, value_of
from turret.hooks.context import CompileContext
from turret.plugins.graph_pass.visible import VisibleStorage

aten, prims = torch.ops.aten, torch.ops.prims


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Apply the rules until none fits."""
    graph = module.graph
    visible = VisibleStorage(graph)
    fake_mode = fake_mode_of(graph)
    changed = False
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        changed |= _shorten(node, fake_mode)
        rule = _IDENTITIES.get(node.target)
        source = rule(node) if rule is not None else None
        if (
            isinstance(source, fx.Node)
            and same_layout(value_of(node), value_of(source))
            and visible.can_forward(node, source)
        ):
            visible.replace(node, source)
            changed = True
    return changed


def _shorten(node: fx.Node, fake_mode: Any) -> bool:
    """Let a view of a view, or a conversion of a conversion, read the first value directly; True when it does."""
    changed = False
    while (rule := _CHAINS.get(node.target)) is not None and (args := rule(node)) is not None:
        before = node.args
        node.args = args
        try:
            fits = same_layout(node.meta.get("val"), compute_value(node, fake_mode))
        except (RuntimeError, ValueError):
            fits = False
        if not fits:
            node.args = before
            break
        changed = True
    return changed


def _first(node: fx.Node) -> Any:
    return node.args[0]


def _is_number(value: Any, wanted: float) -> bool:
    """Equal numbers of equal sign; booleans are not numbers here."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and value == wanted
        and math.copysign(1.0, value) == math.copysign(1.0, wanted)
    )


def _times_one(node: fx.Node) -> Any:
    return _first(node) if _is_number(node.args[1], 1) else None


def _divided_by_one(node: fx.Node) -> Any:
    return _first(node) if _is_number(node.args[1], 1) and not node.kwargs else None


def _plus_zero(node: fx.Node) -> Any:
    """Exact for integers; for floats only ``x + (-0.0)`` keeps the sign of a negative zero."""
    value = value_of(_first(node))
    if not isinstance(value, torch.Tensor) or value.dtype == torch.bool:
        return None
    integral = not value.dtype.is_floating_point and not value.dtype.is_complex
    zero = _is_number(node.args[1], 0) if integral else _is_number(node.args[1], -0.0)
    return _first(node) if zero else None


def _minus_zero(node: fx.Node) -> Any:
    return _first(node) if _is_number(node.args[1], 0) else None


def _power_one(node: fx.Node) -> Any:
    return _first(node) if _is_number(node.args[1], 1) else None


def _always(node: fx.Node) -> Any:
    return _first(node)


def _same_values(node: fx.Node) -> Any:
    """Both branches of a ``where`` are one tensor."""
    return node.args[1] if node.args[1] is node.args[2] else None


def _full_slice(node: fx.Node) -> Any:
    """Same shape and strides: a slice with step 1 that starts at 0."""
    start = node.args[2] if len(node.args) > 2 else None
    step = node.args[4] if len(node.args) > 4 else 1
    return _first(node) if start in (None, 0) and isinstance(step, int) and step == 1 else None


def _unmoved(node: fx.Node) -> Any:
    """All dimensions where they were."""
    dims: Any = node.args[1]
    return _first(node) if list(dims) == sorted(dims) else None


def _back_and_forth(node: fx.Node) -> Any:
    """``x`` in a dtype that holds all its values, and back again."""
    source = _first(node)
    if source.target is not prims.convert_element_type.default:
        return None
    origin = source.args[0]
    exact = widens(value_of(origin).dtype, node_dtype(source))
    return origin if exact and node_dtype(node) == value_of(origin).dtype else None


def node_dtype(node: fx.Node) -> torch.dtype:
    return node.meta["val"].dtype


def _conversion(node: fx.Node) -> Any:
    source = _first(node)
    if node_dtype(node) == value_of(source).dtype:
        return source
    return _back_and_forth(node)


_IDENTITIES: dict[Any, Callable[[fx.Node], Any]] = {
    aten.clone.default: _always,
    aten.alias.default: _always,
    aten.view.default: _always,
    aten.expand.default: _always,
    aten.squeeze.dims: _always,
    aten.permute.default: _unmoved,
    aten.slice.Tensor: _full_slice,
    aten.mul.Tensor: _times_one,
    aten.mul.Scalar: _times_one,
    aten.div.Tensor: _divided_by_one,
    aten.div.Scalar: _divided_by_one,
    aten.add.Tensor: _plus_zero,
    aten.add.Scalar: _plus_zero,
    aten.sub.Tensor: _minus_zero,
    aten.sub.Scalar: _minus_zero,
    aten.pow.Tensor_Scalar: _power_one,
    aten.where.self: _same_values,
    prims.convert_element_type.default: _conversion,
}
"""Op -> rule; the result has the layout of the source, or the rule is not applied."""


def widens(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Whether ``wide`` holds every value of ``narrow`` exactly (and NaN, infinity and -0.0 with it)."""
    if narrow == wide or narrow == torch.bool:
        return not wide.is_complex
    if narrow.is_complex or wide.is_complex or wide == torch.bool:
        return False
    if narrow.is_floating_point:
        return wide.is_floating_point and _significand(wide) >= _significand(narrow) and _range(wide) >= _range(narrow)
    bits = torch.iinfo(narrow).bits - (1 if torch.iinfo(narrow).min < 0 else 0)
    if wide.is_floating_point:
        return _significand(wide) >= bits and math.log2(torch.finfo(wide).max) >= bits
    return torch.iinfo(wide).max >= torch.iinfo(narrow).max and torch.iinfo(wide).min <= torch.iinfo(narrow).min


def _significand(dtype: torch.dtype) -> int:
    return 1 - int(math.log2(torch.finfo(dtype).eps))


def _range(dtype: torch.dtype) -> float:
    """Exponents from the smallest subnormal to the largest number."""
    info = torch.finfo(dtype)
    return min(math.log2(info.max), -math.log2(info.smallest_normal))


def _view_of_view(node: fx.Node) -> tuple | None:
    source = _first(node)
    return (source.args[0], *node.args[1:]) if source.target is aten.view.default else None


def _through_alias(node: fx.Node) -> tuple | None:
    source = _first(node)
    return (source.args[0], *node.args[1:]) if source.target is aten.alias.default else None


def _view_chain(node: fx.Node) -> tuple | None:
    return _view_of_view(node) or _through_alias(node)


def _expand_of_expand(node: fx.Node) -> tuple | None:
    """The outer shape, given without -1, is all that counts."""
    source = _first(node)
    if source.target is aten.expand.default and -1 not in cast(list[int], node.args[1]):
        return (source.args[0], *node.args[1:])
    return _through_alias(node)


def _permute_of_permute(node: fx.Node) -> tuple | None:
    source = _first(node)
    if source.target is not aten.permute.default:
        return _through_alias(node)
    first, second = cast(list[int], source.args[1]), cast(list[int], node.args[1])
    rank = len(second)
    inner = [d % rank for d in first]
    return (source.args[0], [inner[d % rank] for d in second])


def _convert_of_convert(node: fx.Node) -> tuple | None:
    """An exact conversion in between changes nothing."""
    source = _first(node)
    if source.target is not prims.convert_element_type.default:
        return None
    origin = source.args[0]
    return (origin, *node.args[1:]) if widens(value_of(origin).dtype, node_dtype(source)) else None


_CHAINS: dict[Any, Callable[[fx.Node], tuple | None]] = {
    aten.view.default: _view_chain,
    aten.expand.default: _expand_of_expand,
    aten.permute.default: _permute_of_permute,
    prims.convert_element_type.default: _convert_of_convert,
}
"""Op -> arguments that read past the op before it, or None; kept where the result has the same layout."""
