"""Dependencies between the steps of a program, and their order."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping

import attrs

from turret.graph.externs import may_return_alias
from turret.graph.op_traits import has_registered_effect, is_collective
from turret.ir import CopyInto, Extern, LoopProgram, StridedView, bound_symbols, defined, mentioned_symbols
from turret.plugins.schedule.fusion.groups import Group
from turret.plugins.schedule.fusion.units import Unit
from turret.torch_compat.operators.ops import HigherOrderOperator


@attrs.define(eq=False)
class StepGraph:
    """Units and what must come before what.

    ``readers``: units that read a tensor, by name; ``after``: units that must come later than a unit.
    ``steps``: units that have been joined, in an order that keeps dependencies; ``places``: where in it a unit is.
    A place whose units were joined to others' is left empty.
    """

    units: dict[int, Unit]
    readers: dict[str, list[int]]
    after: dict[int, list[int]]
    steps: list[list[int]] = attrs.field(init=False)
    places: dict[int, int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.steps = [[number] for number in sorted(self.units)]  # program order keeps dependencies
        self.places = {number: place for place, (number,) in enumerate(self.steps)}

    def would_cycle(self, first: Group, second: Group) -> bool:
        """Whether a third step lies on a way from one group to the other."""
        early, late = sorted((self.places[first.first], self.places[second.first]))
        return any(self.places[n] == late for place in self._between(early, late) for n in self._later(place))

    def join(self, first: Group, second: Group) -> None:
        """Make one step of two groups between which no other lies.

        What comes between them in the order, and depends on the earlier one, moves behind it."""
        early, late = sorted((self.places[first.first], self.places[second.first]))
        dependent = set(self._between(early, late))
        window = range(early + 1, late)
        order = [self.steps[p] for p in window if p not in dependent]
        order.append(self.steps[early] + self.steps[late])
        order += [self.steps[p] for p in window if p in dependent]
        order.append([])
        for place, step in enumerate(order, early):
            self.steps[place] = step
            self.places.update(dict.fromkeys(step, place))

    def _between(self, early: int, late: int) -> Iterator[int]:
        """Places before ``late`` of the steps that depend on the step at ``early``, as they are found."""
        found: set[int] = set()
        stack = [early]
        while stack:
            for number in self._later(stack.pop()):
                place = self.places[number]
                if early < place < late and place not in found:
                    found.add(place)
                    stack.append(place)
                    yield place

    def _later(self, place: int) -> Iterator[int]:
        """Units that must come later than some unit of a step."""
        for number in self.steps[place]:
            yield from self.after[number]

    def connected(self, first: Group, second: Group) -> bool:
        """Whether one group uses a value of the other."""
        numbers = {m.unit.number for m in second.members}, {m.unit.number for m in first.members}
        return any(
            not other.isdisjoint(self.after[m.unit.number])
            for group, other in zip((first, second), numbers, strict=True)
            for m in group.members
        )


def build_graph(program: LoopProgram, units: list[Unit]) -> StepGraph:
    """Dependencies by value, by memory that is written to, and by the order of effects."""
    makers: dict[str, int] = {}
    readers: dict[str, list[int]] = defaultdict(list)
    after: dict[int, list[int]] = {unit.number: [] for unit in units}
    for unit in units:
        for name in unit.reads():
            readers[name].append(unit.number)
            if name in makers:
                after[makers[name]].append(unit.number)
        for decl in defined(unit.statement):
            makers[decl.name] = unit.number
    _order_writes(units, readers, after)
    _order_effects(units, after)
    _order_numbers(units, after)
    return StepGraph({unit.number: unit for unit in units}, dict(readers), after)


def memory_roots(units: list[Unit]) -> dict[str, frozenset[str]]:
    """Tensors whose memory a view, or a call's result that may alias, can share (by name, itself included)."""
    roots: dict[str, frozenset[str]] = {}

    def root(name: str) -> frozenset[str]:
        return roots.get(name, frozenset((name,)))

    for unit in units:
        statement = unit.statement
        if isinstance(statement, StridedView):
            roots[statement.tensor.name] = root(statement.base) | {statement.tensor.name}
        elif isinstance(statement, Extern) and may_return_alias(statement.op):
            shared = frozenset().union(*(root(name) for name in unit.reads()), frozenset())
            for decl in defined(statement):
                roots[decl.name] = shared | {decl.name}
    return roots


