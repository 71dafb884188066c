"""Integer index arithmetic: hash-consed linear forms over loop variables.

An ``Index`` is ``const + sum(coefficient * atom)``.  Atoms are loop variables, floor divisions and remainders
of indices (left by reshapes that do not fold), and values computed by the program (gather).  Coefficients,
constants and extents are ``Size``: ints, or sympy expressions over the graph's size symbols where a dimension
is dynamic.  The static case never touches sympy, which is what keeps lowering cheap; ``to_sympy`` gives the
expression for those who want it.

A symbol's assumptions say what values it has: sizes of inputs are ``positive`` (guards of the captured graph promise
it), one that is ``nonnegative`` may be 0, and one of unknown sign may be any integer: integer arguments, and numbers
that depend on data (``depends_on_data``), as far as nothing that the graph was guarded on or checks says otherwise.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from turret.torch_compat.sizes import of_sizes

Size: TypeAlias = int | sympy.Expr
"""An int, or a sympy expression over size symbols."""

Bounds = tuple[Size | None, Size | None]
"""Inclusive lower and upper bound; None where unknown."""


def size(value: object) -> Size:
    """Normal form of a size: a Python int where it is a number, else an expanded sympy expression over symbols.

    Integers that come of floats are symbols, too (``computed_by_host``).
    """
    expression = size_of_inputs(value)
    if isinstance(expression, int):
        return expression
    by_host = computed_by_host(expression)
    return expression.xreplace({part: symbol for symbol, part in by_host.items()}) if by_host else expression


def size_of_inputs(value: object) -> Size:
    """As ``size``, but over the symbols of the graph's inputs alone: for what the host reads."""
    if isinstance(value, int):
        return int(value)
    node = getattr(value, "node", None)
    expression = node.expr if node is not None else sympy.sympify(value)
    if expression.is_Integer:
        return int(expression)
    if node is not None and node.shape_env is not None:
        if not expression.is_Symbol and isinstance(value, torch.SymInt) and statically_known_true(value == 1):
            return 1  # the graph is guarded on it; whether a dimension is broadcast is asked of sizes that are 1
        signs = {s: _with_sign(s, node.shape_env) for s in expression.free_symbols if not s.is_positive}
        expression = expression.xreplace(signs) if signs else expression
    return sympy.expand(expression)


def by_names_of_inputs(condition: Any, values: Iterable[Any]) -> Any:
    """A condition by the symbols that inputs' fakes have by now: guards may have found two to be one since it was made.

    Unbacked symbols keep their names: that one is equal to another may be what the condition asks.
    """
    if not isinstance(condition, sympy.Basic):
        return condition
    numbers = (n for v in values for n in ((*v.shape, *v.stride()) if isinstance(v, torch.Tensor) else (v,)))
    env = next((n.node.shape_env for n in numbers if isinstance(n, torch.SymInt)), None)
    if env is None:
        return condition
    backed = condition.free_symbols - free_unbacked_symbols(condition)
    named = {symbol: env.replace(symbol) for symbol in backed}
    return condition.xreplace({symbol: name for symbol, name in named.items() if not free_unbacked_symbols(name)})


def computed_by_host(expression: sympy.Expr) -> dict[sympy.Symbol, sympy.Expr]:
    """The integers in ``expression`` that come of floats (``trunc(1.5 * n)``), by the symbols that stand for them.

    Kernels count in integers; ``size`` has the symbols, and the program a ``Number`` for each.
    """
    if expression.is_Symbol or not any(map(_is_float, sympy.preorder_traversal(expression))):
        return {}
    if isinstance(expression, _OF_INTEGERS):
        return {s: part for argument in expression.args for s, part in computed_by_host(argument).items()}
    text = str(expression)
    name = re.sub(r"\W+", "_", text).strip("_") + "_" + hashlib.sha256(text.encode()).hexdigest()[:6]
    numbers = expression.atoms(sympy.Number) | expression.free_symbols
    nonnegative = all(n.is_nonnegative for n in numbers) or None
    return {sympy.Symbol(name, integer=True, nonnegative=nonnegative): expression}


