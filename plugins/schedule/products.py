"""Matrix products and convolutions: which stay calls of the device's library and which become loops.

They are asked before fusion.  As loops a product is a definition like any other, a sum of products along a row, so
that what uses it is fused with it, its result needs no memory, and a code generator finds it again
(``turret.ir.analysis.contraction``).
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch

from turret.graph.dtypes import HALF, compute_dtype
from turret.hooks.context import CompileContext
from turret.hooks.devices import ProductCosts, ProductTime, device_for, uses_host_kernels
from turret.hooks.products import Target
from turret.ir import (
    Definition,
    Expr,
    Index,
    LoopProgram,
    ProductCandidate,
    ProductChoice,
    ProductForm,
    Ref,
    Scatter,
    Schedule,
    Size,
    Statement,
    StridedView,
    Template,
    TensorDecl,
    Var,
    call,
    cast,
    constant,
    defined,
    index_value,
    load,
    product,
    reduce,
    used,
    walk,
)
from turret.ir.expr import from_zero
from turret.ir.index import hinted
from turret.plugins.schedule.convolutions import Convolution, convolution
from turret.plugins.schedule.fusion.inline import MOST_DEQUANTISED
from turret.plugins.schedule.grouped import GroupedProduct, grouped_product
from turret.plugins.schedule.onednn import LEAST_OF_ONEDNN, Linear
from turret.plugins.schedule.operands import Declarations, Views, in_memory, loops_over
from turret.plugins.schedule.packed import PackedProduct, packed_product
from turret.plugins.schedule.prologues import Prologue, Prologues

_ATEN = torch.ops.aten
_ACCUMULATING = (_ATEN.addmm.default, _ATEN.baddbmm.default)
"""Products that a tensor is added to."""
_PLAIN = (_ATEN.mm.default, _ATEN.bmm.default, _ATEN.mv.default)

_DTYPES = HALF | {torch.float32, torch.float64}
ALIGNMENT = 16
"""Bytes that memory is loaded in at once."""
MOST_IN_LOOPS = 1 << 16
"""Multiply-adds of a product on the CPU that might be cheaper in loops than as a call."""
_MOST_EPILOGUE = 8
"""Definitions that are looked at to tell what a product's kernel would take along."""

Scheduler = Callable[[Any, LoopProgram, "Target | None"], Schedule]


