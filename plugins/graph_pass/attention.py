"""Attention that a program writes out (a product, softmax, a product) as one call of ``scaled_dot_product_attention``.

The library's kernel keeps the scores in registers, where the products write and read them.  Numbers differ by rounding
alone: scores are not rounded to a half type, which may also keep them from overflowing.  Only where no gradient is
wanted (gradients of gradients the kernels do not have), without masks (where a mask leaves a row nothing the kernels
make zeros, and softmax NaN), where nobody else reads scores or weights, and for dtypes that the kernels are faster for.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import fx

from turret.graph.dtypes import HALF
from turret.hooks.context import CompileContext
from turret.hooks.devices import KernelFamily, device_for
from turret.torch_compat.operators.ops import OpOverload

LEAST_SCORES = 1 << 12
"""Scores of one head below which a call costs what it saves."""
LONGEST_HEAD, HEAD_STEP = 256, 8
"""The longest head that kernels for GPUs take, and what it must be a multiple of."""

_MATMUL = {torch.matmul, operator.matmul, torch.bmm, "matmul", "bmm", "__matmul__"}
_SOFTMAX = {torch.softmax, F.softmax, "softmax"}
_DROPOUT = {F.dropout, torch.dropout}
_CONVERSIONS = {"to", "type_as", "type", "float", "half", "bfloat16"}
_PURE = {*_MATMUL, *_SOFTMAX, *_DROPOUT, *_CONVERSIONS, operator.mul, operator.truediv, torch.mul, torch.div, F.linear}
_PURE_METHODS = {"transpose", "permute", "view", "reshape", "contiguous", "mul", "div", "unsqueeze", "flatten", "chunk"}
_PURE_METHODS |= {"split", "unbind", "expand", "size", "dim", "mT", "T"}
_PURE |= {getattr, operator.getitem, operator.add, operator.sub, *_PURE_METHODS}


@attrs.frozen
class _Attention:
    """Written-out attention: ``last`` is softmax(``scale`` * ``query`` @ ``turned``) @ ``value``."""

    last: fx.Node
    scores: fx.Node
    query: fx.Node
    turned: fx.Node
    value: fx.Node
    scale: float


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Replace every attention that may be replaced."""
    if not _kernels_are_allowed(module.graph) or _wants_gradients(module.graph):
        return False
    places = {node: place for place, node in enumerate(module.graph.nodes)}
    found = [a for node in module.graph.nodes if (a := _attention(node)) is not None and _may_replace(a, places)]
    for attention in found:
        _replace(module.graph, attention)
    return bool(found)


def _value(node: Any) -> Any:
    """A node's fake value: that of the phase, or the one that capture keeps."""
    return node.meta.get("val", node.meta.get("example_value")) if isinstance(node, fx.Node) else node


