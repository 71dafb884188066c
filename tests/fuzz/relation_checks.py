"""Whether compiled code keeps the relations of a drawn program, each demanded where eager keeps it or by promise.

``Checker.check`` returns what is broken.  Within one call: claims, computed in the graph and again on its outputs;
outputs that are exact; gradients.  Between calls of one compiled function: the same call again, with another number of
threads, with rows in another order, with elements elsewhere.  Between compiled functions: sizes known or dynamic, other
strides, fewer rows, the same program in two graphs.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from torch import Tensor

from tests.fuzz.relation_claims import BOUNDS, SAME_VALUE
from tests.fuzz.relation_programs import Program, laid_out

Results = dict[str, Tensor]
Call = Callable[..., Results]
Compile = Callable[[Callable, bool, bool], Callable]
"""A function, whether its sizes are dynamic, and whether it must be one graph."""

WHATEVER_IS_ROUNDED = (*SAME_VALUE, *BOUNDS)
"""Claims that outputs of half types keep, too.  What compares results of arithmetic is kept within the graph alone: a
kernel goes on with what it has not rounded."""
ASKED_AGAIN = 12
"""How often eager is asked, with other data, before a relation is demanded of compiled code that broke it."""


@attrs.frozen
class Broken:
    """A relation that compiled code does not keep, and where."""

    relation: str
    detail: str


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same elements to the bit; one NaN is like another."""
    return one.shape == other.shape and one.dtype == other.dtype and not _differ(one, other).any()


def _differ(one: Tensor, other: Tensor) -> Tensor:
    if not one.dtype.is_floating_point:
        return one != other
    return ~((one == other) & (one.signbit() == other.signbit()) | one.isnan() & other.isnan())


