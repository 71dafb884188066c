"""Sizes (ints, or sympy expressions over size symbols) as Python text: for Triton source, and for launch grids."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from turret.ir.emit.emitter import Namer, Printer, infix, written_size
from turret.ir.index import Size, hinted, provably_nonnegative

GUESS = 64
"""What a size symbol counts for in heuristics."""


def estimate(value: Size, hints: Mapping[str, int]) -> int:
    """A size as a number for heuristics.

    A symbol without a hint counts as ``GUESS``, or 1 where that makes no size (``6 - n``).
    """
    if isinstance(value, int):
        return value
    names = [symbol.name for symbol in value.free_symbols]
    guesses = ({**dict.fromkeys(names, guess), **hints} for guess in (GUESS, 1))
    found = [made for values in guesses if (made := hinted(value, values)) is not None]
    return next((made for made in found if made > 0), found[0] if found else 1)


def size_text(value: Size, namer: Namer) -> str:
    """``value`` as an expression; ``UnsupportedError`` names a function of sizes that is not known.

    Where an operand may be negative the text calls ``floor_div`` or ``floor_mod``: Triton's own ``//`` and ``%`` round
    towards zero.
    """

    def printer_of(kind: str, operands: tuple) -> Printer | None:
        rounds = kind in _ROUNDING and not all(map(provably_nonnegative, operands))
        return (_ROUNDING if rounds else _PRINTERS).get(kind)

    return written_size(value, namer, str, printer_of, "Triton")


def _pairwise(template: str) -> Printer:
    return lambda args: functools.reduce(template.format, args)


_PRINTERS: dict[str, Printer] = {
    "Add": infix(" + "),
    "Mul": infix(" * "),
    "floor": _pairwise("({0} // {1})"),
    "FloorDiv": _pairwise("({0} // {1})"),
    "CleanDiv": _pairwise("({0} // {1})"),
    "CeilDiv": _pairwise("(({0} + {1} - 1) // {1})"),
    "Mod": _pairwise("({0} % {1})"),
    "PythonMod": _pairwise("({0} % {1})"),
    "ModularIndexing": lambda args: f"(({args[0]} // {args[1]}) % {args[2]})",
    "Max": _pairwise("({0} + ({1} - {0}) * ({1} > {0}))"),
    "Min": _pairwise("({0} + ({1} - {0}) * ({1} < {0}))"),
    "Abs": lambda args: f"({args[0]} * (1 - 2 * ({args[0]} < 0)))",
}
_ROUNDING: dict[str, Printer] = {
    **dict.fromkeys(("floor", "FloorDiv", "CleanDiv"), _pairwise("floor_div({0}, {1})")),
    **dict.fromkeys(("Mod", "PythonMod"), _pairwise("floor_mod({0}, {1})")),
    "CeilDiv": _pairwise("(-floor_div(-{0}, {1}))"),
    "ModularIndexing": lambda args: f"floor_mod(floor_div({args[0]}, {args[1]}), {args[2]})",
}
"""For operands that may be negative."""
