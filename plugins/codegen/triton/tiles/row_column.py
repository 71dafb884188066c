"""Reductions over both axes of one tensor in one pass: rows (``dx`` of a norm) and columns (``dweight``, ``dbias``).

``one_pass`` looks in a schedule for a kernel that walks rows and one that sums over those same rows, reading the same
tensors.  The first takes the sums along: each of its programs walks a share of the rows and stores the share's sums.
What the second kernel read is then those few sums in place of the tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch

from turret.ir.expr import Expr, load, loads, reduce, rewrite, walk
from turret.ir.index import Index, Var, product, unflatten
from turret.ir.program import Definition, Ref, StridedView, TensorDecl, used
from turret.ir.schedule import BufferPlan, Kernel, Schedule, Step, Store
from turret.plugins.codegen.triton.tiles.kernel import DeviceProperties
from turret.plugins.codegen.triton.tiles.split_kernel import scratch_tensor
from turret.plugins.codegen.triton.tiles.tiling import LONGEST_PLAIN

LEAST_ELEMENTS = 1 << 20
"""Smaller tensors lie in the cache when the second kernel reads them."""


def one_pass(schedule: Schedule, properties: DeviceProperties) -> Schedule:
    """The schedule with such pairs of kernels joined; the sums are new tensors of the program."""
    while (found := next(_pairs(schedule, properties), None)) is not None:
        first, second, parts = found
        if second < first:
            schedule = _postponed(schedule, second, first)
            first, second = first - 1, first
        schedule = _joined(schedule, first, second, parts)
    return schedule


def _kernel(schedule: Schedule, number: int) -> Kernel:
    step = schedule.steps[number]
    assert isinstance(step, Kernel), step
    return step


def _roots(kernel: Kernel) -> list[Expr]:
    return [root for store in kernel.stores for root in store.roots]


def _rows(kernel: Kernel) -> list[Expr]:
    return [node for node in walk(*_roots(kernel)) if node.op == "reduce"]


def _shape(loops: tuple[Var, ...]) -> list:
    return [v.extent for v in loops if v.extent != 1]


def _pairs(schedule: Schedule, properties: DeviceProperties) -> Iterator[tuple[int, int, int]]:
    """Numbers of a row kernel and of a column kernel that can go along, and shares of rows."""
    borders = {section.first for section in schedule.sections}
    for first, host in enumerate(schedule.steps):
        parts = _shares(host, properties)
        if not parts or not isinstance(host, Kernel):
            continue
        for second in _later_guests(schedule, first, host, borders):
            yield first, second, parts
        for second in _earlier_guests(schedule, first, host, borders):
            yield first, second, parts


def _later_guests(schedule: Schedule, at: int, host: Kernel, borders: set[int]) -> Iterator[int]:
    """Kernels behind a row kernel that read nothing which is made between the two."""
    made: set[str] = set()
    for number in range(at + 1, len(schedule.steps)):
        guest = schedule.steps[number]
        if number in borders or not isinstance(guest, (Kernel, StridedView)):
            return  # a call or a copy may write to what the guest would now read earlier
        if isinstance(guest, Kernel):
            if _fits(host, guest) and not made & {node.tensor for node in loads(*_roots(guest))}:
                yield number
            made |= {store.tensor for store in guest.stores}
        else:
            made.add(guest.tensor.name)


def _earlier_guests(schedule: Schedule, at: int, host: Kernel, borders: set[int]) -> Iterator[int]:
    """Kernels in front of a row kernel that can wait for it."""
    for number in range(at - 1, -1, -1):
        guest = schedule.steps[number]
        if number + 1 in borders or not isinstance(guest, (Kernel, StridedView)):
            return
        if isinstance(guest, Kernel) and _fits(host, guest) and _may_wait(schedule, number, guest, at):
            yield number


def _reads(step: Step) -> set[str]:
    return {node.tensor for node in loads(*_roots(step))} if isinstance(step, Kernel) else set(used(step))


def _may_wait(schedule: Schedule, guest: int, kernel: Kernel, host: int) -> bool:
    """Whether a kernel may run after a later one: nobody reads its results before, and what it reads is kept."""
    steps, buffers = schedule.steps, schedule.memory.buffers
    made = {store.tensor for store in kernel.stores}
    if any(made & _reads(step) for step in steps[guest + 1 : host + 1]):
        return False
    gone = {name for k in range(guest, host) for name in schedule.memory.dead_after.get(k, ())}
    in_arena = {n for n in _reads(kernel) if n in buffers and buffers[n].arena_offset is not None}
    later = frozenset().union(*map(_reads, steps[host:]))
    return not gone & _reads(kernel) and in_arena <= later  # else the arena may hold something else by then


def _postponed(schedule: Schedule, guest: int, host: int) -> Schedule:
    """The schedule with a kernel moved behind a later one, and what both read kept that long."""
    steps, dead = schedule.steps, schedule.memory.dead_after
    order = [*range(guest), *range(guest + 1, host + 1), guest, *range(host + 1, len(steps))]
    after = {number: dead[old] for number, old in enumerate(order) if old in dead and old not in (guest, host)}
    last = (*dead.get(host, ()), *dead.get(guest, ()))
    if last:
        after[host] = last
    memory = attrs.evolve(schedule.memory, dead_after=after)
    return attrs.evolve(schedule, steps=tuple(steps[old] for old in order), memory=memory)


def _shares(host: Step, properties: DeviceProperties) -> int:
    """Into how many shares to divide the rows of a kernel; 0 where it does not qualify."""
    if not isinstance(host, Kernel) or _has_updates(host):
        return 0
    inner, outer = product(v.extent for v in host.inner), product(v.extent for v in host.outer)
    if not (isinstance(inner, int) and isinstance(outer, int)) or not host.inner or inner * outer < LEAST_ELEMENTS:
        return 0
    if inner > LONGEST_PLAIN or any(node.op == "scan" for node in walk(*_roots(host))):
        return 0
    if not all(node.payload.variables == host.inner for node in _rows(host)):
        return 0
    most = min(2 * properties.multiprocessors, outer // 8)
    return next((p for p in range(most, properties.multiprocessors - 1, -1) if outer % p == 0), 0)


def _fits(host: Kernel, guest: Kernel) -> bool:
    """Whether ``guest`` only sums, over the host's rows, values made of what the host reads or makes at that place."""
    if _shape(guest.outer) != _shape(host.inner) or _shape(guest.inner) != _shape(host.outer):
        return False
    rows = _rows(guest)
    if not rows or _has_updates(guest) or not all(_is_plain_sum(node, guest.inner) for node in rows):
        return False
    if any(set(guest.inner) & root.variables for root in _roots(guest)):
        return False
    return _reads_as_host(host, guest, rows)


