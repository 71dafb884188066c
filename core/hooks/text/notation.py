"""How names and values are written in the text of products; ``ir.reader`` reads them back."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import sympy
import torch
from sympy.printing.str import StrPrinter

from turret.hooks.host import HOST

NAME = r"[A-Za-z_]\w*(?:(?:::|\.)\w+)*"
"""A name that is written without quotes; ``aten::mm.default`` is one."""

SHOWN_ELEMENTS = 256
"""Constants of more elements than these are written without them."""

SYMBOL_KINDS: dict[str, dict[str, bool]] = {
    "positive": {"integer": True, "positive": True},
    "nonnegative": {"integer": True, "nonnegative": True},
    "integer": {"integer": True},
    "real": {"real": True},
    "number": {},
}
"""What may be known of a size symbol, by the word for it."""


def symbol_kind(symbol: sympy.Symbol) -> str:
    """The word for what is known of a size symbol."""
    kinds = (kind for kind, known in SYMBOL_KINDS.items() if sympy.Symbol(symbol.name, **known) == symbol)
    return next(kinds, "unknown")


def name_text(name: str) -> str:
    """A name; in quotes where it is not an ordinary one."""
    return name if re.fullmatch(NAME, name) else json.dumps(name)


def names_text(names: Iterable[str]) -> str:
    """Names, with commas between."""
    return ", ".join(map(name_text, names))


def dtype_text(dtype: torch.dtype) -> str:
    """A dtype without its module."""
    return str(dtype).removeprefix("torch.")


def value_text(value: Any, leaf: Callable[[Any], str | None] = lambda value: None) -> str:
    """Plain data, sizes, and attrs classes with the fields that are not their defaults.

    ``leaf`` is asked first, and writes what has a notation of its own.
    """
    own = leaf(value)
    if own is not None:
        return own
    match value:
        case enum.Enum():
            return f"{type(value).__name__}.{value.name}"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list():
            return f"[{_items(value, leaf)}]"
        case tuple():
            return f"({_items(value, leaf)}{',' if len(value) == 1 else ''})"
        case dict():
            pairs = (f"{value_text(k, leaf)}: {value_text(v, leaf)}" for k, v in value.items())
            return f"{{{', '.join(pairs)}}}"
        case complex():
            return f"complex({value.real!r}, {value.imag!r})"
        case torch.device():
            return f'device("{value}")'
        case sympy.Basic():
            return str(_SizePrinter().doprint(value))
    if attrs.has(type(value)):
        fields = (f"{name}={value_text(found, leaf)}" for name, found in set_fields(value))
        return f"{type(value).__name__}({', '.join(fields)})"
    return str(value)


def _items(values: Iterable[Any], leaf: Callable[[Any], str | None]) -> str:
    return ", ".join(value_text(v, leaf) for v in values)


def tail_text(product: Any, *shown: str) -> str:
    """``  {field: value, ...}``: what the text before it did not show of an attrs object; empty where that is all."""
    pairs = [f"{name}: {value_text(value)}" for name, value in set_fields(product) if name not in shown]
    return f"  {{{', '.join(pairs)}}}" if pairs else ""


def set_fields(product: Any) -> list[tuple[str, Any]]:
    """Fields of an attrs object by name that are not their defaults."""
    found = [(a, getattr(product, a.name)) for a in attrs.fields(type(product))]
    return [(a.name, value) for a, value in found if not _is_default(value, a.default)]


def _is_default(value: Any, default: Any) -> bool:
    factory = getattr(default, "factory", None)
    if factory is not None:
        default = factory()
    return type(value) is type(default) and bool(value == default)


def constant_text(name: str, value: torch.Tensor) -> str:
    """A tensor that belongs to a program: its layout, and the elements of the memory behind it if they are few."""
    decl = layout_text(name, tuple(value.shape), value.stride(), value.dtype, value.device)
    elements = span(value.shape, value.stride())
    if elements > SHOWN_ELEMENTS:
        return f"{decl} = ..."
    memory = value.detach().as_strided((elements,), (1,)).cpu()
    return f"{decl} = {value_text(memory.tolist())}"


def span(shape: Iterable[int], stride: Iterable[int]) -> int:
    """Elements of memory from the first to the last of a layout."""
    shape = tuple(shape)
    return 0 if 0 in shape else 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))


def layout_text(
    name: str, shape: tuple[Any, ...], stride: tuple[Any, ...], dtype: torch.dtype, device: torch.device
) -> str:
    """A declaration: ``x: float32[8, 16]``, with strides unless they are row-major, and a device unless the host."""
    text = f"{name_text(name)}: {dtype_text(dtype)}[{', '.join(map(str, shape))}]"
    written = [*map(str, stride)]
    if written != [*map(str, row_major(shape))]:  # to compare symbols would guard on them
        text += f" strides [{', '.join(written)}]"
    return text + ("" if device == HOST else f" on {device}")


def row_major(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Strides of a contiguous tensor, in elements."""
    strides: list[Any] = []
    step: Any = 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))


class _SizePrinter(StrPrinter):  # type: ignore[misc]
    """As sympy writes expressions, but everything that is no arithmetic as a call, and floats to the last bit."""

    def _call(self, expr: sympy.Basic) -> str:
        return f"{type(expr).__name__}({', '.join(map(self._print, expr.args))})"

    _print_And = _print_Or = _print_Not = _print_Relational = _call
    _print_Piecewise = _print_Max = _print_Min = _call

    def _print_Float(self, expr: sympy.Float) -> str:
        return repr(float(expr))