def _wants_gradients(graph: fx.Graph) -> bool:
    """Whether a gradient may flow through some part of a graph."""
    if torch.is_grad_enabled():
        given = (_value(node) for node in graph.find_nodes(op="placeholder"))
        return any(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
    return any("grad_enabled" in getattr(node.target, "__name__", "") for node in graph.nodes)


def _kernels_are_allowed(graph: fx.Graph) -> bool:
    """Whether the program leaves all kernels of attention to choose from."""
    if torch.are_deterministic_algorithms_enabled():
        return False
    if not (torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.mem_efficient_sdp_enabled()):
        return False
    return not any("_sdp_use_" in getattr(node.target, "__name__", "") for node in graph.nodes)


def _attention(last: fx.Node) -> _Attention | None:
    """The attention that ends with a node, if one does."""
    if not _is(last, _MATMUL) or len(last.args) != 2:
        return None
    weights, value = last.args
    softmax = next((n for n in _alone(weights, _CONVERSIONS, _idle_dropout) if _is(n, _SOFTMAX)), None)
    if softmax is None or not _along_last(softmax):
        return None
    scale = 1.0
    node: Any = softmax.args[0]
    while isinstance(node, fx.Node) and _has_one_reader(node) and (factor := _factor(node)) is not None:
        scale, node = scale * factor, node.args[0]
    if not isinstance(node, fx.Node) or not _has_one_reader(node) or not _is(node, _MATMUL) or len(node.args) != 2:
        return None
    operands = [operand for operand in (*node.args, value) if isinstance(operand, fx.Node)]
    if len(operands) != 3:
        return None
    return _Attention(last, node, operands[0], operands[1], operands[2], scale)


def _is(node: fx.Node, targets: set) -> bool:
    return node.op in ("call_function", "call_method") and node.target in targets


def _alone(node: Any, conversions: set, skipped: Any) -> Iterator[fx.Node]:
    """A value and those that it is a mere conversion of, as long as nobody else reads them."""
    while isinstance(node, fx.Node) and _has_one_reader(node):
        yield node
        if not (_is(node, conversions) or skipped(node)):
            return
        node = node.args[0]


def _has_one_reader(node: fx.Node) -> bool:
    """Whether one node alone reads another, but for conversions and the like whose own results nobody reads."""
    return sum(not _is_unread(user) for user in node.users) == 1


def _is_unread(node: fx.Node) -> bool:
    return not node.users and _only_reads(node)


def _idle_dropout(node: fx.Node) -> bool:
    """Whether a node is a dropout that drops nothing."""
    if not _is(node, _DROPOUT):
        return False
    given: dict[str, Any] = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
    training = given.get("training", given.get("train", True))
    return _only_reads(node) and bool(training is False or given.get("p") == 0)


def _along_last(softmax: fx.Node) -> bool:
    source = _value(softmax.args[0])
    dim = softmax.args[1] if len(softmax.args) > 1 else softmax.kwargs.get("dim")
    return isinstance(source, torch.Tensor) and dim in (-1, source.dim() - 1)


def _factor(node: fx.Node) -> float | None:
    """By what number a node multiplies its first operand; None where it does something else."""
    times, over = _is(node, {operator.mul, torch.mul, "mul"}), _is(node, {operator.truediv, torch.div, "div"})
    if not (times or over) or len(node.args) != 2 or node.kwargs:
        return None
    number = node.args[1]
    if isinstance(number, bool) or not isinstance(number, int | float) or number == 0:
        return None
    return float(number) if times else 1.0 / number


def _may_replace(found: _Attention, places: dict[fx.Node, int]) -> bool:
    values = [_value(node) for node in (found.query, found.turned, found.value)]
    results = [_value(node) for node in (found.scores, found.last)]
    if not all(isinstance(v, torch.Tensor) for v in (*values, *results)):
        return False
    weights = _value(found.last.args[0])
    same = {(v.dtype, v.device, v.dim()) for v in (*values, *results, weights)}
    if len(same) != 1 or not _shapes_fit(*values):
        return False
    return _is_faster(*values) and not _written_between(found, places)


def _shapes_fit(query: torch.Tensor, turned: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether nothing is broadcast, and there are as many keys as values, all of the queries' length."""
    if query.dim() not in (3, 4):
        return False
    lead = query.shape[:-2]
    pairs = [*zip(lead, turned.shape[:-2], strict=True), *zip(lead, value.shape[:-2], strict=True)]
    pairs += [(query.shape[-1], value.shape[-1]), (turned.shape[-1], value.shape[-2])]
    return all(map(_same_size, *zip(*pairs, strict=True)))


def _same_size(one: Any, other: Any) -> bool:
    """Whether two sizes are the same whatever symbols stand for; asking them would guard on it."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt) and one.node.expr == other.node.expr


def _seen(value: Any) -> int:
    """A size as it was in the call that is compiled for."""
    if isinstance(value, int):
        return value
    return int(value.node.hint) if value.node.has_hint() else 0


def _is_faster(query: torch.Tensor, turned: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the library has a kernel for these that was seen to be faster."""
    head = query.shape[-1]
    if not isinstance(head, int) or _seen(query.shape[-2]) * _seen(turned.shape[-1]) < LEAST_SCORES:
        return False
    if device_for(query.device.type).eager_kernels is KernelFamily.HOST:
        return query.dtype == torch.float32
    return query.dtype in HALF and head <= LONGEST_HEAD and head % HEAD_STEP == 0


def _written_between(found: _Attention, places: dict[fx.Node, int]) -> bool:
    """Whether something between the two products may write to what the first has read."""
    between = [n for n, place in places.items() if places[found.scores] < place < places[found.last]]
    return any(not _only_reads(node) for node in between)


def _only_reads(node: fx.Node) -> bool:
    if node.op == "call_function" and isinstance(node.target, OpOverload):
        return not node.target._schema.is_mutable
    if node.kwargs.get("out") is not None or node.kwargs.get("inplace") or (_is(node, _DROPOUT) and len(node.args) > 3):
        return False
    return _is(node, _PURE) or _is_torch_function(node)


def _is_torch_function(node: fx.Node) -> bool:
    """Whether a call is of torch's own function of a name that says that it writes to nothing."""
    target = node.target
    if node.op != "call_function" or not inspect.isbuiltin(target):
        return False
    return getattr(torch, target.__name__, None) is target and not target.__name__.endswith("_")


def _replace(graph: fx.Graph, found: _Attention) -> None:
    batched = _value(found.query).dim() == 4  # of three dimensions the library has slow kernels alone
    with graph.inserting_before(found.last):
        operands = [found.query, graph.call_method("transpose", (found.turned, -2, -1)), found.value]
        if not batched:
            operands = [graph.call_method("unsqueeze", (operand, 0)) for operand in operands]
        call = graph.call_function(F.scaled_dot_product_attention, tuple(operands), {"scale": found.scale})
        result = call if batched else graph.call_method("squeeze", (call, 0))
        # A product is dense, and what comes behind may rely on it.
        result = graph.call_method("contiguous", (result,))
    trace = found.last.meta.get("stack_trace")
    if trace is not None:
        call.meta["stack_trace"] = result.meta["stack_trace"] = trace
    found.last.replace_all_uses_with(result)
    _erase(graph, found.last, (found.query, found.turned, found.value))


def _erase(graph: fx.Graph, node: fx.Node, kept: Sequence[fx.Node]) -> None:
    """Erase a node that nobody reads, and what nobody reads then."""
    for user in list(node.users):
        if _is_unread(user):
            graph.erase_node(user)
    if node.users or node in kept or not _only_reads(node):
        return
    operands = node.all_input_nodes
    graph.erase_node(node)
    for operand in operands:
        _erase(graph, operand, kept)
