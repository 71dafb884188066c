"""Run a graph's convolutions on channels-last tensors where that pays, and keep what lies between in that layout.

CPU library convolutions read channels-last activations directly and repack contiguous ones on every call, but they
repack weights for channels-last several times slower (measured on 512 x 512 x 3 x 3: 3.1 ms against 0.6), so only
convolutions with large activations are converted.  A GPU's matrix units read channels-last alone: the library
transposes anything else on every call, so all are converted there but those of several channels a group, which it
has slow kernels for.  Pointwise ops pass the layout on; a convolution that is not converted gets the layout it had.
The pass works on a copy of the graph and is dropped when some op cannot take the new strides.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turret.graph.fakes.values import compute_value, fake_mode_of, same_layout, value_of, valued_call
from turret.graph.op_traits import has_custom_code, is_effectful, is_view, looks_at_memory, output_nodes, storage_root
from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for, uses_host_kernels
from turret.plugins.graph_pass.convolutions.pointwise import reads_single_pixels, strided_as
from turret.torch_compat.operators.layouts import is_contiguous_or_false

aten = torch.ops.aten

MIN_CONVOLUTIONS = 2
"""Fewer convolutions than this do not pay for the copies around them."""

MIN_ACTIVATIONS_PER_WEIGHT = 2
"""Elements of input and output for each element of the weight from which on channels-last is the faster layout."""

_CONVOLUTIONS = frozenset({aten.convolution.default, aten.convolution_backward.default})


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Convert the graph's image convolutions to channels-last, where that pays."""
    graph = module.graph
    convolutions = [n for n in graph.nodes if n.target is aten.convolution.default and _pays(n)]
    if len(convolutions) < MIN_CONVOLUTIONS or any(map(_needs_strides, graph.nodes)):
        return False
    rewritten = _rewrite(graph, fake_mode_of(graph))
    if rewritten is not None:
        module.graph = rewritten
    return rewritten is not None


def _needs_strides(node: fx.Node) -> bool:
    """Whether a call reads strides in a way that new ones would change."""
    return node.op == "call_function" and (looks_at_memory(node.target) or has_custom_code(node.target))


def _rewrite(graph: fx.Graph, fake_mode: Any) -> fx.Graph | None:
    """The graph with channels-last convolutions, or None when some call or output cannot do with them.

    None as well when views that split channels (those of group norms) would copy every other activation back.
    """
    rewritten = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    converted = unpacked = 0
    for node in graph.nodes:
        if node.op == "output":
            break
        copy = env[node] = rewritten.node_copy(node, env.__getitem__)
        if node.op != "call_function":
            continue
        with rewritten.inserting_before(copy):
            if _is_image_convolution(node):
                _convert_inputs(copy, node, fake_mode)
                converted += node.target is aten.convolution.default and _pays(node)
            before = len(rewritten.nodes)
            if not _recompute(copy, fake_mode):
                return None
            unpacked += len(rewritten.nodes) > before and _is_image(node.args[0])
    if 2 * unpacked > converted:
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
    """A two-dimensional CPU or CUDA convolution, or its backward, over more than one pixel."""
    if node.target not in _CONVOLUTIONS:
        return False
    image = value_of(node.args[0])
    return (
        image.dtype in device_for(image.device.type).channels_last
        and image.dim() == 4
        and all(isinstance(size, int) for size in image.shape)
        and image.shape[1] > 1
        and image.shape[2] * image.shape[3] > 1
    )


def _is_image(node: Any) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.dim() == 4 and value.shape[2] * value.shape[3] > 1


def _pays(node: fx.Node) -> bool:
    """Whether a convolution, or its backward, is faster on channels-last activations, conversions included."""
    if not _is_image_convolution(node):
        return False
    forward = node.target is aten.convolution.default
    transposed, groups = node.args[6 if forward else 7], node.args[8 if forward else 9]
    if not uses_host_kernels(value_of(node.args[0]).device):
        return bool(groups == 1 or value_of(node.args[1 if forward else 2]).shape[1] == 1)
    activations = [node, node.args[0]] if forward else [node.args[0], node.args[1]]
    weight = value_of(node.args[1 if forward else 2])
    settings = node.args[3:] if forward else node.args[4:10]
    if reads_single_pixels(value_of(node.args[0 if forward else 1]), weight, settings):
        return True
    elements = sum(value_of(n).numel() for n in activations)
    return not transposed and elements >= MIN_ACTIVATIONS_PER_WEIGHT * weight.numel()


def _convert_inputs(copy: fx.Node, original: fx.Node, fake_mode: Any) -> None:
    """Copy the activations that a convolution reads to the layout it is to run in; the library repacks weights."""
    converted = _pays(original)
    positions = (0,) if original.target is aten.convolution.default else (0, 1)
    for position in positions:
        given, before = value_of(copy.args[position]), value_of(original.args[position])
        if converted or before.is_contiguous(memory_format=torch.channels_last):
            wanted = torch.channels_last
        elif is_contiguous_or_false(before):
            wanted = torch.contiguous_format
        else:
            continue
        if not given.is_contiguous(memory_format=wanted):
            operand = copy.args[position]
            assert isinstance(operand, fx.Node)
            copy.update_arg(position, _clone(copy.graph, operand, wanted, fake_mode))


def _clone(graph: fx.Graph, source: fx.Node, memory_format: torch.memory_format, fake_mode: Any) -> fx.Node:
    return valued_call(graph, aten.clone.default, (source,), fake_mode, {"memory_format": memory_format}, source)


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
    assert isinstance(source, fx.Node)  # a view's is its base
    node.update_arg(0, _clone(node.graph, source, torch.contiguous_format, fake_mode))
    node.meta["val"] = compute_value(node, fake_mode)
    return True


def _restored(graph: fx.Graph, node: fx.Node, wanted: torch.Tensor, fake_mode: Any) -> fx.Node:
    """A copy of an output with the memory order of dims that ``wanted`` has."""
    order = sorted(range(wanted.dim()), key=lambda d: (-wanted.stride()[d], -wanted.shape[d], d))
    if order == list(range(wanted.dim())):
        if is_contiguous_or_false(wanted) and is_contiguous_or_false(value_of(node)):
            # Strides of dimensions of one element are all that differs.
            return strided_as(graph, node, wanted, fake_mode)
        return _clone(graph, node, torch.contiguous_format, fake_mode)
    packed = _clone(graph, _permute(graph, node, order, fake_mode), torch.contiguous_format, fake_mode)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return _permute(graph, packed, inverse, fake_mode)


def _permute(graph: fx.Graph, node: fx.Node, order: list[int], fake_mode: Any) -> fx.Node:
    return valued_call(graph, aten.permute.default, (node, order), fake_mode)
