"""What a kernel of symbolic sizes may take for granted of them, so that it is as fast as one of static sizes.

Such a kernel comes with another, which takes nothing for granted; the launcher asks in each call which one to run.
Sizes that were multiples of 16 in the call that the graph was made for are taken for such multiples, as they most
often are later: rows then begin where a whole vector of elements can be loaded.  Where nothing was near the end of 32
bits, indices are computed in as many: a division by a size that is known at run time alone costs a third of one in 64.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import sympy

from turret.errors import UnsupportedError
from turret.ir.emit.emitter import Namer
from turret.ir.index import Size, hinted, size
from turret.plugins.codegen.triton.tiles.facts import NARROW, Facts
from turret.plugins.codegen.triton.tiles.sizes import size_text

MULTIPLE = 16
"""What Triton's hint of divisibility promises."""
MOST_CONDITIONS = 16
"""Each costs the launcher some 20 ns in every call."""


def multiples(symbols: Iterable[str], hints: Mapping[str, int]) -> tuple[str, ...]:
    """Symbols to take for multiples of 16."""
    return tuple(name for name in symbols if hints.get(name, 1) % MULTIPLE == 0)


def divided_text(value: Size, namer: Namer, divisible: Collection[str]) -> str:
    """A size as an expression, in which quotients of symbols that are multiples of 16 are multiples of sixteenths.

    Triton does not see what half of such a symbol is a multiple of; it does of eight times a sixteenth.
    """
    if isinstance(value, int) or not divisible or not value.atoms(sympy.Function):
        return size_text(value, namer)
    found = [s for s in value.free_symbols if s.name in divisible and s.is_nonnegative]
    parts = {s: sympy.Symbol(f"{s.name}_divided", integer=True, nonnegative=True) for s in found}
    made = size(value.xreplace({symbol: MULTIPLE * part for symbol, part in parts.items()}))
    if isinstance(made, int) or made.atoms(sympy.Function):
        return size_text(value, namer)
    names = {part.name: symbol.name for symbol, part in parts.items()}
    return size_text(made, lambda name: f"({namer(names[name])} // {MULTIPLE})" if name in names else namer(name))


def is_multiple(value: Size, unit: int, divisible: Collection[str]) -> bool:
    """Whether a size is sure to be a multiple of ``unit``, a power of two up to 16, where symbols are as assumed."""
    if isinstance(value, int):
        return value % unit == 0
    terms = (term.as_coeff_Mul() for term in sympy.Add.make_args(sympy.expand(value)))
    return all(
        number % unit == 0 or any(part.is_Symbol and part.name in divisible for part in sympy.Mul.make_args(rest))
        for number, rest in terms
    )


def narrow_sizes(facts: Facts) -> tuple[Size, ...] | None:
    """The sizes that must fit 32 bits for all of a kernel's indices to fit; None where some are not known to."""
    found = [tile.extent for tile in facts.tiling.tiles] + facts.reaches() + facts.ends()
    hints = facts.tiling.nest.hints
    fits = all(end is not None and (seen := hinted(end, hints)) is not None and seen < NARROW for end in found)
    return tuple(dict.fromkeys(found)) if fits else None


def sizes_fit(sizes: Iterable[Size], hints: Mapping[str, int]) -> bool:
    """Whether sizes, and what is computed on the way to them, fit 32 bits where symbols are as their hints say."""
    found = [hinted(part, hints) for value in sizes for part in _parts(value)]
    return all(end is not None and abs(end) < NARROW for end in found)


def conditions(narrow: Iterable[Size], divisible: Iterable[str], ends: Iterable[Size] = ()) -> tuple[str, ...] | None:
    """Expressions over size symbols that are zero or less where a kernel may run, ``ends`` among them.

    None where there are too many, or some that cannot be computed.
    """
    parts = dict.fromkeys(part for value in narrow for part in _parts(value))
    products = {factor for part in parts if part.is_Mul for factor in part.args}
    symbols = {symbol for part in parts for symbol in part.free_symbols}
    # An argument that is a number may be negative, and no part then bounds what is computed of it.
    texts = [f"-{symbol.name}" for symbol in sorted(symbols, key=str) if not symbol.is_nonnegative]
    try:
        texts += [f"{size_text(part, str)} - {NARROW}" for part in parts if part not in products]
        texts += [size_text(end, str) for end in ends]
    except UnsupportedError:
        return None
    texts += [f"{name} % {MULTIPLE}" for name in divisible]
    return tuple(dict.fromkeys(texts)) if len(texts) <= MOST_CONDITIONS else None


def _parts(value: Size) -> Iterator[sympy.Expr]:
    """A size, and what is computed on the way to it, as numbers that none of it is larger than."""
    expression = sympy.sympify(value)
    if expression.is_number:
        return
    if expression.is_Add:
        yield sympy.Add(*(abs(coefficient) * rest for coefficient, rest in (a.as_coeff_Mul() for a in expression.args)))
    else:
        yield expression if expression.as_coeff_Mul()[0] > 0 else -expression
    inside = expression.args[0].as_numer_denom() if isinstance(expression, sympy.floor) else expression.args
    for argument in inside:
        if not argument.is_Symbol:
            yield from _parts(argument)
