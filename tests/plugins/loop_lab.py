"""Loop programs built at random, and their evaluation element by element: what the tests of this folder share.

``run_schedule`` works in real memory laid out by the memory plan, so that a value overwritten too early is seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pluggy
import torch
from hypothesis import strategies as st

import turret.plugins.schedule as scheduler
from turret.hooks import hookspecs, plugin_manager
from turret.hooks.products import Target
from turret.ir import (
    CopyInto,
    Definition,
    Expr,
    Extern,
    Index,
    Kernel,
    LoopProgram,
    Ref,
    Scatter,
    Schedule,
    Store,
    StridedView,
    TensorDecl,
    Var,
    call,
    check_index,
    constant,
    index_value,
    load,
    reduce,
    scan,
    unflatten,
)
from turret.ir.index import Div, Mod, Value, flatten

CPU, I64 = torch.device("cpu"), torch.int64
Environment = Mapping[Var, int]


def schedule(program: LoopProgram, *plugins: Any, target: Target | None = None, **options: Any) -> Schedule:
    """The built-in scheduler's result under some options, with plugins asked first."""
    manager = pluggy.PluginManager("turret")
    manager.add_hookspecs(hookspecs)
    for plugin in (scheduler, *plugins):
        manager.register(plugin)
    config = plugin_manager.configure(plugin_manager.default_manager(), None, options)
    context = SimpleNamespace(config=config, hooks=manager.hook)
    return manager.hook.turret_schedule(context=context, program=program, target=target)


# ---------------------------------------------------------------- evaluation


def index_at(index: Index, env: Environment, tensors: Mapping[str, torch.Tensor]) -> int:
    """An index at one point."""
    return index.const + sum(c * _atom(atom, env, tensors) for atom, c in index.terms)


def _atom(atom: Any, env: Environment, tensors: Mapping[str, torch.Tensor]) -> int:
    match atom:
        case Var():
            return env[atom]
        case Div():
            return index_at(atom.numerator, env, tensors) // atom.divisor
        case Mod():
            return index_at(atom.numerator, env, tensors) % atom.divisor
        case Value():
            return int(value_at(atom.expr, env, tensors, {}))
    raise AssertionError(atom)


SCALAR = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "min": min,
    "max": max,
    "mod": lambda a, b: a % b,
    "neg": lambda a: -a,
    "abs": abs,
    "lt": lambda a, b: a < b,
    "ge": lambda a, b: a >= b,
    "logical_and": lambda a, b: a and b,
    "where": lambda c, a, b: a if c else b,
}
COMBINING = {"sum": sum, "max": max, "min": min}


def value_at(expr: Expr, env: Environment, tensors: Mapping[str, torch.Tensor], rows: dict) -> int:
    """An expression at one point; ``rows`` keeps the reductions of the present row, each computed once."""
    match expr.op:
        case "const":
            return expr.payload
        case "load":
            return tensors[expr.tensor][tuple(index_at(c, env, tensors) for c in expr.coords)].item()
        case "index":
            return index_at(expr.payload, env, tensors)
        case "check_index":
            return value_at(expr.args[0], env, tensors, rows)
        case "reduce":
            if expr not in rows:
                bound = expr.payload.variables
                values = [value_at(expr.args[0], {**env, **p}, tensors, {}) for p in points(bound)]
                rows[expr] = COMBINING[expr.payload.kind](values)
            return rows[expr]
        case "scan":
            kind, variable = expr.payload
            body = expr.args[0]
            steps = range(env[variable] + 1)
            return COMBINING[kind]([value_at(body, {**env, variable: k}, tensors, rows) for k in steps])
        case "masked":
            condition, inside, outside = expr.args
            return value_at(inside if value_at(condition, env, tensors, rows) else outside, env, tensors, rows)
        case _:
            return SCALAR[expr.op](*(value_at(arg, env, tensors, rows) for arg in expr.args))


def points(loops: Iterable[Var]) -> Iterator[dict[Var, int]]:
    loops = tuple(loops)
    for values in itertools.product(*(range(v.extent) for v in loops)):
        yield dict(zip(loops, values, strict=True))


# ---------------------------------------------------------------- programs and schedules as they would run


