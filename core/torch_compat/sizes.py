"""Arithmetic of symbolic sizes: what ``SymInt.node.expr`` is made of beside sympy's own classes.  It imports sympy."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import sympy
import torch.utils._sympy.interp
import torch.utils._sympy.numbers
import torch.utils._sympy.printers
import torch.utils._sympy.reference
import torch.utils._sympy.singleton_int
from torch.fx.experimental import symbolic_shapes
from torch.utils._sympy import functions
from torch.utils._sympy.symbol import SymT, symbol_is_type

of_sizes = functions
"""Divisions, minima and conversions as sympy functions."""
ARITHMETIC: dict[Any, Callable[[Any, Any], Any]] = {
    sympy.Add: operator.add, sympy.Mul: operator.mul, functions.FloorDiv: operator.floordiv, functions.Max: max,
    functions.Min: min, functions.PythonMod: operator.mod, functions.Mod: operator.mod,
}  # fmt: skip
"""Arithmetic of sizes, which is exact in any order, as functions of two integers."""
PythonReferenceAnalysis = torch.utils._sympy.reference.PythonReferenceAnalysis
"""Computes one with Python's operators, on proxies too."""
sympy_interp = torch.utils._sympy.interp.sympy_interp
"""Runs one by such an analysis."""
SingletonInt = torch.utils._sympy.singleton_int.SingletonInt
"""The ragged size of nested tensors, which no other number equals."""
int_oo = torch.utils._sympy.numbers.int_oo
"""The end of a range that integers have none of; sympy's own infinity is no integer."""


class PythonPrinter(torch.utils._sympy.printers.PythonPrinter):
    """Writes such an expression as Python."""

    def _print_ITE(self, expr: Any) -> str:
        """A condition that is one of two: what sympy makes of a comparison of a number that depends on a condition."""
        condition, if_true, if_false = map(self.doprint, expr.args)
        return f"(({if_true}) if ({condition}) else ({if_false}))"


class CppDivisionPrinter(PythonPrinter):
    """The same, where floats are divided by zero as in C++, and not refused."""

    def _print_FloatTrueDiv(self, expr: Any) -> str:
        above, below = (self.parenthesize(part, _TIGHTEST) for part in expr.args)
        if expr.args[1].is_number:
            return f"({above} / {below})"
        return f"({above} / {below} if {below} else {above} * math.copysign(math.inf, {below}))"

    _print_IntTrueDiv = _print_FloatTrueDiv


_TIGHTEST = 1000
"""A precedence that no operator has, so that what consists of several parts stands in brackets."""


def is_float_symbol(symbol: Any) -> bool:
    """Whether a symbol stands for a float, known or not."""
    return bool(symbol_is_type(symbol, (SymT.FLOAT, SymT.UNBACKED_FLOAT)))


def unknown_size(environment: Any) -> torch.SymInt:
    """A new unbacked symbol that is the extent of a dimension, which no call has made yet."""
    size: torch.SymInt = environment.create_unbacked_symint()
    environment.pending_fresh_unbacked_symbols.clear()
    symbolic_shapes._constrain_range_for_size(size)
    return size


@contextlib.contextmanager
def assuming_nothing(environment: Any) -> Iterator[None]:
    """What is asked of sizes inside is taken to hold, and neither guarded on nor assumed; None: there are no symbols.

    torch remembers what it was told of unbacked symbols by the question alone, so that what is asked here would count
    as assumed when it is asked again outside.
    """
    if environment is None:
        yield
        return
    try:
        with environment.suppress_guards():
            yield
    finally:
        type(environment).guard_or_defer_runtime_assert.cache_clear()
