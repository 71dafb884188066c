"""Guards on sizes and ints: what the symbolic shapes of a capture assumed, as expressions over those of the inputs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import sympy

from turret.frames.guards import Guard
from turret.frames.sources import SizeSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.record.overflow import LEAST, MOST, MOST_SYMBOL, overflowing
from turret.plugins.capture.values.base import Tracer
from turret.torch_compat.sizes import PythonPrinter, SingletonInt, int_oo

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from turret.plugins.capture.record.graph import SizeBinding


@contextlib.contextmanager
def data_sizes(t: Tracer) -> Iterator[None]:
    """Numbers and sizes that data give are symbols, whatever the options say: what is read here decides no branch."""
    policy, env = t.policy, t.recorder.shape_env
    before, settings = (policy.data_dependent, policy.data_sizes), env.settings
    policy.data_dependent = policy.data_sizes = True
    env.settings = dataclasses.replace(settings, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True)
    try:
        yield
    finally:
        policy.data_dependent, policy.data_sizes = before
        env.settings = settings


class _Printer(PythonPrinter):
    """Prints an expression with a placeholder for each symbol, and collects the sources of these."""

    def __init__(self, sources: dict[Any, Source]) -> None:
        super().__init__()
        self.sources = sources
        self.used: dict[Source, int] = {}

    def number(self, source: Source) -> str:
        return f"{{{self.used.setdefault(source, len(self.used))}}}"

    def _print_Symbol(self, symbol: Any) -> str:
        if symbol not in self.sources:
            raise Unsupported(f"the size {symbol} is no size of an input")
        return self.number(self.sources[symbol])


def size_guards(tracer: Tracer) -> list[Guard]:
    """All guards on dynamic sizes of one capture."""
    recorder = tracer.recorder
    sources: dict[Any, Source] = {}
    for binding in recorder.bindings:
        if isinstance(binding.expression, sympy.Symbol):
            sources.setdefault(binding.expression, binding.source)
    conditions = (
        *_equalities(recorder.bindings, sources),
        *_assumptions(recorder.shape_env, sources),
        *_ranges(recorder.shape_env, sources),
        *_bounds(recorder.integers, sources),
    )
    return [Guard("SIZES", sources[0], text, sources[1:]) for text, sources in conditions if sources]


_Condition = tuple[str, tuple[Source, ...]]
"""What must hold, and the sizes that it speaks of."""


def _equalities(bindings: list[SizeBinding], sources: dict[Any, Source]) -> Iterator[_Condition]:
    """Sizes that are expressions of others."""
    for binding in bindings:
        expression = sympy.sympify(binding.expression)
        if sources.get(expression) != binding.source:
            p = _Printer(sources)
            yield f"{p.number(binding.source)} == {p.doprint(expression)}", tuple(p.used)


def _assumptions(environment: ShapeEnv, sources: dict[Any, Source]) -> Iterator[_Condition]:
    """What fake kernels and the program's branches assumed."""
    ragged = _ragged(environment)
    decided = sympy.logic.boolalg.BooleanAtom if ragged else sympy.logic.boolalg.BooleanTrue
    for item in environment.guards:
        expression = item.expr.xreplace(ragged) if ragged else item.expr
        if not isinstance(expression, (decided, bool)):
            p = _Printer(sources)
            yield p.doprint(expression), tuple(p.used)


def _ranges(environment: ShapeEnv, sources: dict[Any, Source]) -> Iterator[_Condition]:
    """The ends of what a symbol may be."""
    for symbol, source in sources.items():
        least, most = _range(symbol, source, environment)
        if least is not None or most is not None:
            p = _Printer(sources)
            low, high = "" if least is None else f"{least} <= ", "" if most is None else f" <= {most}"
            yield low + p.doprint(symbol) + high, tuple(p.used)


def _bounds(integers: Iterable[Any], sources: dict[Any, Source]) -> Iterator[_Condition]:
    """What kernels compute in 64 bits must fit."""
    owners = {symbol: source.base for symbol, source in sources.items() if isinstance(source, SizeSource)}
    for part in dict.fromkeys(part for expression in integers for part in overflowing(expression, owners)):
        p = _Printer(sources)
        yield f"{LEAST} <= {p.doprint(part)} <= {MOST}", tuple(p.used)


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
