"""Convolutions of single pixels on the CPU as matrix products: of all pixels' channels by the weight.

Channels last, an image is a matrix with a row for each pixel.  Libraries either compute image by image, with the weight
turned in each call, or bring the weight to a layout of their own; a product reads everything where it lies (2048
filters over 512 channels, four images of 3 x 3: 0.9 ms against 2.3, and 1.2 against 3.2 backward).  Results equal
eager's up to rounding.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from turret.graph.fakes.values import fake_mode_of, same_layout, value_of, valued_call
from turret.hooks.context import CompileContext
from turret.hooks.devices import uses_host_kernels
from turret.torch_compat.native import products_are_exact

aten = torch.ops.aten


def run(module: fx.GraphModule, context: CompileContext | None = None) -> bool:
    """Replace convolutions and what their backward gives; not where weights are to be packed for convolutions."""
    packs = context is not None and context.config.freezing and not torch.is_grad_enabled()
    if packs or not products_are_exact():
        return False
    mode = fake_mode_of(module.graph)
    return any([_replace(node, mode) for node in list(module.graph.nodes) if node.op == "call_function"])


def reads_single_pixels(image: torch.Tensor, weight: torch.Tensor, settings: tuple[Any, ...]) -> bool:
    """Whether a convolution on the CPU is a product; ``settings`` are its arguments from the stride on."""
    stride, padding, _, transposed, _, groups = settings
    known = all(isinstance(n, int) and n > 0 for n in (*image.shape, *weight.shape))
    return (
        uses_host_kernels(image.device)
        and image.dtype in (torch.float32, torch.float64)
        and (image.dtype, image.dim()) == (weight.dtype, 4)
        and known
        and (*weight.shape[2:], *stride, *padding) == (1,) * (2 + len(stride)) + (0,) * len(padding)
        and not transposed
        and groups == 1
    )


def strided_as(
    graph: fx.Graph, node: fx.Node, like: torch.Tensor, fake_mode: Any, origin: fx.Node | None = None
) -> fx.Node:
    """The elements of a node's value with the shape and strides of ``like``, as they lie."""
    from turret.graph.ops import memory_ops  # noqa: F401  defines the operator

    arguments = (node, list(like.shape), list(like.stride()), 0)
    return valued_call(graph, torch.ops.turret.as_strided.default, arguments, fake_mode, origin=origin)


def _replace(node: fx.Node, mode: Any) -> bool:
    if node.target is aten.convolution.default:
        image, weight, bias, *settings = node.args
        if not reads_single_pixels(value_of(image), value_of(weight), tuple(settings)):
            return False
        return _Products(node, mode).forward(image, weight, bias)
    if node.target is aten.convolution_backward.default:
        gradient, image, weight, _, *settings, _ = node.args
        if not reads_single_pixels(value_of(image), value_of(weight), tuple(settings)):
            return False
        return _Products(node, mode).backward(gradient, image, weight)
    return False


class _Products:
    """Writes the products that take the place of one call, in front of it."""

    def __init__(self, node: fx.Node, mode: Any) -> None:
        self.node, self.mode = node, mode
        self.graph = node.graph

    def forward(self, image: Any, weight: Any, bias: Any) -> bool:
        """The convolution itself."""
        with self.graph.inserting_before(self.node):
            pixels, matrix = self._pixels(image), self._matrix(weight)
            if pixels is None or matrix is None:
                return False
            turned = self._call(aten.permute.default, matrix, [1, 0])
            arguments = (pixels, turned) if bias is None else (bias, pixels, turned)
            made = self._call(aten.mm.default if bias is None else aten.addmm.default, *arguments)
            return self._take_over(self.node, self._image(made, value_of(self.node)))

    def backward(self, gradient: Any, image: Any, weight: Any) -> bool:
        """The gradients of image, weight and bias that anybody reads; all of them, or none."""
        items = {user.args[1]: user for user in self.node.users if user.target is operator.getitem}
        if len(items) != len(self.node.users) or self._follows_library(items.get(1), value_of(weight)):
            return False
        with self.graph.inserting_before(self.node):
            rows, pixels, matrix = self._pixels(gradient), self._pixels(image), self._matrix(weight)
            if rows is None or pixels is None or matrix is None:
                return False
            made: dict[Any, fx.Node] = {}
            if 0 in items:
                made[0] = self._image(self._call(aten.mm.default, rows, matrix), value_of(items[0]))
            if 1 in items:
                turned = self._call(aten.permute.default, rows, [1, 0])
                made[1] = self._strided(self._call(aten.mm.default, turned, pixels), value_of(items[1]))
            if 2 in items:
                made[2] = self._call(aten.sum.dim_IntList, rows, [0])
            if any(not same_layout(value_of(made[n]), value_of(item)) for n, item in items.items()):
                return False
            return all([self._take_over(item, made[n]) for n, item in items.items()])

    def _follows_library(self, gradient: fx.Node | None, weight: torch.Tensor) -> bool:
        """Whether strides that can be seen are those that the library gives a weight's gradient, which one depends on
        batch and threads: one gives it the weight's, another those of channels last."""
        if gradient is None or not any(user.op == "output" for user in gradient.users):
            return False
        return bool(value_of(gradient).stride() != weight.stride())

    def _call(self, target: Any, *args: Any) -> fx.Node:
        return valued_call(self.graph, target, args, self.mode, origin=self.node)

    def _take_over(self, old: fx.Node, new: fx.Node) -> bool:
        """Let readers read another value, if it is laid out alike."""
        if not same_layout(value_of(old), value_of(new)):
            return False
        old.replace_all_uses_with(new)
        self.graph.erase_node(old)
        return True

    def _pixels(self, image: fx.Node) -> fx.Node | None:
        """Images as a matrix of pixels by channels; None where they do not lie so."""
        value = value_of(image)
        if not value.is_contiguous(memory_format=torch.channels_last):
            return None
        flat = self._call(aten.permute.default, image, [0, 2, 3, 1])
        return self._call(aten.view.default, flat, [-1, value.shape[1]])

    def _matrix(self, weight: fx.Node) -> fx.Node | None:
        """A weight as filters by channels; None where its channels do not lie side by side."""
        value = value_of(weight)
        dense = value.stride()[:2] == (value.shape[1], 1)
        return self._call(aten.view.default, weight, list(value.shape[:2])) if dense else None

    def _image(self, pixels: fx.Node, like: torch.Tensor) -> fx.Node:
        """A matrix of pixels by channels as images."""
        batch, channels, height, width = like.shape
        if 1 in like.shape:
            return self._strided(pixels, like)
        rows = self._call(aten.view.default, pixels, [batch, height, width, channels])
        return self._call(aten.permute.default, rows, [0, 3, 1, 2])

    def _strided(self, matrix: fx.Node, like: torch.Tensor) -> fx.Node:
        """A matrix with shape and strides of a tensor of its elements: those of dimensions of one tell nothing."""
        if not like.is_contiguous(memory_format=torch.channels_last):
            return matrix
        return strided_as(self.graph, matrix, like, self.mode, self.node)