def _has_updates(kernel: Kernel) -> bool:
    """Whether a kernel stores anything but plain results everywhere."""
    return any(store.mode is not None or store.condition is not None for store in kernel.stores)


def _is_plain_sum(node: Expr, loops: tuple[Var, ...]) -> bool:
    """Whether a reduction is a sum of floats over exactly these loops, of values without reductions or checks."""
    nested = any(inner.op in ("reduce", "scan", "check_index") for inner in walk(*node.args))
    is_sum = node.payload.kind == "sum" and node.payload.variables == loops
    return is_sum and not nested and node.dtype in (torch.float32, torch.float64)


def _reads_as_host(host: Kernel, guest: Kernel, rows: list[Expr]) -> bool:
    """Whether the sums ``rows`` are of what the host reads or makes, and nothing else of the guest is."""
    mapping = _mapping(host, guest)
    values = _values(host)
    read = [n for node in rows for n in loads(rewrite(node.args[0], mapping))]
    made = {store.tensor for store in host.stores}
    if any(node.tensor in made and node not in values for node in read):
        return False
    if made & {n.tensor for root in _roots(guest) for n in loads(rewrite(root, replace=_without(rows)))}:
        return False
    wide = [n for n in read if set(host.inner) & n.variables and set(host.outer) & n.variables]
    return bool(wide) and set(wide) <= {*loads(*_roots(host)), *values}


def _without(rows: list[Expr]):
    """A replacement that leaves reductions out of sight."""
    return lambda node: Expr.make("const", (), node.dtype, 0.0) if node in rows else None


def _values(host: Kernel) -> dict[Expr, Expr]:
    """What a load of a tensor that the host makes would give, at the place where it is made."""
    return {load(s.tensor, s.coords, s.expr.dtype): s.expr for s in host.stores}


