"""Attention that a program writes out: a product, perhaps a mask, softmax, a product."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import fx

from turret.torch_compat.operators.native_functions import nn_c
from turret.torch_compat.operators.ops import OpOverload

_MATMUL = {torch.matmul, operator.matmul, torch.bmm, "matmul", "bmm", "__matmul__"}
_SOFTMAX = {torch.softmax, F.softmax, "softmax"}
_DROPOUT = {F.dropout, torch.dropout}
_CONVERSIONS = {"to", "type_as", "type", "float", "half", "bfloat16"}
_ADD = {operator.add, operator.iadd, torch.add, "add", "add_"}
_FILL = {torch.masked_fill, "masked_fill", "masked_fill_"}
_SCALE = {operator.mul, operator.imul, torch.mul, "mul", "mul_"}
_DIVIDE = {operator.truediv, operator.itruediv, torch.div, "div", "div_"}
_LINKS = {*_ADD, *_FILL, *_SCALE, *_DIVIDE, torch.where}
"""What stands between scores and softmax; some write to the scores, which nobody else has."""
_IN_PLACE = {operator.iadd, operator.imul, operator.itruediv, "add_", "mul_", "div_", "masked_fill_"}
_SAY_WRITES = frozenset(["inplace", "max_norm", "out", "running_mean", "running_var"])
"""Parameters of functions for layers with which they write to an argument."""
_WRITES_UNSAID = ("batch_norm", "instance_norm", "moving_avg")
"""Parts of the names of functions that write to running statistics, whatever they are declared to do."""


@attrs.frozen
class Link:
    """A mask on the way from scores to softmax: ``added``, or ``value`` put where ``hidden`` is true (or, with
    ``keeps``, where it is false)."""

    node: fx.Node
    added: fx.Node | None = None
    hidden: fx.Node | None = None
    keeps: bool = False
    value: float = 0.0


@attrs.frozen
class WrittenAttention:
    """``last`` is softmax(``scale`` * ``query`` @ ``turned``, masked) @ ``value``, with dropout of ``dropout`` of the
    weights.  ``masks`` are in the order in which they are applied."""

    last: fx.Node
    scores: fx.Node
    query: fx.Node
    turned: fx.Node
    value: fx.Node
    scale: float
    masks: tuple[Link, ...]
    dropout: float
    inner: tuple[fx.Node, ...]
    """Nodes from the scores to the weights: nobody else reads them."""


def fake(node: Any) -> Any:
    """A node's fake value: that of the phase, or the one that capture keeps; what is no node is its own."""
    return node.meta.get("val", node.meta.get("example_value")) if isinstance(node, fx.Node) else node


def written_attention(last: fx.Node, places: Mapping[fx.Node, int]) -> WrittenAttention | None:
    """The attention that ends with a node, if one does; ``places`` number the graph's nodes in order."""
    if not _is(last, _MATMUL) or len(last.args) != 2:
        return None
    weights, value = last.args
    behind = list(_alone(weights))
    softmax = next((node for node in behind if _is(node, _SOFTMAX)), None)
    if softmax is None or not _along_last(softmax):
        return None
    behind = behind[: behind.index(softmax) + 1]
    dropouts = [rate for node in behind if (rate := dropout_rate(node)) is not None]
    chain = _chain(softmax, places)
    found = None if chain is None else _read(chain)
    if chain is None or found is None or len(dropouts) > 1:
        return None
    scores, (scale, masks) = chain[-1], found
    operands = [operand for operand in (*scores.args[-2:], value) if isinstance(operand, fx.Node)]
    if len(operands) != 3:
        return None
    query, turned, value = operands
    inner = (*reversed(chain), *reversed(behind))
    return WrittenAttention(last, scores, query, turned, value, scale, masks, sum(dropouts), inner)


