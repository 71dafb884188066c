"""From groups and statements to steps."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence

import attrs

from turret.ir import Definition, Kernel, Scatter, Step, Store, Var, load
from turret.plugins.schedule.fusion.groups import Group, values
from turret.plugins.schedule.fusion.inline import at
from turret.plugins.schedule.fusion.units import Unit


@attrs.frozen(eq=False)
class StepMaker:
    """Makes the steps of groups and single units, each once; kernels get their numbers when the order is known."""

    readers: Mapping[str, Sequence[int]]
    groups: Mapping[int, Group]
    needed: frozenset[str]
    elide_casts: bool
    _made: dict[Group | Unit, tuple[Step, ...]] = attrs.field(factory=dict, init=False)

    def stored(self, group: Group) -> frozenset[str]:
        """Tensors of a group that must be written to memory: others read them."""
        return frozenset(
            name
            for name in group.made
            if name in self.needed or any(self.groups.get(n) is not group for n in self.readers.get(name, ()))
        )

    def steps(self, item: Group | Unit) -> tuple[Step, ...]:
        """The steps of a group or of a statement that is no loop."""
        if item not in self._made:
            self._made[item] = self._steps(item)
        return self._made[item]

    def _steps(self, item: Group | Unit) -> tuple[Step, ...]:
        if isinstance(item, Group):
            return (kernel_of(item, self.stored(item), "", self.elide_casts),)
        if isinstance(item.statement, Scatter):
            return _scatter(item)
        assert not isinstance(item.statement, Definition)
        return (item.statement,)


def kernel_of(group: Group, stored: Container[str], name: str, elide_casts: bool) -> Kernel:
    """The kernel of a group: the members in ``stored`` are written to memory."""
    made = values(group, elide_casts)
    stores = tuple(
        Store(m.unit.tensor.name, m.position, made[m.unit.tensor.name])
        for m in group.members
        if m.unit.tensor.name in stored
    )
    loops = [member.unit.loop for member in group.members]
    origins = tuple(dict.fromkeys(origin for loop in loops for origin in loop.origins))
    sources = tuple(dict.fromkeys(loop.source for loop in loops if loop.source))
    return Kernel(name, group.outer, group.inner, stores, origins, sources)


def _scatter(unit: Unit) -> tuple[Step, ...]:
    """Two kernels: the initial values, then the scatter on top of them."""
    statement = unit.statement
    assert isinstance(statement, Scatter)
    loops = tuple(Var(f"i{k}", extent) for k, extent in enumerate(statement.tensor.shape))
    coords = tuple(v.index for v in loops)
    name = statement.tensor.name
    value = load(statement.initial, coords, statement.tensor.dtype) if unit.fill is None else at(unit.fill, coords)
    initial = Store(name, coords, value)
    sources = (statement.source,) if statement.source else ()
    write = Store(name, statement.coords, statement.expr, statement.mode, statement.condition)
    return (
        Kernel("", loops, (), (initial,), statement.origins),
        Kernel("", statement.variables, (), (write,), statement.origins, sources),
    )


def numbered(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps with kernels named in the order in which they run."""
    result: list[Step] = []
    count = 0
    for step in steps:
        if isinstance(step, Kernel):
            step = attrs.evolve(step, name=kernel_name(count, step.origins))
            count += 1
        result.append(step)
    return tuple(result)


def kernel_name(number: int, origins: tuple[str, ...]) -> str:
    """A name that says what the kernel does: its number and the first few ops it came from."""
    stems = dict.fromkeys(re.sub(r"_\d+$", "", origin) for origin in origins)
    return "_".join([f"k{number}", *list(stems)[-4:]])[:60]
