"""Guards on sizes and ints: what the symbolic shapes of a capture assumed, as expressions over those of the inputs."""

from __future__ import annotations

from typing import Any

import sympy
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.singleton_int import SingletonInt

from turret.frames.guards import Guard
from turret.frames.sources import SizeSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.record.overflow import LEAST, MOST, MOST_SYMBOL, overflowing
from turret.plugins.capture.values.base import Tracer


class _Printer(PythonPrinter):
    """Prints an expression with a placeholder for each symbol, and collects the sources of these."""

    def __init__(self, places: dict[Any, Source]) -> None:
        super().__init__()
        self.places = places
        self.used: list[Source] = []

    def number(self, source: Source) -> str:
        if source not in self.used:
            self.used.append(source)
        return f"{{{self.used.index(source)}}}"

    def _print_Symbol(self, symbol: Any) -> str:
        if symbol not in self.places:
            raise Unsupported(f"the size {symbol} is no size of an input")
        return self.number(self.places[symbol])


def size_guards(tracer: Tracer) -> list[Guard]:
    """All guards on dynamic sizes of one capture."""
    environment = tracer.recorder.shape_env
    places: dict[Any, Source] = {}
    for binding in tracer.recorder.bindings:
        if isinstance(binding.expression, sympy.Symbol):
            places.setdefault(binding.expression, binding.source)
    guards: list[Guard] = []

    def add(write: Any) -> None:
        printer = _Printer(places)
        text = write(printer)
        if printer.used:
            first, *others = printer.used
            guards.append(Guard("SIZES", first, text, tuple(others)))

    for binding in tracer.recorder.bindings:
        expression = sympy.sympify(binding.expression)
        if places.get(expression) != binding.source:
            add(lambda p, b=binding, e=expression: f"{p.number(b.source)} == {p.doprint(e)}")
    ragged = _ragged(environment)
    for item in environment.guards:
        expression = item.expr.xreplace(ragged) if ragged else item.expr
        decided = sympy.logic.boolalg.BooleanAtom if ragged else sympy.logic.boolalg.BooleanTrue
        if not isinstance(expression, (decided, bool)):
            add(lambda p, e=expression: p.doprint(e))
    for symbol, source in places.items():
        least, most = _range(symbol, source, environment)
        if least is not None or most is not None:
            low, high = "" if least is None else f"{least} <= ", "" if most is None else f" <= {most}"
            add(lambda p, s=symbol, low=low, high=high: low + p.doprint(s) + high)
    owners = {symbol: source.base for symbol, source in places.items() if isinstance(source, SizeSource)}
    parts = dict.fromkeys(part for expression in tracer.recorder.integers for part in overflowing(expression, owners))
    for part in parts:
        add(lambda p, e=part: f"{LEAST} <= {p.doprint(e)} <= {MOST}")
    return guards


def _ragged(environment: Any) -> dict[sympy.Symbol, Any]:
    """Numbers in place of ragged sizes of nested tensors, so large that each equals itself alone.

    What they were compared with is known by which tensors are the offsets, which other guards hold.
    """
    name = "backed_var_to_val" if hasattr(environment, "backed_var_to_val") else "var_to_val"
    values = getattr(environment, name)
    symbols = [symbol for symbol, value in values.items() if isinstance(value, SingletonInt)]
    return {symbol: sympy.Integer(_LARGE + number) for number, symbol in enumerate(symbols)}


_LARGE = 10**15 + 37


def _range(symbol: sympy.Symbol, source: Source, environment: Any) -> tuple[int | None, int | None]:
    """The values of a symbol that a unit holds for; of a size, nothing is said that holds anyway."""
    bounds = environment.var_to_range.get(symbol)
    least = most = None
    if bounds is not None and bounds.lower.is_number and bounds.lower not in (-int_oo, -sympy.oo):
        least = int(bounds.lower)
    if bounds is not None and bounds.upper.is_number and bounds.upper not in (int_oo, sympy.oo):
        most = int(bounds.upper) if bounds.upper <= MOST_SYMBOL else None
    if isinstance(source, SizeSource):
        return least, most
    least = -MOST_SYMBOL if least is None else max(least, -MOST_SYMBOL)
    return least, MOST_SYMBOL if most is None else most
