"""Random generators of numpy's: each call of compiled code draws anew, as many numbers and in the order as eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import attrs
import numpy

from turret.frames.sources import BoundSource, CallSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import random_draws
from turret.plugins.capture.python.random_draws import Draw, Fork
from turret.plugins.capture.values.arrays import array_of_call, scalar_of_call
from turret.plugins.capture.values.base import Constant, Lazy, MethodOfValue, Rebuilder, Tracer, Value
from turret.plugins.capture.values.random_generators import MOST_CHOSEN_FROM, RandomGenerator, State, Stream
from turret.plugins.capture.values.sequences import Range, Slice
from turret.plugins.capture.values.sequences import Sequence as SequenceValue
from turret.plugins.capture.values.tensors import Array

DRAWS = frozenset(
    {
        "rand", "randn", "random", "random_sample", "randint", "integers", "uniform", "normal", "standard_normal",
        "exponential", "standard_exponential", "beta", "gamma", "standard_gamma", "binomial", "poisson", "geometric",
        "laplace", "logistic", "lognormal", "triangular", "permutation", "permuted", "choice", "chisquare",
        "dirichlet", "f", "gumbel", "hypergeometric", "logseries", "multinomial", "multivariate_hypergeometric",
        "multivariate_normal", "negative_binomial", "noncentral_chisquare", "noncentral_f", "pareto", "power",
        "rayleigh", "standard_cauchy", "standard_t", "vonmises", "wald", "weibull", "zipf",
    }
)  # fmt: skip
"""Methods that give a number or an array of them, and change nothing but the generator."""
METHODS = DRAWS | {"shuffle", "seed", "get_state", "set_state"}


class NumpyGenerator(RandomGenerator):
    """A ``numpy.random.RandomState`` or ``Generator``; the module's functions draw from one that existed before."""

    reset = staticmethod(random_draws.reset_numpy)

    def __init__(self, stream: Stream, kind: type, source: Source | None = None, object: Any = None) -> None:
        super().__init__(stream, source, object)
        self.kind: Any = kind

    def type(self) -> type:
        return self.kind

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name in METHODS and hasattr(self.kind, name):
            return MethodOfValue(self, name)
        return Value.get_attr(self, t, name)

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in DRAWS:
            return Value.call_method(self, t, name, args, kwargs)
        if name == "choice" and args and _are_texts(args[0]):
            return self.choice_of_texts(t, *args, **kwargs)
        plain, named = [_constant(t, v) for v in args], {k: _constant(t, v) for k, v in kwargs.items()}
        return self.draw(t, getattr(self.kind, name), *plain, **named)

    def drawn(self, t: Tracer, /, method: Callable, *args: Any, **kwargs: Any) -> tuple[Any, Draw]:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            found = super().drawn(t, method, *args, **kwargs)
        if heard:
            raise Unsupported(f"numpy.random.{method.__name__}, which warns")
        return found

    def value_of(self, t: Tracer, found: Any, source: Source) -> Value:
        if isinstance(found, numpy.ndarray):
            return array_of_call(t, found, source)
        if isinstance(found, numpy.generic):
            return scalar_of_call(t, found, source)
        return super().value_of(t, found, source)

    def choice_of_texts(self, t: Tracer, a: Value, *args: Value, **kwargs: Value) -> Value:
        """Of text, which no graph can be given: one of several, with a guard on which."""
        texts = _constant(t, a)
        place = self.call_method(t, "choice", [Constant(len(texts)), *args], kwargs)
        if isinstance(place, Array) or (self.stream.source is not None and len(texts) > MOST_CHOSEN_FROM):
            raise Unsupported(f"a choice among {len(texts)} texts")
        return t.made(numpy.array(texts)[t.int_of(place)])

    def m_shuffle(self, t: Tracer, x: Value, axis: Value | None = None) -> Value:
        held = x.realize()
        if axis is not None and t.int_of(axis) != 0:
            raise Unsupported("numpy.random.shuffle along another axis than the first")
        if not isinstance(held, Array):
            return super().m_shuffle(t, held)
        count = t.int_of(held.length(t))
        order = self.draw(t, random_draws.shuffled_numbers, count)
        held.set_item(t, Slice([Constant(None)] * 3), held.get_item(t, order))
        return Constant(None)

    # States.

    def state(self) -> str:
        return random_draws.state_of_numpy(self.stream.fork.generator)

    def m_seed(self, t: Tracer, seed: Value | None = None) -> Value:  # type: ignore[override]
        self.begin(t, seeded(t, self.kind, seed))
        return Constant(None)

    def m_get_state(self, t: Tracer, legacy: Value | None = None) -> Value:
        if legacy is not None:
            raise Unsupported("numpy.random.get_state with legacy=")
        found, draw = self.drawn(t, self.kind.get_state)
        if self.stream.source is None:
            return t.made(found)
        return State(t, found, CallSource(self.stream.source, draw))

    def m_set_state(self, t: Tracer, state: Value) -> Value:
        held = state.object if isinstance(state, (State, Lazy)) else _constant(t, state)
        try:
            fork = random_draws.fork_of_numpy_state(held)
        except Exception as error:
            raise Unsupported(f"numpy.random.set_state of what is no state: {error}") from None
        if not isinstance(state, (State, Lazy)):
            self.begin(t, Stream(fork, beginning=Draw(None, self.kind.set_state, (held,))))
            return Constant(None)
        if isinstance(state, Lazy):
            t.guards.take("CALL", state.source, (random_draws.is_numpy_state, True))
        source = CallSource(state.source, random_draws.fork_for_row(random_draws.fork_of_numpy_state))
        self.begin(t, Stream(fork, source, before=state.source))
        return Constant(None)

    # Rebuilding.

    def rebuild(self, r: Rebuilder) -> str:
        if self.source is not None:
            return r.source(self.source)
        made = r.assign(f"{r.constant(_MAKERS[self.kind])}(0)")
        r.line(self.written(r, made))
        return made


