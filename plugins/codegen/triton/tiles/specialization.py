"""What a kernel of symbolic sizes may take for granted of them, so that it is as fast as one of static sizes.

Such a kernel comes with others, of which each takes less for granted and the last nothing; the launcher asks in each
call which one to run.  The first takes sizes that were multiples of 16 in the call that the graph was made for to be
such multiples, as they most often are later: rows then begin where a whole vector of elements can be loaded.  It and
the second, for any sizes else, compute indices in 32 bits where nothing was near the end of those (a division by a size
that is known at run time alone costs a third of one in 64), and hold rows in a block as long as they were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import attrs
import sympy

from turret.errors import UnsupportedError
from turret.ir.emit.emitter import Namer
from turret.ir.expr import walk
from turret.ir.index import Div, Index, Mod, Size, hinted, size
from turret.plugins.codegen.triton.tiles.facts import NARROW, Facts
from turret.plugins.codegen.triton.tiles.sizes import size_text
from turret.plugins.codegen.triton.tiles.tiling import Tiling, large_steps

MULTIPLE = 16
"""What Triton's hint of divisibility promises."""
MOST_CONDITIONS = 16
"""Each costs the launcher some 20 ns in every call."""


def multiples(tiling: Tiling) -> tuple[str, ...]:
    """Symbols to take for multiples of 16: of those that were, as few as make it sure where vectors begin and end.

    How many rows there are, say, says nothing of that.
    """
    hints = tiling.nest.hints
    found: set[str] = set()
    for end in _vector_ends(tiling):
        for name in sorted(symbol.name for symbol in _symbols(end)):
            if hints.get(name, 1) % MULTIPLE == 0 and not is_multiple(end, MULTIPLE, found):
                found.add(name)
    return tuple(sorted(found))


def _vector_ends(tiling: Tiling) -> list[Size]:
    """The sizes that are parts of offsets, that something is compared with, and along which memory is contiguous;
    those with few symbols first."""
    nest = attrs.evolve(tiling.nest, stores=tiling.stores)
    offsets = nest.indices()
    found = [part for index in offsets for part in _parts_of(index)]
    compared = [arg for node in walk(*nest.roots) if node.op in _COMPARISONS for arg in node.args]
    found += [arg.payload for arg in compared if arg.op == "size"]
    if tiling.part is not None and tiling.part.length is not None:
        found.append(tiling.part.length)
    found.sort(key=lambda value: len(_symbols(value)))
    for tile, steps in large_steps(tiling):
        if tiling.matrix is not None or any(step in (1, None) for step in steps):
            found += [loop.extent for loop in tile.loops[-1:]] + [tile.extent]
    return found if tiling.matrix is None else [*found, tiling.matrix.depth.extent]


def _parts_of(index: Index) -> list[Size]:
    found = [index.const]
    for atom, coefficient in index.terms:
        found.append(coefficient)
        if isinstance(atom, (Div, Mod)):
            found += [atom.divisor, *_parts_of(atom.numerator)]
    return found


_COMPARISONS = frozenset(("lt", "le", "gt", "ge"))


def _symbols(value: Size) -> Collection[sympy.Symbol]:
    return () if isinstance(value, int) else value.free_symbols


def odd(hints: Mapping[str, int]) -> dict[str, int]:
    """Values of sizes that a kernel which takes none of them for a multiple of anything should be good at: the nearest
    odd ones below (of 2 it is 2: one is a size of its own)."""
    return {name: value - (value > 2 and value % 2 == 0) for name, value in hints.items()}


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
