"""The schedule: fused kernels and extern calls in order, where tensors lie, and why.

A kernel iterates over ``outer`` (independent iterations) and, inside each, over ``inner`` (the row that
reductions run along).  Its stores' expressions contain the reductions; an expression met both inside a
reduction over ``inner`` and outside it is the same node, so a code generator sees which values of a row are
needed more than once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Literal

import attrs
import torch

from turret.graph.obstacles import Obstacle, border_text
from turret.hooks.text.notation import name_text, names_text, tail_text, value_text
from turret.ir.expr import Expr
from turret.ir.index import Index, Var
from turret.ir.program import CopyInto, Extern, LoopProgram, Number, ScatterMode, StridedView, Template, TensorDecl


@attrs.frozen(eq=False)
class Store:
    """``tensor[coords] (mode)= expr`` at every point of the loops that ``expr`` and ``coords`` mention.

    A store with no inner variable free happens once for each outer iteration, after the reductions it reads.
    ``mode`` None is a plain write of distinct elements; ``"sum"`` writes to each element the sum of ``expr`` over the
    last outer loop, which ``coords`` do not mention (a reduction across rows, of what rows are made of); else a
    scatter (elements may be hit more than once).
    """

    tensor: str
    coords: tuple[Index, ...]
    expr: Expr
    mode: ScatterMode | Literal["sum"] | None = None
    condition: Expr | None = None

    @property
    def roots(self) -> tuple[Expr, ...]:
        """The expressions evaluated for the store: value, values in the coordinates, and condition."""
        condition = () if self.condition is None else (self.condition,)
        return (self.expr, *(value for coord in self.coords for value in coord.values), *condition)

    def changed(self, change: Callable[[Expr], Expr], places: Mapping[Var, Index] | None = None) -> Store:
        """The store with every expression changed; ``places``: what ``change`` makes of loop variables, if anything."""
        return attrs.evolve(
            self,
            coords=tuple(coord.substitute(places or {}, change) for coord in self.coords),
            expr=change(self.expr),
            condition=None if self.condition is None else change(self.condition),
        )

    def __str__(self) -> str:
        where = "" if self.condition is None else f" where {self.condition}"
        equals = "=" if self.mode is None else f"{self.mode}="
        return f"{name_text(self.tensor)}[{', '.join(map(str, self.coords))}] {equals} {self.expr}{where}"


@attrs.frozen(eq=False)
class Kernel:
    """One fused loop nest: ``for outer: for inner: stores``.

    No load reads a tensor that the same kernel stores.  The memory plan may put a stored tensor into the memory of
    one that the kernel reads (``BufferPlan.reuses``): then each element is read by the iteration alone that writes
    it, by the store itself or stores before it, and a code generator keeps their order.
    """

    name: str
    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    stores: tuple[Store, ...]
    origins: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def reports(self) -> bool:
        """Whether it may end with an error for some data."""
        return any(root.reports for store in self.stores for root in store.roots)

    def __str__(self) -> str:
        loops = [f"for {v.name} < {v.extent}" for v in self.outer] + [f"row {v.name} < {v.extent}" for v in self.inner]
        head = f"kernel {name_text(self.name)} ({names_text(self.origins)}): {'; '.join(loops) or 'once'}"
        tail = tail_text(self, "name", "outer", "inner", "stores", "origins")
        return "\n".join([head + tail, *(f"    {store}" for store in self.stores)])


Step = Kernel | Extern | StridedView | CopyInto | Number


FusionKind = Literal["vertical", "horizontal", "epilogue", "prologue"]
"""How two groups hang together: one uses what the other makes, or both read something.  An epilogue is what uses a
matrix product, a prologue what makes an operand of one."""


@attrs.frozen(eq=False)
class FusionCandidate:
    """Two groups of definitions that could legally become one kernel.

    ``saved_bytes`` is memory traffic of both apart less that of both together (None: not known, symbolic);
    ``shared`` names the tensors concerned.  ``first`` and ``second`` are the kernels as they would be apart, built
    when asked for: most scores look at the bytes alone.
    """

    kind: FusionKind
    saved_bytes: int | None
    shared: tuple[str, ...]
    build_first: Callable[[], Kernel] = attrs.field(repr=False)
    build_second: Callable[[], Kernel] = attrs.field(repr=False)

    @functools.cached_property
    def first(self) -> Kernel:
        return self.build_first()

    @functools.cached_property
    def second(self) -> Kernel:
        return self.build_second()


@attrs.frozen
class FusionDecision:
    """A line of the printed schedule: what was or was not fused, bytes saved, and why."""

    first: str
    second: str
    made: bool
    saved_bytes: int | None
    reason: str

    def __str__(self) -> str:
        size = "?" if self.saved_bytes is None else str(self.saved_bytes)
        return f"{'fused' if self.made else 'apart'} {self.first} + {self.second}: {size} bytes, {self.reason}"


ProductForm = Literal["library", "padded", "rows", "tiles", "split", "loops", "onednn"]
"""How a matrix product is computed: by a call of the device's library; by a call on operands padded with zeros to sizes
that the library is fast for; as rows, where one operand is a vector, each element a sum along a row; in tiles, by
matrix instructions; in loops like any other reduction's, where the library's call costs more than the arithmetic; by a
call of oneDNN in place of BLAS's.
Convolutions: by a call, or in tiles, as products with the windows.
Attention: by a call, or split over the keys, the parts of which are put together by loops."""


@attrs.frozen(eq=False)
class ProductCandidate:
    """One way of computing a matrix product that a call in the program asks for.

    ``batch`` products of ``rows`` x ``depth`` by ``depth`` x ``columns`` (numbers for heuristics where a size is
    symbolic: ``is_static`` tells). ``groups``: the rows are in so many groups with a right operand for each (1: one
    for all rows), and ``ends`` is then the tensor of where each group ends. ``epilogue_bytes``: memory traffic of
    kernels that would have nothing left to do if what uses the result is computed along with it.
    ``prologue_bytes``: that of kernels that make an operand which is computed as the product reads it, and
    ``spared_bytes`` what the product itself reads less then. ``aligned_operands`` and ``aligned_result``: whether
    all rows of them begin at multiples of 16 bytes. ``padding_bytes``: memory traffic of padded copies, and
    of copies with rows side by side, where the form asks for them. ``schedule``: the product, those prologues and that
    epilogue as a schedule of their own, in this form, built when asked for.
    """

    form: ProductForm
    template: Template
    dtype: torch.dtype
    batch: int
    rows: int
    columns: int
    depth: int
    is_static: bool
    epilogue_bytes: int
    aligned_operands: bool
    aligned_result: bool
    padding_bytes: int
    build: Callable[[], Schedule] = attrs.field(repr=False)
    groups: int = 1
    ends: str | None = None
    prologue_bytes: int = 0
    spared_bytes: int = 0

    @functools.cached_property
    def schedule(self) -> Schedule:
        return self.build()

    @property
    def is_thin(self) -> bool:
        """Whether there are so few rows or columns that reading the other operand is all that takes time."""
        return min(self.rows, self.columns) <= 16

    @property
    def flops(self) -> int:
        return 2 * self.batch * self.rows * self.columns * self.depth

    @property
    def bytes(self) -> int:
        """Bytes of the operands and the result."""
        elements = self.rows * self.depth + self.groups * self.depth * self.columns + self.rows * self.columns
        return self.batch * elements * self.dtype.itemsize


@attrs.frozen(eq=False)
class AttentionCandidate:
    """One way of computing the attention of few queries that a call in the program asks for.

    ``heads`` of all samples together, each with ``queries`` over ``keys`` of ``width`` elements.  ``parts`` of the keys
    are computed side by side where the form is ``split``.  ``schedule``: the attention as a schedule of its own, built
    when asked for.
    """

    form: ProductForm
    template: Template
    dtype: torch.dtype
    heads: int
    queries: int
    keys: int
    width: int
    parts: int
    build: Callable[[], Schedule] = attrs.field(repr=False)
    is_static: bool = True

    @functools.cached_property
    def schedule(self) -> Schedule:
        return self.build()

    @property
    def bytes(self) -> int:
        """Bytes of the keys and values, were all of them read once."""
        return 2 * self.heads * self.keys * self.width * self.dtype.itemsize


@attrs.frozen
class ProductChoice:
    """A line of the printed schedule: how a product, or attention, is computed, and what each way takes, in
    microseconds."""

    product: str
    form: ProductForm
    costs: tuple[tuple[ProductForm, float], ...]

    @property
    def told(self) -> str:
        """The choice without the product that it was made for."""
        costs = ", ".join(f"{form} {microseconds!r} us" for form, microseconds in self.costs)
        return f"{self.form} of {costs}"

    def __str__(self) -> str:
        return f"product {name_text(self.product)}: {self.told}"


SEPARATE_BYTES = 4 << 20
"""On a GPU, buffers of at least so many bytes are allocated each for its own lifetime, as eager's are, so that a call
holds no more memory than it uses at a time; a kernel over as much takes longer than an allocation (3 us).  Smaller
ones share an arena."""


@attrs.frozen
class BufferPlan:
    """Where a tensor made by the program lies.

    ``arena_offset``: bytes from the start of the call's arena, or None for an allocation of its own (outputs,
    results of externs without an ``out`` variant).  ``bytes`` is None where symbolic.  ``reuses`` names a tensor
    whose memory it takes over exactly in place.
    """

    tensor: TensorDecl
    bytes: int | None
    arena_offset: int | None = None
    reuses: str | None = None


@attrs.frozen(eq=False)
class MemoryPlan:
    """All buffers, arena size in bytes, peak of live bytes, and after which step each buffer is dead.

    ``arena_spans``: from which step to which (both included) a GPU's arena is there, in order; empty for all of them.
    """

    buffers: dict[str, BufferPlan]
    arena_bytes: int = 0
    peak_bytes: int | None = None
    dead_after: dict[int, tuple[str, ...]] = attrs.field(factory=dict)
    arena_spans: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        spans = ", ".join(f"{first} to {last}" for first, last in self.arena_spans)
        lines = [f"  arena {self.arena_bytes} bytes{f' in steps {spans}' if spans else ''}, peak {self.peak_bytes}"]
        lines += [f"  buffer {name_text(name)}{tail_text(buffer, 'tensor')}" for name, buffer in self.buffers.items()]
        return "\n".join(lines)

    def overwrites(self, program: LoopProgram) -> dict[str, str]:
        """Outputs of the program that are made where the input lies which takes their elements."""
        pairs = program.overwritten.items()
        return {name: target for name, target in pairs if name in self.buffers and self.buffers[name].reuses == target}


@attrs.frozen
class ScheduleSection:
    """Steps ``first`` to ``last`` (both included) that are recorded together; or, with obstacles, not recorded.

    ``batch_symbols``: symbols that count samples which the steps treat one by one (``analysis.batch_symbols``).
    """

    first: int
    last: int
    obstacles: tuple[Obstacle, ...] = ()
    batch_symbols: tuple[str, ...] = ()

    @property
    def captured(self) -> bool:
        return not self.obstacles

    def __str__(self) -> str:
        return border_text(self.obstacles)


@attrs.frozen(eq=False)
class Schedule:
    """Steps in execution order over a program's tensors, the memory plan, and the decisions taken.

    ``choices``: how matrix products are computed, where there was a choice; those that are not calls are definitions
    of ``program``.
    ``sections``: all steps, where they are cut for graph capture; empty where they are not.  The memory of an arena is
    not read beyond the section that wrote it.
    """

    program: LoopProgram
    steps: tuple[Step, ...]
    memory: MemoryPlan
    decisions: tuple[FusionDecision, ...] = ()
    sections: tuple[ScheduleSection, ...] = ()
    choices: tuple[ProductChoice, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(step for step in self.steps if isinstance(step, Kernel))

    @property
    def externs(self) -> tuple[Extern, ...]:
        return tuple(step for step in self.steps if isinstance(step, Extern))

    @property
    def templates(self) -> tuple[Template, ...]:
        """Those of the externs that a code generator may write itself."""
        return tuple(step for step in self.steps if isinstance(step, Template))

    def __str__(self) -> str:
        counts = f"{len(self.kernels)} kernels, {len(self.externs)} externs"
        lines = [f"schedule {name_text(self.program.name)}:  # {counts}"]
        begins = {section.first: section for section in self.sections}
        for number, step in enumerate(self.steps):
            lines += [str(begins[number])] if number in begins else []
            lines += [f"  {step}"]
            lines += [f"  free {names_text(dead)}"] if (dead := self.memory.dead_after.get(number)) is not None else []
        lines += [f"  section {value_text(section)}" for section in self.sections]
        lines += [str(self.memory), *(f"  {line}" for line in (*self.choices, *self.decisions))]
        return "\n".join([*lines, str(self.program)])