def _is_float(part: Any) -> bool:
    return isinstance(part, _FLOATS) or (part.is_Symbol and not part.is_integer)


_FLOATS = (sympy.Float, of_sizes.ToFloat, of_sizes.FloatTrueDiv, of_sizes.IntTrueDiv)
_OF_INTEGERS = (
    sympy.Add, sympy.Mul, sympy.Pow, of_sizes.FloorDiv, of_sizes.Mod, of_sizes.ModularIndexing, of_sizes.Max,
    of_sizes.Min,
)  # fmt: skip


def depends_on_data(symbol: sympy.Symbol) -> bool:
    """Whether a symbol is one that torch's symbolic shapes make for an integer that depends on data."""
    name: str = symbol.name
    return name[0] == "u" and name[1:].isdigit()


def _with_sign(symbol: sympy.Symbol, shape_env: Any) -> sympy.Symbol:
    """An integer symbol as one that knows whether it may be 0 or negative."""
    bounds = shape_env.var_to_range.get(symbol) if symbol.is_integer else None
    if bounds is None or not bounds.lower >= 0:
        return symbol
    sign = "positive" if bounds.lower >= 1 and not depends_on_data(symbol) else "nonnegative"
    return sympy.Symbol(symbol.name, integer=True, **{sign: True})


def product(sizes: Iterable[Size]) -> Size:
    """Product in normal form; 1 for no sizes."""
    result: Size = 1
    for factor in sizes:
        result = result * factor
    return result if isinstance(result, int) else size(result)


@functools.lru_cache(maxsize=8192)
def _nonnegative_symbolic(expression: sympy.Expr) -> bool:
    shifted = sympy.expand(expression.xreplace({s: _least_plus(s) for s in expression.free_symbols}))
    return bool(shifted.is_nonnegative)


def _least_plus(symbol: sympy.Symbol) -> sympy.Expr:
    """A symbol as its least value plus something that is not negative, where it has a least value."""
    if symbol.is_positive:
        return sympy.Dummy(symbol.name, nonnegative=True) + 1
    return sympy.Dummy(symbol.name, integer=True, nonnegative=True if symbol.is_nonnegative else None)


def hinted(value: Size, hints: Mapping[str, int]) -> int | None:
    """A size where its symbols are as their hints say, for heuristics; None where one has none."""
    if isinstance(value, int):
        return value
    if not all(symbol.name in hints for symbol in value.free_symbols):
        return None
    try:
        return int(sympy.sympify(value).subs({symbol: hints[symbol.name] for symbol in value.free_symbols}))
    except (ArithmeticError, TypeError, ValueError):
        return None


def provably_nonnegative(value: Size) -> bool:
    """True only if ``value >= 0`` for all values that its size symbols may have."""
    if isinstance(value, int):
        return value >= 0
    value = size(value)
    return value >= 0 if isinstance(value, int) else _nonnegative_symbolic(value)


def provably_less(left: Size, right: Size) -> bool:
    """True only if ``left < right`` for all values that their size symbols may have."""
    return provably_nonnegative(right - left - 1)


@functools.lru_cache(maxsize=8192)
def _divide_symbolic(value: Size, divisor: Size) -> Size | None:
    quotient = sympy.cancel(sympy.sympify(value) / sympy.sympify(divisor))
    numerator, denominator = quotient.as_numer_denom()
    if denominator != 1 or quotient.has(sympy.floor):
        return None
    if any(not c.is_Integer for c in numerator.as_coefficients_dict().values()):
        return None
    return size(quotient)


def divide_exactly(value: Size, divisor: Size) -> Size | None:
    """``value / divisor`` where that is an integer for all size symbols, else None."""
    if isinstance(value, int) and isinstance(divisor, int):
        return value // divisor if divisor and value % divisor == 0 else None
    return _divide_symbolic(value, divisor)


