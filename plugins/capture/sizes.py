"""Guards on sizes: what the symbolic shapes of a capture assumed, as expressions over sizes of the inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sympy
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter

from turret.guards import Guard
from turret.plugins.capture.errors import Unsupported
from turret.sources import Source

if TYPE_CHECKING:
    from turret.plugins.capture.tracer import Tracer


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
    environment = tracer.shape_env
    places: dict[Any, Source] = {}
    for binding in tracer.bindings:
        if isinstance(binding.expression, sympy.Symbol):
            places.setdefault(binding.expression, binding.source)
    guards: list[Guard] = []

    def add(write: Any) -> None:
        printer = _Printer(places)
        text = write(printer)
        if printer.used:
            first, *others = printer.used
            guards.append(Guard("SIZES", first, text, tuple(others)))

    for binding in tracer.bindings:
        expression = sympy.sympify(binding.expression)
        if places.get(expression) != binding.source:
            add(lambda p, b=binding, e=expression: f"{p.number(b.source)} == {p.doprint(e)}")
    for item in environment.guards:
        if not isinstance(item.expr, (sympy.logic.boolalg.BooleanTrue, bool)):
            add(lambda p, e=item.expr: p.doprint(e))
    for symbol in places:
        bounds = environment.var_to_range.get(symbol)
        if bounds is None:
            continue
        if bounds.lower.is_number and bounds.lower not in (-int_oo, -sympy.oo):
            add(lambda p, s=symbol, b=bounds: f"{int(b.lower)} <= {p.doprint(s)}")
        if bounds.upper.is_number and bounds.upper not in (int_oo, sympy.oo) and bounds.upper < 2**62:
            add(lambda p, s=symbol, b=bounds: f"{p.doprint(s)} <= {int(b.upper)}")
    return guards
