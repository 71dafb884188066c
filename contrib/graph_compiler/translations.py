"""ATen operators as ONNX operators, and which calls of them ONNX Runtime computes as eager does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch
from torch import fx

from turret.contrib.graph_compiler.model import ELEMENT, Builder, dtype_of

aten, prims = torch.ops.aten, torch.ops.prims
FLOAT, BOOL = frozenset({torch.float32}), frozenset({torch.bool})
NUMBER = FLOAT | {torch.int32, torch.int64}
ANY = NUMBER | BOOL


@attrs.frozen
class Rule:
    """How one operator is translated, of which dtypes, and (empty where it is) why a call is not."""

    translate: Callable[..., Any]
    dtypes: frozenset[torch.dtype] = FLOAT
    why_not: Callable[[fx.Node], str] = lambda node: ""


def _tensors(node: fx.Node) -> list[fx.Node]:
    return [n for n in node.all_input_nodes if isinstance(n.meta["val"], torch.Tensor)]


def _same_dtypes(node: fx.Node) -> str:
    """Operands that are cast on the way, to a dtype that the result need not tell, are left to eager."""
    operands = node.args[1:] if node.target is aten.where.self else _tensors(node)
    dtypes = {dtype_of(n) for n in operands if isinstance(n, fx.Node)}
    numbers = [a for a in node.args if isinstance(a, float)]
    if node.target is aten.where.self and dtypes == BOOL:
        return "a choice between bools"
    return "" if len(dtypes) == 1 and (not numbers or dtypes == FLOAT) else "operands of several dtypes"


def _of_result(node: fx.Node) -> str:
    return _same_dtypes(node) or ("" if dtype_of(node) == dtype_of(_tensors(node)[0]) else "operands are cast")


def _has_dims(node: fx.Node) -> str:
    return "" if len(node.args) > 1 and node.args[1] else "a reduction of all dimensions"


def _has_count(node: fx.Node) -> str:
    dims: Any = () if _has_dims(node) else node.args[1]
    known = bool(dims) and all(isinstance(_tensors(node)[0].meta["val"].shape[d], int) for d in dims)
    return "" if known else "a mean of a count that is a symbol"


def _loses_nothing(node: fx.Node) -> str:
    order = [torch.bool, torch.int32, torch.int64, torch.float32]
    old, new = dtype_of(_tensors(node)[0]), dtype_of(node)
    return "" if new == torch.bool or order.index(old) <= order.index(new) else f"{old} to {new}"


def _unary(kind: str) -> Callable[..., str]:
    return lambda b, x, **options: b.emit(kind, b.values[x])


def _binary(kind: str) -> Callable[..., str]:
    def translate(b: Builder, x: Any, y: Any, alpha: Any = 1) -> str:
        dtype = dtype_of(_tensors(b.node)[0])
        right = b.value(y, dtype)
        return b.emit(kind, b.value(x, dtype), right if alpha == 1 else b.emit("Mul", right, b.value(alpha, dtype)))

    return translate


def _relu(b: Builder, x: fx.Node) -> str:
    zero = b.constant(0, torch.float32)  # a NaN stays one, as in eager
    return b.emit("Where", b.emit("Less", b.values[x], zero), zero, b.values[x])


def _slice(b: Builder, x: fx.Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> str:
    bounds = b.sizes([0 if start is None else start]), b.sizes([2**63 - 1 if end is None else end])
    return b.emit("Slice", b.values[x], *bounds, b.sizes([dim]), b.sizes([step]))


def _reduction(kind: str) -> Callable[..., str]:
    def translate(b: Builder, x: fx.Node, dims: Sequence[int], keepdim: bool = False, **options: Any) -> str:
        return b.emit(kind, b.values[x], b.sizes(dims), keepdims=int(keepdim))

    return translate


def _amax(b: Builder, x: fx.Node, *args: Any) -> str:
    undefined = b.emit("Cast", b.emit("IsNaN", b.values[x]), to=ELEMENT[torch.float32])
    b.values[b.node] = undefined  # ReduceMax passes over a NaN, which eager does not
    found = b.emit("Cast", _reduction("ReduceMax")(b, b.node, *args), to=ELEMENT[torch.bool])
    return b.emit("Where", found, b.constant(math.nan, torch.float32), _reduction("ReduceMax")(b, x, *args))


def _var_mean(b: Builder, x: fx.Node, dims: Sequence[int], correction: float = 1, keepdim: bool = False) -> tuple:
    count, axes = math.prod(x.meta["val"].shape[d] for d in dims), b.sizes(dims)
    apart = b.emit("Sub", b.values[x], b.emit("ReduceMean", b.values[x], axes, keepdims=1))
    squares = b.emit("ReduceSum", b.emit("Mul", apart, apart), axes, keepdims=int(keepdim))
    variance = b.emit("Div", squares, b.constant(max(count - correction, 0), torch.float32))
    return variance, b.emit("ReduceMean", b.values[x], axes, keepdims=int(keepdim))


def _addmm(b: Builder, bias: fx.Node, x: fx.Node, y: fx.Node, beta: float = 1, alpha: float = 1) -> str:
    return b.emit("Gemm", b.values[x], b.values[y], b.values[bias], alpha=float(alpha), beta=float(beta))


def _convolution(b: Builder, *args: Any) -> str:
    inputs, (stride, padding, dilation, *_, groups) = [b.values[v] for v in args[:3] if v is not None], args[3:]
    sizes = {"strides": [*stride], "pads": [*padding, *padding], "dilations": [*dilation]}
    return b.emit("Conv", *inputs, group=groups, **sizes)


RULES: dict[Any, Rule] = {
    aten.rsqrt.default: Rule(lambda b, x: b.emit("Reciprocal", b.emit("Sqrt", b.values[x]))),
    aten.relu.default: Rule(_relu),
    aten.clone.default: Rule(_unary("Identity"), ANY),
    aten.bitwise_not.default: Rule(_unary("Not"), BOOL),
    aten.bitwise_and.Tensor: Rule(_binary("And"), BOOL),
    aten.where.self: Rule(lambda b, *args: b.emit("Where", *(b.values[a] for a in args)), ANY, _same_dtypes),
    prims.convert_element_type.default: Rule(
        lambda b, x, dtype: b.emit("Cast", b.values[x], to=ELEMENT[dtype]), ANY, _loses_nothing
    ),
    aten.view.default: Rule(
        lambda b, x, size: b.emit("Reshape", b.values[x], b.sizes(size), allowzero=int(-1 not in size)), ANY
    ),
    aten.permute.default: Rule(
        lambda b, x, dims: b.emit("Transpose", b.values[x], perm=[d % len(dims) for d in dims]), ANY
    ),
    aten.unsqueeze.default: Rule(lambda b, x, dim: b.emit("Unsqueeze", b.values[x], b.sizes([dim])), ANY),
    aten.expand.default: Rule(
        lambda b, x, size: b.emit("Expand", b.values[x], b.sizes([1 if s == -1 else s for s in size])), ANY
    ),
    aten.slice.Tensor: Rule(_slice, ANY),
    aten.select.int: Rule(
        lambda b, x, dim, index: b.emit("Gather", b.values[x], b.value(index, torch.int64), axis=dim), ANY
    ),
    aten.cat.default: Rule(
        lambda b, parts, dim=0: b.emit("Concat", *(b.values[p] for p in parts), axis=dim), ANY, _same_dtypes
    ),
    aten.sum.dim_IntList: Rule(_reduction("ReduceSum"), FLOAT, _has_dims),
    aten.amax.default: Rule(_amax, FLOAT, _has_dims),
    aten.var_mean.correction: Rule(_var_mean, FLOAT, _has_count),
    aten.mm.default: Rule(_binary("MatMul")),
    aten.bmm.default: Rule(_binary("MatMul")),
    aten.addmm.default: Rule(_addmm),
    aten.convolution.default: Rule(_convolution, FLOAT, lambda node: "transposed" if node.args[6] else ""),
}
for _name in ("neg", "exp", "log", "sqrt", "reciprocal", "sigmoid", "tanh", "erf"):
    RULES[getattr(aten, _name).default] = Rule(_unary(_name.capitalize()))
for _name, _kind in {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}.items():
    _rule = Rule(_binary(_kind), FLOAT if _name == "div" else NUMBER, _of_result)
    RULES |= {getattr(aten, _name).Tensor: _rule, getattr(aten, _name).Scalar: _rule}
for _name, _kind in {"ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less", "eq": "Equal"}.items():
    _rule = Rule(_binary(_kind), NUMBER, _same_dtypes)
    RULES |= {getattr(aten, _name).Tensor: _rule, getattr(aten, _name).Scalar: _rule}


def why_not(node: fx.Node) -> str:
    """Why ONNX Runtime is not given a call, by operator, dtype and shape; empty where it is."""
    rule = RULES.get(node.target)
    if rule is None:
        return f"no translation of {node.target}"
    if any(isinstance(n.meta.get("val"), (torch.SymFloat, torch.SymBool)) for n in node.all_input_nodes):
        return "a number that is no integer"
    tensors = [t for source in (node, *node.all_input_nodes) for t in _tensors_in(source.meta.get("val"))]
    operands = tensors[1:] if tensors[0].dtype == torch.bool and len(tensors) > 1 else tensors  # comparisons
    if strange := {t.dtype for t in operands} - rule.dtypes:
        return f"{', '.join(map(str, strange))} of {node.target}"
    if odd := [t for t in tensors if t.device.type != "cpu" or 0 in t.shape or not 0 <= t.dim() <= 8]:
        return f"a tensor of shape {tuple(odd[0].shape)} on {odd[0].device}"
    return rule.why_not(node)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [v for v in values if isinstance(v, torch.Tensor)]