@attrs.frozen
class _SeedOfGenerator:
    """Gives a ``numpy.random.Generator`` the state that it has from a seed."""

    __name__ = "seed"

    def __call__(self, generator: numpy.random.Generator, seed: Any) -> None:
        generator.bit_generator.state = numpy.random.PCG64(seed).state


_MAKERS: dict[type, Callable] = {
    numpy.random.RandomState: numpy.random.RandomState, numpy.random.Generator: numpy.random.default_rng
}  # fmt: skip
_SEEDS: dict[type, Callable] = {
    numpy.random.RandomState: numpy.random.RandomState.seed, numpy.random.Generator: _SeedOfGenerator()
}  # fmt: skip


def seeded(t: Tracer, kind: type, seed: Value | None) -> Stream:
    """A row of draws from a seed, all of them known."""
    known = None if seed is None else _constant(t, seed)
    if known is None:
        raise Unsupported("a random generator that is seeded by the system")
    if not isinstance(known, (int, numpy.integer, list)):
        raise Unsupported(f"a random generator that is seeded by a {type(known).__name__}")
    beginning, made = Draw(None, _SEEDS[kind], (known,)), Fork(_MAKERS[kind](0))
    try:
        beginning.on(made.generator)
    except Exception as error:
        raise t.raised_from(error) from None
    return Stream(made, beginning=beginning)


def outside_generator(t: Tracer, object: Any, source: Source) -> Value:
    """The value of a generator that existed before."""
    if not isinstance(source, BoundSource):
        t.guards.take("TYPE", source, type(object))
    stream = Stream(random_draws.fork_of_numpy(object), CallSource(source, random_draws.fork_of_numpy))
    return NumpyGenerator(stream, type(object), source, object)


def _constant(t: Tracer, value: Value) -> Any:
    """An argument: a number, an array that is known, or a list of such."""
    value = value.realize()
    if isinstance(value, Range):
        return value.concrete(t)
    if isinstance(value, SequenceValue):
        return [_constant(t, v) for v in value.unpack(t)]
    known = t.constant_of(value)
    return known.copy() if isinstance(known, numpy.ndarray) else known


def _are_texts(value: Value) -> bool:
    held = value.realize()
    items = [v.realize() for v in held.items] if isinstance(held, SequenceValue) and not isinstance(held, Range) else []
    return bool(items) and all(isinstance(v, Constant) and isinstance(v.value, str) for v in items)