class Var:
    """A loop variable running over ``range(extent)``; equal name and extent mean the same variable."""

    __slots__ = ("__weakref__", "_index", "extent", "key", "name")
    _interned: ClassVar[weakref.WeakValueDictionary[Any, Any]] = weakref.WeakValueDictionary()

    name: str
    extent: Size
    key: str
    _index: Index | None

    def __new__(cls, name: str, extent: Size) -> Var:
        found = cls._interned.get((name, extent))
        if found is None:
            found = object.__new__(cls)
            found.name, found.extent, found.key = name, extent, f"{name}:{extent}"
            found._index = None
            cls._interned[(name, extent)] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (Var, (self.name, self.extent))

    def __repr__(self) -> str:
        return self.name

    @property
    def index(self) -> Index:
        """The index that is this variable alone; 0 for a variable that only takes that value."""
        if self._index is None:
            self._index = Index.make((), 0) if self.extent == 1 else Index.make(((self, 1),), 0)
        return self._index

    variables = property(lambda self: frozenset((self,)))
    values: tuple[Any, ...] = ()

    def bounds(self) -> Bounds:
        return 0, self.extent - 1

    def substitute(self, mapping: Mapping[Var, Index], rewrite: Rewrite) -> Index:
        found = mapping.get(self)
        return self.index if found is None else found

    def to_sympy(self) -> sympy.Expr:
        return sympy.Symbol(self.name, integer=True, nonnegative=True)


class _Quotient:
    """Common part of ``Div`` and ``Mod``: an index and a positive divisor."""

    __slots__ = ("divisor", "key", "numerator")
    sign = ""

    def __init__(self, numerator: Index, divisor: Size) -> None:
        self.numerator, self.divisor = numerator, divisor
        self.key = f"({numerator}){self.sign}{divisor if isinstance(divisor, int) else f'({divisor})'}"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.numerator is other.numerator and self.divisor == other.divisor

    def __hash__(self) -> int:
        return hash((self.sign, self.numerator, self.divisor))

    def __repr__(self) -> str:
        return f"({self.key})"

    variables = property(lambda self: self.numerator.variables)
    values = property(lambda self: self.numerator.values)


class Div(_Quotient):
    """``numerator // divisor``, rounding to minus infinity."""

    __slots__ = ()
    sign = "//"

    def bounds(self) -> Bounds:
        low, high = self.numerator.bounds()
        if isinstance(self.divisor, int):
            return (
                low // self.divisor
                if isinstance(low, int)
                else (0 if low is not None and provably_nonnegative(low) else None),
                high // self.divisor if isinstance(high, int) else None,
            )
        return (0 if low is not None and provably_nonnegative(low) else None), None

    def substitute(self, mapping: Mapping[Var, Index], rewrite: Rewrite) -> Index:
        return self.numerator.substitute(mapping, rewrite) // self.divisor

    def to_sympy(self) -> sympy.Expr:
        return sympy.floor(self.numerator.to_sympy() / self.divisor)


class Mod(_Quotient):
    """``numerator % divisor``, in ``range(divisor)``."""

    __slots__ = ()
    sign = "%"

    def bounds(self) -> Bounds:
        return 0, self.divisor - 1

    def substitute(self, mapping: Mapping[Var, Index], rewrite: Rewrite) -> Index:
        return self.numerator.substitute(mapping, rewrite) % self.divisor

    def to_sympy(self) -> sympy.Expr:
        # Not sympy.Mod, which simplifies Mod(3*Mod(x, 3), 4) to something else (seen in sympy 1.14).
        numerator = self.numerator.to_sympy()
        return numerator - self.divisor * sympy.floor(numerator / self.divisor)


class IntegerExpr(Protocol):
    """What an index asks of an expression that is in it: ``turret.ir.expr.Expr``, which is made of indices in turn."""

    @property
    def op(self) -> str: ...

    @property
    def payload(self) -> Any: ...

    @property
    def variables(self) -> frozenset[Var]: ...


Rewrite = Callable[[Any], IntegerExpr]
"""What is to stand in place of an integer that the program computes, which is an ``Expr``."""