def _order_writes(units: list[Unit], readers: Mapping[str, list[int]], after: dict[int, list[int]]) -> None:
    """A write to a tensor's memory comes after what reads the old value and before what reads the new one."""
    roots = memory_roots(units)
    written: tuple[str, ...]
    for unit in units:
        statement = unit.statement
        if isinstance(statement, CopyInto):
            written = (statement.target,)
        elif isinstance(statement, Extern) and statement.mutates:
            written = statement.mutates
        else:
            continue
        memory = frozenset().union(*(roots.get(n, frozenset((n,))) for n in written))
        for name, numbers in readers.items():
            if memory.isdisjoint(roots.get(name, frozenset((name,)))):
                continue
            for number in numbers:
                if number < unit.number:
                    after[number].append(unit.number)
                elif number > unit.number:
                    after[unit.number].append(number)


def _order_effects(units: list[Unit], after: dict[int, list[int]]) -> None:
    """Calls that draw random numbers, or have other effects, keep their order."""
    last: int | None = None
    for unit in units:
        if isinstance(unit.statement, Extern) and _has_effect(unit.statement):
            if last is not None:
                after[last].append(unit.number)
            last = unit.number


def _order_numbers(units: list[Unit], after: dict[int, list[int]]) -> None:
    """What mentions an unbacked symbol comes after the call that gives it, and after checks of it."""
    bound = frozenset(symbol for unit in units for symbol in bound_symbols(unit.statement))
    if not bound:
        return
    before: dict[str, list[int]] = defaultdict(list)
    for unit in units:
        symbols = mentioned_symbols(unit.statement, unit.value) & bound
        for symbol in symbols:
            for number in before[symbol]:
                after[number].append(unit.number)
        statement = unit.statement
        checked = symbols if isinstance(statement, Extern) and not statement.outputs else ()
        for symbol in (*bound_symbols(statement), *checked):
            before[symbol].append(unit.number)


def _has_effect(extern: Extern) -> bool:
    import torch

    if isinstance(extern.op, HigherOrderOperator):
        return True
    tags = getattr(extern.op, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags or has_registered_effect(extern.op) or is_collective(extern.op):
        return True
    return extern.op._schema.is_mutable or not extern.outputs


def ordered(graph: StepGraph, groups: list[Group]) -> list[Group | Unit]:
    """Groups and single units in an order that keeps dependencies, as near to program order as they allow."""
    owner: dict[int, Group | Unit] = {n: unit for n, unit in graph.units.items() if not unit.is_loop}
    for group in groups:
        owner.update((m.unit.number, group) for m in group.members)
    numbers = {id(step): _first(step) for step in owner.values()}
    steps = {id(step): step for step in owner.values()}
    waiting, followers = _between_steps(graph, owner)
    ready = [(numbers[key], key) for key, before in waiting.items() if not before]
    heapq.heapify(ready)
    result: list[Group | Unit] = []
    while ready:
        _, key = heapq.heappop(ready)
        result.append(steps[key])
        for other in followers[key]:
            waiting[other].discard(key)
            if not waiting[other]:
                heapq.heappush(ready, (numbers[other], other))
    if len(result) != len(steps):
        raise RuntimeError("fusion made a cycle between steps")
    return result


def _between_steps(
    graph: StepGraph, owner: Mapping[int, Group | Unit]
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """For each step by its id, the steps that have to come before it, and those that have to come after it."""
    waiting: dict[int, set[int]] = {id(step): set() for step in owner.values()}
    followers: dict[int, set[int]] = {key: set() for key in waiting}
    for number, later in graph.after.items():
        for other in later:
            before, after = id(owner[number]), id(owner[other])
            if before != after:
                waiting[after].add(before)
                followers[before].add(after)
    return waiting, followers


def _first(step: Group | Unit) -> int:
    return step.last if isinstance(step, Group) else step.number
