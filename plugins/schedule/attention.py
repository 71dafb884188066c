"""Attention of few queries: for each call, whether it stays one or is split over the keys, asked before fusion.

A decoding step has one query a head, so that the library's kernel has one program a head, which walks over all keys.
Split, each program takes some keys of one head, and only those that the mask lets the query see: of a cache as much is
read as is filled.  The parts are a call that a code generator writes itself (``turret.attention_parts``), what puts
them together is a definition, which fuses with what comes behind.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from turret.graph.dtypes import HALF
from turret.graph.externs import resolve_op
from turret.graph.ops.attention_ops import BESIDE
from turret.hooks.context import CompileContext
from turret.hooks.devices import AttentionCosts
from turret.hooks.products import Target
from turret.ir import (
    AttentionCandidate,
    Definition,
    Expr,
    Index,
    LoopProgram,
    ProductChoice,
    ProductForm,
    Ref,
    Statement,
    Template,
    TensorDecl,
    Var,
    call,
    cast,
    constant,
    defined,
    load,
    reduce,
    used,
)
from turret.plugins.schedule.products import Scheduler

_ATEN = torch.ops.aten
_CALLS = (
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
)
PARTS_OP = "turret::attention_parts.default"
MOST_QUERIES = 8
"""Queries of a head up to which keys are read for each of them (heads that share keys come as queries of one)."""
LENGTHS = (256, 128, 64, 32)
"""Keys of a part: the longest that gives the device enough programs."""
PROGRAMS = 3
"""Programs for each multiprocessor, of which a cache that is not filled leaves some nothing to do."""


@attrs.frozen(eq=False)
class FewQueries:
    """A call as attention of few queries over many keys: (batch, heads, queries or keys, width) each.

    ``bias`` (or None) can be expanded to batch, heads, queries, keys.
    """

    template: Template
    query: TensorDecl
    key: TensorDecl
    value: TensorDecl
    bias: TensorDecl | None
    scale: float
    result: TensorDecl

    @property
    def extents(self) -> tuple[int, ...]:
        """Batch, heads, queries, keys and width."""
        batch, heads, queries, width = self.query.shape
        return batch, heads, queries, self.key.shape[2], width


def few_queries(template: Template, declarations: Mapping[str, TensorDecl]) -> FewQueries | None:
    """A call as attention that may be split over its keys; None where it is another."""
    result = template.outputs[0]
    if template.op not in _CALLS or result is None or any(o is not None for o in template.outputs[1:]):
        return None
    names = [argument.name for argument in template.op._schema.arguments]
    given: dict[str, Any] = {**dict(zip(names, template.args, strict=False)), **template.kwargs}
    operands = [given[name] for name in ("query", "key", "value")]
    bias = given.get("attn_bias", given.get("attn_mask"))
    if any(given.get(name) for name in ("dropout_p", "is_causal", "return_debug_mask")):
        return None
    if not all(isinstance(operand, Ref) for operand in operands) or not isinstance(bias, Ref | None):
        return None
    query, key, value = (declarations[operand.name] for operand in operands)
    added = None if bias is None else declarations[bias.name]
    found = FewQueries(template, query, key, value, added, _scale(given.get("scale"), query), result)
    return found if _fits(found) else None


def _scale(scale: Any, query: TensorDecl) -> float:
    width = query.shape[-1]
    if isinstance(scale, int | float):
        return float(scale)
    return 1 / math.sqrt(width) if scale is None and isinstance(width, int) and width else math.nan


def _fits(found: FewQueries) -> bool:
    declared = [d for d in (found.query, found.key, found.value, found.bias, found.result) if d is not None]
    if any(d.dtype != found.query.dtype or d.device != found.query.device or not d.is_static for d in declared):
        return False
    if len(found.query.shape) != 4 or found.query.dtype not in HALF | {torch.float32} or not math.isfinite(found.scale):
        return False
    batch, heads, queries, keys, width = found.extents
    whole = (batch, heads, queries, keys)
    same = found.key.shape == found.value.shape == (batch, heads, keys, width)
    if not same or found.result.shape != found.query.shape or not 0 < queries <= MOST_QUERIES or 0 in whole:
        return False
    return found.bias is None or (len(found.bias.shape) <= 4 and _expands(found.bias.shape, whole))


def _expands(shape: Sequence[Any], whole: Sequence[int]) -> bool:
    return all(n in (1, w) for n, w in zip(reversed(shape), reversed(whole), strict=False))


def parts_for(found: FewQueries, cores: int) -> int:
    """Into how many parts to split the keys on a device of so many multiprocessors."""
    batch, heads, queries, keys, _ = found.extents
    programs = batch * heads * queries
    length = next((n for n in LENGTHS if programs * -(-keys // n) >= PROGRAMS * cores), LENGTHS[-1])
    return -(-keys // length)


def estimated_cost(candidate: AttentionCandidate, costs: AttentionCosts | None) -> float | None:
    """Microseconds that a way to compute attention takes; None where it was not measured."""
    if costs is None or candidate.dtype not in HALF:
        return None
    if candidate.form == "split":
        return costs.split.microseconds(candidate.bytes * candidate.queries, 0)
    walked = 2 * candidate.keys * candidate.width * candidate.dtype.itemsize
    return costs.launch + max(walked / costs.walk_rate, candidate.bytes / costs.split.bytes_rate)


def choose_attention(
    context: CompileContext, program: LoopProgram, target: Target | None, schedule: Scheduler
) -> tuple[LoopProgram, tuple[ProductChoice, ...]]:
    """The program with those calls split for which that is faster, and all choices that there were."""
    if target is None or not any(isinstance(s, Template) and s.kind == "attention" for s in program.statements):
        return program, ()
    chooser = _Chooser(context, program, target, schedule)
    statements = tuple(made for statement in program.statements for made in chooser.chosen(statement))
    choices = tuple(chooser.choices)
    return (attrs.evolve(program, statements=statements), choices) if choices else (program, ())


class _Chooser:
    def __init__(self, context: CompileContext, program: LoopProgram, target: Target, schedule: Scheduler) -> None:
        self.context, self.program, self.target, self.schedule = context, program, target, schedule
        self.declarations = program.declarations()
        self.choices: list[ProductChoice] = []
        self.known: dict[Any, dict[ProductForm, float]] = {}

    def chosen(self, statement: Statement) -> tuple[Statement, ...]:
        """A statement, or those that take its place."""
        if not isinstance(statement, Template) or statement.kind != "attention":
            return (statement,)
        found = few_queries(statement, self.declarations)
        if found is None or found.result.device.type != self.target.device_type:
            return (statement,)
        parts = parts_for(found, self.target.cores or 1)
        if parts < 2:
            return (statement,)
        costs = self._costs(found, parts)
        if len(costs) < 2:
            return (statement,)
        form = min(costs, key=lambda form: (costs[form], form != "library"))
        rounded = tuple((form, round(cost, 3)) for form, cost in costs.items() if math.isfinite(cost))
        self.choices.append(ProductChoice(found.result.name, form, rounded))
        return (statement,) if form == "library" else self._split(found, parts)

    def _costs(self, found: FewQueries, parts: int) -> dict[ProductForm, float]:
        """What each form takes, where somebody has anything to say; layers that are alike are asked once."""
        declared = (found.query, found.key, found.value, found.bias, found.result)
        layouts = tuple(None if d is None else (d.shape, d.stride, d.dtype) for d in declared)
        key = (found.template.op, layouts, found.scale)
        if key not in self.known:
            forms: tuple[ProductForm, ...] = ("split", "library")
            costs = {form: self._cost(found, form, parts) for form in forms}
            self.known[key] = {form: cost for form, cost in costs.items() if cost is not None}
        return self.known[key]

    def _cost(self, found: FewQueries, form: ProductForm, parts: int) -> float | None:
        batch, heads, queries, keys, width = found.extents
        build = functools.partial(self._alone, found, form, parts)
        candidate = AttentionCandidate(
            form, found.template, found.query.dtype, batch * heads, queries, keys, width, parts, build
        )
        hooks = self.context.hooks
        cost: float | None = hooks.turret_choice_cost(context=self.context, candidate=candidate, target=self.target)
        return cost

    def _alone(self, found: FewQueries, form: ProductForm, parts: int) -> Any:
        """The attention as a schedule of its own; its operands are inputs."""
        statements = (found.template,) if form == "library" else self._split(found, parts)
        made = {decl.name for statement in statements for decl in defined(statement)}
        read = dict.fromkeys(name for statement in statements for name in used(statement) if name not in made)
        inputs = tuple(self.declarations[name] for name in read)
        program = LoopProgram(self.program.name, inputs, statements, (Ref(found.result.name),))
        return self.schedule(self.context, program, self.target)

    def _split(self, found: FewQueries, parts: int) -> tuple[Statement, ...]:
        """The parts, and what puts them together."""
        batch, heads, queries, _, width = found.extents
        shape = (parts, batch, heads, queries, width + BESIDE)
        stride = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
        taken = self.declarations.keys()
        name = next(n for k in range(len(taken) + 1) if (n := f"{found.result.name}_parts{k or ''}") not in taken)
        decl = TensorDecl(name, shape, stride, torch.float32, found.result.device)
        self.declarations[name] = decl
        operands = [Ref(found.query.name), Ref(found.key.name), Ref(found.value.name)]
        bias = None if found.bias is None else Ref(found.bias.name)
        template = attrs.evolve(
            found.template, op=resolve_op(PARTS_OP), args=(*operands, bias, found.scale, parts), kwargs={},
            outputs=(decl,), returns_sequence=False,
        )  # fmt: skip
        return template, _whole(found, decl, parts)


def _whole(found: FewQueries, parts: TensorDecl, count: int) -> Definition:
    """The attention made of its parts; of a query that sees no key it is zero, as the library has it."""
    loops = tuple(Var(f"i{k}", extent) for k, extent in enumerate(found.result.shape))
    part, width = Var("r0", count), found.result.shape[-1]

    def read(place: Index) -> Expr:
        return load(parts.name, (part.index, *(v.index for v in loops[:-1]), place), torch.float32)

    assert isinstance(width, int)
    none, zero = constant(-math.inf, torch.float32), constant(0.0, torch.float32)
    largest = read(Index.constant(width))
    best = reduce("max", (part,), largest)
    best = call("where", call("eq", best, none), zero, best)
    weight = call("exp", call("sub", largest, best))
    total = reduce("sum", (part,), call("mul", weight, read(Index.constant(width + 1))))
    summed = reduce("sum", (part,), call("mul", weight, read(loops[-1].index)))
    value = call("where", call("eq", total, zero), zero, call("div", summed, total))
    template = found.template
    return Definition(found.result, loops, cast(value, found.result.dtype), template.origins, template.source)