class Value:
    """An integer that the program computes (an index read from a tensor)."""

    __slots__ = ("expr", "key")

    def __init__(self, expr: IntegerExpr) -> None:
        self.expr = expr
        self.key = f"[{expr}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and self.expr is other.expr

    def __hash__(self) -> int:
        return hash(("value", self.expr))

    def __repr__(self) -> str:
        return self.key

    variables = property(lambda self: self.expr.variables)
    values = property(lambda self: (self.expr,))

    def bounds(self) -> Bounds:
        if self.expr.op == "check_index":
            return 0, self.expr.payload - 1
        if self.expr.op == "group_of":
            return 0, self.expr.payload
        return None, None

    def substitute(self, mapping: Mapping[Var, Index], rewrite: Rewrite) -> Index:
        return Index.of_value(rewrite(self.expr))

    def to_sympy(self) -> sympy.Expr:
        return sympy.Symbol(self.key, integer=True)


Atom = Var | Div | Mod | Value


class Index:
    """An immutable, hash-consed linear form; compare with ``is`` or ``==``."""

    __slots__ = ("__weakref__", "_bounds", "_text", "const", "terms", "values", "variables")
    _interned: ClassVar[weakref.WeakValueDictionary[Any, Any]] = weakref.WeakValueDictionary()

    terms: tuple[tuple[Atom, Size], ...]
    const: Size
    variables: frozenset[Var]
    values: tuple[Any, ...]
    """The expressions (``turret.ir.expr.Expr``) in it."""
    _bounds: Bounds | None
    _text: str | None

    @classmethod
    def make(cls, terms: tuple[tuple[Atom, Size], ...], const: Size) -> Index:
        """From terms that are already merged, sorted by the atom's key, and free of zero coefficients."""
        key = (terms, const)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.terms, found.const = terms, const
            found._bounds = found._text = None
            found.variables = frozenset().union(*(atom.variables for atom, _ in terms)) if terms else frozenset()
            found.values = tuple(dict.fromkeys(v for atom, _ in terms for v in atom.values))
            cls._interned[key] = found
        return found

    @classmethod
    def constant(cls, value: Size) -> Index:
        """The index that is one size."""
        return cls.make((), size(value))

    @classmethod
    def of_value(cls, expr: IntegerExpr) -> Index:
        """The index that is an integer expression of the program."""
        if expr.op == "index":
            index: Index = expr.payload
            return index
        if expr.op == "const":
            return cls.constant(int(expr.payload))
        return cls.make(((Value(expr), 1),), 0)

    @classmethod
    def wrap(cls, value: Index | Var | Size) -> Index:
        """``value`` as an index."""
        if isinstance(value, Index):
            return value
        if isinstance(value, Var):
            return value.index
        return cls.constant(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Index.make, (self.terms, self.const))

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def single_variable(self) -> Var | None:
        """The variable, where the index is just one variable."""
        if len(self.terms) == 1 and self.const == 0:
            atom, coefficient = self.terms[0]
            if coefficient == 1 and isinstance(atom, Var):
                return atom
        return None

    @property
    def is_affine(self) -> bool:
        """True where every atom is a loop variable."""
        return all(isinstance(atom, Var) for atom, _ in self.terms)

    def coefficient(self, variable: Var) -> Size:
        """Coefficient of ``variable`` among the plain terms; 0 where absent."""
        for atom, coefficient in self.terms:
            if atom is variable:
                return coefficient
        return 0

    def __add__(self, other: Index | Var | Size) -> Index:
        other = Index.wrap(other)
        if not other.terms:
            if other.const == 0:
                return self
            return Index.make(self.terms, size(self.const + other.const))
        if not self.terms and self.const == 0:
            return other
        merged: dict[Atom, Size] = dict(self.terms)
        for atom, coefficient in other.terms:
            total = size(merged.get(atom, 0) + coefficient)
            if total == 0:
                del merged[atom]
            else:
                merged[atom] = total
        return _recombine(merged, size(self.const + other.const))

    __radd__ = __add__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Index | Var | Size) -> Index:
        return self + Index.wrap(other) * -1

    def __rsub__(self, other: Size) -> Index:
        return Index.wrap(other) - self

    def __mul__(self, factor: Size) -> Index:
        if isinstance(factor, int):
            if factor == 1:
                return self
            if factor == 0:
                return Index.make((), 0)
        return Index.make(tuple((a, size(c * factor)) for a, c in self.terms), size(self.const * factor))

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Size) -> Index:
        if divisor == 1:
            return self
        quotient, rest = self._split(divisor)
        if rest._within(divisor):
            return quotient
        return quotient + _divide_rest(rest, divisor)

    def __mod__(self, divisor: Size) -> Index:
        if divisor == 1:
            return Index.make((), 0)
        _, rest = self._split(divisor)
        if rest._within(divisor):
            return rest
        return _mod_rest(rest, divisor)

    def _split(self, divisor: Size) -> tuple[Index, Index]:
        """``(q, r)`` with ``self == q * divisor + r``, taking out every term that divides exactly."""
        quotient: list[Any] = []
        rest: list[Any] = []
        for atom, coefficient in self.terms:
            whole = divide_exactly(coefficient, divisor)
            if whole is None:
                rest.append((atom, coefficient))
            else:
                quotient.append((atom, whole))
        if isinstance(self.const, int) and isinstance(divisor, int):
            whole_const, rest_const = divmod(self.const, divisor)
        else:
            exact = divide_exactly(self.const, divisor)
            whole_const, rest_const = (0, self.const) if exact is None else (exact, 0)
        return Index.make(tuple(quotient), whole_const), Index.make(tuple(rest), rest_const)

    def _within(self, divisor: Size) -> bool:
        """True only if ``0 <= self < divisor``."""
        low, high = self.bounds()
        return low is not None and high is not None and provably_nonnegative(low) and provably_less(high, divisor)

    def bounds(self) -> Bounds:
        """Inclusive bounds over all values of the variables; None where unknown."""
        if self._bounds is None:
            low: Size | None = self.const
            high: Size | None = self.const
            for atom, coefficient in self.terms:
                atom_low, atom_high = atom.bounds()
                if not provably_nonnegative(coefficient):
                    if not provably_nonnegative(-coefficient):
                        low = high = None
                        break
                    atom_low, atom_high = atom_high, atom_low
                low = None if low is None or atom_low is None else low + coefficient * atom_low
                high = None if high is None or atom_high is None else high + coefficient * atom_high
            self._bounds = (low, high)
        return self._bounds

    def substitute(self, mapping: Mapping[Var, Index], rewrite: Rewrite = lambda expr: expr) -> Index:
        """Replace variables by indices, and each program value by ``rewrite(value)``."""
        if not self.values and self.variables.isdisjoint(mapping):
            return self
        result = Index.make((), self.const)
        for atom, coefficient in self.terms:
            result = result + atom.substitute(mapping, rewrite) * coefficient
        return result

    def to_sympy(self) -> sympy.Expr:
        """The same value as a sympy expression over one symbol a variable."""
        return sympy.Add(self.const, *(coefficient * atom.to_sympy() for atom, coefficient in self.terms))

    def __repr__(self) -> str:
        if self._text is None:
            parts = [
                f"{atom!r}" if c == 1 else f"{c if isinstance(c, int) else f'({c})'}*{atom!r}" for atom, c in self.terms
            ]
            if not parts or self.const != 0:
                parts.append(str(self.const))
            self._text = " + ".join(parts)
        return self._text


