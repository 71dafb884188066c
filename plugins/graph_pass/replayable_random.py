"""Rewrite random ops to ``turret::random``, a pure function of a seed, so that they can be recomputed.

One ``turret::seed`` per device at the head of the graph; each op gets a stream of its own.  Ops with an explicit
generator, distributions without a rule here, and all draws of a graph that reads or sets the generator's state stay as
they are and are never recomputed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from turret.graph.fakes.values import fake_mode_of, value_of, valued_call
from turret.graph.op_traits import names_generator_state
from turret.graph.ops import random_ops
from turret.hooks.context import CompileContext
from turret.torch_compat.operators.layouts import is_contiguous_or_false

aten, prims = torch.ops.aten, torch.ops.prims
_NARROW, _WIDE = 2**28, 2**48
"""Ranges up to which the remainder of 32 random bits, and of 63, are as good as equally likely.  Eager's limit is the
same for 32 bits: from there on the first values of a range would come up visibly more often."""


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Rewrite what has a rule, unless ``fallback_random`` or the graph itself asks for eager's numbers."""
    if getattr(getattr(context, "config", None), "fallback_random", False) or names_generator_state(module):
        return False
    rewriter = _Rewriter(module.graph)
    changed = False
    for node in list(module.graph.nodes):
        rule = _RULES.get(node.target) if node.op == "call_function" else None
        if rule is None or _has_generator(node) or not _is_plain(node):
            continue
        with module.graph.inserting_before(node):
            result = rule(rewriter, node)
        if result is not None:
            result.meta = dict(node.meta) | {"val": result.meta["val"]}
            node.replace_all_uses_with(result)
            module.graph.erase_node(node)
            changed = True
    return changed


def _has_generator(node: fx.Node) -> bool:
    return node.kwargs.get("generator") is not None or any(isinstance(a, torch.Generator) for a in node.args)


def _is_plain(node: fx.Node) -> bool:
    """A contiguous strided result, whose elements are numbered in memory order."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and is_contiguous_or_false(value)


class _Rewriter:
    """Makes nodes with values, and hands out seeds and streams."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._fake_mode = fake_mode_of(graph)
        self._seeds: dict[torch.device, fx.Node] = {}
        self._streams = sum(1 for node in graph.nodes if node.target is random_ops.random)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        return valued_call(self.graph, target, args, self._fake_mode, kwargs)

    def random(self, like: fx.Node, kind: str, dtype: torch.dtype) -> fx.Node:
        """A call of ``turret::random`` with the shape and device of a node's value."""
        value = like.meta["val"]
        stream = self._streams
        self._streams += 1
        return self.call(random_ops.random, self._seed(value.device), _size_argument(like), stream, kind, dtype)

    def _seed(self, device: torch.device) -> fx.Node:
        if device not in self._seeds:
            first = next(node for node in self.graph.nodes if node.op != "placeholder")
            with self.graph.inserting_before(first):
                self._seeds[device] = self.call(random_ops.seed, device)
        return self._seeds[device]

    def converted(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        if node.meta["val"].dtype == dtype:
            return node
        return self.call(prims.convert_element_type.default, node, dtype)


def _size_argument(node: fx.Node) -> list:
    """The size as graph arguments: that of a ``rand``, or read off the tensor that a ``*_like`` op copies."""
    first = node.args[0]
    if not isinstance(first, fx.Node) or not isinstance(value_of(first), torch.Tensor):
        return next(list(a) for a in node.args if isinstance(a, (list, tuple)))
    shape = node.meta["val"].shape
    if all(isinstance(size, int) for size in shape):
        return list(shape)
    return [_dim(first, d) for d in range(len(shape))]


def _dim(source: fx.Node, dim: int) -> Any:
    size = source.meta["val"].shape[dim]
    if isinstance(size, int):
        return size
    node = source.graph.call_function(aten.sym_size.int, (source, dim))
    node.meta["val"] = size
    return node


def _distribution(kind: str) -> Callable[[_Rewriter, fx.Node], fx.Node | None]:
    def rule(rewriter: _Rewriter, node: fx.Node) -> fx.Node | None:
        dtype = node.meta["val"].dtype
        return rewriter.random(node, kind, dtype) if dtype in random_ops.UNIFORM_BITS else None

    return rule


def _bernoulli(rewriter: _Rewriter, node: fx.Node) -> fx.Node | None:
    """1 with probability ``p``; eager rejects a ``p`` outside [0, 1], so such a call stays."""
    probability = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
    if not isinstance(probability, float) or not 0.0 <= probability <= 1.0:
        return None
    uniform = rewriter.random(node, "uniform", torch.float32)
    return rewriter.converted(rewriter.call(aten.lt.Scalar, uniform, probability), node.meta["val"].dtype)


def _integers(low_and_high: Callable[[tuple], tuple[Any, Any]]) -> Callable[[_Rewriter, fx.Node], fx.Node | None]:
    """Uniform integers, by remainder as eager does it; of ranges that 63 bits are too few for, eager's own."""

    def rule(rewriter: _Rewriter, node: fx.Node) -> fx.Node | None:
        low, high = low_and_high(node.args)
        if not isinstance(low, int) or not isinstance(high, int) or not 0 < high - low <= _WIDE:
            return None
        bits = rewriter.random(node, "bits", torch.int64)
        if high - low >= _NARROW:
            bits = _with_more_bits(rewriter, node, bits)
        value = rewriter.call(aten.remainder.Scalar, bits, high - low)
        value = rewriter.call(aten.add.Scalar, value, low) if low else value
        return rewriter.converted(value, node.meta["val"].dtype)

    return rule


def _with_more_bits(rewriter: _Rewriter, node: fx.Node, low: fx.Node) -> fx.Node:
    """63 random bits: 31 of a second number above the 32 of ``low``."""
    high = rewriter.call(aten.bitwise_and.Scalar, rewriter.random(node, "bits", torch.int64), 2**31 - 1)
    return rewriter.call(aten.add.Tensor, rewriter.call(aten.mul.Scalar, high, 2**32), low)


_RULES: dict[Any, Callable[[_Rewriter, fx.Node], fx.Node | None]] = {
    aten.rand.default: _distribution("uniform"),
    aten.rand_like.default: _distribution("uniform"),
    aten.randn.default: _distribution("normal"),
    aten.randn_like.default: _distribution("normal"),
    aten.bernoulli.p: _bernoulli,
    aten.randint.default: _integers(lambda args: (0, args[0])),
    aten.randint.low: _integers(lambda args: (args[0], args[1])),
    aten.randint_like.default: _integers(lambda args: (0, args[1])),
    aten.randint_like.low_dtype: _integers(lambda args: (args[1], args[2])),
}
"""Op -> rewrite, inserted before the node; None leaves the call as it is."""