def run_program(program: LoopProgram, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Every statement in order, each tensor in memory of its own."""
    tensors = {name: value.clone() for name, value in inputs.items()}
    for statement in program.statements:
        match statement:
            case Definition():
                result = _empty(statement.tensor)
                for env in points(statement.variables):
                    result[tuple(env[v] for v in statement.variables)] = value_at(statement.expr, env, tensors, {})
                tensors[statement.tensor.name] = result
            case Scatter():
                tensors[statement.tensor.name] = tensors[statement.initial].clone()
                store = Store(statement.tensor.name, statement.coords, statement.expr, statement.mode)
                _run_stores((store,), statement.variables, (), tensors)
            case _:
                _run_step(statement, tensors)
    return [tensors[o.name] for o in program.outputs]


def run_schedule(schedule: Schedule, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Every step in order, in the memory that the plan gives; memory that is freed is overwritten, and so is the arena
    where a section begins."""
    tensors = {name: value.clone() for name, value in inputs.items()}
    arena = torch.full((schedule.memory.arena_bytes // 8 + 8,), -(10**6), dtype=I64)
    declarations = schedule.program.declarations()
    begins = {section.first for section in schedule.sections}
    for number, step in enumerate(schedule.steps):
        if number in begins:
            arena.fill_(-(10**6))
        if isinstance(step, Kernel):
            for store in step.stores:
                if store.tensor not in tensors:
                    tensors[store.tensor] = _memory(schedule, declarations[store.tensor], arena, tensors)
            _run_stores(step.stores, step.outer, step.inner, tensors)
        elif isinstance(step, Extern):
            decl = step.outputs[0]
            place = _memory(schedule, decl, arena, tensors)
            place.copy_(step.op(*(tensors[a.name] if isinstance(a, Ref) else a for a in step.args)))
            tensors[decl.name] = place
        else:
            _run_step(step, tensors)
        reused = {b.reuses for b in schedule.memory.buffers.values()}
        for name in schedule.memory.dead_after.get(number, ()):
            if name not in reused and name not in inputs and not _is_view(schedule, name):
                tensors[name].fill_(-(10**7))
    return [tensors[o.name].clone() for o in schedule.program.outputs]


def _is_view(schedule: Schedule, name: str) -> bool:
    return any(isinstance(s, StridedView) and s.tensor.name == name for s in schedule.steps)


def _run_stores(
    stores: tuple[Store, ...], outer: tuple[Var, ...], inner: tuple[Var, ...], tensors: dict[str, torch.Tensor]
) -> None:
    """Stores in order at each point; along rows, one store after the other, reductions before what they feed."""
    for env in points(outer):
        rows: dict = {}
        for store in stores:
            mentions = store.expr.variables.union(*(c.variables for c in store.coords))
            for row in points(inner if mentions & frozenset(inner) else ()):
                at = {**env, **row}
                place = tuple(index_at(c, at, tensors) for c in store.coords)
                value = value_at(store.expr, at, tensors, rows)
                tensors[store.tensor][place] = value if store.mode != "add" else tensors[store.tensor][place] + value


def _run_step(step: Any, tensors: dict[str, torch.Tensor]) -> None:
    match step:
        case StridedView():
            base = tensors[step.base]
            tensors[step.tensor.name] = base.as_strided(
                step.tensor.shape, step.tensor.stride, base.storage_offset() + step.offset
            )
        case CopyInto():
            tensors[step.target].copy_(tensors[step.source])
        case Extern():
            arguments = [tensors[a.name] if isinstance(a, Ref) else a for a in step.args]
            tensors[step.outputs[0].name] = step.op(*arguments)


def _empty(decl: TensorDecl) -> torch.Tensor:
    return torch.empty_strided(decl.shape, decl.stride, dtype=decl.dtype)


def _memory(
    schedule: Schedule, decl: TensorDecl, arena: torch.Tensor, tensors: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    buffer = schedule.memory.buffers[decl.name]
    if buffer.arena_offset is not None:
        return arena.as_strided(decl.shape, decl.stride, buffer.arena_offset // 8)
    if buffer.reuses is not None:
        base = tensors[buffer.reuses]
        return base.as_strided(decl.shape, decl.stride, base.storage_offset())
    return _empty(decl)


# ---------------------------------------------------------------- building programs


def declare(name: str, shape: tuple[int, ...], dtype: torch.dtype = I64) -> TensorDecl:
    stride = tuple(torch.empty(shape, device="meta").stride())
    return TensorDecl(name, shape, stride, dtype, CPU)


def loops_of(shape: tuple[int, ...]) -> tuple[Var, ...]:
    return tuple(Var(f"i{k}", extent) for k, extent in enumerate(shape))


def pointwise(name: str, shape: tuple[int, ...], value: Any, dtype: torch.dtype = I64) -> Definition:
    """A definition from a function of the loop variables."""
    loops = loops_of(shape)
    return Definition(declare(name, shape, dtype), loops, value(*loops), (name,))


def at(name: str, *coords: Index | Var | int) -> Expr:
    return load(name, coords, I64)


def number(value: int) -> Expr:
    return constant(value, I64)


def row_sum(name: str, source: str, shape: tuple[int, ...]) -> Definition:
    """Sums along the last dimension of a tensor of ``shape``."""
    row = Var("r0", shape[-1])
    loops = loops_of(shape[:-1])
    return Definition(declare(name, shape[:-1]), loops, reduce("sum", (row,), at(source, *loops, row)), (name,))


def program(inputs: Iterable[TensorDecl], statements: Iterable[Any], outputs: Iterable[str]) -> LoopProgram:
    return LoopProgram("test", tuple(inputs), tuple(statements), tuple(Ref(o) for o in outputs))


def arguments(program: LoopProgram, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {d.name: torch.randint(-9, 9, d.shape, generator=generator) for d in program.inputs}


SHAPES = ((4,), (3, 4), (4, 3), (2, 3, 2), (3, 1), (12,), (1,))


@st.composite
def programs(draw: st.DrawFn, most: int = 9) -> LoopProgram:
    """A program of up to ``most`` statements over int64, where every value is exact."""
    inputs = [declare(f"x{k}", draw(st.sampled_from(SHAPES))) for k in range(draw(st.integers(1, 3)))]
    known = {decl.name: decl for decl in inputs}
    statements: list[Any] = []
    for number_ in range(draw(st.integers(1, most))):
        made = _statement(draw, f"t{number_}", known)
        statements.append(made)
        decl = made.outputs[0] if isinstance(made, Extern) else made.tensor
        known[decl.name] = decl
    named = [n for n in known if n.startswith("t")]
    outputs = draw(st.lists(st.sampled_from(named), min_size=1, max_size=3, unique=True))
    return program(inputs, statements, outputs)


def _statement(draw: st.DrawFn, name: str, known: Mapping[str, TensorDecl]) -> Any:
    source = known[draw(st.sampled_from(sorted(known)))]
    kinds = ("pointwise", "pointwise", "pointwise", "rows", "columns", "extern", "reshape", "shift", "slice", "scan")
    kind = draw(st.sampled_from((*kinds, "gather")))
    loops = loops_of(source.shape)
    if kind == "extern":
        return Extern(torch.ops.aten.neg.default, (Ref(source.name),), {}, (declare(name, source.shape),))
    if kind in ("rows", "columns") and source.shape:
        dim = len(loops) - 1 if kind == "rows" else 0
        row = Var("r0", source.shape[dim])
        kept = source.shape[:dim] + source.shape[dim + 1 :]
        outside = loops_of(kept)
        body = call("abs", at(source.name, *outside[:dim], row, *outside[dim:]))
        kind = draw(st.sampled_from(("sum", "max")))
        return Definition(declare(name, kept), outside, reduce(kind, (row,), body), (name,))
    if kind == "reshape":
        count = torch.Size(source.shape).numel()
        shape = draw(st.sampled_from([s for s in (*SHAPES, source.shape) if torch.Size(s).numel() == count]))
        target = loops_of(shape)
        coords = unflatten(flatten([v.index for v in target], shape), source.shape)
        return Definition(declare(name, shape), target, call("add", at(source.name, *coords), number(1)), (name,))
    if kind in ("shift", "slice", "scan", "gather") and source.shape:
        value = _along(draw, kind, source, loops, known)
        return Definition(declare(name, source.shape), loops, value, (name,))
    value = at(source.name, *loops)
    if draw(st.booleans()):
        value = call("mod", value, number(draw(st.sampled_from((3, 7)))))
    for _ in range(draw(st.integers(0, 2))):
        other = known[draw(st.sampled_from(sorted(known)))]
        value = call(draw(st.sampled_from(("add", "sub", "min", "max"))), value, _broadcast(draw, other, loops))
    return Definition(declare(name, source.shape), loops, call("neg", value), (name,))


def _along(
    draw: st.DrawFn, kind: str, source: TensorDecl, loops: tuple[Var, ...], known: Mapping[str, TensorDecl]
) -> Expr:
    """What a tensor is along one of its dimensions: moved, a part of another tensor, its running sums, chosen rows."""
    dim = draw(st.integers(0, len(loops) - 1))
    variable, extent = loops[dim], source.shape[dim]

    def there(index: Index | Var) -> Expr:
        return at(source.name, *loops[:dim], index, *loops[dim + 1 :])

    if kind == "scan":
        return scan(draw(st.sampled_from(("sum", "max"))), variable, there(variable))
    if kind == "gather":
        fits = [decl.name for decl in known.values() if decl.shape == (extent,)]
        if not fits:
            return there(Index.constant(extent - 1) - variable.index)
        chosen = call("mod", at(draw(st.sampled_from(fits)), variable), number(extent))
        return there(Index.of_value(check_index(chosen, extent)))
    offset = draw(st.integers(0, extent))
    inside = call("ge", index_value(variable), number(offset))
    if kind == "shift":
        return call("masked", inside, there(variable.index - offset), number(draw(st.integers(0, 1))))
    return call("where", inside, call("masked", inside, there(variable), number(0)), _broadcast(draw, source, loops))


def _broadcast(draw: st.DrawFn, other: TensorDecl, loops: tuple[Var, ...]) -> Expr:
    """A load of ``other`` somewhere over the loops: in step, transposed or broadcast; a fixed element at worst."""
    coords: list[Any] = []
    for extent in other.shape:
        fits = [v for v in loops if v.extent == extent]
        coords.append(draw(st.sampled_from(fits)) if fits else draw(st.integers(0, extent - 1)))
    return at(other.name, *coords)
