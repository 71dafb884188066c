"""Products and convolutions of inference by weights that are inputs, as calls that pack those once (``freezing``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from turret.graph.fakes.values import value_of
from turret.hooks.context import CompileContext
from turret.hooks.devices import uses_host_kernels

aten = torch.ops.aten
_PRODUCTS: dict[Any, int] = {aten.mm.default: 2, aten.addmm.default: 3}
"""Products by how many arguments they have; the matrix is the last of them."""


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Replace what is worth it; only where the caller asks for it, and no gradients are wanted."""
    if context is None or not context.config.freezing or torch.is_grad_enabled():
        return False
    return any([_replace(node) for node in list(module.graph.nodes) if node.op == "call_function"])


def _replace(node: fx.Node) -> bool:
    from turret.graph.ops import packed_ops  # defines operators, which most programs do without

    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not uses_host_kernels(value.device) or not packed_ops.packs(value.dtype):
        return False
    if node.target is aten.convolution.default:
        arguments = _convolution(node)
        target = torch.ops.turret.frozen_convolution.default
    elif len(node.args) == _PRODUCTS.get(node.target) and not node.kwargs:
        arguments = _linear(node)
        target = torch.ops.turret.frozen_linear.default
    else:
        return False
    if arguments is None:
        return False
    node.target, node.args = target, arguments
    return True


def _linear(node: fx.Node) -> tuple[Any, ...] | None:
    """Rows, matrix and bias of a product by a transposed input."""
    from turret.graph.ops import packed_ops

    arguments: tuple[Any, ...] = node.args
    *added, x, turned = arguments
    if not isinstance(turned, fx.Node) or turned.target is not aten.permute.default or turned.args[1] != [1, 0]:
        return None
    weight = turned.args[0]
    if not _is_input(weight):
        return None
    columns, depth = value_of(weight).shape
    rows = value_of(x).shape[0]
    known = all(isinstance(n, int) for n in (depth, columns, rows))
    if not known or not packed_ops.is_worth_packing(depth, columns, rows):
        return None
    if added and value_of(added[0]).shape != (columns,):
        return None
    dtype, threads = value_of(node).dtype, torch.get_num_threads()
    if not packed_ops.gains_by_packing(rows, depth, columns, dtype, threads):
        return None
    return x, weight, added[0] if added else None


def _convolution(node: fx.Node) -> tuple[Any, ...] | None:
    """The arguments of a convolution of channels-last images whose kernel is an input; sizes are known."""
    from turret.graph.ops.library_ops import layout_of
    from turret.graph.ops.packed_ops import is_worth_packing

    arguments: tuple[Any, ...] = node.args
    x, weight, bias, stride, padding, dilation, transposed, _, groups = arguments
    image, kernel, result = map(value_of, (x, weight, node))
    known = all(isinstance(n, int) for value in (image, kernel, result) for n in value.shape)
    if transposed or not _is_input(weight) or not known or image.dim() != 4 or 0 in image.shape:
        return None
    if image.shape[1] == 1 or kernel.shape[0] == 1:
        return None  # strides of a single channel tell of no layout
    if layout_of(image, kernel) != torch.channels_last:
        return None  # with a packed kernel oneDNN computes in its own layout alone: two copies of images for each call
    if not is_worth_packing(kernel.numel() // kernel.shape[0], 1, result.numel()):
        return None
    return x, weight, bias, stride, padding, dilation, groups


def _is_input(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "placeholder" and value_of(node).is_contiguous()
