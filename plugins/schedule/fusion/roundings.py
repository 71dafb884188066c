"""Roundings to half types inside a kernel: which may be dropped, and which decide over more than the last place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import torch

from turret.graph.dtypes import HALF
from turret.ir import OPS, Expr, call, cast, rewrite, walk

_CHOICES = frozenset({"where", "masked", "neg", "abs", "min", "max"})
"""Ops that hand one of their operands on, or its magnitude: done before a rounding, they give what they give after."""


def skip_rounding(node: Expr) -> Expr | None:
    """``float32(bfloat16(x))`` of a float32 ``x`` as ``x``: intermediates of a kernel keep full precision.

    Also where a choice lies between the two casts (an image's patches behind a class token).  Not where the program
    itself asked for the half type, nor where ``keep_roundings`` found that it matters."""
    if node.op != "cast" or node.payload or node.args[0].dtype not in HALF:
        return None
    return _unrounded(node.args[0], node.dtype)


def _unrounded(value: Expr, dtype: torch.dtype) -> Expr | None:
    """A half value in ``dtype`` without the rounding that it ends with; None where it ends with none that may go."""
    if value.op == "cast":
        inner = value.args[0]
        return inner if not value.payload and inner.dtype == dtype else None
    if value.op not in _CHOICES:
        return None
    found = [_unrounded(arg, dtype) if arg.dtype == value.dtype else arg for arg in value.args]
    if all(new is None or new is old for new, old in zip(found, value.args, strict=True)):
        return None
    kept = [cast(old, dtype) if new is None else new for new, old in zip(found, value.args, strict=True)]
    return call(value.op, *kept)


def decisive_tensors(definitions: Iterable[tuple[str, Expr]]) -> frozenset[str]:
    """The tensors whose roundings decide over more than the last place, by the values of all definitions.

    A comparison, ``floor`` or ``argmax`` of a value that was not rounded may give another result altogether:
    ``x * x > 0`` of small half numbers, ``floor(x / (x.abs() + 1))`` of large ones.  So do copies of such a tensor and
    what it is a copy of: ``e - e.clone()`` is not 0 where only the one that is compared is rounded.
    """
    definitions = tuple(definitions)
    jumps = (node for _, expr in definitions for node in walk(expr) if _jumps(node))
    found = {inner.tensor for node in jumps for inner in walk(node) if inner.op == "load"}
    copied = [{name, *_handed_on(expr)} for name, expr in definitions if found]
    copied = [names for names in copied if len(names) > 1]
    while more := [names for names in copied if not found.isdisjoint(names) and not names <= found]:
        found.update(*more)
    return frozenset(found)


def _handed_on(value: Expr) -> Iterator[str]:
    """The tensors one of whose elements, or its magnitude, a value is; a wider type holds those of halves."""
    if value.op == "load":
        yield value.tensor
    elif value.op in _CHOICES or (value.op == "cast" and value.args[0].dtype in HALF):
        for arg in value.args:
            yield from _handed_on(arg)


def keep_roundings(expr: Expr, tensors: Collection[str]) -> Expr:
    """The value of a definition, what it loads from some half tensors marked to be rounded as eager rounds it.

    Whoever else reads a decisive tensor has to see the number that the jump saw: ``x - floor(x)`` is less than 0 where
    only one of the two is rounded.
    """

    def marked(node: Expr) -> Expr | None:
        wanted = _widens(node) and node.args[0].tensor in tensors
        return cast(node.args[0], node.dtype, exact=True) if wanted else None

    return rewrite(expr, replace=marked) if tensors else expr


def _widens(node: Expr) -> bool:
    return node.op == "cast" and node.args[0].op == "load" and node.args[0].dtype in HALF


def _jumps(node: Expr) -> bool:
    if node.op == "reduce":
        return node.payload.kind in ("argmin", "argmax")
    if node.op == "cast":
        return node.args[0].dtype.is_floating_point and not node.dtype.is_floating_point
    return node.op in OPS and OPS[node.op].jumps
