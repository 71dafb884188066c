"""Gather and scatter, advanced indexing, joining tensors, and making new ones."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from turret.testing.corpus.builder import Builder, Declined
from turret.testing.corpus.operations.registry import dim_of, has_dims, is_number, operation


def _indexable(tensor: Tensor) -> bool:
    return tensor.dim() > 0 and 0 not in tensor.shape


@operation("gather", "indexing")
def _gather(b: Builder) -> object:
    name = b.pick(_indexable)
    dim = b.integer(0, b[name].dim() - 1)
    shape = [b.integer(1, size) for size in b[name].shape]
    shape[dim] = b.integer(0, 5)
    return b.step("gather", f"torch.gather({{0}}, {dim}, {{1}})", name, b.index(shape, b[name].shape[dim]))


@operation("index_select", "indexing")
def _index_select(b: Builder) -> object:
    name = b.pick(_indexable)
    dim = dim_of(b, name)
    index = b.index((b.integer(0, 5),), b[name].shape[dim])
    return b.step("index_select", f"torch.index_select({{0}}, {dim}, {{1}})", name, index)


@operation("take_along_dim", "indexing")
def _take_along_dim(b: Builder) -> object:
    name = b.pick(_indexable)
    dim = b.integer(0, b[name].dim() - 1)
    shape = list(b[name].shape)
    shape[dim] = b.integer(1, 3)
    index = b.index(shape, b[name].shape[dim])
    return b.step("take_along_dim", f"torch.take_along_dim({{0}}, {{1}}, {dim})", name, index)


@operation("advanced_index", "indexing")
def _advanced_index(b: Builder) -> object:
    name = b.pick(_indexable)
    index = b.index(b.choice(((3,), (2, 2), (), (1,))), b[name].shape[0], negative=True)
    return b.step("advanced_index", "{0}[{1}]", name, index)


@operation("advanced_index_last", "indexing")
def _advanced_index_last(b: Builder) -> object:
    name = b.pick(_indexable)
    index = b.index((b.integer(1, 4),), b[name].shape[-1], negative=True)
    return b.step("advanced_index_last", "{0}[..., {1}]", name, index)


@operation("advanced_index_pair", "indexing")
def _advanced_index_pair(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() >= 2 and 0 not in t.shape)
    first = b.index((3,), b[name].shape[0])
    second = b.index(b.choice(((3,), (2, 1))), b[name].shape[1], negative=True)
    return b.step("advanced_index_pair", "{0}[{1}, {2}]", name, first, second)


@operation("list_index", "indexing")
def _list_index(b: Builder) -> object:
    name = b.pick(_indexable)
    return b.step("list_index", "{0}[[0, -1, 0]]", name)


@operation("embedding", "indexing")
def _embedding(b: Builder) -> object:
    weight = b.pick(lambda t: t.dim() == 2 and t.dtype.is_floating_point and t.shape[0] > 0)
    index = b.index(b.choice(((4,), (2, 3), (0,))), b[weight].shape[0])
    return b.step("embedding", "F.embedding({0}, {1})", index, weight)


@operation("scatter", "indexing")
def _scatter(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() == 1 and t.numel() > 0)
    count = b.integer(1, min(4, b[name].numel()))
    index = b.index((count,), b[name].numel(), unique=True)
    return b.step("scatter", "torch.scatter({0}, 0, {1}, {2})", name, index, b.like(name, (count,)))


@operation("scatter_value", "indexing")
def _scatter_value(b: Builder) -> object:
    name = b.pick(_indexable)
    dim = dim_of(b, name)
    index = b.index(tuple(b[name].shape), b[name].shape[dim])
    return b.step("scatter_value", f"{{0}}.scatter({dim}, {{1}}, 1)", name, index)


@operation("scatter_add", "indexing")
def _scatter_add(b: Builder) -> object:
    name = b.pick(lambda t: _indexable(t) and t.dtype != torch.bool)
    dim = dim_of(b, name)
    index = b.index(tuple(b[name].shape), b[name].shape[dim])
    return b.step("scatter_add", f"{{0}}.scatter_add({dim}, {{1}}, {{2}})", name, index, b.like(name))


@operation("scatter_reduce", "indexing")
def _scatter_reduce(b: Builder) -> object:
    name = b.pick(lambda t: _indexable(t) and t.dtype != torch.bool and not t.requires_grad)
    dim = dim_of(b, name)
    index = b.index(tuple(b[name].shape), b[name].shape[dim])
    source = b.new_input(tuple(b[name].shape), b[name].dtype, plain=True)
    template = f"{{0}}.scatter_reduce({dim}, {{1}}, {{2}}, reduce='{b.choice(('sum', 'amax', 'amin'))}')"
    return b.step("scatter_reduce", template, name, index, source)


@operation("index_put", "indexing")
def _index_put(b: Builder) -> object:
    name = b.pick(_indexable)
    shape = tuple(b[name].shape)
    count = b.integer(1, min(4, shape[0]))
    index = b.index((count,), shape[0], unique=True)
    source = b.like(name, (count, *shape[1:]))
    return b.step("index_put", "torch.index_put({0}, ({1},), {2})", name, index, source)


@operation("index_put_accumulate", "indexing")
def _index_put_accumulate(b: Builder) -> object:
    name = b.pick(lambda t: _indexable(t) and t.dtype != torch.bool)
    shape = tuple(b[name].shape)
    index = b.index((4,), shape[0], negative=True)
    source = b.like(name, (4, *shape[1:]))
    return b.step("index_put_accumulate", "torch.index_put({0}, ({1},), {2}, accumulate=True)", name, index, source)


@operation("index_add", "indexing")
def _index_add(b: Builder) -> object:
    name = b.pick(lambda t: _indexable(t) and t.dtype != torch.bool)
    shape = tuple(b[name].shape)
    index = b.index((3,), shape[0])
    return b.step("index_add", "torch.index_add({0}, 0, {1}, {2})", name, index, b.like(name, (3, *shape[1:])))


@operation("masked_where_index", "indexing")
def _masked_where_index(b: Builder) -> object:
    name = b.pick(_indexable)
    mask = b.new_input(tuple(b[name].shape), torch.bool)
    return b.step("masked_where_index", "torch.where({1}, {0}, {0}.flip(0))", name, mask)


@operation("one_hot", "indexing")
def _one_hot(b: Builder) -> object:
    return b.step("one_hot", "F.one_hot({0}, 5)", b.index(b.choice(((3,), (2, 2))), 5))


@operation("searchsorted", "indexing")
def _searchsorted(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() == 1 and t.dtype == torch.float32)
    return b.step("searchsorted", "torch.searchsorted(torch.tensor([-1.0, 0.0, 0.7]), {0})", name)


@operation("gathered_rows", "indexing")
def _gathered_rows(b: Builder) -> object:
    """Rows chosen by data, and what reduces or scans them: they may be read where an index is known to be good."""
    name = b.pick(lambda t: t.dim() == 2 and t.dtype.is_floating_point and 0 not in t.shape)
    index = b.index((b[name].shape[0],), b[name].shape[0], negative=True)
    whole = "{0}[{1}]"
    dim = b.integer(-2, 1)
    template = b.choice(
        (
            f"torch.cumsum({whole}, {dim})",
            f"torch.softmax({whole}, {dim})",
            f"{whole}.cummax({dim})[0]",
            f"({whole} - {whole}.mean({dim}, keepdim=True))",
        )
    )
    return b.step("gathered_rows", template, name, index)


# -- joining --------------------------------------------------------------------------------------------------------


@operation("cat", "combine")
def _cat(b: Builder) -> object:
    name = b.pick(has_dims(1))
    dim = b.integer(0, b[name].dim() - 1)
    shape = list(b[name].shape)
    shape[dim] = b.integer(0, 4)
    other = b.new_input(shape, b.dtype()) if b.chance(40) else b.like(name)
    order = b.choice(("{0}, {1}", "{1}, {0}", "{0}, {1}, {0}"))
    return b.step("cat", f"torch.cat(({order}), {dim})", name, other)


@operation("stack", "combine")
def _stack(b: Builder) -> object:
    name = b.pick(has_dims(0, 4))
    dims = b[name].dim()
    return b.step("stack", f"torch.stack(({{0}}, {{1}}), {b.integer(-dims - 1, dims)})", name, b.like(name))


@operation("pad", "combine")
def _pad(b: Builder) -> object:
    name = b.pick(has_dims(1))
    amounts = ", ".join(str(b.integer(-1, 2)) for _ in range(2 * b.integer(1, min(2, b[name].dim()))))
    return b.step("pad", f"F.pad({{0}}, ({amounts}), value={b.scalar(False)})", name)


@operation("pad_mode", "combine")
def _pad_mode(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() in (2, 3) and t.shape[-1] >= 2 and t.dtype.is_floating_point and 0 not in t.shape)
    return b.step("pad_mode", f"F.pad({{0}}, (1, 1), mode='{b.choice(('reflect', 'replicate', 'circular'))}')", name)


@operation("slice_scatter", "combine")
def _slice_scatter(b: Builder) -> object:
    name = b.pick(has_dims(1))
    dim, start, end = dim_of(b, name), b.integer(0, 3), b.integer(0, 2)
    cut = f".narrow({dim}, {start}, {b[name].shape[dim] - start - end})"
    if b[name].shape[dim] < start + end:
        raise Declined
    written = f"torch.slice_scatter({{1}}, {{0}}{cut}, {dim}, {start}, {b[name].shape[dim] - end})"
    return b.step("slice_scatter", written, name, b.like(name))


@operation("select_scatter", "combine")
def _select_scatter(b: Builder) -> object:
    name = b.pick(_indexable)
    dim, at = dim_of(b, name), b.integer(-1, 0)
    return b.step(
        "select_scatter", f"torch.select_scatter({{1}}, {{0}}.select({dim}, {at}), {dim}, {at})", name, b.like(name)
    )


@operation("hstack", "combine")
def _hstack(b: Builder) -> object:
    name = b.pick()
    return b.step("hstack", f"torch.{b.choice(('hstack', 'vstack', 'dstack'))}(({{0}}, {{1}}))", name, b.like(name))


@operation("meshgrid", "combine")
def _meshgrid(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() == 1 and t.numel() <= 40)
    return b.step("meshgrid", "torch.meshgrid({0}, {0}[:2], indexing='ij')", name, results=2)


@operation("repeat_interleave", "combine")
def _repeat_interleave(b: Builder) -> object:
    name = b.pick(has_dims(1))
    return b.step("repeat_interleave", f"{{0}}.repeat_interleave(2, dim={dim_of(b, name)})", name)


@operation("outer", "combine")
def _outer(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() == 1 and t.dtype != torch.bool)
    return b.step("outer", "torch.outer({0}, {0})", name)


# -- creation -------------------------------------------------------------------------------------------------------


def _of_any(name: str, template: str, b: Builder) -> object:
    return b.step(name, template, b.pick())


for _name, _template in {
    "zeros_like": "torch.zeros_like({0})",
    "ones_like": "torch.ones_like({0})",
    "full_like": "torch.full_like({0}, 2)",
    "new_zeros": "{0}.new_zeros(3, 2)",
    "new_full": "{0}.new_full({0}.shape, 1)",
    "arange_size": "torch.arange({0}.dim() + 2)",
    "zeros_like_double": "torch.zeros_like({0}, dtype=torch.float64)",
}.items():
    operation(_name, "create")(functools.partial(_of_any, _name, _template))


@operation("arange_add", "create")
def _arange_add(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() > 0 and is_number(t))
    return b.step("arange_add", "{0} + torch.arange({0}.shape[-1])", name)


@operation("linspace", "create")
def _linspace(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() > 0 and t.dtype.is_floating_point and t.shape[-1] > 1)
    return b.step("linspace", "{0} * torch.linspace(-1, 1, {0}.shape[-1])", name)


@operation("eye", "create")
def _eye(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() >= 2 and t.shape[-1] == t.shape[-2] and is_number(t))
    return b.step("eye", "{0} + torch.eye({0}.shape[-1])", name)


@operation("zeros_then_write", "create")
def _zeros_then_write(b: Builder) -> object:
    if not b.features.mutation:
        raise Declined
    name = b.pick(lambda t: t.dim() > 0 and t.shape[0] > 0)
    (made,) = b.step("zeros_then_write", "torch.zeros({0}.shape, dtype={0}.dtype)", name)
    return b.step("write_row", "{0}[-1] = {1}[0]", made, name, results=0)
