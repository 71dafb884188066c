"""Layers of neural networks: normalisation, pooling, resampling, losses, and random ones."""

from __future__ import annotations

import functools

from torch import Tensor

from turret.testing.corpus.builder import Builder, Declined
from turret.testing.corpus.operations.registry import is_float, is_wide_float, operation


def _image(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and is_float(tensor) and 0 not in tensor.shape and min(tensor.shape[-2:]) >= 3


def _of_an_image(name: str, template: str, b: Builder) -> object:
    return b.step(name, template, _pick_image(b))


def _pick_image(b: Builder) -> str:
    images = b.names(_image)
    if images and b.chance(70):
        return b.choice(images)
    shape = (b.integer(1, 2), b.integer(1, 4), b.integer(3, 8), b.integer(3, 8))
    return b.new_input(shape, b.dtype(lambda d: d.is_floating_point))


@operation("layer_norm", "layer")
def _layer_norm(b: Builder) -> object:
    name = b.pick(lambda t: is_float(t) and t.dim() >= 1 and t.numel() > 0 and t.shape[-1] > 1)
    width = b[name].shape[-1]
    if b.chance(40):
        return b.step("layer_norm", f"F.layer_norm({{0}}, ({width},))", name)
    weight, bias = b.like(name, (width,)), b.like(name, (width,))
    return b.step("layer_norm", f"F.layer_norm({{0}}, ({width},), {{1}}, {{2}})", name, weight, bias)


@operation("rms_norm", "layer")
def _rms_norm(b: Builder) -> object:
    name = b.pick(lambda t: is_float(t) and t.dim() >= 1 and t.numel() > 0)
    width = b[name].shape[-1]
    return b.step("rms_norm", f"F.rms_norm({{0}}, ({width},), {{1}}, eps=1e-3)", name, b.like(name, (width,)))


@operation("group_norm", "layer")
def _group_norm(b: Builder) -> object:
    images = b.names(lambda t: is_wide_float(t) and t.dim() >= 3 and t.shape[1] % 2 == 0)
    name = b.choice([n for n in images if b[n].numel() > b[n].shape[0] * b[n].shape[1]])
    channels = b[name].shape[1]
    return b.step("group_norm", "F.group_norm({0}, 2, {1})", name, b.like(name, (channels,)))


@operation("batch_norm_eval", "layer")
def _batch_norm_eval(b: Builder) -> object:
    """Of a batch of one eager's gradient may be wrong, as in training, below.

    So it is of a weight whose elements do not lie one after another (torch 2.11 and 2.13 on the CPU: read as if so).
    """
    name = b.pick(lambda t: is_wide_float(t) and t.dim() >= 2 and t.numel() > 0 and t.shape[0] > 1)
    channels, dtype = b[name].shape[1], b[name].dtype
    mean = b.new_input((channels,), dtype, plain=True)
    variance = b.new_input((channels,), dtype, "positive", plain=True)
    weight, bias = b.new_input((channels,), dtype, plain=True), b.new_input((channels,), dtype)
    return b.step("batch_norm_eval", "F.batch_norm({0}, {1}, {2}, {3}, {4})", name, mean, variance, weight, bias)


@operation("batch_norm_train", "layer")
def _batch_norm_train(b: Builder) -> object:
    """Writes to its running statistics.

    Of a batch of one that lies channels last, with another stride than its size, eager's gradient is wrong (torch 2.11
    and 2.13 on the CPU: it takes the two operands of the kernel to lie in different ways).
    """
    name = b.pick(lambda t: is_wide_float(t) and t.dim() >= 2 and t.numel() > t.shape[1] > 0 and t.shape[0] > 1)
    channels, dtype = b[name].shape[1], b[name].dtype
    if not b.features.mutation:
        return b.step("batch_norm_train", "F.batch_norm({0}, None, None, training=True)", name)
    mean = b.new_input((channels,), dtype, plain=True)
    variance = b.new_input((channels,), dtype, "positive", plain=True)
    return b.step("batch_norm_train", "F.batch_norm({0}, {1}, {2}, training=True)", name, mean, variance)


for _name, _template in {
    "max_pool2d": "F.max_pool2d({0}, 2)",
    "max_pool2d_padded": "F.max_pool2d({0}, 3, 2, 1)",
    "avg_pool2d": "F.avg_pool2d({0}, 2)",
    "avg_pool2d_padded": "F.avg_pool2d({0}, 3, 1, 1, count_include_pad=False)",
    "adaptive_avg_pool2d": "F.adaptive_avg_pool2d({0}, 2)",
    "adaptive_avg_pool2d_one": "F.adaptive_avg_pool2d({0}, 1)",
    "adaptive_max_pool2d": "F.adaptive_max_pool2d({0}, 2)",
    "upsample_nearest": "F.interpolate({0}, scale_factor=2, mode='nearest')",
    "pixel_unshuffle": "F.pixel_unshuffle(F.pad({0}, (0, {0}.shape[3] % 2, 0, {0}.shape[2] % 2)), 2)",
}.items():
    operation(_name, "layer")(functools.partial(_of_an_image, _name, _template))


for _name, _template in {
    "upsample_bilinear": "F.interpolate({0}, size=(5, 7), mode='bilinear')",
    "upsample_bilinear_aligned": "F.interpolate({0}, scale_factor=2, mode='bilinear', align_corners=True)",
}.items():

    @operation(_name, "layer")
    def _bilinear(b: Builder, name: str = _name, template: str = _template) -> object:
        """Eager's own kernels disagree on whether a weight of zero times infinity counts."""
        if b.wild:
            raise Declined
        return b.step(name, template, _pick_image(b))


@operation("max_pool1d", "layer")
def _max_pool1d(b: Builder) -> object:
    name = b.pick(lambda t: is_float(t) and t.dim() == 3 and t.shape[-1] >= 2 and 0 not in t.shape)
    return b.step("max_pool1d", "F.max_pool1d({0}, 2)", name)


@operation("cross_entropy", "layer")
def _cross_entropy(b: Builder) -> object:
    name = b.pick(lambda t: is_float(t) and t.dim() == 2 and 0 not in t.shape)
    target = b.index((b[name].shape[0],), b[name].shape[1])
    options = b.choice(("", ", reduction='sum'", ", label_smoothing=0.1", ", reduction='none'"))
    return b.step("cross_entropy", f"F.cross_entropy({{0}}, {{1}}{options})", name, target)


@operation("mse_loss", "layer")
def _mse_loss(b: Builder) -> object:
    name = b.pick(lambda t: is_float(t) and t.numel() > 0)
    loss = b.choice(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))
    return b.step("mse_loss", f"F.{loss}({{0}}, {{1}})", name, b.like(name))


