"""The order of steps: dependencies first, then little memory alive at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import attrs

from turret.ir import StridedView, defined
from turret.plugins.schedule.fusion.graph import StepGraph
from turret.plugins.schedule.fusion.groups import Group
from turret.plugins.schedule.fusion.units import Unit


@attrs.frozen(eq=False)
class Piece:
    """What the order needs to know of a step (or of steps that stay together).

    ``reads`` and ``makes`` name memory: a view stands for the tensors whose memory it shares.  ``waits``: it makes
    nothing and only describes memory (a view), so it belongs right before its first user.  ``followers`` are the
    pieces that must come later.
    """

    reads: frozenset[str]
    makes: frozenset[str]
    waits: bool
    followers: frozenset[int]


def pieces_of(
    items: Sequence[Group | Unit],
    graph: StepGraph,
    roots: Mapping[str, frozenset[str]],
    stored: Callable[[Group], frozenset[str]],
) -> list[Piece]:
    """What the order needs to know of groups and single units that are in a legal order already."""
    numbers = {unit: number for number, item in enumerate(items) for unit in _units(item)}
    views = {i.tensor.name for i in items if isinstance(i, Unit) and isinstance(i.statement, StridedView)}
    pieces = []
    for number, item in enumerate(items):
        reads = {name for unit in _units(item) for name in graph.units[unit].reads()}
        memory = frozenset().union(*(roots.get(name, (name,)) for name in reads)) - views
        is_view = isinstance(item, Unit) and isinstance(item.statement, StridedView)
        made = stored(item) if isinstance(item, Group) else frozenset(d.name for d in defined(item.statement))
        followers = frozenset(numbers[later] for unit in _units(item) for later in graph.after[unit]) - {number}
        pieces.append(Piece(memory, frozenset() if is_view else made, is_view, followers))
    return pieces


def _units(item: Group | Unit) -> list[int]:
    return [item.number] if isinstance(item, Unit) else [m.unit.number for m in item.members]


def minimize_peak_memory(pieces: Sequence[Piece], sizes: Mapping[str, int], kept: frozenset[str]) -> list[int]:
    """An order of the pieces (given in a legal one) with no higher peak of live bytes.

    A piece is put off until just before its first user where it makes more than waiting keeps alive: values that
    are computed again in a backward, masks, constants.  ``kept`` names memory that outlives the program.
    """
    given = list(range(len(pieces)))
    order = list(given)
    place = {number: number for number in given}
    users: dict[str, list[int]] = defaultdict(list)
    for number in given:
        for name in pieces[number].reads:
            users[name].append(number)
    for number in reversed(given):
        piece = pieces[number]
        here = place[number]
        there = min((place[f] for f in piece.followers), default=len(order)) - 1
        if there <= here or not (piece.waits or _gains(piece, number, there, users, place, sizes, kept)):
            continue
        order.insert(there, order.pop(here))
        for position in range(here, there + 1):
            place[order[position]] = position
    before, after = _peaks(pieces, given, sizes, kept), _peaks(pieces, order, sizes, kept)
    return order if all(b <= a for a, b in zip(before, after, strict=True)) else given


def _gains(
    piece: Piece,
    number: int,
    there: int,
    users: Mapping[str, Sequence[int]],
    place: Mapping[int, int],
    sizes: Mapping[str, int],
    kept: frozenset[str],
) -> bool:
    """Whether a piece makes more bytes than stay alive for it if it runs at another place."""
    prolonged = sum(
        sizes.get(name, 0)
        for name in piece.reads - kept
        if all(place[user] < there for user in users[name] if user != number)
    )
    return sum(sizes.get(name, 0) for name in piece.makes) > prolonged


def _peaks(
    pieces: Sequence[Piece], order: Sequence[int], sizes: Mapping[str, int], kept: frozenset[str]
) -> tuple[int, int]:
    """Most bytes alive during any piece: of all memory that the program touches, and of what it makes."""
    last = {name: number for number in order for name in pieces[number].reads | pieces[number].makes}
    made = frozenset().union(*(p.makes for p in pieces)) if pieces else frozenset()
    inputs = most = sum(sizes.get(n, 0) for n in last if n not in made)
    live = most_made = 0
    for number in order:
        piece = pieces[number]
        live += sum(sizes.get(n, 0) for n in piece.makes)
        most, most_made = max(most, inputs + live), max(most_made, live)
        for name in piece.reads | piece.makes:
            if last[name] == number and name not in kept:
                if name in made:
                    live -= sizes.get(name, 0)
                else:
                    inputs -= sizes.get(name, 0)
    return most, most_made


def needed_first(order: Sequence[int], followers: Sequence[Collection[int]], wanted: Iterable[int]) -> tuple[int, ...]:
    """Pieces (given in a legal order) with some, and what those need, before all others."""
    needed = set(wanted)
    for number in reversed(order):
        if not needed.isdisjoint(followers[number]):
            needed.add(number)
    return (*(n for n in order if n in needed), *(n for n in order if n not in needed))
