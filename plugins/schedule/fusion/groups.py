"""Groups: definitions that share one loop nest, and when two groups may become one.

A group has ``outer`` loops (independent) and ``inner`` loops (the row that its reductions run along, empty for
pointwise).  Each member's variables are indices over these loops.  Two groups fuse if one's loops can be
expressed in the other's so that every value handed between them is read at the very point where it is made.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

import attrs

from turret.ir import Expr, Index, Var, flatten, product, unflatten
from turret.ir.expr import loads, rewrite
from turret.plugins.schedule.fusion.roundings import skip_rounding
from turret.plugins.schedule.fusion.units import Unit, expression_size

Mapping_ = Mapping[Var, Index]


@attrs.frozen(eq=False)
class Member:
    """A unit in a group: its own variables (rows included) as indices over the group's loops."""

    unit: Unit
    mapping: dict[Var, Index]

    @functools.cached_property
    def position(self) -> tuple[Index, ...]:
        """Where in its tensor the member writes, at a point of the group's loops."""
        return tuple(self.mapping[v] for v in self.unit.variables)

    @functools.cached_property
    def taken(self) -> tuple[tuple[str, tuple[Index, ...] | None], ...]:
        """Tensors that the member loads, each with where; None where the program computes the coordinates."""
        return tuple(
            (
                node.tensor,
                None if any(c.values for c in node.coords) else tuple(c.substitute(self.mapping) for c in node.coords),
            )
            for node in loads(self.unit.expr)
        )


@attrs.frozen(eq=False)
class Group:
    """Units of one future kernel, in program order."""

    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    members: tuple[Member, ...]

    @functools.cached_property
    def made(self) -> dict[str, Member]:
        """Members by the tensor that they make."""
        return {m.unit.tensor.name: m for m in self.members}

    @functools.cached_property
    def reads(self) -> frozenset[str]:
        """Names of the tensors that members load, those of other members included."""
        return frozenset(name for m in self.members for name in m.unit.reads())

    @functools.cached_property
    def size(self) -> int:
        """Expression nodes, before members' values are put together."""
        return sum(expression_size(m.unit.expr) for m in self.members)

    @functools.cached_property
    def places(self) -> dict[str, list[tuple[Index, ...]]]:
        """Coordinates over the loops at which the group makes or loads each tensor."""
        found: dict[str, dict[tuple[Index, ...], None]] = {}
        for member in self.members:
            found.setdefault(member.unit.tensor.name, {})[member.position] = None
            for name, coords in member.taken:
                if coords is not None:
                    found.setdefault(name, {})[coords] = None
        return {name: list(coords) for name, coords in found.items()}

    @functools.cached_property
    def matrix_products(self) -> int:
        """How many products of matrices are among the members."""
        return sum(m.unit.is_matrix_product for m in self.members)

    @property
    def loops(self) -> tuple[Var, ...]:
        return self.outer + self.inner

    @property
    def first(self) -> int:
        return self.members[0].unit.number

    @property
    def last(self) -> int:
        return self.members[-1].unit.number


def start(unit: Unit) -> Group:
    """The group of one unit alone."""
    outer = tuple(v for v in unit.variables if not (unit.scans and v in unit.rows))
    mapping = {v: v.index for v in (*unit.variables, *unit.rows)}
    return Group(outer, unit.rows, (Member(unit, mapping),))


def fuse(host: Group, guest: Group) -> Group | None:
    """Both as one group over the host's loops, or None where no legal alignment is found."""
    if guest.inner and not host.inner:
        host, guest = guest, host
    for alignment in _alignments(host, guest):
        moved = tuple(Member(m.unit, {v: i.substitute(alignment) for v, i in m.mapping.items()}) for m in guest.members)
        if not all(_still_scans(m) for m in moved):
            continue
        guest_moved = Group(host.outer, host.inner, moved)
        if _handed_on_in_place(host, guest_moved) and _handed_on_in_place(guest_moved, host):
            merged = sorted((*host.members, *moved), key=lambda m: m.unit.number)
            return Group(host.outer, host.inner, tuple(merged))
    return None


def _still_scans(member: Member) -> bool:
    """Whether a scan, if the member is one, runs along one loop of the group, from one end to the other."""
    if not member.unit.scans:
        return True
    (row,) = member.unit.rows
    along = member.mapping[row].single_variable
    return along is not None and along.extent == row.extent


def _alignments(host: Group, guest: Group) -> Iterator[dict[Var, Index]]:
    """Ways to express the guest's loops in the host's: from the values they share, then by shape alone."""
    seen: list[dict[Var, Index]] = []
    for alignment in (*_from_links(host, guest), *_by_shape(host, guest)):
        if alignment not in seen and _covers(host, guest, alignment):
            seen.append(alignment)
            yield alignment


def _by_shape(host: Group, guest: Group) -> Iterator[dict[Var, Index]]:
    if guest.inner:
        outer, inner = _reshape(guest.outer, host.outer), _reshape(guest.inner, host.inner)
        if outer is not None and inner is not None:
            yield {**outer, **inner}
        return
    for loops in (host.loops, host.inner + host.outer, host.outer):
        found = _reshape(guest.loops, loops)
        if found is not None:
            yield found


def _reshape(loops: tuple[Var, ...], onto: tuple[Var, ...]) -> dict[Var, Index] | None:
    """Loops as row-major coordinates of the same count of points in other loops."""
    extents = tuple(v.extent for v in loops)
    others = tuple(v.extent for v in onto)
    if product(extents) != product(others):
        return None
    if extents == others:
        return {v: o.index for v, o in zip(loops, onto, strict=True)}
    linear = flatten([v.index for v in onto], others)
    return dict(zip(loops, unflatten(linear, extents), strict=True))