def _chain(softmax: fx.Node, places: Mapping[fx.Node, int]) -> list[fx.Node] | None:
    """The calls from softmax, which is left out, back to the product whose scores it takes; None where there is none.

    What writes to scores stands behind the call that made them.
    """
    chain: list[fx.Node] = []
    reader = softmax
    while True:
        node = reader.args[1] if reader.target is torch.where else reader.args[0]
        writes = _writes_before(node, reader, places) if isinstance(node, fx.Node) else None
        if writes is None or not isinstance(node, fx.Node):
            return None
        chain += [*reversed(writes), node]
        if _is(node, _MATMUL) or node.target is torch.baddbmm:
            return chain if len(node.args) == (3 if node.target is torch.baddbmm else 2) else None
        if not _is(node, {*_LINKS, *_CONVERSIONS}) or not node.args:
            return None
        reader = node


def _writes_before(node: fx.Node, reader: fx.Node, places: Mapping[fx.Node, int]) -> list[fx.Node] | None:
    """The masks and factors that are written to a value before its one reader; None where anybody else has it."""
    others = [user for user in node.users if user is not reader and not is_unread(user)]
    for user in others:
        writes = _is(user, _IN_PLACE) and user.args[0] is node and list(user.all_input_nodes).count(node) == 1
        if not writes or user.users or places[user] > places[reader]:
            return None
    return sorted(others, key=places.__getitem__)


def _read(chain: Sequence[fx.Node]) -> tuple[float, tuple[Link, ...]] | None:
    """The factor of the scores, and the masks that come behind it, in order; None where there is anything else."""
    scale, masks = 1.0, []
    *behind, product = chain
    for node in behind:
        link, factor = _link(node), _factor(node)
        if link is not None and scale == 1.0:
            masks.append(link)
        elif factor is not None:
            scale *= factor
        elif not _is(node, _CONVERSIONS):
            return None
    if product.target is torch.baddbmm:
        alpha, added = _added_product(product, scale)
        if alpha is None:
            return None
        scale *= alpha
        masks += added
    return scale, tuple(reversed(masks))


def _added_product(product: fx.Node, scale: float) -> tuple[float | None, list[Link]]:
    """The factor of a product that a tensor is added to, and that tensor as a mask; None where it is none."""
    given: dict[str, Any] = {"beta": 1, "alpha": 1, **product.kwargs}
    added, alpha = product.args[0], given["alpha"]
    if not isinstance(alpha, int | float) or alpha == 0 or not isinstance(added, fx.Node):
        return None, []
    if given["beta"] == 0:
        return float(alpha), []
    masks = given["beta"] == 1 and scale == 1.0 and isinstance(fake(added), torch.Tensor)
    return (float(alpha), [Link(product, added=added)]) if masks else (None, [])


def _is(node: Any, targets: set) -> bool:
    return isinstance(node, fx.Node) and node.op in ("call_function", "call_method") and node.target in targets


def _alone(node: Any) -> Iterator[fx.Node]:
    """A value and those that it is a conversion of, or a dropout, as long as nobody else reads them."""
    while isinstance(node, fx.Node) and has_one_reader(node):
        yield node
        if not _is(node, _CONVERSIONS) and dropout_rate(node) is None:
            return
        node = node.args[0]


def has_one_reader(node: fx.Node) -> bool:
    """Whether one node alone reads another, but for conversions and the like whose own results nobody reads."""
    return sum(not is_unread(user) for user in node.users) == 1


def is_unread(node: fx.Node) -> bool:
    """Whether a call does nothing: nobody reads its result, and it writes to nothing."""
    return not node.users and only_reads(node)


def dropout_rate(node: fx.Node) -> float | None:
    """What part of its input a dropout drops (0 where it is idle); None for another call."""
    if not _is(node, _DROPOUT):
        return None
    given: dict[str, Any] = dict(zip(("input", "p", "training", "inplace"), node.args, strict=False)) | node.kwargs
    if given.get("inplace"):
        return None
    training = given.get("training", given.get("train", True))
    rate = given.get("p", 0.5)
    if training is False:
        return 0.0
    return float(rate) if isinstance(rate, int | float) else None