def _recombine(merged: dict[Atom, Size], const: Size) -> Index:
    """Sort terms, folding ``d*(x//d) + x%d`` to ``x`` and ``d*((x//d)%e) + x%d`` to ``x%(d*e)``."""
    for atom, coefficient in merged.items():
        if isinstance(atom, Mod) and (found := _partner(merged, atom, coefficient)) is not None:
            partner, whole = found
            rest = {a: c for a, c in merged.items() if a != atom and a != partner}
            return _recombine(rest, const) + whole * coefficient
    return Index.make(tuple(sorted(merged.items(), key=lambda item: item[0].key)), const)


def _partner(merged: Mapping[Atom, Size], atom: Mod, coefficient: Size) -> tuple[Atom, Index] | None:
    """The term that ``x%d`` folds with, ``x//d`` or ``(x//d)%e``, and what both make up; None where there is none."""
    high = atom.numerator // atom.divisor
    if len(high.terms) != 1 or high.const != 0 or high.terms[0][1] != 1:
        return None
    wanted = size(coefficient * atom.divisor)
    quotient = high.terms[0][0]
    if merged.get(quotient) == wanted:
        return quotient, atom.numerator
    for other, other_coefficient in merged.items():
        if isinstance(other, Mod) and other_coefficient == wanted and other.numerator is high:
            return other, atom.numerator % product((atom.divisor, other.divisor))
    return None


