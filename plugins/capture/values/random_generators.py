"""Random generators of Python's: each call of compiled code draws anew, as many numbers and in the order as eager."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from turret.frames.sources import BoundSource, CallSource, ItemSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import random_draws
from turret.plugins.capture.python.random_draws import Draw, Fork
from turret.plugins.capture.values.base import Constant, Lazy, MethodOfValue, Rebuilder, Tracer, Unread, Value
from turret.plugins.capture.values.classes import look_up
from turret.plugins.capture.values.drawn_entries import entry_drawn
from turret.plugins.capture.values.floats import ChangingFloat
from turret.plugins.capture.values.sequences import List, Range, Tuple
from turret.plugins.capture.values.sequences import Sequence as SequenceValue
from turret.plugins.capture.values.symbols import Symbolic

NUMBERS = (
    "random", "getrandbits", "randint", "randrange", "uniform", "triangular", "gauss", "normalvariate", "expovariate",
    "lognormvariate", "vonmisesvariate", "gammavariate", "betavariate", "paretovariate", "weibullvariate",
    "binomialvariate", "randbytes",
)  # fmt: skip
"""Methods that give a number (or bytes) and change nothing but the generator."""
OTHERS = ("choice", "choices", "sample", "shuffle", "seed", "getstate", "setstate")
METHODS = {n: getattr(random.Random, n) for n in (*NUMBERS, *OTHERS) if hasattr(random.Random, n)}
"""Methods of generators by name, as they are where nobody has replaced them."""
MOST_CHOSEN_FROM = 4
"""Objects among which a choice is a branch of the program, with a guard; among more of them it breaks the graph."""


class State(Unread):
    """What ``getstate`` gave: hundreds of numbers that are handed around, and that nothing is assumed of."""

    def __init__(self, t: Tracer, object: tuple, source: Source) -> None:
        super().__init__("the state of a random generator", t.call_stack.step)
        self.object, self.source = object, source

    def type(self) -> type:
        return tuple

    def rebuild(self, r: Rebuilder) -> str:
        return r.source(self.source)


@attrs.define
class Stream:
    """A row of draws.

    Args:
        fork: the generator that capture itself draws from, where the row began.
        source: of that; None where it was seeded in compiled code, so that all draws are known.
        before: the source of the state that the generator was set to at the beginning, if it was.
        beginning: how a generator gets to where the row began, as calls; None where that is by itself.
    """

    fork: Fork
    source: Source | None = None
    before: Source | None = None
    beginning: Draw | None = None
    last: Draw | None = None


class RandomGenerator(Value):
    """A ``random.Random``; one that existed before moves on once the graph has run."""

    def __init__(self, stream: Stream, source: Source | None = None, object: random.Random | None = None) -> None:
        self.stream, self.source, self.object = stream, source, object

    reset = staticmethod(random_draws.reset)
    """A function of a generator and a state that sets the one to the other."""

    def type(self) -> type:
        return random.Random

    def truth(self, t: Tracer) -> bool:
        return True

    def key(self, t: Tracer) -> Any:
        return self

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name in METHODS:
            self.check_method(t, name)
            return MethodOfValue(self, name)
        return super().get_attr(t, name)

    def check_method(self, t: Tracer, name: str) -> None:
        """Refuse a method that the program has replaced."""
        look_up(t, random.Random, name)
        if getattr(random.Random, name) is not METHODS[name]:
            raise Unsupported(f"random.Random.{name}, which was replaced")

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in NUMBERS:
            return super().call_method(t, name, args, kwargs)
        formula = _FORMULAS.get(name)
        if formula is not None and not kwargs and any(_is_unknown_float(v) for v in args):
            return formula(t, self, *args)
        plain, named = tuple(map(t.constant_of, args)), {k: t.constant_of(v) for k, v in kwargs.items()}
        return self.draw(t, METHODS[name], *plain, **named)

    # Draws.

    def drawn(self, t: Tracer, /, method: Callable, *args: Any, **kwargs: Any) -> tuple[Any, Draw]:
        """What a call gives now, and the call, which is the last one of the row from here on."""
        stream = self.stream
        draw = Draw(stream.last, method, args, kwargs)
        before = self.state()
        try:
            found = draw(stream.fork)
        except Exception as error:
            if self.state() != before:
                raise Unsupported(f"{method.__name__} of a random generator, which fails halfway") from error
            raise t.raised_from(error) from None
        self.moves_on(t)
        stream.last = draw
        return found, draw

    def state(self) -> Any:
        """The state of what capture draws from, to be compared with others."""
        return self.stream.fork.generator.getstate()

    def moves_on(self, t: Tracer) -> None:
        """Note a change of the generator, which counts wherever it was made."""
        t.effects.note(self)
        t.effects.count += self.source is None

    def draw(self, t: Tracer, /, method: Callable, *args: Any, **kwargs: Any) -> Value:
        """The value of a number that a call gives, or of a list of them."""
        found, draw = self.drawn(t, method, *args, **kwargs)
        if self.stream.source is None:
            return t.made(found)
        return self.value_of(t, found, CallSource(self.stream.source, draw))

    def value_of(self, t: Tracer, found: Any, source: Source) -> Value:
        """The value of what each call draws anew."""
        if type(found) is list:
            return t.new_list([number(t, v, ItemSource(source, n)) for n, v in enumerate(found)])
        return number(t, found, source)

    def picked(self, t: Tracer, /, items: Sequence, method: Callable, *args: Any, **kwargs: Any) -> list[Value]:
        """The items, which are numbers or objects, that a call picks of a population."""
        population = items if isinstance(items, range) else _plain(items)
        if population is not None:
            found = self.draw(t, method, population, *args, **kwargs)
            return found.items if isinstance(found, List) else [found]
        if self.stream.source is None:
            found, _ = self.drawn(t, method, range(len(items)), *args, **kwargs)
            return [items[n] for n in found]
        places = self.draw(t, method, range(len(items)), *args, **kwargs).unpack(t)
        return [self.entry(t, items, place) for place in places]

    def entry(self, t: Tracer, items: Sequence[Value], place: Value) -> Value:
        """The item at a place that was drawn: out of a table of numbers, or with a guard on which it is."""
        found = entry_drawn(t, Tuple(list(items)), place.realize())
        if found is None and self.stream.source is not None and len(items) > MOST_CHOSEN_FROM:
            raise Unsupported(f"a choice of one among {len(items)} objects")
        return items[t.int_of(place)] if found is None else found

    def m_choice(self, t: Tracer, seq: Value) -> Value:
        items = _items(t, seq)
        if not items:
            raise t.raised(IndexError, "Cannot choose from an empty sequence")
        if isinstance(items, range) or _plain(items) is not None:
            return self.picked(t, items, METHODS["choice"])[0]
        return self.entry(t, items, self.draw(t, METHODS["choice"], range(len(items))))

    def m_choices(
        self,
        t: Tracer,
        population: Value,
        weights: Value | None = None,
        *,
        cum_weights: Value | None = None,
        k: Value | None = None,
    ) -> Value:
        given = {"weights": weights, "cum_weights": cum_weights, "k": k}
        named = {name: _constant(t, v) for name, v in given.items() if v is not None}
        return t.new_list(self.picked(t, _items(t, population), METHODS["choices"], **named))

    def m_sample(self, t: Tracer, population: Value, k: Value, *, counts: Value | None = None) -> Value:
        if counts is not None:
            raise Unsupported("random.sample with counts")
        return t.new_list(self.picked(t, _items(t, population), METHODS["sample"], t.int_of(k)))

    def m_shuffle(self, t: Tracer, x: Value) -> Value:
        x = x.realize()
        if type(x) is not List:
            raise Unsupported(f"random.shuffle of {x.describe()}")
        items = self.picked(t, x.items, random_draws.shuffled)
        x.changed(t)
        x.items[:] = items
        return Constant(None)

    # States.

    def m_seed(self, t: Tracer, a: Value | None = None, version: Value | None = None) -> Value:
        self.begin(t, seeded(t, a, version))
        return Constant(None)

    def m_getstate(self, t: Tracer) -> Value:
        found, draw = self.drawn(t, METHODS["getstate"])
        if self.stream.source is None:
            return t.wrap_known(found)
        return State(t, found, CallSource(self.stream.source, draw))

    def m_setstate(self, t: Tracer, state: Value) -> Value:
        if not isinstance(state, Lazy):
            known = t.constant_of(state)
            self.begin(t, Stream(_fork_of(known), beginning=Draw(None, METHODS["setstate"], (known,))))
            return Constant(None)
        if not isinstance(state, State):
            t.guards.take("CALL", state.source, (random_draws.is_state, True))
        source = CallSource(state.source, random_draws.fork_for_row(random_draws.fork_of_state))
        self.begin(t, Stream(_fork_of(state.object), source, before=state.source))
        return Constant(None)

    def begin(self, t: Tracer, stream: Stream) -> None:
        """Set the generator to another state."""
        self.moves_on(t)
        self.stream = stream

    # Rebuilding.

    def rebuild(self, r: Rebuilder) -> str:
        made = r.assign(f"{r.constant(random.Random)}(0)")
        r.line(self.written(r, made))
        return made

    def replay(self, r: Rebuilder) -> None:
        r.effect(self.written(r, r.load(self)))

    def written(self, r: Rebuilder, held: str) -> str:
        """The expression that brings the generator in a variable to where it is now."""
        stream = self.stream
        if stream.beginning is not None:
            held = f"{r.constant(random_draws.redraw)}({held}, {r.constant(stream.beginning)})"
        if stream.before is not None:
            held = f"{r.constant(self.reset)}({held}, {r.source(stream.before)})"
        return f"{r.constant(random_draws.redraw)}({held}, {r.constant(stream.last)})"


def outside_generator(t: Tracer, object: random.Random, source: Source) -> Value:
    """The value of a generator that existed before."""
    if not isinstance(source, BoundSource):
        t.guards.take("TYPE", source, random.Random)
    fork = _fork_of(object.getstate())
    return RandomGenerator(Stream(fork, CallSource(source, random_draws.fork)), source, object)


def seeded(t: Tracer, a: Value | None, version: Value | None = None) -> Stream:
    """A row of draws from a seed: known where that is a constant, else as each call finds it."""
    known = None if a is None else a.realize()
    if isinstance(known, Symbolic) and known.source is not None and known.type() is int and version is None:
        state = CallSource(known.source, random_draws.state_of_seed)
        fork = random_draws.fork_of_state(random_draws.state_of_seed(_number_now(known)))
        row = random_draws.fork_for_row(random_draws.fork_of_state)
        return Stream(fork, CallSource(state, row), before=state)
    given = () if a is None else (t.constant_of(a),)
    if given in ((), (None,)):
        raise Unsupported("a random generator that is seeded by the system")
    named = {} if version is None else {"version": t.constant_of(version)}
    beginning = Draw(None, METHODS["seed"], given, named)
    made = Fork(random.Random(0))
    try:
        beginning.on(made.generator)
    except Exception as error:
        raise t.raised_from(error) from None
    return Stream(made, beginning=beginning)


def _fork_of(state: Any) -> Fork:
    try:
        return random_draws.fork_of_state(state)
    except Exception as error:
        raise Unsupported(f"random.setstate of what is no state: {error}") from None


def number(t: Tracer, found: Any, source: Source) -> Value:
    """A number that each call draws anew."""
    if type(found) is float:
        return ChangingFloat(t, found, source, is_drawn=True)
    if type(found) is int and abs(found) < 2**62:
        return t.recorder.int_input(found, source, is_int=True)
    raise Unsupported(f"a random {type(found).__name__}")


def _number_now(known: Symbolic) -> int:
    """What a symbol is in this call, with nothing assumed."""
    return int(known.number.node.hint)


def _items(t: Tracer, value: Value) -> Any:
    """A population: a range, or a list of values."""
    value = value.realize()
    if isinstance(value, Range):
        return value.concrete(t)
    if isinstance(value, SequenceValue) or (isinstance(value, Constant) and isinstance(value.value, str)):
        return value.unpack(t)
    raise Unsupported(f"what is picked at random of {value.describe()}")


def _plain(items: Sequence[Value]) -> tuple[Any, ...] | None:
    """Numbers of one type that a graph can be given; None where items are others."""
    values = [v.realize() for v in items]
    if not all(isinstance(v, Constant) for v in values):
        return None
    kinds = {v.type() for v in values}
    return tuple(v.constant() for v in values) if kinds in ({int}, {float}) else None


def _constant(t: Tracer, value: Value) -> Any:
    """An argument that is a number, or a list of them."""
    value = value.realize()
    return [t.constant_of(v) for v in value.unpack(t)] if isinstance(value, SequenceValue) else t.constant_of(value)


def _is_unknown_float(value: Value) -> bool:
    value = value.realize()
    return isinstance(value, Symbolic) and value.type() is float


def _uniform(t: Tracer, generator: RandomGenerator, a: Value, b: Value) -> Value:
    width = t.binary(operator.sub, b, a)
    return t.binary(operator.add, a, t.binary(operator.mul, width, generator.draw(t, METHODS["random"])))


def _normal(name: str) -> Callable[..., Value]:
    def draw(t: Tracer, generator: RandomGenerator, mu: Value, sigma: Value) -> Value:
        standard = generator.draw(t, METHODS[name], 0.0, 1.0)
        return t.binary(operator.add, mu, t.binary(operator.mul, standard, sigma))

    return draw


_FORMULAS: dict[str, Callable[..., Value]] = {
    "uniform": _uniform, "gauss": _normal("gauss"), "normalvariate": _normal("normalvariate")
}  # fmt: skip
"""What methods compute of arguments that change from call to call."""