def _mapping(host: Kernel, guest: Kernel) -> dict[Var, Index]:
    """The guest's loops as the host's."""
    mapping: dict[Var, Index] = {}
    for mine, theirs in ((guest.outer, host.inner), (guest.inner, host.outer)):
        kept = [v for v in theirs if v.extent != 1]
        for variable in mine:
            mapping[variable] = kept.pop(0).index if variable.extent != 1 else Index.constant(0)
    return mapping


def _joined(schedule: Schedule, first: int, second: int, parts: int) -> Schedule:
    host, guest = _kernel(schedule, first), _kernel(schedule, second)
    outer = tuple(v for v in host.outer if v.extent != 1)
    share = Var("share", parts)
    row = Var("row", product(v.extent for v in outer) // parts)
    linear = share.index * row.extent + row
    places = dict(zip(outer, unflatten(linear, tuple(v.extent for v in outer)), strict=True))
    onto = {v: i.substitute(places) for v, i in _mapping(host, guest).items()}
    columns = tuple(v for v in guest.outer if v.extent != 1)
    values = _values(host)
    mapping = _mapping(host, guest)
    sums: list[Store] = []
    wholes: dict[Expr, Expr] = {}
    tensors: list[TensorDecl] = []
    for node in _rows(guest):
        name = f"{guest.name}.across{len(tensors)}"
        device = schedule.program.declarations()[guest.stores[0].tensor].device
        decl = scratch_tensor(name, (parts, *(v.extent for v in columns)), node.dtype, device)
        tensors.append(decl)
        place = (share.index, *(onto[v] for v in columns))
        value = rewrite(rewrite(node.args[0], mapping), replace=values.get)
        sums.append(Store(name, place, rewrite(value, places), "sum"))
        wholes[node] = reduce("sum", (share,), load(name, (share.index, *(v.index for v in columns)), node.dtype))
    walked = attrs.evolve(
        host,
        outer=(share, row),
        stores=(*(s.changed(lambda expr: rewrite(expr, places), places) for s in host.stores), *sums),
        origins=tuple(dict.fromkeys((*host.origins, *guest.origins))),
        sources=tuple(dict.fromkeys((*host.sources, *guest.sources))),
    )
    finish = attrs.evolve(
        guest,
        inner=(share,),
        stores=tuple(attrs.evolve(s, expr=rewrite(s.expr, replace=wholes.get)) for s in guest.stores),
    )
    steps = list(schedule.steps)
    steps[first], steps[second] = walked, finish
    kept = tuple(s for s in walked.stores if _is_wanted(s.tensor, schedule, [x for x in steps if x is not walked]))
    steps[first] = attrs.evolve(walked, stores=kept)
    return _with_tensors(attrs.evolve(schedule, steps=tuple(steps)), tensors, finish, second)


def _is_wanted(tensor: str, schedule: Schedule, others: list[Step]) -> bool:
    """Whether anything but the sums that now go along reads what a kernel stores."""
    if any(isinstance(o, Ref) and o.name == tensor for o in schedule.program.outputs):
        return True
    if any(plan.reuses == tensor for plan in schedule.memory.buffers.values()):
        return True
    return any(tensor in ({n.tensor for n in loads(*_roots(s))} if isinstance(s, Kernel) else used(s)) for s in others)


def _with_tensors(schedule: Schedule, tensors: list[TensorDecl], reader: Kernel, dead: int) -> Schedule:
    """The schedule with tensors of their own allocation, freed after step ``dead``."""
    made = []
    for decl in tensors:
        loops = tuple(Var(f"i{k}", extent) for k, extent in enumerate(decl.shape))
        zero = Expr.make("const", (), decl.dtype, 0.0)
        made.append(Definition(decl, loops, zero, reader.origins))
    program = attrs.evolve(schedule.program, statements=(*schedule.program.statements, *made))
    memory = schedule.memory
    buffers = {**memory.buffers, **{d.name: BufferPlan(d, product(d.shape) * d.dtype.itemsize) for d in tensors}}
    after = {**memory.dead_after, dead: (*memory.dead_after.get(dead, ()), *(d.name for d in tensors))}
    return attrs.evolve(schedule, program=program, memory=attrs.evolve(memory, buffers=buffers, dead_after=after))