def _along_last(softmax: fx.Node) -> bool:
    source = fake(softmax.args[0])
    dim = softmax.args[1] if len(softmax.args) > 1 else softmax.kwargs.get("dim")
    return isinstance(source, torch.Tensor) and dim in (-1, source.dim() - 1)


def _factor(node: fx.Node) -> float | None:
    """By what number a node multiplies its first operand; None where it does something else."""
    times, over = _is(node, _SCALE), _is(node, _DIVIDE)
    if not (times or over) or len(node.args) != 2 or node.kwargs:
        return None
    number = node.args[1]
    if isinstance(number, bool) or not isinstance(number, int | float) or number == 0:
        return None
    return float(number) if times else 1.0 / number


def _link(node: fx.Node) -> Link | None:
    """What a node masks its scores by; None where it does something else."""
    if node.kwargs:
        return None
    if _is(node, _ADD) and len(node.args) == 2:
        added = node.args[1]
        return Link(node, added=added) if isinstance(added, fx.Node) and isinstance(fake(added), torch.Tensor) else None
    if _is(node, _FILL) and len(node.args) == 3:
        return _filled(node, node.args[1], node.args[2], keeps=False)
    if _is(node, {torch.where}) and len(node.args) == 3:
        return _filled(node, node.args[0], node.args[2], keeps=True)
    return None


def _filled(node: fx.Node, where: Any, value: Any, *, keeps: bool) -> Link | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(where, fx.Node):
        return None
    condition = fake(where)
    if not isinstance(condition, torch.Tensor) or condition.dtype != torch.bool:
        return None
    return Link(node, hidden=where, keeps=keeps, value=float(value))


def written_between(found: WrittenAttention, places: Mapping[fx.Node, int]) -> bool:
    """Whether something between the two products may write to what the first has read."""
    between = [n for n, place in places.items() if places[found.scores] < place < places[found.last]]
    own = set(found.inner)
    return any(not only_reads(node) and not (node in own and _is(node, _LINKS)) for node in between)


def only_reads(node: fx.Node) -> bool:
    """Whether a call is known to write to nothing."""
    if node.op == "call_function" and any(part in str(node.target) for part in _WRITES_UNSAID):
        return False
    if node.op == "call_function" and isinstance(node.target, OpOverload):
        return not node.target._schema.is_mutable
    if node.op == "get_attr":
        return True
    if node.kwargs.get("out") is not None:
        return False
    if node.op == "call_method":
        return isinstance(node.target, str) and not node.target.endswith("_") and node.target != "backward"
    return node.target is getattr or _is_torch_function(node) or _is_operator(node) or _is_pure_layer(node)


def _is_pure_layer(node: fx.Node) -> bool:
    """Whether a call is of a function for layers that is written in Python, and not told to write."""
    name = getattr(node.target, "__name__", "")
    if not inspect.isfunction(node.target) or getattr(F, name, None) is not node.target or name.endswith("_"):
        return False
    given = inspect.signature(node.target).bind_partial(*node.args, **node.kwargs).arguments
    return not any(given.get(parameter) for parameter in _SAY_WRITES)


def _is_operator(node: fx.Node) -> bool:
    """Whether a call is of one of Python's operators that writes to nothing."""
    name = getattr(node.target, "__name__", "")
    if node.op != "call_function" or getattr(operator, name, None) is not node.target:
        return False
    plain = name.removeprefix("i")
    in_place = name != plain and (hasattr(operator, plain) or hasattr(operator, f"{plain}_"))
    return name not in ("setitem", "delitem") and (not in_place or name == "is_")


def _is_torch_function(node: fx.Node) -> bool:
    """Whether a call is of torch's own function of a name that says that it writes to nothing."""
    target = node.target
    if node.op != "call_function" or not inspect.isbuiltin(target):
        return False
    known = any(getattr(place, target.__name__, None) is target for place in (torch, nn_c))
    return known and not target.__name__.endswith("_")