@operation("binary_cross_entropy", "layer")
def _binary_cross_entropy(b: Builder) -> object:
    name = b.pick(lambda t: is_float(t) and t.numel() > 0)
    template = "F.binary_cross_entropy_with_logits({0}, torch.sigmoid({1}).detach())"
    return b.step("binary_cross_entropy", template, name, b.like(name))


@operation("glu", "layer")
def _glu(b: Builder) -> object:
    name = b.pick(lambda t: is_float(t) and t.dim() > 0 and t.shape[-1] % 2 == 0)
    return b.step("glu", "F.glu({0})", name)


@operation("embedding_bag", "layer")
def _embedding_bag(b: Builder) -> object:
    weight = b.pick(lambda t: t.dim() == 2 and is_wide_float(t) and 0 not in t.shape)
    index = b.index((3, 2), b[weight].shape[0])
    return b.step("embedding_bag", f"F.embedding_bag({{0}}, {{1}}, mode='{b.choice(('sum', 'mean'))}')", index, weight)


@operation("dropout", "random")
def _dropout(b: Builder) -> object:
    return b.step("dropout", "F.dropout({0}, 0.4, training=True)", b.pick(is_float))


@operation("rand_like", "random")
def _rand_like(b: Builder) -> object:
    return b.step("rand_like", "{0} * torch.rand_like({0})", b.pick(is_float))


@operation("randn", "random")
def _randn(b: Builder) -> object:
    return b.step("randn", "torch.randn({0}.shape)", b.pick())