def _where(one: Tensor, other: Tensor) -> str:
    """The first elements that differ, for people."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{one.shape} {one.dtype}, {other.shape} {other.dtype}"
    places = _differ(one, other).nonzero()
    some = [(tuple(p.tolist()), one[tuple(p)].item(), other[tuple(p)].item()) for p in places[:3]]
    return f"{len(places)} of {one.numel()} elements differ: {some}"


def run(call: Call, arguments: list[Tensor], program: Program) -> Results:
    """Results of a call, detached, and the gradient of ``w`` among them."""
    results = dict(call(*arguments))
    if program.gradient is not None:
        results["gradient"] = torch.autograd.grad(results.pop("loss"), arguments[-1])[0]
    return {name: value.detach() for name, value in results.items()}


@attrs.frozen
class Held:
    """Which relations of one call hold: by name, with what to say where they do not."""

    holds: dict[str, bool]
    told: dict[str, str]


def claims_of(program: Program, functions: dict[str, Any], results: Results) -> Held:
    """The claims of a program, as its graph computed them and as they are of its outputs; its gradient."""
    holds, told = {}, {}

    def note(name: str, held: Tensor, values: list[Tensor]) -> None:
        holds[name] = bool(held.all())
        if not holds[name]:
            at = [tuple(p.tolist()) for p in (~held).nonzero()[:3]]
            shown = [[v[p].item() for p in at] for v in values if v.shape == held.shape]
            told[name] = f"{int((~held).sum())} of {held.numel()} do not, at {at}: {shown}"

    for k, drawn in enumerate(program.claims):
        note(f"in the graph: {drawn.claim.name}", results[f"claim{k}_holds"], [])
        if drawn.kept and (program.dtype.itemsize > 2 or drawn.claim in WHATEVER_IS_ROUNDED):
            values = [results[f"v{k}_{j}"] for j in range(len(drawn.claim.values))]
            note(f"of outputs: {drawn.claim.name}", functions[f"claim{k}"](*values), values)
    if program.gradient is not None:
        values = [results["gradient"], results["wanted"]]
        note(f"gradient: of {program.gradient[0]}, {program.gradient[2]}", functions["gradient"](*values), values)
    return Held(holds, told)


class Checker:
    """The relations of one program.  ``broken`` collects, ``asked`` counts what was demanded."""

    def __init__(self, program: Program, compile_with: Compile, thorough: bool = True) -> None:
        self.program, self.compile_with, self.thorough = program, compile_with, thorough
        self.functions = program.functions()
        self.plain: Call = self.functions["program"]
        self.compiled: Call = compile_with(program.functions()["program"], program.dynamic, True)
        self.rng = random.Random(program.seed)
        self.broken: list[Broken] = []
        self.asked: dict[str, int] = {}
        self.pointwise, self.by_row = program.pointwise(), program.by_row()

    def check(self) -> list[Broken]:
        """All that is broken; nothing is asked of a program that eager refuses."""
        for number in range(2):
            arguments = self.program.make(number)
            try:
                want = run(self.plain, arguments, self.program)
            except RuntimeError:
                self.asked["refused by eager"] = 1
                return []
            got = run(self.compiled, arguments, self.program)
            self._claims(want, got)
            self._exact(want, got)
            self._calls(arguments, want, got)
            if number == 0 and self.thorough:
                self._compilations(arguments, got)
        return self.broken

    def _ask(self, relation: str, kept: bool, detail: str = "") -> None:
        kind = relation.partition(":")[0]
        self.asked[kind] = self.asked.get(kind, 0) + 1
        if not kept:
            self.broken.append(Broken(relation, detail))

    def _claims(self, want: Results, got: Results) -> None:
        wanted, found = (claims_of(self.program, self.functions, r) for r in (want, got))
        for name, held in wanted.holds.items():
            if held and (found.holds[name] or self._eager_always(name)):
                self._ask(name, found.holds[name], found.told.get(name, ""))

    def _eager_always(self, name: str) -> bool:
        """Whether a relation that compiled code broke is one that eager keeps, also with other data."""
        for number in range(2, 2 + ASKED_AGAIN):
            results = run(self.plain, self.program.make(number), self.program)
            if not claims_of(self.program, self.functions, results).holds[name]:
                return False
        return True

    def _exact(self, want: Results, got: Results) -> None:
        for line in self.program.exact:
            one, other = want[line.name], got[line.name]
            if one.dtype == other.dtype and one.dtype.is_floating_point and self._chooses_zeros():
                one, other = one + 0.0, other + 0.0
            self._ask(f"exact: {line.name} = {line.template}", same_bits(one, other), _where(one, other))

    def _chooses_zeros(self) -> bool:
        """Whether an exact value may be either zero: which of 0 and -0 is larger, eager has no rule for."""
        return any(
            re.search("maximum|minimum|clamp|amax|amin|sort|cummax|relu", e.template) for e in self.program.exact
        )

    def _same(self, relation: str, one: Results, other: Results, demanded: Callable[[str], bool]) -> None:
        """Demand that two results are the same to the bit."""
        for name in one:
            kept = same_bits(one[name], other[name])
            if kept or demanded(name):
                self._ask(f"{relation}: {self._told(name)}", kept, _where(one[name], other[name]))

    def _told(self, name: str) -> str:
        lines = {line.name: line for line in (*self.program.floats, *self.program.exact)}
        if name in lines:
            return f"{name} = {lines[name].template}"
        number = name.removeprefix("v").removeprefix("claim").partition("_")[0]
        return f"{name} of {self.program.claims[int(number)].claim.name}" if number.isdigit() else name

    # -- between calls ---------------------------------------------------------------------------------------------

    def _calls(self, arguments: list[Tensor], want: Results, got: Results) -> None:
        self._same("same call again", got, run(self.compiled, arguments, self.program), lambda name: True)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.rng.choice([n for n in (1, 2, 3, 4) if n != threads]))
        try:
            there, again = (run(call, arguments, self.program) for call in (self.compiled, self.plain))
        finally:
            torch.set_num_threads(threads)
        self._same("threads", got, there, lambda name: self._promised(name) or same_bits(want[name], again[name]))
        self._permuted(arguments, want, got)
        self._rolled(arguments, got)

    def _promised(self, name: str) -> bool:
        """Whether a value of one kernel must be the same wherever its elements lie."""
        return name in self.pointwise

    def _alike(self, name: str) -> bool:
        """Whether a value must be the same in other kernels.

        Sums are added up in a kernel's own order, and in half types steps within a kernel are not rounded.
        """
        return name in self.pointwise and self.program.dtype.itemsize > 2

    def _permuted(self, arguments: list[Tensor], want: Results, got: Results) -> None:
        """Rows in another order: the same rows come out, in that order."""
        axis, size = self.program.across, self.program.shape[self.program.across]
        order = torch.tensor(self.rng.sample(range(size), size))
        moved = []
        for argument, spec in zip(arguments, self.program.inputs, strict=False):
            along = argument.dim() == len(self.program.shape) and argument.shape[axis] == size
            moved.append(laid_out(argument.index_select(axis, order), spec.layout) if along else argument)
        moved += arguments[len(moved) :]
        names = [name for name in got if name in self.by_row]
        mine, eagers = (run(call, moved, self.program) for call in (self.compiled, self.plain))
        for name in names:
            if got[name].dim() != len(self.program.shape):
                continue
            expected, by_eager = got[name].index_select(axis, order), want[name].index_select(axis, order)
            kept = same_bits(expected, mine[name])
            if kept or self._promised(name) or same_bits(by_eager, eagers[name]):
                self._ask(f"rows in another order: {self._told(name)}", kept, _where(expected, mine[name]))

    def _rolled(self, arguments: list[Tensor], got: Results) -> None:
        """All elements elsewhere in vectors and in what is left over of them, which their results must not show."""
        names = [name for name in got if name in self.pointwise]
        if not names:
            return
        axis, size = self.program.rows, self.program.shape[self.program.rows]
        by = self.rng.randrange(size)
        moved = [
            laid_out(argument.roll(by, axis), spec.layout) if argument.dim() > 1 else argument
            for argument, spec in zip(arguments, self.program.inputs, strict=False)
        ]
        there = run(self.compiled, moved + arguments[len(moved) :], self.program)
        for name in names:
            expected = got[name].roll(by, axis)
            self._ask(
                f"elements elsewhere: {self._told(name)}",
                same_bits(expected, there[name]),
                _where(expected, there[name]),
            )

    # -- between compiled functions --------------------------------------------------------------------------------

    def _compilations(self, arguments: list[Tensor], got: Results) -> None:
        """Compile once more, in one of several ways."""
        ways: list[Callable[[list[Tensor], Results], None]] = [
            self._other_sizes, self._other_strides, self._fewer_rows, self._in_two_graphs,
        ]  # fmt: skip
        self.rng.choice(ways)(arguments, got)

    def _other_sizes(self, arguments: list[Tensor], got: Results) -> None:
        other = self.compile_with(self.program.functions()["program"], not self.program.dynamic, True)
        exact = {line.name for line in self.program.exact}
        there = run(other, arguments, self.program)
        self._same("static and dynamic", got, there, lambda name: name in exact or self._alike(name))

    def _other_strides(self, arguments: list[Tensor], got: Results) -> None:
        plain = [a.contiguous() for a in arguments]
        self._same("strides", got, run(self.compiled, plain, self.program), self._alike)

    def _fewer_rows(self, arguments: list[Tensor], got: Results) -> None:
        """Some of the rows alone: with dynamic sizes through the same code, which must add up in the same order."""
        axis, size = self.program.across, self.program.shape[self.program.across]
        first = self.rng.randrange(size)
        count = self.rng.choice([1, min(2, size - first), size - first])
        here = [
            a.narrow(axis, first, count) if a.dim() == len(self.program.shape) and a.shape[axis] == size else a
            for a in arguments
        ]
        here[len(self.program.inputs) - 1] = torch.zeros(count, dtype=torch.int64)
        if self.program.gradient is not None:
            here[-1] = here[-1].detach().requires_grad_()
        same_code = self.program.dynamic and count > 1
        call = self.compiled if self.program.dynamic else self.compile_with(self.functions["program"], False, True)
        there, eagers = (run(c, here, self.program) for c in (call, self.plain))
        want = run(self.plain, arguments, self.program)
        for name in [name for name in got if name in self.by_row]:
            mine, theirs = (r[name].narrow(axis, first, count) for r in (got, want))
            kept = same_bits(mine, there[name])
            if kept or self._alike(name) or (same_code and same_bits(theirs, eagers[name])):
                self._ask(f"fewer rows: {self._told(name)}", kept, _where(mine, there[name]))

    def _in_two_graphs(self, arguments: list[Tensor], got: Results) -> None:
        cut = attrs.evolve(self.program, cut=self.rng.randrange(9))
        other = self.compile_with(cut.functions()["program"], self.program.dynamic, False)
        exact = {line.name for line in self.program.exact}
        there = run(other, arguments, self.program)
        self._same("in two graphs", got, there, lambda name: name in exact or self._alike(name))


def shrunk(program: Program, relation: str, compile_with: Compile, attempts: int) -> Program:
    """A smaller program that breaks the same relation."""
    for _ in range(attempts):
        for smaller in _smaller(program):
            if attempts <= 0:
                return program
            attempts -= 1
            if _breaks(smaller, relation, compile_with):
                program = smaller
                break
        else:
            return program
    return program


def _breaks(program: Program, relation: str, compile_with: Compile) -> bool:
    try:
        return any(b.relation == relation for b in Checker(program, compile_with).check())
    except Exception:
        return False


def _smaller(program: Program) -> Iterator[Program]:
    """Programs with one thing less: a claim, the gradient, exact statements, an output, a statement."""
    for k in range(len(program.claims)):
        yield attrs.evolve(program, claims=program.claims[:k] + program.claims[k + 1 :])
    if program.gradient is not None:
        yield attrs.evolve(program, gradient=None)
    for name in program.outputs:
        yield attrs.evolve(program, outputs=tuple(o for o in program.outputs if o != name))
    used = {a for line in (*program.floats, *program.exact) for a in line.args} | set(program.outputs)
    used |= {a for drawn in program.claims for a in drawn.operands} | set((program.gradient or ())[3:])
    for group in ("exact", "floats"):
        lines = getattr(program, group)
        for k, line in enumerate(lines):
            if line.name not in used:
                yield attrs.evolve(program, **{group: lines[:k] + lines[k + 1 :]})
    for line in program.floats:
        if line.name not in program.outputs:
            yield _without(program, line.name, line.args[0])


def _without(program: Program, name: str, other: str) -> Program:
    """A program that reads ``other`` in the place of a statement's result."""

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(other if n == name else n for n in names)

    gradient = program.gradient
    return attrs.evolve(
        program,
        floats=tuple(attrs.evolve(line, args=renamed(line.args)) for line in program.floats if line.name != name),
        claims=tuple(attrs.evolve(d, operands=renamed(d.operands)) for d in program.claims),
        gradient=gradient and (*gradient[:3], *renamed(gradient[3:])),
    )
