"""Writes: in-place arithmetic, item assignment, copies into views, and changes of metadata."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from turret.testing.corpus.builder import Builder, Declined
from turret.testing.corpus.operations.registry import dim_of, is_float, is_number, operation


def _writable(tensor: Tensor) -> bool:
    """Eager refuses to write to leaves that require gradients and to memory that overlaps itself."""
    overlapping = any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
    return not (tensor.is_leaf and tensor.requires_grad) and not overlapping


def _target(b: Builder, accept: Callable[[Tensor], bool] = lambda t: True) -> str:
    return b.pick(lambda t: _writable(t) and accept(t))


def _unary(name: str, template: str, accept: Callable[[Tensor], bool]) -> None:
    operation(name, "inplace")(lambda b: b.step(name, template, _target(b, accept), results=0))


for _name, _template, _accept in (
    ("relu_", "{0}.relu_()", is_number),
    ("sin_", "{0}.sin_()", is_float),
    ("tanh_", "{0}.tanh_()", is_float),
    ("sigmoid_", "{0}.sigmoid_()", is_float),
    ("neg_", "{0}.neg_()", is_number),
    ("zero_", "{0}.zero_()", lambda t: True),
    ("fill_", "{0}.fill_(2)", lambda t: True),
    ("clamp_", "{0}.clamp_(-1, 1)", is_number),
    ("add_scalar_", "{0} += 1", is_number),
    ("mul_scalar_", "{0} *= 2", is_number),
    ("sub_scalar_", "{0}.sub_(3)", is_number),
    ("div_scalar_", "{0}.div_(2.0)", is_float),
    ("add_self_", "{0}.add_({0})", is_number),
    ("set_first", "{0}[0] = 1", lambda t: t.dim() > 0),
    ("set_last_slice", "{0}[..., -1:] = 0", lambda t: t.dim() > 0),
    ("add_to_row", "{0}[0] += 2", lambda t: t.dim() > 0 and t.dtype != torch.bool),
    ("mul_every_other", "{0}[..., ::2].mul_(3)", lambda t: t.dim() > 0 and t.dtype != torch.bool),
    ("fill_diagonal", "{0}.diagonal(0, -2, -1).fill_(1)", lambda t: t.dim() >= 2),
    ("transposed_add_", "{0}.transpose(0, -1).add_(1)", lambda t: t.dim() >= 1 and t.dtype != torch.bool),
    ("t_", "{0}.t_()", lambda t: t.dim() == 2),
    ("unsqueeze_", "{0}.unsqueeze_(0)", lambda t: t.dim() < 4),
    ("squeeze_", "{0}.squeeze_()", lambda t: True),
    ("swap_", "{0}.transpose_(0, -1)", lambda t: t.dim() >= 2),
    ("detach_add_", "{0}.detach().add_(1)", is_number),
):
    _unary(_name, _template, _accept)


def _binary(name: str, template: str, accept: Callable[[Tensor], bool]) -> None:
    def draw(b: Builder) -> object:
        target = _target(b, accept)
        return b.step(name, template, target, b.partner(target), results=0)

    operation(name, "inplace")(draw)


for _name, _template, _accept in (
    ("add_", "{0}.add_({1})", is_number),
    ("mul_", "{0}.mul_({1})", is_number),
    ("sub_", "{0}.sub_({1})", is_number),
    ("copy_", "{0}.copy_({1})", lambda t: True),
    ("iadd", "{0} += {1}", is_number),
    ("set_every", "{0}[:] = {1}", lambda t: t.dim() > 0),
    ("maximum_into", "{0}.copy_(torch.maximum({0}, {1}))", is_number),
    ("logical_and_", "{0}.logical_and_({1})", lambda t: not t.requires_grad),  # it has no gradient
):
    _binary(_name, _template, _accept)


@operation("set_slice", "inplace")
def _set_slice(b: Builder) -> object:
    target = _target(b, lambda t: t.dim() > 0 and t.shape[0] >= 2)
    shape = tuple(b[target].shape)
    start = b.integer(0, shape[0] - 1)
    source = b.like(target, (shape[0] - start, *shape[1:]))
    return b.step("set_slice", f"{{0}}[{start}:] = {{1}}", target, source, results=0)


@operation("set_column", "inplace")
def _set_column(b: Builder) -> object:
    target = _target(b, lambda t: t.dim() >= 2 and 0 not in t.shape)
    shape = tuple(b[target].shape)
    column = b.integer(-shape[-1], shape[-1] - 1)
    return b.step("set_column", f"{{0}}[..., {column}] = {{1}}", target, b.like(target, shape[:-1]), results=0)


@operation("masked_fill_", "inplace")
def _masked_fill_(b: Builder) -> object:
    target = _target(b)
    mask = b.partner(target, lambda d: d == torch.bool)
    return b.step("masked_fill_", "{0}.masked_fill_({1}, 0)", target, mask, results=0)


@operation("index_put_", "inplace")
def _index_put_(b: Builder) -> object:
    target = _target(b, lambda t: t.dim() > 0 and 0 not in t.shape)
    shape = tuple(b[target].shape)
    count = b.integer(1, min(4, shape[0]))
    index = b.index((count,), shape[0], unique=True)
    return b.step("index_put_", "{0}[{1}] = {2}", target, index, b.like(target, (count, *shape[1:])), results=0)


@operation("index_add_", "inplace")
def _index_add_(b: Builder) -> object:
    target = _target(b, lambda t: t.dim() > 0 and 0 not in t.shape and t.dtype != torch.bool)
    shape = tuple(b[target].shape)
    count = b.integer(1, 4)
    index = b.index((count,), shape[0])
    source = b.like(target, (count, *shape[1:]))
    return b.step("index_add_", "{0}.index_add_(0, {1}, {2})", target, index, source, results=0)


@operation("scatter_add_", "inplace")
def _scatter_add_(b: Builder) -> object:
    target = _target(b, lambda t: t.dim() > 0 and 0 not in t.shape and t.dtype != torch.bool)
    shape = tuple(b[target].shape)
    dim = dim_of(b, target)
    index = b.index(shape, shape[dim])
    return b.step("scatter_add_", f"{{0}}.scatter_add_({dim}, {{1}}, {{2}})", target, index, b.like(target), results=0)


@operation("addcmul_", "inplace")
def _addcmul_(b: Builder) -> object:
    target = _target(b, is_float)
    return b.step("addcmul_", "{0}.addcmul_({1}, {2})", target, b.like(target), b.like(target), results=0)


@operation("write_through_view", "inplace")
def _write_through_view(b: Builder) -> object:
    """Make a view, write to it, and go on with the base."""
    target = _target(b, lambda t: t.dim() > 0 and t.shape[0] > 0 and t.dtype != torch.bool)
    template = b.choice(("{0}[0]", "{0}.flatten(0, -1)", "{0}[::2]", "{0}.unsqueeze(-1)"))
    (view,) = b.step("view_to_write", template, target)
    if not _writable(b[view]):
        raise Declined
    return b.step("write_through_view", "{0}.mul_(2)", view, results=0)


@operation("out_argument", "inplace")
def _out_argument(b: Builder) -> object:
    first = b.pick(lambda t: is_float(t) and not t.requires_grad)
    target = _target(b, lambda t: not t.requires_grad and t.dtype == b[first].dtype and t.shape == b[first].shape)
    return b.step("out_argument", "torch.cos({0}, out={1})", first, target, results=0)
