"""Integers that Python computes and kernels would, too, as long as 64 bits hold them: what has to be guarded for that.

Python's integers have any size.  Where an operation is given one that 64 bits do not hold, it raises or takes another
way; a kernel that computes the same expression would wrap around.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
from torch.fx.experimental.sym_node import SymNode

LEAST, MOST = -(2**63), 2**63 - 1
"""What 64 bits hold."""
MOST_SYMBOL = 2**62 - 1
"""Integer arguments up to this become symbols (guarded); sizes, and products of those of one tensor, are no larger."""


def fits_64_bits(number: torch.SymInt) -> bool:
    """Whether 64 bits hold what a number is now, and what it is computed of; nothing is guarded on."""
    env = number.node.shape_env
    hints: Iterator[Any] = (SymNode(part, env, int, None).hint for part in overflowing(number.node.expr, {}))
    return all(LEAST <= value <= MOST for value in hints)


def overflowing(expression: sympy.Expr, owners: Mapping[sympy.Symbol, Any]) -> Iterator[sympy.Expr]:
    """The parts of an integer expression that 64 bits may not hold, where a kernel computes it.

    ``owners`` says for each symbol that is a size which tensor it is a size of.  Sums and products are computed modulo
    2**64, so that only their result has to fit; what a division, a remainder or a maximum is made of has to fit, too.
    """
    if _magnitude(expression, owners) > MOST:
        yield expression
    for part in _operands(expression):
        yield from overflowing(part, owners)


def _operands(expression: sympy.Expr) -> Iterator[sympy.Expr]:
    """Arguments of the functions in an expression that are neither sums nor products."""
    for argument in expression.args:
        if isinstance(expression, (sympy.Add, sympy.Mul, sympy.Pow)):
            yield from _operands(argument)
        elif argument.is_integer:
            yield argument


def _magnitude(expression: sympy.Expr, owners: Mapping[sympy.Symbol, Any]) -> int:
    """A bound of the absolute value; of what is not known, more than fits."""
    if expression.is_Integer:
        return abs(int(expression))
    if expression.is_Symbol:
        return MOST_SYMBOL
    args = expression.args
    if isinstance(expression, sympy.Mul):
        return _of_product(args, owners)
    if isinstance(expression, sympy.Pow):
        return _magnitude(args[0], owners) ** int(args[1]) if args[1].is_Integer and 0 < args[1] < 64 else MOST + 1
    bounds = [_magnitude(a, owners) for a in args]
    match type(expression).__name__:
        case "Add":
            return sum(bounds)
        case "Max" | "Min":
            return max(bounds)
        case "FloorDiv" | "CleanDiv":
            return bounds[0]
        case "Mod" | "PythonMod":
            return bounds[1]
    return MOST + 1


def _of_product(factors: tuple[sympy.Expr, ...], owners: Mapping[sympy.Symbol, Any]) -> int:
    """A bound of a product, in which several sizes of one tensor are no more than its number of elements."""
    result = 1
    seen = set()
    for factor in factors:
        owner = owners.get(factor)
        if owner is None or owner not in seen:
            result *= _magnitude(factor, owners)
        seen.add(owner)
    return result
