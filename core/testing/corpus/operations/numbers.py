"""What integers and sizes that change from call to call are used for: indices, bounds of slices, amounts, values."""

from __future__ import annotations

import torch

from turret.testing.corpus.builder import Builder, Declined
from turret.testing.corpus.operations.inplace import _target
from turret.testing.corpus.operations.registry import both, dim_of, has_dims, is_float, is_number, operation


def _bound(b: Builder, name: str, dim: int, position: int) -> tuple[str, str]:
    """An integer expression for the bound of a slice along a dimension, and the operand ``{position}`` that it is of.

    It is made of a number, or of another tensor's size, and may be negative, zero or past the end.
    """
    size = b[name].shape[dim]
    if b.layouts == 1:
        raise Declined
    if b.chance(35):
        other = b.pick(has_dims(1))
        size_of = f"{{{position}}}.shape[{dim_of(b, other)}]"
        return b.choice((f"-{size_of}", size_of, f"-({size_of} // 2)", f"{size_of} - 2", f"{size_of} // 2")), other
    n = f"{{{position}}}"
    expression = b.choice(
        (n, n, n, f"-{n}", f"{n} + 1", f"{n} // 2", f"-({n} // 2)", f"{n} - 3", f"abs({n})", f"max({n}, 0)", f"{n} % 4")
    )
    return expression, b.number(-size - 1, size + 1)


def _slice_text(b: Builder, name: str) -> tuple[str, tuple[str, ...]]:
    """A subscript that slices one dimension by bounds that change, and its operands from ``{1}`` on."""
    dim = b.integer(0, b[name].dim() - 1)
    first, one = _bound(b, name, dim, 1)
    kind = b.choice(("from", "to", "between", "window", "step"))
    operands: tuple[str, ...] = (one,)
    if kind == "between":
        second, other = _bound(b, name, dim, 2)
        operands = (one, other)
        text = f"{first}:{second}"
    else:
        window = f"{first}:{first} + {b.integer(1, 3)}"
        text = {"from": f"{first}:", "to": f":{first}", "window": window, "step": f"{first}::2"}[kind]
    return "[" + ":, " * dim + text + "]", operands


def _at(b: Builder, name: str) -> tuple[int, str]:
    """A dimension that has elements, and a number that is an index into it in the first call."""
    dims = [d for d, size in enumerate(b[name].shape) if size]
    dim = b.choice(dims)
    return dim, b.number(-b[name].shape[dim], b[name].shape[dim] - 1)


@operation("slice_by", "number")
def _slice_by(b: Builder) -> object:
    name = b.pick(has_dims(1))
    text, operands = _slice_text(b, name)
    return b.step("slice_by", "{0}" + text, name, *operands)


@operation("slice_of_both", "number")
def _slice_of_both(b: Builder) -> object:
    """The two parts of a tensor at a bound that may lie outside, joined again."""
    name = b.pick(has_dims(1))
    first, one = _bound(b, name, 0, 1)
    return b.step("slice_of_both", f"torch.cat(({{0}}[{first}:], {{0}}[:{first}]))", name, one)


@operation("select_by", "number")
def _select_by(b: Builder) -> object:
    name = b.pick(has_dims(1))
    dim, n = _at(b, name)
    subscript = "{0}[" + ":, " * dim + "{1}]"
    forms = (subscript, subscript, f"{{0}}.select({dim}, {{1}})", f"{{0}}.narrow({dim}, {{1}}, 1)")
    return b.step("select_by", b.choice(forms), name, n)


@operation("index_by", "number")
def _index_by(b: Builder) -> object:
    """Advanced indices made of a number."""
    name = b.pick(has_dims(1))
    if not b[name].shape[0]:
        raise Declined
    forms = ("{0}[[{1}, 0]]", "{0}[torch.tensor({1})]", "{0}[torch.arange({1}, {1} + 1)]", "{0}[{1} % {0}.shape[0]]")
    return b.step("index_by", b.choice(forms), name, b.number(-b[name].shape[0], b[name].shape[0] - 1))


