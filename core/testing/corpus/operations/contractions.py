"""Matrix products and convolutions."""

from __future__ import annotations

from torch import Tensor

from turret.testing.corpus.builder import Builder
from turret.testing.corpus.operations.registry import is_float, operation


def _matrix(tensor: Tensor, dims: int = 2) -> bool:
    return tensor.dim() == dims and is_float(tensor)


@operation("mm", "contraction")
def _mm(b: Builder) -> object:
    name = b.pick(_matrix)
    return b.step("mm", "torch.mm({0}, {1})", name, b.like(name, (b[name].shape[1], b.size())))


@operation("matmul_transposed", "contraction")
def _matmul_transposed(b: Builder) -> object:
    name = b.pick(lambda t: is_float(t) and t.dim() >= 2)
    return b.step("matmul_transposed", "{0} @ {0}.mT", name)


@operation("matmul_vector", "contraction")
def _matmul_vector(b: Builder) -> object:
    name = b.pick(lambda t: is_float(t) and 1 <= t.dim() <= 3)
    return b.step("matmul_vector", "{0} @ {1}", name, b.like(name, (b[name].shape[-1],)))


@operation("bmm", "contraction")
def _bmm(b: Builder) -> object:
    name = b.pick(lambda t: _matrix(t, 3))
    batch, _, inner = b[name].shape
    return b.step("bmm", "torch.bmm({0}, {1})", name, b.like(name, (batch, inner, b.size())))


@operation("addmm", "contraction")
def _addmm(b: Builder) -> object:
    name = b.pick(_matrix)
    columns = b.size()
    weight = b.like(name, (b[name].shape[1], columns))
    bias = b.like(name, b.choice(((columns,), (b[name].shape[0], columns))))
    options = b.choice(("", ", alpha=0.5", ", beta=2"))
    return b.step("addmm", f"torch.addmm({{0}}, {{1}}, {{2}}{options})", bias, name, weight)


@operation("baddbmm", "contraction")
def _baddbmm(b: Builder) -> object:
    name = b.pick(lambda t: _matrix(t, 3))
    batch, rows, inner = b[name].shape
    columns = b.size()
    weight, bias = b.like(name, (batch, inner, columns)), b.like(name, (batch, rows, columns))
    return b.step("baddbmm", "torch.baddbmm({0}, {1}, {2})", bias, name, weight)


@operation("linear", "contraction")
def _linear(b: Builder) -> object:
    name = b.pick(lambda t: is_float(t) and t.dim() >= 1)
    features = b.size()
    weight = b.like(name, (features, b[name].shape[-1]))
    if b.chance(50):
        return b.step("linear", "F.linear({0}, {1})", name, weight)
    return b.step("linear", "F.linear({0}, {1}, {2})", name, weight, b.like(name, (features,)))


@operation("einsum", "contraction")
def _einsum(b: Builder) -> object:
    name = b.pick(_matrix)
    equation = b.choice(("ij,ij->i", "ij,ik->jk", "ij,kj->ik"))
    return b.step("einsum", f"torch.einsum('{equation}', {{0}}, {{0}})", name)


@operation("dot", "contraction")
def _dot(b: Builder) -> object:
    name = b.pick(lambda t: _matrix(t, 1))
    return b.step("dot", "torch.dot({0}, {1})", name, b.like(name))


@operation("conv1d", "contraction")
def _conv1d(b: Builder) -> object:
    name = b.pick(lambda t: _matrix(t, 3) and 0 not in t.shape and t.shape[-1] >= 3)
    weight = b.like(name, (b.integer(1, 4), b[name].shape[1], b.integer(1, 3)))
    return b.step("conv1d", f"F.conv1d({{0}}, {{1}}, padding={b.integer(0, 1)})", name, weight)


@operation("conv2d", "contraction")
def _conv2d(b: Builder) -> object:
    channels, height = b.integer(1, 4), b.integer(4, 9)
    images = b.names(lambda t: _matrix(t, 4) and 0 not in t.shape and min(t.shape[-2:]) >= 3 and t.shape[1] <= 8)
    dtype = b.dtype(lambda d: d.is_floating_point)
    name = b.choice(images) if images and b.chance(70) else b.new_input((2, channels, height, height), dtype)
    weight = b.like(name, (b.integer(1, 4), b[name].shape[1], 3, b.choice((1, 3))))
    options = b.choice(("padding=1", "stride=2", "padding=1, stride=2", "dilation=1"))
    return b.step("conv2d", f"F.conv2d({{0}}, {{1}}, {options})", name, weight)


@operation("depthwise_conv2d", "contraction")
def _depthwise_conv2d(b: Builder) -> object:
    name = b.new_input((1, 4, 6, 6), b.dtype(lambda d: d.is_floating_point))
    weight = b.new_input((4, 1, 3, 3), b[name].dtype)
    return b.step("depthwise_conv2d", "F.conv2d({0}, {1}, padding=1, groups=4)", name, weight)


@operation("conv_transpose2d", "contraction")
def _conv_transpose2d(b: Builder) -> object:
    name = b.new_input((1, 3, 4, 5), b.dtype(lambda d: d.is_floating_point and d.itemsize >= 4))
    weight = b.new_input((3, 2, 2, 2), b[name].dtype)
    return b.step("conv_transpose2d", "F.conv_transpose2d({0}, {1}, stride=2)", name, weight)


@operation("attention", "contraction")
def _attention(b: Builder) -> object:
    query = b.new_input((2, b.integer(1, 3), b.choice((4, 7)), 8), b.dtype(lambda d: d.is_floating_point))
    key, value = b.like(query), b.like(query)
    options = b.choice(("", ", is_causal=True"))
    return b.step("attention", f"F.scaled_dot_product_attention({{0}}, {{1}}, {{2}}{options})", query, key, value)


@operation("cdist_free_distance", "contraction")
def _distance(b: Builder) -> object:
    name = b.pick(lambda t: _matrix(t) and t.shape[0] <= 33)
    return b.step("cdist_free_distance", "(({0}[:, None] - {0}[None]) ** 2).sum(-1)", name)
