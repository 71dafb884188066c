"""Sizes of a signature at run time: symbols read from the inputs, expressions over them compiled once.

Texts come from stored artifacts, so nothing but arithmetic is let through.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from turret.errors import CacheError
from turret.hooks.signature import GraphSignature, Layout, SizeText
from turret.hooks.size_source import SizeSource

Sizes = dict[str, int]
_FUNCTIONS = {"min": min, "max": max, "abs": abs, "int": int, "float": float, "round": round, "math": math}
_ALLOWED = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call, ast.Attribute, ast.Name,
    ast.Constant, ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip


def size_reader(signature: GraphSignature) -> Callable[[Sequence[Any]], Sizes]:
    """A function of the user's inputs that gives the value of every size symbol."""
    if not signature.symbols:
        empty: Sizes = {}
        return lambda args: empty
    readers = tuple((name, source.input, source_reader(source)) for name, source in signature.symbols.items())
    return lambda args: {name: read(args[position]) for name, position, read in readers}


def number_reader(signature: GraphSignature) -> Callable[[Sizes, Sequence[Any]], Sizes] | None:
    """``read(sizes, graph outputs)``: the sizes and the numbers that the graph has given; None where it gives none."""
    if not signature.numbers:
        return None
    places = tuple(signature.numbers.items())
    return lambda sizes, results: {**sizes, **{name: results[index] for name, index in places}}


def source_reader(source: SizeSource) -> Callable[[Any], int]:
    """What reads a size from the input that it is one of."""
    dimension = source.dimension
    if source.kind == "offset":
        return lambda value: value.storage_offset()
    if dimension is None:
        return lambda value: value
    if source.kind == "stride":
        return lambda value: value.stride(dimension)
    return lambda value: value.shape[dimension]


def compile_size(text: SizeText) -> Callable[[Sizes], Any]:
    """A function of the size symbols' values.  ``CacheError`` for text that is not arithmetic."""
    if not isinstance(text, str):
        return lambda sizes: text
    code = _code(text)
    return lambda sizes: eval(code, _NAMES, sizes)


_NAMES: dict[str, Any] = {"__builtins__": {}, **_FUNCTIONS}


@functools.lru_cache(maxsize=4096)
def _code(text: str) -> Any:
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        allowed = isinstance(node, _ALLOWED)
        if isinstance(node, ast.Attribute):
            allowed = isinstance(node.value, ast.Name) and node.value.id == "math" and not node.attr.startswith("_")
        if not allowed:
            raise CacheError(f"the size {text!r} is not arithmetic over size symbols")
    return compile(tree, "<size>", "eval")


def compile_sizes(texts: Sequence[SizeText]) -> Callable[[Sizes], tuple[int, ...]]:
    """A function of the size symbols' values that gives a shape or strides."""
    fixed = tuple(t for t in texts if not isinstance(t, str))
    if len(fixed) == len(texts):
        return lambda sizes: fixed
    parts = tuple(map(compile_size, texts))
    return lambda sizes: tuple(part(sizes) for part in parts)


def static_sizes(texts: Sequence[SizeText]) -> tuple[int, ...]:
    """Sizes that are known ahead of calls, as numbers; ``ValueError`` where one is an expression of symbols."""
    fixed = tuple(t for t in texts if not isinstance(t, str))
    if len(fixed) != len(texts):
        raise ValueError(f"the sizes {tuple(texts)} are known in a call alone; expected numbers")
    return fixed


def compile_layout(layout: Layout) -> Callable[[Sizes], tuple[tuple[int, ...], tuple[int, ...], int]]:
    """A function of the size symbols' values that gives shape, strides and offset."""
    shape, stride, offset = compile_sizes(layout.shape), compile_sizes(layout.stride), compile_size(layout.offset)
    if all(not isinstance(t, str) for t in (*layout.shape, *layout.stride, layout.offset)):
        fixed = (shape({}), stride({}), offset({}))
        return lambda sizes: fixed
    return lambda sizes: (shape(sizes), stride(sizes), offset(sizes))