@operation("write_slice_by", "number")
def _write_slice_by(b: Builder) -> object:
    if not b.features.mutation:
        raise Declined
    name = _target(b, lambda t: t.dim() > 0)
    text, operands = _slice_text(b, name)
    forms = ("{0}" + text + " = 1", "{0}" + text + ".mul_(2)", "{0}" + text + ".zero_()", "{0}" + text + " += 1")
    return b.step("write_slice_by", b.choice(forms), name, *operands, results=0)


@operation("write_at", "number")
def _write_at(b: Builder) -> object:
    if not b.features.mutation:
        raise Declined
    name = _target(b, lambda t: t.dim() > 0)
    dim, n = _at(b, name)
    place = "{0}[" + ":, " * dim + "{1}]"
    return b.step("write_at", place + b.choice((" = 2", ".add_(1)", " = {1}", " += {1}")), name, n, results=0)


@operation("scatter_at", "number")
def _scatter_at(b: Builder) -> object:
    name = b.pick(has_dims(1))
    dim, n = _at(b, name)
    place = f"{dim}, {{1}}"
    forms = (
        f"torch.select_scatter({{0}}, {{0}}.select({dim}, 0) * 2, {place})",
        f"torch.slice_scatter({{0}}, {{0}}.narrow({dim}, 0, 1), {place}, {{1}} + 1)",
        f"{{0}}.index_fill({dim}, torch.tensor([{{1}}]), 1)",
    )
    return b.step("scatter_at", b.choice(forms), name, n)


@operation("amount", "number")
def _amount(b: Builder) -> object:
    """Operations whose amount, diagonal or count changes."""
    name = b.pick(has_dims(1, 3))
    dims = b[name].dim()
    forms = [
        f"torch.roll({{0}}, {{1}}, {dim_of(b, name)})",
        "F.pad({0}, ({1}, 1))",
        "F.pad({0}, (1, {1}), value=1)",
        f"{{0}}.repeat(abs({{1}}) % 3, {', '.join(['1'] * dims)})",
        f"{{0}}[None].expand(abs({{1}}) + 1, {', '.join(['-1'] * dims)})",
        "{0}.flatten()[: abs({1})]",
        "{0}.new_zeros(abs({1}), 2)",
        "{0}.new_full((abs({1}) % 3, 2), {1})",
        "{0}[..., : {0}.shape[-1] - abs({1})]",
        "{0}[..., -({0}.shape[-1] // 2) :]",
    ]
    if dims >= 2:
        forms += ["torch.tril({0}, {1})", "torch.triu({0}, {1})", "{0}.diagonal({1}, -2, -1)"]
    return b.step("amount", b.choice(forms), name, b.number(-3, 5))


@operation("value_of", "number")
def _value_of(b: Builder) -> object:
    """A number, or what is computed from one, as a value."""
    name = b.pick(both(is_number, lambda t: not t.dtype.is_complex and t.dtype != torch.uint8))
    forms = [
        "{0} * {1}",
        "{0} + {1} // 2",
        "{0} - {1} % 3",
        "torch.where({0} > 0, {0}, {1})",
        "{0} + torch.tensor({1} // 2)",
        "{0} * torch.tensor([{1}, 1]).sum()",
        "{0}.clamp(max={1})",
        "torch.full_like({0}, {1})",
        "torch.arange(abs({1}) % 7)",
        "({0} if {1} > 1 else {0} * 2)",
        "{0} * min({1}, 3) + max({1}, 0)",
        "{0} + {0}.new_tensor({1})",
        "{0} * {0}.shape[0] + {1}" if b[name].dim() else "{0} + ({1} == 2)",
    ]
    if is_float(b[name]):
        forms += ["{0} * float({1})", "{0} + {1} / 2", "{0} ** (abs({1}) % 3)", "{0} * torch.tensor({1} / 4)"]
    return b.step("value_of", b.choice(forms), name, b.number(-4, 9))
