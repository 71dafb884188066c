"""Iterators of ``itertools``: each is as lazy as Python's, and is made again in the state that it is in."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.values.base import Rebuilder, Tracer, Value
from turret.plugins.capture.values.iterators import Iterator


def _row(r: Rebuilder, values: Iterable[Value]) -> str:
    """The values as a tuple."""
    return f"({''.join(r.load(v) + ',' for v in values)})"


def _behind(r: Rebuilder, values: Iterable[Value], rest: Value) -> str:
    """An iterator over some values and, behind these, what another one has left."""
    return f"{r.constant(itertools.chain)}({_row(r, values)}, {r.load(rest)})"


class Repeat(Iterator):
    """``itertools.repeat``; ``times`` is None for ever."""

    kind = itertools.repeat

    def __init__(self, item: Value, times: int | None) -> None:
        self.item, self.times = item, times

    def next(self, t: Tracer) -> Value:
        if self.times is not None:
            if self.times <= 0:
                raise t.raised(StopIteration)
            self.times -= 1
        return self.item

    def rebuild(self, r: Rebuilder) -> str:
        times = "" if self.times is None else f", {self.times}"
        return r.assign(f"{r.constant(self.kind)}({r.load(self.item)}{times})")


class Cycle(Iterator):
    """``itertools.cycle``: ``saved`` are the items of the first round, ``position`` counts those of later ones."""

    kind = itertools.cycle

    def __init__(self, inner: Value) -> None:
        self.inner: Value | None = inner
        self.saved: list[Value] = []
        self.position = 0

    def next(self, t: Tracer) -> Value:
        if self.inner is not None:
            item = t.next_or_none(self.inner)
            if item is not None:
                self.saved.append(item)
                return item
            self.inner = None
        if not self.saved:
            raise t.raised(StopIteration)
        item = self.saved[self.position]
        self.position = (self.position + 1) % len(self.saved)
        return item

    def rebuild(self, r: Rebuilder) -> str:
        cycle = r.constant(self.kind)
        if self.inner is None:
            return r.assign(f"{cycle}({_row(r, self.saved[self.position :] + self.saved[: self.position])})")
        name = r.assign(f"{cycle}({_behind(r, self.saved, self.inner)})")
        for _ in self.saved:
            r.line(f"{r.constant(next)}({name})")
        return name


class Slice(Iterator):
    """``itertools.islice``: ``seen`` items of ``inner`` went by, the one at ``wanted`` is the next."""

    kind = itertools.islice

    def __init__(self, inner: Value, start: int, stop: int | None, step: int) -> None:
        self.inner: Value | None = inner
        self.wanted, self.stop, self.step = start, stop, step
        self.seen = 0

    def next(self, t: Tracer) -> Value:
        while self.seen < self.wanted and self.read(t) is not None:
            t.call_stack.count_loop()
        at_end = self.seen < self.wanted or (self.stop is not None and self.seen >= self.stop)
        item = None if at_end else self.read(t)
        if item is None:
            self.inner = None
            raise t.raised(StopIteration)
        self.wanted += self.step
        if self.stop is not None:
            self.wanted = min(self.wanted, self.stop)
        return item

    def read(self, t: Tracer) -> Value | None:
        """The next item of all, or None at the end."""
        item = None if self.inner is None else t.next_or_none(self.inner)
        self.seen += item is not None
        return item

    def rebuild(self, r: Rebuilder) -> str:
        if self.inner is None:
            return r.assign(f"{r.constant(self.kind)}((), 0)")
        stop = None if self.stop is None else max(self.stop - self.seen, 0)
        bounds = f"{self.wanted - self.seen}, {stop}, {self.step}"
        return r.assign(f"{r.constant(self.kind)}({r.load(self.inner)}, {bounds})")


class Accumulate(Iterator):
    """``itertools.accumulate``; ``function`` is None for sums, ``total`` None before there is one."""

    kind = itertools.accumulate

    def __init__(self, inner: Value, function: Value | None, initial: Value | None) -> None:
        self.inner, self.function, self.initial = inner, function, initial
        self.total: Value | None = None

    def next(self, t: Tracer) -> Value:
        if self.initial is not None:
            self.total, self.initial = self.initial, None
            return self.total
        item = self.inner.next(t)
        if self.total is None:
            self.total = item
        elif self.function is None:
            self.total = t.binary(operator.add, self.total, item)
        else:
            self.total = t.call(self.function, [self.total, item], {})
        return self.total

    def rebuild(self, r: Rebuilder) -> str:
        first = self.initial if self.total is None else self.total
        if self.total is not None and r.t.is_none(self.total):
            raise Unsupported("an accumulate whose total is None is needed after a graph break")
        function = "None" if self.function is None else r.load(self.function)
        initial = "None" if first is None else r.load(first)
        name = r.assign(f"{r.constant(self.kind)}({r.load(self.inner)}, {function}, initial={initial})")
        if self.total is not None:
            r.line(f"{r.constant(next)}({name})")
        return name


class TakeWhile(Iterator):
    """``itertools.takewhile``."""

    kind = itertools.takewhile

    def __init__(self, predicate: Value, inner: Value) -> None:
        self.predicate = predicate
        self.inner: Value | None = inner

    def next(self, t: Tracer) -> Value:
        if self.inner is not None:
            item = self.inner.next(t)
            if t.truth(t.call(self.predicate, [item], {})):
                return item
            self.inner = None
        raise t.raised(StopIteration)

    def rebuild(self, r: Rebuilder) -> str:
        rest = "()" if self.inner is None else r.load(self.inner)
        return r.assign(f"{r.constant(self.kind)}({r.load(self.predicate)}, {rest})")


class DropWhile(Iterator):
    """``itertools.dropwhile``; ``predicate`` is None once an item was kept."""

    kind = itertools.dropwhile

    def __init__(self, predicate: Value, inner: Value) -> None:
        self.predicate: Value | None = predicate
        self.inner = inner

    def next(self, t: Tracer) -> Value:
        while True:
            item = self.inner.next(t)
            if self.predicate is None:
                return item
            if not t.truth(t.call(self.predicate, [item], {})):
                self.predicate = None
                return item
            t.call_stack.count_loop()

    def rebuild(self, r: Rebuilder) -> str:
        predicate = r.constant(lookups.never) if self.predicate is None else r.load(self.predicate)
        return r.assign(f"{r.constant(self.kind)}({predicate}, {r.load(self.inner)})")


class FilterFalse(Iterator):
    """``itertools.filterfalse``."""

    kind = itertools.filterfalse

    def __init__(self, predicate: Value, inner: Value) -> None:
        self.predicate, self.inner = predicate, inner

    def next(self, t: Tracer) -> Value:
        plain = t.is_none(self.predicate)
        while True:
            item = self.inner.next(t)
            if not t.truth(item if plain else t.call(self.predicate, [item], {})):
                return item
            t.call_stack.count_loop()

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(self.kind)}({r.load(self.predicate)}, {r.load(self.inner)})")


class Compress(Iterator):
    """``itertools.compress``."""

    kind = itertools.compress

    def __init__(self, data: Value, selectors: Value) -> None:
        self.data, self.selectors = data, selectors

    def next(self, t: Tracer) -> Value:
        while True:
            item = self.data.next(t)
            if t.truth(self.selectors.next(t)):
                return item
            t.call_stack.count_loop()

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(self.kind)}({r.load(self.data)}, {r.load(self.selectors)})")


class StarMap(Iterator):
    """``itertools.starmap``."""

    kind = itertools.starmap

    def __init__(self, function: Value, inner: Value) -> None:
        self.function, self.inner = function, inner

    def next(self, t: Tracer) -> Value:
        return t.call(self.function, self.inner.next(t).realize().unpack(t), {})

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.constant(self.kind)}({r.load(self.function)}, {r.load(self.inner)})")


class Pairwise(Iterator):
    """``itertools.pairwise``."""

    kind = itertools.pairwise

    def __init__(self, inner: Value) -> None:
        self.inner: Value | None = inner
        self.previous: Value | None = None

    def next(self, t: Tracer) -> Value:
        if self.inner is not None:
            if self.previous is None:
                self.previous = t.next_or_none(self.inner)
            item = None if self.previous is None else t.next_or_none(self.inner)
            if self.previous is not None and item is not None:
                pair = t.new_tuple([self.previous, item])
                self.previous = item
                return pair
            self.inner = None
        raise t.raised(StopIteration)

    def rebuild(self, r: Rebuilder) -> str:
        pairwise = r.constant(self.kind)
        if self.inner is None:
            return r.assign(f"{pairwise}(())")
        return r.assign(f"{pairwise}({_behind(r, [] if self.previous is None else [self.previous], self.inner)})")


class ZipLongest(Iterator):
    """``itertools.zip_longest``; an iterator that came to its end is None."""

    kind = itertools.zip_longest

    def __init__(self, inners: list[Value], fill: Value) -> None:
        self.inners: list[Value | None] = list(inners)
        self.fill = fill

    def next(self, t: Tracer) -> Value:
        row: list[Value] = []
        for number, inner in enumerate(self.inners):
            item = None if inner is None else t.next_or_none(inner)
            if item is None:
                self.inners[number] = None
                if self.is_at_end():
                    break
            row.append(self.fill if item is None else item)
        if self.is_at_end():
            raise t.raised(StopIteration)
        return t.new_tuple(row)

    def is_at_end(self) -> bool:
        """Whether all iterators came to their ends."""
        return all(inner is None for inner in self.inners)

    def rebuild(self, r: Rebuilder) -> str:
        inners = "".join(("()" if v is None else r.load(v)) + ", " for v in self.inners)
        return r.assign(f"{r.constant(self.kind)}({inners}fillvalue={r.load(self.fill)})")


class Batched(Iterator):
    """``itertools.batched``, which Python has from 3.12 on."""

    kind = getattr(itertools, "batched", type(None))

    def __init__(self, inner: Value, size: int, strict: bool) -> None:
        self.inner, self.size, self.strict = inner, size, strict

    def next(self, t: Tracer) -> Value:
        row: list[Value] = []
        while len(row) < self.size and (item := t.next_or_none(self.inner)) is not None:
            row.append(item)
        if not row:
            raise t.raised(StopIteration)
        if self.strict and len(row) < self.size:
            raise t.raised(ValueError, "batched(): incomplete batch")
        return t.new_tuple(row)

    def rebuild(self, r: Rebuilder) -> str:
        strict = ", strict=True" if self.strict else ""
        return r.assign(f"{r.constant(self.kind)}({r.load(self.inner)}, {self.size}{strict})")


class Selections(Iterator):
    """``product``, ``permutations`` and ``combinations``: rows of items of pools, which were read when it was made.

    ``indices``: for each row, which item of which pool comes; ``arguments``: what the call has beside the pools.
    """

    def __init__(
        self, kind: type, pools: list[list[Value]], indices: Iterable[tuple[int, ...]], arguments: str
    ) -> None:
        self.kind, self.pools, self.indices, self.arguments = kind, pools, iter(indices), arguments
        self.count = 0

    def next(self, t: Tracer) -> Value:
        row = next(self.indices, None)
        if row is None:
            raise t.raised(StopIteration)
        self.count += 1
        return t.new_tuple([self.pools[n % len(self.pools)][index] for n, index in enumerate(row)])

    def rebuild(self, r: Rebuilder) -> str:
        pools = "".join(_row(r, pool) + ", " for pool in self.pools)
        name = r.assign(f"{r.constant(self.kind)}({pools}{self.arguments})")
        if self.count:
            r.line(f"{r.constant(list)}({r.constant(itertools.islice)}({name}, {self.count}))")
        return name


class GroupBy(Iterator):
    """``itertools.groupby``: ``key`` and ``value`` of the item read last, ``target`` the key of the latest group."""

    kind = itertools.groupby

    def __init__(self, inner: Value, function: Value | None) -> None:
        self.inner, self.function = inner, function
        self.key_now: Value | None = None
        self.value: Value | None = None
        self.target: Value | None = None
        self.group: Group | None = None

    def step(self, t: Tracer) -> None:
        """Read an item."""
        value = self.inner.next(t)
        self.key_now = value if self.function is None else t.call(self.function, [value], {})
        self.value = value

    def next(self, t: Tracer) -> Value:
        self.group = None
        while self.key_now is None or (self.target is not None and t.equals_item(self.target, self.key_now)):
            t.call_stack.count_loop()
            self.step(t)
        self.target = self.key_now
        self.group = Group(self, self.target)
        return t.new_tuple([self.target, self.group])

    def rebuild(self, r: Rebuilder) -> str:
        if self.key_now is not None:
            raise Unsupported("a groupby that is under way is needed after a graph break")
        function = "None" if self.function is None else r.load(self.function)
        return r.assign(f"{r.constant(self.kind)}({r.load(self.inner)}, {function})")


class Group(Iterator):
    """The items of one group, as long as it is the latest."""

    kind = type(next(itertools.groupby([0]))[1])

    def __init__(self, parent: GroupBy, target: Value) -> None:
        self.parent, self.target = parent, target

    def next(self, t: Tracer) -> Value:
        parent = self.parent
        if parent.group is not self:
            raise t.raised(StopIteration)
        if parent.value is None:
            parent.step(t)
        assert parent.key_now is not None and parent.value is not None
        if not t.equals_item(self.target, parent.key_now):
            raise t.raised(StopIteration)
        item, parent.value = parent.value, None
        return item


class Tee(Iterator):
    """One of the iterators of ``itertools.tee``; ``items`` are those that some of them read."""

    kind: type = type(itertools.tee(())[0])

    def __init__(self, inner: Value, items: list[Value], siblings: list[Tee]) -> None:
        self.inner, self.items, self.siblings = inner, items, siblings
        self.position = 0

    def next(self, t: Tracer) -> Value:
        if self.position == len(self.items):
            self.items.append(self.inner.next(t))
        self.position += 1
        return self.items[self.position - 1]

    def rebuild(self, r: Rebuilder) -> str:
        first = min(tee.position for tee in self.siblings)
        made = r.assign(
            f"{r.constant(itertools.tee)}({_behind(r, self.items[first:], self.inner)}, {len(self.siblings)})"
        )
        for number, tee in enumerate(self.siblings):
            name = r.remember(tee, r.assign(f"{made}[{number}]"))
            for _ in range(tee.position - first):
                r.line(f"{r.constant(next)}({name})")
        return r.load(self)
