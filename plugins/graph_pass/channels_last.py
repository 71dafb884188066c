"""Run the convolutions of a CPU graph on channels-last tensors, and keep what lies between them in that layout.

Library convolutions read channels-last directly and repack contiguous inputs on every call.  Pointwise ops pass
the layout on, so one copy at the first convolution and one at each result whose strides the user sees are all
that it costs.  The pass works on a copy of the graph and is dropped when some op cannot take the new strides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turret.fake_values import compute_value, fake_mode_of, same_layout, value_of
from turret.op_traits import has_custom_code, is_effectful, is_view, output_nodes, storage_root

aten = torch.ops.aten

MIN_CONVOLUTIONS = 2
"""Fewer convolutions than this do not pay for the copies around them."""

_CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})
_KEEP_LAYOUT = frozenset({aten.as_strided.default, aten.as_strided_scatter.default})
_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


def run(module: fx.GraphModule, context: Any = None) -> bool:
    """Convert the graph's image convolutions to channels-last, where that pays."""
    graph = module.graph
    convolutions = [n for n in graph.nodes if n.target is aten.convolution.default and _is_image_convolution(n)]
    if len(convolutions) < MIN_CONVOLUTIONS or any(map(_needs_strides, graph.nodes)):
        return False
    rewritten = _rewrite(graph, fake_mode_of(graph))
    if rewritten is not None:
        module.graph = rewritten
    return rewritten is not None


def _needs_strides(node: fx.Node) -> bool:
    """Whether a call reads strides in a way that new ones would change."""
    return node.op == "call_function" and (node.target in _KEEP_LAYOUT or has_custom_code(node.target))


def _rewrite(graph: fx.Graph, fake_mode: Any) -> fx.Graph | None:
    """The graph with channels-last convolutions, or None when some call or output cannot do with them."""
    rewritten = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "output":
            break
        copy = env[node] = rewritten.node_copy(node, env.__getitem__)
        if node.op != "call_function":
            continue
        with rewritten.inserting_before(copy):
            if _is_image_convolution(node):
                _convert_inputs(copy, fake_mode)
            if not _recompute(copy, fake_mode):
                return None
    outputs = output_nodes(graph)
    roots = [storage_root(n) for n in outputs if isinstance(n, fx.Node)]
    results = []
    for original in outputs:
        result = original
        if isinstance(original, fx.Node):
            result = env[original]
            wanted = original.meta.get("val")
            if isinstance(wanted, torch.Tensor) and not same_layout(wanted, result.meta["val"]):
                if roots.count(storage_root(original)) > 1:
                    return None
                result = _restored(rewritten, result, wanted, fake_mode)
        results.append(result)
    rewritten.output(tuple(results)).meta = dict(graph.output_node().meta)
    return rewritten


def _is_image_convolution(node: fx.Node) -> bool:
    """A two-dimensional CPU convolution, or its backward, over more than one pixel."""
    if node.target not in _CONVOLUTIONS:
        return False
    image = value_of(node.args[0])
    return (
        image.device.type == "cpu"
        and image.dim() == 4
        and image.dtype in _DTYPES
        and all(isinstance(size, int) for size in image.shape)
        and image.shape[1] > 1
        and image.shape[2] * image.shape[3] > 1
    )


def _convert_inputs(node: fx.Node, fake_mode: Any) -> None:
    """Copy the activations that a convolution reads to channels-last; the library repacks the weight by itself."""
    positions = (0,) if node.target is aten.convolution.default else (0, 1)
    for position in positions:
        source = node.args[position]
        if not value_of(source).is_contiguous(memory_format=torch.channels_last):
            node.update_arg(position, _clone(node.graph, source, torch.channels_last, fake_mode))


def _clone(graph: fx.Graph, source: fx.Node, memory_format: torch.memory_format, fake_mode: Any) -> fx.Node:
    copy = graph.call_function(aten.clone.default, (source,), {"memory_format": memory_format})
    copy.meta = {key: source.meta[key] for key in ("stack_trace", "recompute", "ac_graph_id") if key in source.meta}
    copy.meta["val"] = compute_value(copy, fake_mode)
    return copy


def _recompute(node: fx.Node, fake_mode: Any) -> bool:
    """Give a call its value under the new strides; a view that cannot show them reads a contiguous copy.

    Calls that are not views of one input and fail, or that have an effect, end the pass (False).
    """
    if is_effectful(node):
        return True
    try:
        node.meta["val"] = compute_value(node, fake_mode)
        return True
    except (RuntimeError, ValueError):
        if not is_view(node):
            return False
    source = node.args[0]
    node.update_arg(0, _clone(node.graph, source, torch.contiguous_format, fake_mode))
    node.meta["val"] = compute_value(node, fake_mode)
    return True


def _restored(graph: fx.Graph, node: fx.Node, wanted: torch.Tensor, fake_mode: Any) -> fx.Node:
    """A copy of an output with the memory order of dims that ``wanted`` has."""
    order = sorted(range(wanted.dim()), key=lambda d: (-wanted.stride(d), -wanted.shape[d], d))
    if order == list(range(wanted.dim())):
        return _clone(graph, node, torch.contiguous_format, fake_mode)
    packed = _clone(graph, _permute(graph, node, order, fake_mode), torch.contiguous_format, fake_mode)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return _permute(graph, packed, inverse, fake_mode)


def _permute(graph: fx.Graph, node: fx.Node, order: list[int], fake_mode: Any) -> fx.Node:
    permuted = graph.call_function(aten.permute.default, (node, order))
    permuted.meta["val"] = compute_value(permuted, fake_mode)
    return permuted
