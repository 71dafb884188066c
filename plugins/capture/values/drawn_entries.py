"""Entries of tables of numbers at places that are drawn at random: looked up ahead of the graph, like the places."""

from __future__ import annotations

from turret.frames.sources import CallSource, Source
from turret.plugins.capture.python.random_draws import Draw, Entry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.floats import ChangingFloat
from turret.plugins.capture.values.sequences import List, Sequence, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Array

_MOST = 64
"""Numbers in one entry."""


def entry_drawn(t: Tracer, table: Value, key: Value) -> Value | None:
    """What a table holds at a place, which is drawn anew in each call; None where a guard has to say which place it is.

    Tables are tuples or lists of numbers of one type, or of tuples of as many of them.
    """
    if type(table) not in (List, Tuple) or (place := _place(t, key)) is None:
        return None
    assert isinstance(table, Sequence)
    rows = [v.realize() for v in table.items]
    if not all(type(row) is Tuple and row.kind is tuple for row in rows):
        return _entry(t, rows, place)
    columns = list(zip(*(row.items for row in rows), strict=False))  # type: ignore[attr-defined]
    if any(len(row.items) != len(columns) for row in rows) or len(columns) > _MOST:  # type: ignore[attr-defined]
        return None
    found = [_entry(t, [v.realize() for v in column], place) for column in columns]
    return None if None in found else Tuple(found)  # type: ignore[arg-type]


def _place(t: Tracer, key: Value) -> Symbolic | None:
    """The number that a key is, if it was drawn."""
    place = key.place(t) if isinstance(key, Array) else key
    drawn = isinstance(place, Symbolic) and place.source is not None and is_drawn(place.source)
    return place if drawn else None  # type: ignore[return-value]


def is_drawn(source: Source) -> bool:
    """Whether a number comes of a random generator."""
    return any(isinstance(step, CallSource) and isinstance(step.function, Draw) for step in source.steps())


def _entry(t: Tracer, row: list[Value], place: Symbolic) -> Value | None:
    kinds = {v.type() if isinstance(v, Constant) else None for v in row}
    now = place.number.node.hint
    if kinds not in ({int}, {float}) or now is None or not -len(row) <= now < len(row):
        return None
    assert place.source is not None
    numbers = tuple(v.constant() for v in row)
    source = CallSource(place.source, Entry(numbers))
    if kinds == {float}:
        t.guards.take("TYPE", source, float)
        return ChangingFloat(t, numbers[now], source, is_drawn=True)
    return t.recorder.int_input(numbers[now], source) if max(map(abs, numbers)) < 2**62 else None