@attrs.frozen(eq=False)
class MatrixProduct:
    """A call as a product: batches of ``left`` [rows, depth] times ``right`` [depth, columns].

    ``added`` (or None) times ``beta`` comes on top of the product times ``alpha``.  Of a matrix times a vector there is
    one column, which is no dimension of the result.
    """

    template: Template
    left: TensorDecl
    right: TensorDecl
    added: TensorDecl | None
    beta: float
    alpha: float

    @property
    def result(self) -> TensorDecl:
        (result,) = self.template.outputs
        assert result is not None
        return result

    @property
    def operands(self) -> tuple[TensorDecl, ...]:
        """The tensors that decide how the product is computed."""
        return tuple(d for d in (self.left, self.right, self.added) if d is not None)

    @property
    def factors(self) -> tuple[float, float]:
        """``beta`` and ``alpha``."""
        return self.beta, self.alpha

    @property
    def groups(self) -> int:
        return 1

    @property
    def forms(self) -> tuple[ProductForm, ...]:
        """What it can be computed as beside the library's call."""
        if self.linear is not None and self.linear.is_call:
            return ("onednn",)
        return (*self._kernels, "loops") if self._may_be_loops else self._kernels

    @property
    def linear(self) -> Linear | None:
        """The product as oneDNN might compute it on the host; None where it is another, or on another device."""
        beta = 1 if self.added is None else self.beta
        if (beta, self.alpha) != (1, 1) or not self.has_columns or not uses_host_kernels(self.result.device):
            return None
        return Linear(self.template, self.left, self.right, self.added)

    @property
    def _kernels(self) -> tuple[ProductForm, ...]:
        """The forms that a device's kernel of its own has."""
        batch, rows, columns, depth = self.extents
        if self.result.dtype == torch.float64:
            return ()
        if rows == 1 or columns == 1:
            # Rows that lie side by side are summed no faster than the library does it.
            matrix = self.right.stride[-2] if rows == 1 and self.has_columns else self.left.stride[-1]
            return ("rows",) if matrix == 1 else ()
        if self.result.dtype not in HALF:
            return ()
        static = all(isinstance(n, int) for n in (batch, rows, columns, depth))
        is_padded = static and len(self.left.shape) == 2 and padded_extents(self) != (rows, columns, depth)
        return ("tiles", "padded") if is_padded else ("tiles",)

    @property
    def _may_be_loops(self) -> bool:
        """Whether it may be less work than a call, where the host does the work."""
        # Fused, a product of halves would not be rounded to them, as eager's is.
        if device_for(self.result.device.type).asynchronous or self.result.dtype in HALF:
            return False
        total = product(self.extents)
        # Of nothing but a factor of 0 the library looks at no operand, whatever it holds.
        return isinstance(total, int) and total <= MOST_IN_LOOPS and self.alpha != 0

    @property
    def has_columns(self) -> bool:
        return self.template.op is not _ATEN.mv.default

    @property
    def extents(self) -> tuple[Size, Size, Size, Size]:
        """Batches, rows, columns and depth."""
        *batch, rows, depth = self.left.shape
        return product(batch), rows, self.right.shape[-1] if self.has_columns else 1, depth

    def definition(self, views: Views, declarations: Declarations) -> Definition:
        """The product as loops; what a view of another tensor shows is read where it lies."""
        *batch, _, depth = self.left.shape
        result = self.result
        outer = loops_over(result.shape)
        places = tuple(v.index for v in outer)
        along = Var("r0", depth)
        across = places[-1:] if self.has_columns else ()
        inner = compute_dtype(result.dtype)
        step = Index.constant(0) if depth == 1 else along.index

        def read(decl: TensorDecl, coords: Sequence[Index]) -> Expr:
            return cast(load(*in_memory(decl, coords, views, declarations), decl.dtype), inner)

        left = read(self.left, (*places[: len(batch) + 1], step))
        right = read(self.right, (*places[: len(batch)], step, *across))
        value = reduce("sum", (along,), call("mul", left, right))
        if depth == 1 and (batch or (self.added is None and (1 in result.shape or not self.has_columns))):
            # Where the library sums from zero, -0 becomes +0; a single term of a matrix it writes as it is.
            value = from_zero(value)
        if self.alpha != 1:
            value = call("mul", value, constant(self.alpha, inner))
        if self.added is not None:
            own = places[len(places) - len(self.added.shape) :]
            coords = [Index.constant(0) if n == 1 else i for i, n in zip(own, self.added.shape, strict=True)]
            added = read(self.added, coords)
            value = call("add", value, added if self.beta == 1 else call("mul", added, constant(self.beta, inner)))
        value = cast(value, result.dtype)
        return Definition(result, outer, value, self.template.origins, self.template.source)


