"""Attention by the library's fast kernels: written out it becomes one call, and calls are given masks in fit forms.

The library's kernel keeps the scores in registers, where the products write and read them.  Numbers differ by rounding
alone: scores are not rounded to a half type, which may also keep them from overflowing.  Written-out attention is
replaced where nobody else reads scores or weights, where dropout drops nothing (its random numbers are the program's),
and for dtypes that the kernels are faster for; queries that a mask leaves no key come out as written.  Gradients of
gradients, which the kernels do not have, are computed op by op (``CompiledGraph.recorded``) by another.

A mask that hides nothing, or the keys behind each query, is none: kernels are faster without, and are told that it is
causal.  For GPUs other masks, and operands, take the form that the memory-efficient kernel takes; in any other the
library computes in float32, scores in memory.  Heads that a program copies apart, which these kernels take as a
product has left them, are not copied; results lie as queries do, so they are left where the program moves them back.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import fx

from turret.graph.dtypes import HALF
from turret.hooks.context import CompileContext
from turret.hooks.devices import KernelFamily, device_for
from turret.plugins.graph_pass.attention.known_values import KnownValues
from turret.plugins.graph_pass.attention.masks import MaskMaker, known_mask
from turret.plugins.graph_pass.attention.written import (
    WrittenAttention,
    fake,
    has_one_reader,
    is_unread,
    only_reads,
    written_attention,
    written_between,
)
from turret.torch_compat.modes import cudnn_attention_enabled

LEAST_SCORES = 1 << 12
"""Scores of one head below which a call costs what it saves."""
LONGEST_HEAD, HEAD_STEP = 256, 8
"""The longest head that kernels for GPUs take, and what it must be a multiple of."""
_ATTENTION = F.scaled_dot_product_attention
_FRESH = {F.linear, torch.matmul, operator.matmul, operator.add, operator.mul, torch.add, torch.mul}
"""What makes memory that nobody else has, aligned as kernels load it."""
_HEADS = {"view", "reshape", "unflatten", "transpose", "permute", torch.transpose, torch.permute}
"""What tells heads apart in what a product has made."""
_TRANSPOSE = {"transpose", torch.transpose}
_SWAPPED = {(1, 2), (2, 1), (-3, -2), (-2, -3), (1, -2), (-2, 1), (2, -3), (-3, 2)}


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Replace every attention that may be replaced, and fit every call to the kernels."""
    graph = module.graph
    if not _kernels_are_allowed(graph):
        return False
    writer = _Writer(graph, context)
    changed = [writer.written(node) for node in list(graph.nodes)]
    calls = graph.find_nodes(op="call_function", target=_ATTENTION)
    changed += [writer.fitted(node) for node in calls]
    return any(changed)


def _kernels_are_allowed(graph: fx.Graph) -> bool:
    """Whether the program leaves all kernels of attention to choose from."""
    if torch.are_deterministic_algorithms_enabled():
        return False
    if not (torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.mem_efficient_sdp_enabled()):
        return False
    return not any(_forbids(node) for node in graph.nodes)


def _forbids(node: fx.Node) -> bool:
    """Whether a program chooses kernels itself, or takes gradients of gradients, which kernels do not have."""
    if node.op != "call_function":
        return False
    again = node.target is torch.autograd.grad and node.kwargs.get("create_graph", False) is not False
    return again or "_sdp_use_" in getattr(node.target, "__name__", "")


def _wants_gradients(graph: fx.Graph) -> bool:
    """Whether a gradient may flow through some part of a graph."""
    if torch.is_grad_enabled():
        given = (fake(node) for node in graph.find_nodes(op="placeholder"))
        return any(isinstance(value, torch.Tensor) and value.requires_grad for value in given)
    modes = (node for node in graph.nodes if "grad_enabled" in getattr(node.target, "__name__", ""))
    return any(node.args != (False,) for node in modes)