def _common_factor(rest: Index, divisor: int) -> int:
    factor = divisor
    for _, coefficient in rest.terms:
        factor = math.gcd(factor, coefficient) if isinstance(coefficient, int) else 1
    return factor


def _divide_rest(rest: Index, divisor: Size) -> Index:
    if isinstance(divisor, int) and isinstance(rest.const, int):
        factor = _common_factor(rest, divisor)
        if factor > 1:
            reduced = Index.make(tuple((a, c // factor) for a, c in rest.terms), rest.const // factor)
            return reduced // (divisor // factor)
        coarse = _coarse(rest, divisor)
        if coarse is not None:
            return coarse[1] // (divisor // coarse[0])
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Div):
            return atom.numerator // product((atom.divisor, divisor))
        if isinstance(atom, Mod):
            inner = divide_exactly(atom.divisor, divisor)
            if inner is not None:
                return (atom.numerator // divisor) % inner
    return Index.make(((Div(rest, divisor), 1),), 0)


def _coarse(rest: Index, divisor: int) -> tuple[int, Index, Index] | None:
    """``(u, q, r)`` with ``rest == u * q + r``, ``0 <= r < u``, and ``u`` a part of the divisor, so that ``rest //
    divisor`` is ``q // (divisor // u)``; None where the terms do not come apart so."""
    if len(rest.terms) < 2 or rest.const != 0 or not all(isinstance(c, int) for _, c in rest.terms):
        return None
    ordered = sorted(rest.terms, key=lambda term: -abs(term[1]))
    for count in range(len(ordered) - 1, 0, -1):
        unit = math.gcd(divisor, *(coefficient for _, coefficient in ordered[:count]))
        fine = Index.make(tuple(term for term in rest.terms if term not in ordered[:count]), 0)
        if unit > 1 and fine._within(unit):
            units = tuple((a, c // unit) for a, c in rest.terms if (a, c) in ordered[:count])
            return unit, Index.make(units, 0), fine
    return None


def _mod_rest(rest: Index, divisor: Size) -> Index:
    if isinstance(divisor, int) and isinstance(rest.const, int):
        factor = math.gcd(_common_factor(rest, divisor), rest.const)
        if factor > 1:
            reduced = Index.make(tuple((a, c // factor) for a, c in rest.terms), rest.const // factor)
            return (reduced % (divisor // factor)) * factor
        coarse = _coarse(rest, divisor)
        if coarse is not None:
            unit, units, fine = coarse
            return (units % (divisor // unit)) * unit + fine
    if len(rest.terms) == 1 and rest.const == 0 and rest.terms[0][1] == 1:
        atom = rest.terms[0][0]
        if isinstance(atom, Mod) and divide_exactly(atom.divisor, divisor) is not None:
            return atom.numerator % divisor
    return Index.make(((Mod(rest, divisor), 1),), 0)


def flatten(coords: Iterable[Index], shape: Iterable[Size]) -> Index:
    """Row-major linear index of coordinates in a shape."""
    result = Index.make((), 0)
    for coord, extent in zip(coords, shape, strict=True):
        result = result * extent + coord
    return result


def unflatten(linear: Index, shape: tuple[Size, ...]) -> tuple[Index, ...]:
    """Coordinates in ``shape`` of a row-major linear index; in a shape without points, nothing but zeros."""
    if 0 in shape:
        return (Index.make((), 0),) * len(shape)
    coords: list[Index] = []
    for position in reversed(range(len(shape))):
        extent = shape[position]
        if extent == 1:
            coords.append(Index.make((), 0))
        elif position == 0:
            coords.append(linear)
        else:
            coords.append(linear % extent)
            linear = linear // extent
    return tuple(reversed(coords))
