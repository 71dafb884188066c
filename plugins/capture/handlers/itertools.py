"""Calls of ``itertools``."""

from __future__ import annotations

import itertools

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values import itertools as iterators
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.iterators import Chain, Count, ItemsIterator


@registry.kind(itertools.chain)
def chain(t: Tracer, *items: Value) -> Value:
    return Chain(ItemsIterator(list(items)))


@registry.function(itertools.chain.from_iterable)
def chain_from_iterable(t: Tracer, items: Value) -> Value:
    return Chain(t.iterate(items))


@registry.kind(itertools.count)
def count(t: Tracer, start: Value | None = None, step: Value | None = None) -> Value:
    return Count(start or Constant(0), step or Constant(1))


@registry.kind(itertools.repeat)
def repeat(t: Tracer, object: Value, times: Value | None = None) -> Value:
    return iterators.Repeat(object, None if times is None else t.int_of(times))


@registry.kind(itertools.cycle)
def cycle(t: Tracer, items: Value, /) -> Value:
    return iterators.Cycle(t.iterate(items))


@registry.kind(itertools.islice)
def islice(t: Tracer, items: Value, first: Value, *rest: Value) -> Value:
    given = [t.bound_of(v) for v in (first, *rest)]
    try:
        itertools.islice((), *given)
    except (TypeError, ValueError) as error:
        raise t.raised_from(error) from None
    bounds = slice(*given)
    return iterators.Slice(t.iterate(items), bounds.start or 0, bounds.stop, bounds.step or 1)


@registry.kind(itertools.accumulate)
def accumulate(t: Tracer, iterable: Value, func: Value | None = None, *, initial: Value | None = None) -> Value:
    return iterators.Accumulate(t.iterate(iterable), _given(t, func), _given(t, initial))


def _given(t: Tracer, value: Value | None) -> Value | None:
    """An argument; None for one that is the program's None."""
    return None if value is None or t.is_none(value) else value


@registry.kind(itertools.takewhile)
def takewhile(t: Tracer, predicate: Value, items: Value, /) -> Value:
    return iterators.TakeWhile(predicate, t.iterate(items))


@registry.kind(itertools.dropwhile)
def dropwhile(t: Tracer, predicate: Value, items: Value, /) -> Value:
    return iterators.DropWhile(predicate, t.iterate(items))


@registry.kind(itertools.filterfalse)
def filterfalse(t: Tracer, predicate: Value, items: Value, /) -> Value:
    return iterators.FilterFalse(predicate, t.iterate(items))


@registry.kind(itertools.starmap)
def starmap(t: Tracer, function: Value, items: Value, /) -> Value:
    return iterators.StarMap(function, t.iterate(items))


@registry.kind(itertools.compress)
def compress(t: Tracer, data: Value, selectors: Value) -> Value:
    return iterators.Compress(t.iterate(data), t.iterate(selectors))


@registry.kind(itertools.pairwise)
def pairwise(t: Tracer, items: Value, /) -> Value:
    return iterators.Pairwise(t.iterate(items))


@registry.kind(itertools.zip_longest)
def zip_longest(t: Tracer, *items: Value, fillvalue: Value | None = None) -> Value:
    return iterators.ZipLongest([t.iterate(v) for v in items], fillvalue or Constant(None))


@registry.kind(itertools.groupby)
def groupby(t: Tracer, iterable: Value, key: Value | None = None) -> Value:
    return iterators.GroupBy(t.iterate(iterable), _given(t, key))


@registry.function(itertools.tee)
def tee(t: Tracer, iterable: Value, n: Value | None = None, /) -> Value:
    inner = t.iterate(iterable)
    if inner.type() is iterators.Tee.kind:
        raise Unsupported("itertools.tee of an iterator that tee made")
    number = 2 if n is None else t.int_of(n)
    if number < 0:
        raise t.raised(ValueError, "n must be >= 0")
    made: list[iterators.Tee] = []
    items: list[Value] = []
    made.extend(iterators.Tee(inner, items, made) for _ in range(number))
    return t.new_tuple(list(made))


@registry.kind(itertools.product)
def product(t: Tracer, *iterables: Value, repeat: Value | None = None) -> Value:
    times = 1 if repeat is None else t.int_of(repeat)
    if times < 0:
        raise t.raised(ValueError, "repeat argument cannot be negative")
    pools = [v.realize().unpack(t) for v in iterables] if times else []  # as in C: nothing is read to be repeated never
    indices = itertools.product(*(range(len(pool)) for pool in pools), repeat=times)
    return iterators.Selections(itertools.product, pools, indices, f"repeat={times}")


def _selections(cls: type) -> None:
    def handler(t: Tracer, iterable: Value, r: Value | None = None) -> Value:
        pool = iterable.realize().unpack(t)
        if r is None and cls is not itertools.permutations:
            raise Unsupported(f"the arguments of {cls.__name__}()")
        length = len(pool) if r is None or t.is_none(r) else t.int_of(r)
        try:
            indices = cls(range(len(pool)), length)
        except (TypeError, ValueError) as error:
            raise t.raised_from(error) from None
        return iterators.Selections(cls, [pool], indices, f"{length}")

    registry.classes[cls] = handler


for _cls in (itertools.permutations, itertools.combinations, itertools.combinations_with_replacement):
    _selections(_cls)


if hasattr(itertools, "batched"):

    @registry.kind(itertools.batched)
    def batched(t: Tracer, iterable: Value, n: Value, *, strict: Value | None = None) -> Value:
        size = t.int_of(n)
        if size < 1:
            raise t.raised(ValueError, "n must be at least one")
        return iterators.Batched(t.iterate(iterable), size, strict is not None and t.truth(strict))
