"""From groups to kernels."""

from __future__ import annotations

import re
from collections.abc import Container

from turret.ir import Kernel, Store
from turret.plugins.schedule.groups import Group, values


def kernel_of(group: Group, stored: Container[str], name: str, elide_casts: bool) -> Kernel:
    """The kernel of a group: the members in ``stored`` are written to memory."""
    made = values(group, elide_casts)
    stores = tuple(
        Store(m.unit.tensor.name, m.position, made[m.unit.tensor.name])
        for m in group.members
        if m.unit.tensor.name in stored
    )
    origins = tuple(dict.fromkeys(o for m in group.members for o in m.unit.statement.origins))
    sources = tuple(dict.fromkeys(m.unit.statement.source for m in group.members if m.unit.statement.source))
    return Kernel(name, group.outer, group.inner, stores, origins, sources)


def kernel_name(number: int, origins: tuple[str, ...]) -> str:
    """A name that says what the kernel does: its number and the first few ops it came from."""
    stems = dict.fromkeys(re.sub(r"_\d+$", "", origin) for origin in origins)
    return "_".join([f"k{number}", *list(stems)[-4:]])[:60]