@attrs.define
class Padding:
    """Operands of products padded with zeros; each once, however many products want it.

    ``statements`` are the definitions and views to be put in front of the product under way.
    """

    views: Views
    declarations: Declarations
    statements: list[Statement] = attrs.field(factory=list)
    origins: tuple[str, ...] = ()
    _made: dict[Any, TensorDecl] = attrs.field(factory=dict)

    def product(self, found: MatrixProduct) -> tuple[Statement, ...]:
        """A product as a call on padded operands, with what that takes before and behind it."""
        rows, columns, depth = padded_extents(found)
        result, self.origins = found.result, found.template.origins
        arguments = [self._padded(found.left, (rows, depth)), self._padded(found.right, (depth, columns))]
        if found.template.op in _ACCUMULATING:
            added = self.declarations[found.template.args[0].name]
            wide = (rows, columns)[2 - len(added.shape) :]
            shape = tuple(n if n == 1 else w for n, w in zip(added.shape, wide, strict=True))
            arguments.insert(0, self._padded(added, shape))
        behind: tuple[Statement, ...] = ()
        if (rows, columns) != result.shape:
            whole = TensorDecl(self._name(result), (rows, columns), (columns, 1), result.dtype, result.device)
            loops = loops_over(result.shape)
            value = load(whole.name, loops, result.dtype)
            behind = (Definition(result, loops, value, found.template.origins, found.template.source),)
            result = whole
        refs = tuple(Ref(decl.name) for decl in arguments) + found.template.args[len(arguments) :]
        before, self.statements = tuple(self.statements), []
        return (*before, attrs.evolve(found.template, args=refs, outputs=(result,)), *behind)

    def _name(self, decl: TensorDecl) -> str:
        taken = self.declarations.keys() | {made.name for made in self._made.values()}
        names = (f"{decl.name}_padded{number}" for number in itertools.count())
        return next(name for name in names if name not in taken)

    def _padded(self, decl: TensorDecl, shape: tuple[int, ...]) -> TensorDecl:
        """A tensor with zeros behind its elements, laid out as it is itself."""
        if decl.shape == shape:
            return decl
        turned = len(shape) == 2 and decl.stride[0] == 1 and decl.stride[1] != 1
        laid = shape[::-1] if turned else shape
        loops = loops_over(laid)
        coords = [v.index for v in (loops[::-1] if turned else loops)]
        base, place = in_memory(decl, coords, self.views, self.declarations)
        key = (base, tuple(map(str, place)), laid)
        if key not in self._made:
            self._made[key] = self._definition(decl, base, place, loops, laid, coords)
        made = self._made[key]
        return self._turned(made, decl) if turned else made

    def _definition(
        self,
        decl: TensorDecl,
        base: str,
        place: tuple[Index, ...],
        loops: tuple[Var, ...],
        laid: tuple[int, ...],
        coords: Sequence[Index],
    ) -> TensorDecl:
        made = TensorDecl(self._name(decl), laid, (*laid[1:], 1), decl.dtype, decl.device)
        inside = constant(True, torch.bool)
        for index, extent in zip(coords, decl.shape, strict=True):
            if index.single_variable is not None and index.single_variable.extent != extent:
                inside = call("logical_and", inside, call("lt", index_value(index), constant(extent, torch.int64)))
        value = call("masked", inside, load(base, place, decl.dtype), constant(0, decl.dtype))
        self.statements.append(Definition(made, loops, value, self.origins))
        return made

    def _turned(self, made: TensorDecl, decl: TensorDecl) -> TensorDecl:
        """A view of a padded tensor with its two dimensions exchanged."""
        key = (made.name, "turned")
        if key not in self._made:
            view = TensorDecl(self._name(decl), made.shape[::-1], made.stride[::-1], made.dtype, made.device)
            self._made[key] = view
            self.statements.append(StridedView(view, made.name, 0))
        return self._made[key]


