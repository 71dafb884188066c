"""Views of all kinds, and the copies that look like views (reshape, contiguous, flip, roll, repeat)."""

from __future__ import annotations

import torch

from turret.testing.corpus.builder import Builder, Declined
from turret.testing.corpus.operations.registry import dim_of, has_dims, operation


def _view(name: str, template: str, low: int = 0, high: int = 9) -> None:
    operation(name, "view")(lambda b: b.step(name, template, b.pick(has_dims(low, high))))


for _name, _template, _low, _high in (
    ("flatten", "{0}.flatten()", 0, 9),
    ("ravel", "{0}.ravel()", 0, 9),
    ("t", "{0}.t()", 0, 2),
    ("mT", "{0}.mT", 2, 9),
    ("contiguous", "{0}.contiguous()", 0, 9),
    ("detach", "{0}.detach()", 0, 9),
    ("view_self", "{0}.view({0}.shape)", 0, 9),
    ("every", "{0}[:]", 1, 9),
    ("ellipsis_none", "{0}[..., None]", 0, 5),
    ("none_front", "{0}[None]", 0, 5),
    ("every_other", "{0}[..., ::2]", 1, 9),
    ("squeeze", "{0}.squeeze()", 0, 9),
    ("expand_as", "{0}.expand_as({0})", 0, 9),
    ("channels_last", "{0}.contiguous(memory_format=torch.channels_last)", 4, 4),
):
    _view(_name, _template, _low, _high)


@operation("transpose", "view")
def _transpose(b: Builder) -> object:
    name = b.pick(has_dims(1))
    return b.step("transpose", f"{{0}}.transpose({dim_of(b, name)}, {dim_of(b, name)})", name)


@operation("permute", "view")
def _permute(b: Builder) -> object:
    name = b.pick(has_dims(1))
    order: list[int] = []
    rest = list(range(b[name].dim()))
    while rest:
        order.append(rest.pop(b.integer(0, len(rest) - 1)))
    return b.step("permute", f"{{0}}.permute({tuple(order)})", name)