def _from_links(host: Group, guest: Group) -> Iterator[dict[Var, Index]]:
    """Alignments under which some tensor is met at the same place by both groups."""
    for name, guest_coords in guest.places.items():
        for theirs in guest_coords:
            for ours in host.places.get(name, ()):
                alignment = _solve(host, guest, theirs, ours)
                if alignment is not None:
                    yield alignment


def _solve(host: Group, guest: Group, theirs: tuple[Index, ...], ours: tuple[Index, ...]) -> dict[Var, Index] | None:
    """Loops of the guest such that coordinates ``theirs`` become ``ours``; leftover loops by extent, in order."""
    alignment: dict[Var, Index] = {}
    for their, our in zip(theirs, ours, strict=True):
        variable = their.single_variable
        if variable is None:
            if their is our and their.is_constant:
                continue
            return None
        if alignment.setdefault(variable, our) is not our:
            return None
    taken = frozenset().union(*(i.variables for i in alignment.values())) if alignment else frozenset()
    free = [v for v in host.loops if v not in taken and v.extent != 1]
    for variable in guest.loops:
        if variable in alignment:
            continue
        if variable.extent == 1:
            alignment[variable] = Index.constant(0)
            continue
        fit = next((v for v in free if v.extent == variable.extent), None)
        if fit is None:
            return None
        free.remove(fit)
        alignment[variable] = fit.index
    return alignment


def _covers(host: Group, guest: Group, alignment: Mapping_) -> bool:
    """Whether each point of the guest's loops is one point of the host's loops, or of its outer loops alone."""
    if set(alignment) != set(guest.loops):
        return False

    def onto(loops: tuple[Var, ...], targets: tuple[Var, ...]) -> bool:
        return _is_onto(loops, targets, alignment, (targets, host.inner + host.outer))

    if guest.inner:
        return onto(guest.outer, host.outer) and onto(guest.inner, host.inner)
    return onto(guest.loops, host.loops) or (bool(host.inner) and onto(guest.loops, host.outer))


def _is_onto(
    loops: tuple[Var, ...], targets: tuple[Var, ...], alignment: Mapping_, orders: Iterable[tuple[Var, ...]]
) -> bool:
    """Whether an alignment is one to one between points of ``loops`` and of ``targets``, as far as can be seen.

    It is where each loop is a plain variable of its own extent (12 x 3 has as many points as 6 x 6, and not the same
    ones), and where the loops are the coordinates of points in one of some row-major orders.
    """
    used = frozenset().union(*(alignment[v].variables for v in loops))
    wanted = {v for v in targets if v.extent != 1}
    if used != wanted or product(v.extent for v in loops) != product(v.extent for v in targets):
        return False
    if all(v.extent == 1 or _extent(alignment[v].single_variable) == v.extent for v in loops):
        return True
    return any(_are_coordinates(loops, alignment, order) for order in orders)


def _are_coordinates(loops: tuple[Var, ...], alignment: Mapping_, order: tuple[Var, ...]) -> bool:
    """Whether an alignment gives the coordinates in ``loops`` of points in a row-major order, as a whole or in parts.

    Coordinates that come to the number of a point are its own if all but the first lie within their extents: places 0
    to 127 of a first row of 64 come to the same numbers as two rows do. An extent of 0 leaves no point to be elsewhere.
    """

    def are(ours: list[Var], theirs: list[Var]) -> bool:
        within = all(v.extent == 0 or alignment[v] % v.extent == alignment[v] for v in ours[1:])
        number = flatten([alignment[v] for v in ours], [v.extent for v in ours])
        return within and number == flatten([v.index for v in theirs], [v.extent for v in theirs])

    ours, theirs = ([v for v in variables if v.extent != 1] for variables in (loops, order))
    return are(ours, theirs) or all(are(*part) for part in _parts(ours, theirs))


def _parts(ours: list[Var], theirs: list[Var]) -> Iterator[tuple[list[Var], list[Var]]]:
    """Loops with variables of as many points, as few as possible at a time."""
    while ours or theirs:
        counts = sorted(((m, n) for m in range(1, len(ours) + 1) for n in range(1, len(theirs) + 1)), key=sum)
        alike = ((m, n) for m, n in counts if _points(ours[:m]) == _points(theirs[:n]))
        taken, given = next(alike, (len(ours), len(theirs)))
        yield ours[:taken], theirs[:given]
        ours, theirs = ours[taken:], theirs[given:]


def _points(variables: list[Var]) -> object:
    return product(v.extent for v in variables)


def _extent(variable: Var | None) -> object:
    return None if variable is None else variable.extent


def _handed_on_in_place(maker: Group, taker: Group) -> bool:
    """Whether every value that one group takes from the other, over the same loops, is taken where it is made."""
    if taker.reads.isdisjoint(maker.made):
        return True
    for member in taker.members:
        for name, coords in member.taken:
            source = maker.made.get(name)
            if source is not None and coords != source.position:
                return False
    return True


def values(group: Group, elide_casts: bool) -> dict[str, Expr]:
    """Each member's value at a point of the group's loops, members' values put in place of their loads.

    Reductions bind the group's inner loops themselves, so what a row needs inside and outside of a reduction is
    the same node.
    """
    made: dict[str, Expr] = {}

    def replace(node: Expr) -> Expr | None:
        if node.op == "load":
            return made.get(node.tensor)
        return skip_rounding(node) if elide_casts else None

    for member in group.members:
        unit = member.unit
        rebind = (unit.rows, group.inner) if unit.rows and not unit.scans else None
        made[unit.tensor.name] = rewrite(unit.expr, member.mapping, replace, rebind)
    return made