class _Writer:
    def __init__(self, graph: fx.Graph, context: CompileContext | None) -> None:
        self.graph, self.context = graph, context
        self.places = {node: place for place, node in enumerate(graph.nodes)}
        self.erased: set[fx.Node] = set()
        self.trained = _wants_gradients(graph)
        self.known = KnownValues(graph)

    # ------------------------------------------------------------ written out

    def written(self, last: fx.Node) -> bool:
        """Replace the attention that ends with a node; False where none does, or it has to stay."""
        if last.graph is not self.graph or last not in self.places:
            return False
        found = written_attention(last, self.places)
        if found is None or not _may_replace(found) or written_between(found, self.places):
            return False
        if found.dropout:
            return self._stays("its dropout draws the random numbers that eager draws")
        host = _is_on_host(fake(found.query))
        with self.graph.inserting_before(last):
            maker = MaskMaker(self.graph, self.known, exact=host)
            plan = maker.plan(found.masks, fake(found.query).dtype, trained=self.trained)
            if isinstance(plan, str):
                return self._stays(plan)
            operands = [found.query, self.graph.call_method("transpose", (found.turned, -2, -1)), found.value]
            options: dict[str, Any] = {"scale": found.scale}
            if plan.mask is not None:
                options["attn_mask"] = self._of_four(plan.mask, _mask_rank(found))
            if plan.causal:
                options["is_causal"] = True
            batched = fake(found.query).dim() == 4  # of three dimensions the library has slow kernels alone
            if not batched:
                operands = [self.graph.call_method("unsqueeze", (operand, 0)) for operand in operands]
            call = self.graph.call_function(_ATTENTION, tuple(operands), options)
            result = call if batched else self.graph.call_method("squeeze", (call, 0))
            # A product is dense, and what comes behind may rely on it.
            result = self.graph.call_method("contiguous", (result,))
            if plan.blind is not None:
                result = self.graph.call_method("masked_fill", (result, plan.blind, math.nan))
        self._replace(found, call, result)
        return True

    def _stays(self, reason: str) -> bool:
        if self.context is not None:
            message = f"attention stays written out: {reason}"
            self.context.emit("perf_hint", stage="graph_pass", message=message)
        return False

    def _of_four(self, mask: fx.Node, rank: int) -> fx.Node:
        """A mask with as many dimensions as a call takes: two or four."""
        return self.graph.call_method("unsqueeze", (mask, 0)) if rank == 3 else mask

    def _replace(self, found: WrittenAttention, call: fx.Node, result: fx.Node) -> None:
        trace = found.last.meta.get("stack_trace")
        if trace is not None:
            call.meta["stack_trace"] = result.meta["stack_trace"] = trace
        found.last.replace_all_uses_with(result)
        masks = [m for link in found.masks for m in (link.added, link.hidden) if m is not None]
        kept = (found.query, found.turned, found.value, *masks)
        for node in reversed(found.inner):  # what is written to scores in place is read by nobody
            if not only_reads(node) and not node.users and found.last not in node.all_input_nodes:
                self._drop(node)
        self._erase(found.last, kept)

    def _erase(self, node: fx.Node, kept: Sequence[fx.Node]) -> None:
        """Erase a node that nobody reads, and what nobody reads then."""
        if node in self.erased:  # what two operands read is met twice
            return
        for user in list(node.users):
            if is_unread(user):
                self._drop(user)
        if node.users or node in kept or not only_reads(node):
            return
        operands = node.all_input_nodes
        self._drop(node)
        for operand in operands:
            self._erase(operand, kept)

    def _drop(self, node: fx.Node) -> None:
        self.graph.erase_node(node)
        self.places.pop(node, None)
        self.erased.add(node)

    # ------------------------------------------------------------ calls

    def fitted(self, node: fx.Node) -> bool:
        """Give a call what the fast kernels take; whether anything had to change."""
        call = _Call.of(node)
        if call is None:
            return False
        changed = self._without_mask(call)
        values = [fake(operand) for operand in (call.query, call.key, call.value)]
        if any(v is None for v in values) or _is_on_host(values[0]) or values[0].dtype not in HALF:
            return changed and self._write(call)
        changed |= self._without_copies(call)
        with self.graph.inserting_before(node):
            mask = call.mask
            moved = self._with_mask_in_form(call)
            moved |= self._with_heads_repeated(call, values)
            moved |= self._with_operands_in_form(call, values)
            moved |= self._with_a_batch(call, values)
            if moved and mask is not None and not self._sees(mask, node):
                call.blind = self._blind(mask)
        return (changed or moved) and self._write(call)

    def _without_copies(self, call: _Call) -> bool:
        """Heads as they lie, where a copy of them is read by the call alone; whether any were copied."""
        copies = {name: copied for name in ("query", "key", "value") if (copied := _copied_heads(getattr(call, name)))}
        moved_back = _copies_of_results(call.node) if "query" in copies else []
        if moved_back is None:
            del copies["query"]
        for name, copied in copies.items():
            setattr(call, name, copied)
        for copy in moved_back or ():
            # Where the results lie so already the program's own copy would be none, and what is written to it not.
            with self.graph.inserting_before(copy):
                dense: dict[str, Any] = {"memory_format": torch.contiguous_format}
                made = self.graph.call_method("clone", (copy.args[0],), dense)
            if copy.target == "reshape":
                copy.args = (made, *copy.args[1:])
            else:
                copy.replace_all_uses_with(made)
                self.graph.erase_node(copy)
        return bool(copies)

    def _sees(self, mask: Any, reader: fx.Node) -> bool:
        """Whether each query is known to see some key."""
        values = self.known.tensor(mask, reader)
        return values is not None and known_mask(values).sees

    def _blind(self, mask: fx.Node) -> fx.Node:
        """True for queries that see no key: eager's results are zero, each fast kernel has them in its own way."""
        if fake(mask).dtype == torch.bool:
            return self.graph.call_method("logical_not", (self.graph.call_method("any", (mask, -1, True)),))
        return self.graph.call_method("all", (self.graph.call_method("eq", (mask, -math.inf)), -1, True))

    def _without_mask(self, call: _Call) -> bool:
        """Leave away a mask that hides nothing, or say that it is causal."""
        if call.mask is None or call.is_causal is not False:
            return False
        values = self.known.tensor(call.mask, call.node)
        if values is None:
            return False
        found = known_mask(values)
        queries, keys = fake(call.query), fake(call.key)
        square = isinstance(queries, torch.Tensor) and values.shape[-2:] == (queries.shape[-2], keys.shape[-2])
        if found.visible and _adds_no_dimension(values, queries):
            call.mask = None
        elif found.causal and square and _adds_no_dimension(values, queries):
            call.mask, call.is_causal = None, True
        else:
            return False
        return True

    def _with_mask_in_form(self, call: _Call) -> bool:
        """A mask whose keys lie side by side; what it repeats along other dimensions is not written out."""
        mask = fake(call.mask)
        if not isinstance(mask, torch.Tensor) or mask.dim() < 2 or mask.stride(-1) == 1:
            return False
        made = call.mask
        for dim in range(mask.dim() - 1):
            if mask.stride(dim) == 0 and mask.shape[dim] != 1:
                made = self.graph.call_method("narrow", (made, dim, 0, 1))
        # Of one key alone any stride is dense to ``contiguous``.
        made = self.graph.call_method("clone", (made,), {"memory_format": torch.contiguous_format})
        call.mask = made
        return True

    def _with_heads_repeated(self, call: _Call, values: Sequence[torch.Tensor]) -> bool:
        """Keys and values for each head, where a mask keeps the call from a kernel that shares them."""
        # A kernel of cuDNN's that takes masks shares heads, too.
        if call.mask is None or call.shares_heads is not True or values[0].dim() != 4 or cudnn_attention_enabled():
            return False
        heads = values[0].shape[1]
        for name, value in (("key", values[1]), ("value", values[2])):
            own = value.shape[1]
            if not isinstance(heads, int) or not isinstance(own, int):
                return False
            if own != heads:
                repeated = self.graph.call_method("repeat_interleave", (getattr(call, name), heads // own, 1))
                setattr(call, name, repeated)
        call.shares_heads = False
        return True

    def _with_operands_in_form(self, call: _Call, values: Sequence[torch.Tensor]) -> bool:
        """Heads whose elements lie side by side, of a multiple of eight of them."""
        changed = False
        widths = [v.shape[-1] for v in values]
        if not all(isinstance(n, int) for n in widths):
            return False
        for name, value in zip(("query", "key", "value"), values, strict=True):
            if value.stride(-1) != 1:
                dense = self.graph.call_method(
                    "clone", (getattr(call, name),), {"memory_format": torch.contiguous_format}
                )
                setattr(call, name, dense)
                changed = True
        if call.mask is None or all(n % HEAD_STEP == 0 for n in widths):
            return changed
        for name, width in zip(("query", "key", "value"), widths, strict=True):
            if width % HEAD_STEP:
                padding = (0, -width % HEAD_STEP)
                setattr(call, name, self.graph.call_function(F.pad, (getattr(call, name), padding)))
        call.scale = call.scale if call.scale is not None else 1 / math.sqrt(widths[0])
        call.width = widths[2]
        return True

    def _with_a_batch(self, call: _Call, values: Sequence[torch.Tensor]) -> bool:
        """Four dimensions: of three the library has slow kernels alone."""
        mask = fake(call.mask)
        rank = mask.dim() if isinstance(mask, torch.Tensor) else 0
        if any(v.dim() != 3 for v in values) or call.shares_heads is not False or rank > 3:
            return False
        for name in ("query", "key", "value"):
            setattr(call, name, self.graph.call_method("unsqueeze", (getattr(call, name), 0)))
        call.mask = self._of_four(call.mask, rank) if rank else call.mask
        call.is_batched = False
        return True

    def _write(self, call: _Call) -> bool:
        """Put a call where the node of it is."""
        node = call.node
        options: dict[str, Any] = {"dropout_p": call.dropout, "is_causal": call.is_causal, "scale": call.scale}
        if call.mask is not None:
            options["attn_mask"] = call.mask
        if call.shares_heads:
            options["enable_gqa"] = call.shares_heads
        unread = node.all_input_nodes
        node.args, node.kwargs = (call.query, call.key, call.value), options
        for operand in unread:
            self._erase(operand, ())
        if call.width is not None:
            node = self._behind(node, "narrow", -1, 0, call.width)
        if not call.is_batched:
            node = self._behind(node, "squeeze", 0)
        if call.blind is not None:
            self._behind(node, "masked_fill", call.blind, 0.0)
        return True

    def _behind(self, node: fx.Node, method: str, *args: Any) -> fx.Node:
        """Let the readers of a call read what a method makes of its result."""
        with self.graph.inserting_after(node):
            made = self.graph.call_method(method, (node, *args))
        node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)
        return made


@attrs.define
class _Call:
    """A call of ``scaled_dot_product_attention``; ``width``: how many elements of each result are no padding.

    ``is_batched``: whether its operands had four dimensions.  ``blind``: true for queries whose results are zero.
    """

    node: fx.Node
    query: Any
    key: Any
    value: Any
    mask: Any = None
    dropout: Any = 0.0
    is_causal: Any = False
    scale: Any = None
    shares_heads: Any = False
    width: int | None = None
    is_batched: bool = True
    blind: fx.Node | None = None

    @staticmethod
    def of(node: fx.Node) -> _Call | None:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | node.kwargs
        if len(node.args) > len(names) or not given.keys() <= set(names):
            return None
        operands = [given.pop(name, None) for name in names[:3]]
        if not all(isinstance(operand, fx.Node) for operand in operands):
            return None
        own = {"attn_mask": "mask", "dropout_p": "dropout", "enable_gqa": "shares_heads"}
        options = {own.get(name, name): value for name, value in given.items()}
        return _Call(node, operands[0], operands[1], operands[2], **options)


def _copied_heads(operand: fx.Node) -> fx.Node | None:
    """The heads that an operand is a copy of, if kernels take them as they lie: four dimensions, a stride of 1 in the
    last, multiples of ``HEAD_STEP`` in the others.  Nobody else has them, so nobody writes to what kernels save."""
    if operand.target != "contiguous" or len(operand.args) != 1 or operand.kwargs:
        return None
    heads = node = operand.all_input_nodes[0]
    value, read_alone = fake(heads), has_one_reader(operand)
    while read_alone and node.target in _HEADS:
        read_alone &= has_one_reader(node)
        node = node.all_input_nodes[0]
    if not (read_alone and has_one_reader(node) and _is_fresh(node)):
        return None
    lies_well = isinstance(value, torch.Tensor) and value.dim() == 4 and value.stride(-1) == 1
    return heads if lies_well and all(map(_is_whole_step, value.stride()[:-1])) else None


def _is_fresh(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in _FRESH and only_reads(node)


def _is_whole_step(stride: int | torch.SymInt) -> bool:
    """Whether a stride is a multiple of ``HEAD_STEP``, whatever symbols stand for."""
    return (stride if isinstance(stride, int) else stride.node.expr) % HEAD_STEP == 0


def _copies_of_results(call: fx.Node) -> list[fx.Node] | None:
    """The copies in which a program puts heads side by side again; None where results are read in another way."""
    copies: list[fx.Node] = []
    for reader in call.users:
        if is_unread(reader):
            continue
        if reader.target not in _TRANSPOSE or reader.kwargs or tuple(reader.args[1:]) not in _SWAPPED:
            return None
        for copy in reader.users:
            plain = copy.op == "call_method" and not copy.kwargs and copy.args[0] is reader
            if not plain or not (copy.target == "reshape" or (copy.target == "contiguous" and len(copy.args) == 1)):
                return None
            copies.append(copy)
    return copies


def _adds_no_dimension(mask: torch.Tensor, query: Any) -> bool:
    return isinstance(query, torch.Tensor) and mask.dim() <= query.dim()


def _is_on_host(value: torch.Tensor) -> bool:
    return device_for(value.device.type).eager_kernels is KernelFamily.HOST


def _mask_rank(found: WrittenAttention) -> int:
    """Dimensions of what scores are masked by."""
    masks = [fake(m) for link in found.masks for m in (link.added, link.hidden) if m is not None]
    return max(mask.dim() for mask in masks)


def _may_replace(found: WrittenAttention) -> bool:
    values = [fake(node) for node in (found.query, found.turned, found.value)]
    results = [fake(node) for node in (found.scores, found.last)]
    inner = [fake(node) for node in found.inner]
    if not all(isinstance(v, torch.Tensor) for v in (*values, *results, *inner)):
        return False
    weights = fake(found.last.args[0])
    same = {(v.dtype, v.device, v.dim()) for v in (*values, *results, weights)}
    if len(same) != 1 or not _shapes_fit(*values) or not all(v.dtype.is_floating_point for v in inner):
        return False
    scores = results[0]
    if any(v.dim() != scores.dim() or not _same_shape(v, scores) for v in inner):
        return False  # a mask with more of a dimension than the scores have
    return _is_faster(*values)


def _same_shape(one: torch.Tensor, other: torch.Tensor) -> bool:
    return all(map(_same_size, one.shape, other.shape))


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
    if _is_on_host(query):
        return query.dtype == torch.float32
    return query.dtype in HALF and head <= LONGEST_HEAD and head % HEAD_STEP == 0