@operation("reshape", "view")
def _reshape(b: Builder) -> object:
    name = b.pick()
    numel = b[name].numel()
    divisors = [d for d in (1, 2, 3, 4, 5, 7, 8, 16) if numel and numel % d == 0] or [1]
    first = b.choice(divisors)
    shape = b.choice(((first, numel // first), (numel // first, first), (numel,), (first, 1, numel // first)))
    return b.step("reshape", f"{{0}}.{b.choice(('reshape', 'view'))}({shape})", name)


@operation("unflatten", "view")
def _unflatten(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() > 0 and t.shape[-1] % 2 == 0 and t.numel() > 0)
    return b.step("unflatten", f"{{0}}.unflatten(-1, ({b.choice(('2, -1', '-1, 2'))}))", name)


@operation("slice", "view")
def _slice(b: Builder) -> object:
    name = b.pick(has_dims(1))
    dim = b.integer(0, b[name].dim() - 1)
    size = b[name].shape[dim]
    start = b.integer(0, max(0, size // 2))
    bounds = b.choice((f"{start}:", f":{size - start}", "-2:", f"{start}::2", f"{start}:{start + 3}", ":-1", "1:1"))
    return b.step("slice", "{0}[" + ":, " * dim + bounds + "]", name)


@operation("select", "view")
def _select(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() > 0 and 0 not in t.shape)
    dim = b.integer(0, b[name].dim() - 1)
    index = b.integer(-b[name].shape[dim], b[name].shape[dim] - 1)
    template = b.choice((f"{{0}}.select({dim}, {index})", "{0}[" + ":, " * dim + f"{index}]"))
    return b.step("select", template, name)


@operation("narrow", "view")
def _narrow(b: Builder) -> object:
    name = b.pick(has_dims(1))
    dim = b.integer(0, b[name].dim() - 1)
    start = b.integer(0, b[name].shape[dim])
    length = b.integer(0, b[name].shape[dim] - start)
    return b.step("narrow", f"{{0}}.narrow({dim}, {start}, {length})", name)


@operation("unsqueeze", "view")
def _unsqueeze(b: Builder) -> object:
    name = b.pick(has_dims(0, 4))
    dims = b[name].dim()
    return b.step("unsqueeze", f"{{0}}.unsqueeze({b.integer(-dims - 1, dims)})", name)


@operation("squeeze_dim", "view")
def _squeeze_dim(b: Builder) -> object:
    name = b.pick()
    return b.step("squeeze_dim", f"{{0}}.squeeze({dim_of(b, name)})", name)


@operation("expand", "view")
def _expand(b: Builder) -> object:
    name = b.pick(has_dims(0, 3))
    shape = tuple(b[name].shape)
    sizes = [str(b.choice((2, 3, 5))) if s == 1 and b.chance(70) else b.choice((str(s), "-1")) for s in shape]
    front = [str(b.choice((2, 3, 1)))] if b.chance(60) or not sizes else []
    return b.step("expand", f"{{0}}.expand({', '.join(front + sizes)})", name)


@operation("diagonal", "view")
def _diagonal(b: Builder) -> object:
    name = b.pick(has_dims(2))
    return b.step("diagonal", f"{{0}}.diagonal({b.integer(-1, 1)}, -2, -1)", name)


@operation("unfold", "view")
def _unfold(b: Builder) -> object:
    name = b.pick(lambda t: 0 < t.dim() < 4 and t.shape[-1] >= 2)
    size = b.integer(1, min(4, b[name].shape[-1]))
    return b.step("unfold", f"{{0}}.unfold(-1, {size}, {b.integer(1, 3)})", name)


@operation("split", "view")
def _split(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() > 0 and t.shape[0] >= 2)
    first = b.integer(1, b[name].shape[0] - 1)
    return b.step("split", f"{{0}}.split([{first}, {b[name].shape[0] - first}])", name, results=2)


@operation("chunk", "view")
def _chunk(b: Builder) -> object:
    name = b.pick(lambda t: t.dim() > 0 and t.shape[-1] >= 2)
    return b.step("chunk", "{0}.chunk(2, dim=-1)", name, results=2)


@operation("unbind", "view")
def _unbind(b: Builder) -> object:
    dims = [(n, d) for n in b.names() for d, size in enumerate(b[n].shape) if size in (2, 3)]
    name, dim = b.choice(dims)
    return b.step("unbind", f"{{0}}.unbind({dim})", name, results=b[name].shape[dim])


@operation("as_strided", "view")
def _as_strided(b: Builder) -> object:
    name = b.pick(lambda t: t.is_contiguous() and t.numel() >= 4 and t.storage_offset() == 0)
    numel = b[name].numel()
    layout = b.choice(((f"({numel // 2},)", "(2,)"), (f"(2, {numel // 2})", "(1, 2)"), (f"({numel - 1}, 2)", "(1, 1)")))
    return b.step("as_strided", f"{{0}}.as_strided({layout[0]}, {layout[1]})", name)


_BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.int64: torch.int32, torch.bfloat16: torch.int16}


@operation("view_dtype", "view")
def _view_dtype(b: Builder) -> object:
    """Reinterpret bits; floats are read as integers only, since the reverse makes numbers of any size."""
    name = b.pick(lambda t: t.dtype in _BITS and not t.requires_grad and t.dim() > 0)
    return b.step("view_dtype", f"{{0}}.view({_BITS[b[name].dtype]})", name)


@operation("flip", "view")
def _flip(b: Builder) -> object:
    name = b.pick(has_dims(1))
    return b.step("flip", f"{{0}}.flip({dim_of(b, name)})", name)


@operation("roll", "view")
def _roll(b: Builder) -> object:
    name = b.pick(has_dims(1))
    return b.step("roll", f"torch.roll({{0}}, {b.integer(-2, 3)}, {dim_of(b, name)})", name)


@operation("repeat", "view")
def _repeat(b: Builder) -> object:
    name = b.pick(has_dims(0, 3))
    times = [str(b.integer(1, 2)) for _ in range(max(1, b[name].dim()))]
    return b.step("repeat", f"{{0}}.repeat({', '.join(times)})", name)


@operation("tril", "view")
def _tril(b: Builder) -> object:
    name = b.pick(has_dims(2))
    return b.step("tril", f"torch.{b.choice(('tril', 'triu'))}({{0}}, {b.integer(-1, 1)})", name)


@operation("to_same", "view")
def _to_same(b: Builder) -> object:
    """A conversion to the dtype that the tensor has returns the tensor itself."""
    name = b.pick()
    return b.step("to_same", f"{{0}}.to({b[name].dtype})", name)


@operation("movedim", "view")
def _movedim(b: Builder) -> object:
    name = b.pick(has_dims(2))
    return b.step("movedim", f"torch.movedim({{0}}, {dim_of(b, name)}, {dim_of(b, name)})", name)


@operation("view_flat_tail", "view")
def _view_flat_tail(b: Builder) -> object:
    name = b.pick(has_dims(2))
    if not b[name].numel():
        raise Declined
    return b.step("view_flat_tail", "{0}.flatten(-2)", name)