def padded_extents(found: MatrixProduct) -> tuple[int, int, int]:
    """Rows, columns and depth (ints) as the library wants them: multiples of 16 bytes where memory is contiguous."""
    _, rows, columns, depth = found.extents
    step = ALIGNMENT // found.result.dtype.itemsize

    def up(extent: int, *along: bool) -> int:
        return -(-extent // step) * step if any(along) else extent

    left, right = (decl.stride[-1] == 1 for decl in (found.left, found.right))
    return up(rows, not left), up(columns, True), up(depth, left, not right)


def padding_bytes(found: MatrixProduct) -> int:
    """Memory traffic of padding the operands of a product, and of taking its result out."""
    rows, columns, depth = padded_extents(found)
    pairs = [(found.left.shape, (rows, depth)), (found.right.shape, (depth, columns))]
    pairs.append((found.result.shape, (rows, columns)))
    elements = sum(math.prod(shape) + math.prod(padded) for shape, padded in pairs if shape != padded)
    return elements * found.result.dtype.itemsize


def matrix_product(template: Template, declarations: Declarations) -> MatrixProduct | None:
    """A call as a product that loops can compute as eager does; None where it is another, or over nothing."""
    arguments, factors = _arguments(template)
    if not all(isinstance(a, Ref) for a in arguments) or factors is None:
        return None
    *added, left, right = (declarations[a.name] for a in arguments)
    (result,) = template.outputs
    if result is None or result.dtype not in _DTYPES:
        return None
    if any((decl.dtype, decl.device) != (result.dtype, result.device) for decl in (left, right, *added)):
        return None
    if any(n == 0 for n in (*result.shape, *left.shape)):
        return None
    beta, alpha = factors
    # What is multiplied by a beta of 0 is not even looked at.
    return MatrixProduct(template, left, right, added[0] if added and beta != 0 else None, beta, alpha)


def _arguments(template: Template) -> tuple[list[Any], tuple[float, float] | None]:
    """The tensors of a call, and its ``beta`` and ``alpha``; None in their place where they are no plain numbers."""
    arguments = list(template.args)
    if template.op in _PLAIN and not template.kwargs:
        return arguments, (1, 1)
    if template.op not in _ACCUMULATING:
        return arguments, None
    given = {**dict(zip(("beta", "alpha"), arguments[3:], strict=False)), **template.kwargs}
    beta, alpha = given.get("beta", 1), given.get("alpha", 1)
    known = all(isinstance(v, int | float) and math.isfinite(v) for v in (beta, alpha))
    return arguments[:3], (beta, alpha) if known and given.keys() <= {"beta", "alpha"} else None


def estimated_cost(candidate: ProductCandidate, costs: ProductCosts) -> float | None:
    """Microseconds that a way to compute a product takes, with kernels around it; None where it was not measured."""
    if candidate.template.kind == "convolution":
        return None  # none was measured
    if candidate.form not in ("library", "padded", "onednn"):
        return _loops_cost(candidate, costs)
    if candidate.form == "padded" and costs.misaligned == 1:
        return None  # padding saves nothing
    copy = costs.onednn_copy if candidate.form == "onednn" else costs.kernel
    if candidate.padding_bytes and copy is None:
        return None
    flops = float(candidate.flops)
    if candidate.form == "library" and not (candidate.aligned_operands and candidate.aligned_result):
        flops *= costs.misaligned
    apart = [(candidate.prologue_bytes, costs.kernel), (candidate.epilogue_bytes, costs.kernel)]
    if copy is not None:
        apart.append((candidate.padding_bytes, copy))
    kernels = sum(kind.microseconds(moved, 0) for moved, kind in apart if moved)
    time = _call_time(candidate, costs)
    return None if time is None else time.microseconds(candidate.bytes, flops) + kernels


def _copied_bytes(found: Product, form: ProductForm) -> int:
    """Memory traffic of copies of operands that a form of a product asks for."""
    if not isinstance(found, MatrixProduct):
        return 0
    if form == "onednn" and found.linear is not None:
        return found.linear.copied_bytes
    return padding_bytes(found) if form == "padded" else 0


def _call_time(candidate: ProductCandidate, costs: ProductCosts) -> ProductTime | None:
    """What was measured of calls like that of a candidate."""
    if candidate.form == "onednn":
        return costs.onednn
    if candidate.groups != 1:
        return costs.grouped_library
    is_large = candidate.flops >= 2 * LEAST_OF_ONEDNN and candidate.dtype == torch.float32
    return costs.large_library if is_large and costs.large_library is not None else costs.library


def _loops_cost(candidate: ProductCandidate, costs: ProductCosts) -> float | None:
    """The same of a product that is computed by a generated kernel."""
    if candidate.form == "loops":
        return None if costs.loops is None else costs.loops.microseconds(candidate.bytes, candidate.flops)
    measured = candidate.dtype in HALF and candidate.aligned_operands
    # Those of a batch were measured where they are picked, of which calls want copies.
    measured = measured and (candidate.batch == 1 or (candidate.form == "rows" and candidate.prologue_bytes > 0))
    found = _kernel_time(candidate, costs) if measured and candidate.is_static else None
    if found is None:
        return None
    time, moved = found
    return None if time is None else time.microseconds(moved, candidate.flops)


def _kernel_time(candidate: ProductCandidate, costs: ProductCosts) -> tuple[ProductTime | None, int] | None:
    """What was measured of kernels like that of a candidate, and the bytes that it moves; None where nothing was."""
    moved = candidate.bytes - candidate.spared_bytes
    if candidate.groups > 1:
        return costs.grouped, moved
    if candidate.form == "rows":
        return costs.rows, moved
    if candidate.is_thin:
        few_rows = candidate.rows <= candidate.columns
        return (costs.thin, moved) if few_rows else None
    if candidate.spared_bytes > 0 and min(candidate.rows, candidate.columns) <= MOST_DEQUANTISED:
        return costs.dequantised, moved
    # Of sizes that the library likes tiles are as fast at best, whatever is computed along with them.
    return None if candidate.aligned_result else (costs.tiles, candidate.bytes)


def choose_products(
    context: CompileContext, program: LoopProgram, target: Target | None, schedule: Scheduler
) -> tuple[LoopProgram, tuple[ProductChoice, ...]]:
    """The program with those products as loops for which that is the cheapest way, and all choices that there were.

    ``schedule`` makes the schedules that a candidate is told by.
    """
    if target is None or not any(isinstance(s, Template) and s.kind in _KINDS for s in program.statements):
        return program, ()
    chooser = _Chooser(context, program, target, schedule)
    statements = tuple(made for statement in program.statements for made in chooser.chosen(statement))
    if statements == program.statements:
        return program, tuple(chooser.choices)
    outputs = [output.name for output in program.outputs if isinstance(output, Ref)]
    return attrs.evolve(program, statements=_without_views(statements, outputs)), tuple(chooser.choices)


def _without_views(statements: Sequence[Statement], outputs: Sequence[str]) -> tuple[Statement, ...]:
    """Statements without the views that nothing reads any more."""
    read = {*outputs, *(name for statement in statements for name in used(statement))}
    return tuple(s for s in statements if not isinstance(s, StridedView) or s.tensor.name in read)


_KINDS = ("matmul", "convolution")
"""Of the calls that loops may compute."""

Product = MatrixProduct | GroupedProduct | PackedProduct | Convolution
"""Calls that loops can compute."""


class _Chooser:
    def __init__(self, context: CompileContext, program: LoopProgram, target: Target, schedule: Scheduler) -> None:
        self.context, self.program, self.target, self.schedule = context, program, target, schedule
        self.declarations = program.declarations()
        self.views = {s.tensor.name: s for s in program.statements if isinstance(s, StridedView)}
        self.padding = Padding(self.views, self.declarations)
        self.prologues = Prologues(program, self.views, self.declarations)
        self.choices: list[ProductChoice] = []
        self.known: dict[Any, dict[ProductForm, float]] = {}

    @functools.cached_property
    def positions(self) -> Mapping[str, list[int]]:
        """Where in the program the statements stand that read each tensor."""
        found: dict[str, list[int]] = defaultdict(list)
        for position, statement in enumerate(self.program.statements):
            for name in used(statement):
                found[name].append(position)
        return found

    @functools.cached_property
    def outputs(self) -> frozenset[str]:
        return frozenset(output.name for output in self.program.outputs if isinstance(output, Ref))

    def chosen(self, statement: Statement) -> tuple[Statement, ...]:
        """A statement, or those that take its place."""
        if not isinstance(statement, Template) or statement.kind not in _KINDS:
            return (statement,)
        found = self._product(statement)
        if found is None or found.result.device.type != self.target.device_type:
            return (statement,)
        costs = self._costs(found)
        if len(costs) < 2:
            return self._in_form(found, "library", self.padding)
        form = min(costs, key=lambda form: (costs[form], form != "library"))
        rounded = tuple((form, round(cost, 3)) for form, cost in costs.items() if math.isfinite(cost))
        self.choices.append(ProductChoice(found.result.name, form, rounded))
        return self._in_form(found, form, self.padding)

    def _product(self, template: Template) -> Product | None:
        kinds = (convolution, grouped_product, packed_product, matrix_product)
        return next((found for kind in kinds if (found := kind(template, self.declarations)) is not None), None)

    def _in_form(self, found: Product, form: ProductForm, padding: Padding) -> tuple[Statement, ...]:
        if form == "library":
            return self._without_bias(found) if isinstance(found, MatrixProduct) else (found.template,)
        if form == "padded" and isinstance(found, MatrixProduct):
            return padding.product(found)
        if form == "onednn" and isinstance(found, MatrixProduct) and found.linear is not None:
            return found.linear.statements(self.views, self.declarations)
        return (found.definition(self.views, self.declarations),)

    def _without_bias(self, found: MatrixProduct) -> tuple[Statement, ...]:
        """The library's call of a product, and what is added to it as a definition where it was a pass of its own.

        On the host a library first copies what is added to the result and then adds to that; as a definition it is
        part of whatever reads the result.  Of a half type the product would be rounded before the sum.
        """
        result, added = found.result, found.added
        hosted = uses_host_kernels(result.device) and result.dtype not in HALF
        if added is None or found.template.op is not _ATEN.addmm.default or found.factors != (1, 1) or not hosted:
            return (found.template,)
        names = (f"{result.name}_product{number or ''}" for number in itertools.count())
        name = next(name for name in names if name not in self.declarations)
        whole = attrs.evolve(result, name=name, stride=(result.shape[1], 1))
        arguments = found.template.args[1:3]
        plain = attrs.evolve(found.template, op=_ATEN.mm.default, args=arguments, kwargs={}, outputs=(whole,))
        loops = loops_over(result.shape)
        own = [v.index for v in loops[2 - len(added.shape) :]]
        coords = [Index.constant(0) if n == 1 else place for place, n in zip(own, added.shape, strict=True)]
        base, place = in_memory(added, coords, self.views, self.declarations)
        value = call("add", load(name, loops, result.dtype), load(base, place, result.dtype))
        return plain, Definition(result, loops, value, found.template.origins, found.template.source)

    def _costs(self, found: Product) -> dict[ProductForm, float]:
        """What each form of a product takes; empty, or the library alone, where nobody has anything to say of others.

        Layers that are alike are asked once.
        """
        forms = found.forms
        if not forms:
            return {}
        epilogue, saved = self._epilogue(found)
        prologues = self.prologues.of(found.operands[:2])
        layouts = [(d.shape, d.stride, d.dtype) for d in (found.result, *found.operands)]
        shape = tuple((d.tensor.shape, str(d.expr.op), len(used(d))) for d in epilogue)
        key = (found.template.op, tuple(layouts), found.factors, shape, tuple(p.kind for p in prologues))
        if key not in self.known:
            costs: dict[ProductForm, float] = {}
            for form in (*forms, "library"):
                cost = (
                    self._cost(self._candidate(found, form, prologues, epilogue, saved))
                    if costs or form != "library"
                    else None
                )
                if cost is not None:
                    costs[form] = cost
            self.known[key] = costs
        return self.known[key]

    def _cost(self, candidate: ProductCandidate) -> float | None:
        hook = self.context.hooks.turret_choice_cost
        cost: float | None = hook(context=self.context, candidate=candidate, target=self.target)
        return cost

    def _candidate(
        self,
        found: Product,
        form: ProductForm,
        prologues: Sequence[Prologue],
        epilogue: Sequence[Definition],
        saved: int,
    ) -> ProductCandidate:
        static = all(isinstance(extent, int) for extent in found.extents)
        batch, rows, columns, depth = (hinted(extent, self.program.hints) or 1 for extent in found.extents)
        build = functools.partial(self._alone, found, form, prologues, epilogue)
        spared = sum(p.spared_bytes for p in prologues)
        spared += found.spared_bytes if isinstance(found, PackedProduct) else 0
        operands = all(map(_is_aligned, (found.left, found.right)))
        result = _is_aligned(found.result)
        return ProductCandidate(
            form,
            found.template,
            found.result.dtype,
            batch,
            rows,
            columns,
            depth,
            static,
            saved,
            operands,
            result,
            _copied_bytes(found, form),
            build,
            found.groups,
            found.ends.name if isinstance(found, GroupedProduct) else None,
            sum(p.bytes for p in prologues),
            spared,
        )

    def _epilogue(self, found: Product) -> tuple[list[Definition], int]:
        """Definitions that a kernel of the product would take along, and the memory traffic of a kernel of their own.

        Nothing is spared where the last of them goes on into further kernels: they would compute it themselves.
        """
        elements = hinted(product(found.result.shape), self.program.hints)
        taken = self._taken_along(found, elements)
        inside = (found.result.name, *taken)
        ends = [name for name in inside if name in self.outputs or self._is_read_outside(name, taken)]
        if elements is None or len(ends) != 1 or ends[0] not in taken:
            return [], 0
        (end,) = ends
        if any(isinstance(reader, Definition | Scatter) for reader in self._readers(end)):
            return list(taken.values()), 0
        moved = sum(decl.dtype.itemsize for decl in (found.result, taken[end].tensor))
        return list(taken.values()), moved * elements

    def _taken_along(self, found: Product, elements: int | None) -> dict[str, Definition]:
        """The first definitions, in the program's order, that read a product's result or one another."""
        taken: dict[str, Definition] = {}
        waiting, last = list(self.positions[found.result.name]), -1
        while waiting and len(taken) < _MOST_EPILOGUE:
            position = heapq.heappop(waiting)
            statement = self.program.statements[position]
            is_new, last = position != last, position
            if not is_new or not isinstance(statement, Definition) or _reduces(statement):
                continue
            if hinted(product(statement.tensor.shape), self.program.hints) == elements:
                taken[statement.tensor.name] = statement
                for reader in self.positions[statement.tensor.name]:
                    heapq.heappush(waiting, reader)
        return taken

    def _readers(self, name: str) -> Iterator[Statement]:
        """The statements that read a tensor."""
        return (self.program.statements[position] for position in self.positions[name])

    def _is_read_outside(self, name: str, taken: Mapping[str, Definition]) -> bool:
        return any(not isinstance(r, Definition) or r.tensor.name not in taken for r in self._readers(name))

    def _alone(
        self, found: Product, form: ProductForm, prologues: Sequence[Prologue], epilogue: Sequence[Definition]
    ) -> Schedule:
        """A product with its prologues and its epilogue as a schedule of its own."""
        made_by = [statement for prologue in prologues for statement in prologue.statements]
        statements = (*made_by, *self._in_form(found, form, Padding(self.views, self.declarations)), *epilogue)
        statements = _without_views(statements, [defined(statements[-1])[0].name])
        made = {decl.name for statement in statements for decl in defined(statement)}
        read = dict.fromkeys(name for statement in statements for name in used(statement) if name not in made)
        (last,) = defined(statements[-1])
        program = LoopProgram(
            self.program.name,
            tuple(self.declarations[name] for name in read),
            statements,
            (Ref(last.name),),
            symbols=self.program.symbols,
            hints=self.program.hints,
        )
        return self.schedule(self.context, program, self.target)


def _is_aligned(decl: TensorDecl) -> bool:
    """Whether all rows of a matrix, in whichever direction they lie, begin at multiples of 16 bytes."""
    strides = [s for n, s in zip(decl.shape, decl.stride, strict=True) if n != 1]
    steps = [s for s in strides if s != 1]
    return len(steps) < len(strides) and all(
        isinstance(s, int) and s * decl.dtype.itemsize % ALIGNMENT == 0 for s in steps
    )


def _reduces(definition: Definition) -> bool:
    return any(node.op in ("reduce", "scan") for node in walk(definition.expr))
