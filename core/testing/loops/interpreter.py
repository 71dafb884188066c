"""A loop program's meaning, by torch ops over whole iteration spaces: the oracle for lowerings and code generators.

    outputs = run_program(program, inputs)

It follows the definitions of the IR to the letter and trusts nothing: every load must lie inside its tensor
(unless ``masked`` keeps it from happening), extern calls must return what was declared, and so on.  Floating-point
sums, products and moments accumulate in float64.  It is slow and takes memory in proportion to the largest loop nest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import sympy
import torch
from torch import Tensor

from turret.errors import TurretError
from turret.graph.ops.random_ops import random_numbers
from turret.ir.expr import OPS, Expr, expr_of, fresh_variable, range_error, rewrite
from turret.ir.index import Div, Index, Mod, Size, Value, Var
from turret.ir.program import (
    CopyInto,
    Definition,
    Extern,
    LoopProgram,
    Number,
    Ref,
    Scatter,
    SizeSource,
    Statement,
    StridedView,
    TensorDecl,
)


class InterpretError(TurretError):
    """A program that has no meaning: it reads outside of a tensor, or a call did not return what was declared."""


def run_program(program: LoopProgram, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a program on ``inputs`` (tensors and numbers, in its order).

    Inputs that the program mutates are mutated.  Raises what a checked index that is out of range names, as
    kernels do, ``RuntimeError`` for integer division by zero, and ``InterpretError`` for a program that is wrong.
    """
    return _Machine(program, inputs).run()


class _Machine:
    """The tensors in memory, and the statements' effects on them."""

    def __init__(self, program: LoopProgram, inputs: Sequence[Any]) -> None:
        self.program = program
        self.sizes = {name: _size_at(source, inputs) for name, source in program.symbols.items()}
        self.tensors: dict[str, Tensor] = dict(program.constants)
        for decl, value in zip(program.inputs, inputs, strict=True):
            if decl is not None:
                self.tensors[decl.name] = value
                self._check_like(decl, value)

    def run(self) -> list[Any]:
        for statement in self.program.statements:
            self._step(statement)
        return [self._value(output) for output in self.program.outputs]

    def extent(self, value: Size) -> int:
        """A size as an int."""
        if isinstance(value, int):
            return value
        return int(self._substituted(value))

    def number(self, value: Any) -> int | float | bool:
        """A number or a condition over symbols as a plain value."""
        found = self._substituted(value)
        if found in (sympy.true, sympy.false):
            return bool(found)
        return int(found) if found.is_Integer else float(found)

    def _substituted(self, value: Any) -> Any:
        return value.subs({symbol: self.sizes[symbol.name] for symbol in value.free_symbols})

    def _step(self, statement: Statement) -> None:
        match statement:
            case Definition():
                value = Evaluation(self).value(statement.expr, statement.variables)
                self._allocate(statement.tensor).copy_(value.expand(self._shape(statement.tensor)))
            case Scatter():
                self._scatter(statement)
            case StridedView():
                base, decl = self.tensors[statement.base], statement.tensor
                offset = base.storage_offset() + self.extent(statement.offset)
                self.tensors[decl.name] = base.as_strided(self._shape(decl), self._strides(decl), offset)
            case Extern():
                self._extern(statement)
            case CopyInto():
                self.tensors[statement.target].copy_(self.tensors[statement.source])
            case Number():
                self.sizes[statement.symbol] = self.number(statement.value)

    def _shape(self, decl: TensorDecl) -> list[int]:
        return [self.extent(e) for e in decl.shape]

    def _strides(self, decl: TensorDecl) -> list[int]:
        return [self.extent(e) for e in decl.stride]

    def _allocate(self, decl: TensorDecl) -> Tensor:
        shape, strides = self._shape(decl), self._strides(decl)
        if any(extent > 1 and stride == 0 for extent, stride in zip(shape, strides, strict=True)):
            raise InterpretError(f"elements of {decl} share memory (strides {strides}) and are written one by one")
        made = torch.empty_strided(shape, strides, dtype=decl.dtype, device=decl.device)
        self.tensors[decl.name] = made
        return made

    def _extern(self, statement: Extern) -> None:
        results = statement.op(
            *map(self._value, statement.args), **{k: self._value(v) for k, v in statement.kwargs.items()}
        )
        if not statement.returns_sequence:
            results = [results]
        for bound in statement.symbol_bindings:
            result = results[bound.output]
            self.sizes[bound.symbol] = result if bound.dimension is None else result.size(bound.dimension)
        for decl, value in zip(statement.outputs, results or (), strict=True):
            if decl is not None:
                self._check_like(decl, value)
                self.tensors[decl.name] = value

    def _value(self, argument: Any) -> Any:
        if isinstance(argument, Ref):
            return self.tensors[argument.name]
        if isinstance(argument, list | tuple):
            return type(argument)(map(self._value, argument))
        if hasattr(argument, "free_symbols"):
            return self.number(argument)
        return argument

    def _check_like(self, decl: TensorDecl, value: Tensor) -> None:
        shape, strides = self._shape(decl), self._strides(decl)
        same = all(n == 1 or a == b for n, a, b in zip(shape, strides, value.stride(), strict=True)) or 0 in shape
        if list(value.shape) != shape or value.dtype != decl.dtype or not same:
            raise InterpretError(
                f"{decl} with strides {strides} is {value.dtype} {list(value.shape)} with strides {value.stride()}"
            )

    def _scatter(self, statement: Scatter) -> None:
        decl = statement.tensor
        flat = self.tensors[statement.initial].reshape(-1).clone()
        evaluation, loops = Evaluation(self), statement.variables
        shape = [self.extent(v.extent) for v in loops]
        guard = () if statement.condition is None else (statement.condition,)
        keep = evaluation.active(loops, guard).expand(shape).reshape(-1)
        target = torch.zeros([], dtype=torch.int64)
        for coord, extent in zip(statement.coords, self._shape(decl), strict=True):
            position = evaluation.index(coord, loops, guard)
            evaluation.check_within(position, extent, loops, guard, f"{coord} of {statement}")
            target = target * extent + position
        target = target.expand(shape).reshape(-1)[keep]
        values = evaluation.value(statement.expr, loops, guard).expand(shape).reshape(-1)[keep]
        SCATTERS[statement.mode](flat, target, values)
        self._allocate(decl).copy_(flat.reshape(self._shape(decl)))


def _size_at(source: SizeSource, inputs: Sequence[Any]) -> int | float:
    value = inputs[source.input]
    if source.kind == "float":
        return float(value)
    if source.kind == "offset":
        return value.storage_offset()
    if source.dimension is None:
        return int(value)
    return (value.shape if source.kind == "size" else value.stride())[source.dimension]


Guard = tuple[Expr, ...]
"""Conditions that must all hold for a value to be needed."""


@attrs.define(eq=False)
class Evaluation:
    """Values of expressions at all points of ``loops``: tensors with one dimension a loop that broadcast to them."""

    machine: _Machine
    done: dict[tuple[Expr, tuple[Var, ...], Guard], Any] = attrs.field(factory=dict)

    def value(self, expr: Expr, loops: tuple[Var, ...], guard: Guard = ()) -> Tensor:
        """The value where ``guard`` holds; anything elsewhere."""
        key = expr, loops, guard
        if key not in self.done:
            handler = HANDLERS.get(expr.op)
            if handler is None:
                args = [self.value(arg, loops, guard) for arg in expr.args]
                found = OPS[expr.op].reference(*self._divisible(expr, args, loops, guard))
            else:
                found = handler(self, expr, loops, guard)
            self.done[key] = found if isinstance(found, tuple) else found.to(expr.dtype)
        return self.done[key]

    def active(self, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        """Where all conditions hold; each condition need only be known where those before it hold."""
        result = torch.ones([1] * len(loops), dtype=torch.bool)
        for number, condition in enumerate(guard):
            result = result & self.value(condition, loops, guard[:number])
        return result

    def check_within(self, position: Tensor, extent: int, loops: tuple[Var, ...], guard: Guard, what: str) -> None:
        """Raise unless ``0 <= position < extent`` wherever the guard holds."""
        outside = ((position < 0) | (position >= extent)) & self.active(loops, guard)
        if outside.expand(self._shape(loops)).any():
            raise InterpretError(f"outside of the extent {extent}: {what}")

    def _divisible(self, expr: Expr, args: list[Tensor], loops: tuple[Var, ...], guard: Guard) -> list[Tensor]:
        """Divisors that nobody needs must not raise."""
        if guard and OPS[expr.op].checks_zero and not expr.dtype.is_floating_point:
            return [args[0], torch.where(self.active(loops, guard), args[1], torch.ones_like(args[1]))]
        return args

    def _shape(self, loops: tuple[Var, ...]) -> list[int]:
        return [self.machine.extent(v.extent) for v in loops]

    # ------------------------------------------------ indices

    def index(self, index: Index, loops: tuple[Var, ...], guard: Guard = ()) -> Tensor:
        """Values of an index, int64."""
        total = torch.full([1] * len(loops), self.machine.extent(index.const))
        for atom, coefficient in index.terms:
            total = total + self._atom(atom, loops, guard) * self.machine.extent(coefficient)
        return total

    def _atom(self, atom: Var | Div | Mod | Value, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        if isinstance(atom, Var):
            shape = [1] * len(loops)
            shape[loops.index(atom)] = -1
            return torch.arange(self.machine.extent(atom.extent)).reshape(shape)
        if isinstance(atom, Value):
            return self.value(expr_of(atom), loops, guard)
        numerator, divisor = self.index(atom.numerator, loops, guard), self.machine.extent(atom.divisor)
        return numerator % divisor if isinstance(atom, Mod) else numerator.div(divisor, rounding_mode="floor")

    # ------------------------------------------------ nodes with a payload

    def _const(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        return torch.full([1] * len(loops), expr.payload, dtype=expr.dtype)

    def _load(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        source = self.machine.tensors[expr.tensor]
        coords = [self.index(c, loops, guard) for c in expr.coords]
        for coord, extent in zip(coords, source.shape, strict=True):
            self.check_within(coord, extent, loops, guard, str(expr))
        if source.numel() == 0:
            return torch.zeros([1] * len(loops), dtype=expr.dtype)
        if not coords:
            return source.reshape([1] * len(loops))
        inside = [c.clamp(0, n - 1) for c, n in zip(coords, source.shape, strict=True)]
        return source[tuple(torch.broadcast_tensors(*inside))]

    def _index_value(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        return self.index(expr.payload, loops, guard)

    def _size(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        number = expr.payload if isinstance(expr.payload, int) else self.machine.number(expr.payload)
        if isinstance(number, float):  # the table of sizes holds its bits
            return torch.full([1] * len(loops), number, dtype=torch.float64).view(torch.int64)
        return torch.full([1] * len(loops), number)

    def _check_index(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        value, extent = self.value(expr.args[0], loops, guard), self.machine.extent(expr.payload)
        outside = ((value < 0) | (value >= extent)) & self.active(loops, guard)
        if outside.expand(self._shape(loops)).any():
            raise range_error(expr)(f"index out of range: {expr}")
        return value

    def _wrap_index(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        value = self.value(expr.args[0], loops, guard)
        return torch.where(value < 0, value + self.machine.extent(expr.payload), value)

    def _group_of(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        ends = self.machine.tensors[expr.args[0].tensor].long()
        return torch.searchsorted(ends, self.value(expr.args[1], loops, guard), right=True)

    def _cast(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        return self.value(expr.args[0], loops, guard).to(expr.dtype)

    def _bitcast(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        return self.value(expr.args[0], loops, guard).contiguous().view(expr.dtype)

    def _masked(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        condition, value, other = expr.args
        holds = self.value(condition, loops, guard)
        return torch.where(holds, self.value(value, loops, (*guard, condition)), self.value(other, loops, guard))

    def _random(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        seed, linear = (self.value(arg, loops, guard) for arg in expr.args)
        kind, stream = expr.payload
        return random_numbers(seed, linear, stream, kind, expr.dtype)

    # ------------------------------------------------ reductions and scans

    def _rows(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> tuple[tuple[Var, ...], list[Tensor]]:
        """The arguments of a reduction, each with the reduced variables as one last dimension."""
        bound, args = expr.payload.variables, expr.args
        if not set(bound).isdisjoint(loops):
            taken = {*loops, *bound, *expr.variables}
            fresh = tuple(fresh_variable(v, taken) if v in loops else v for v in bound)
            moved = {old: new.index for old, new in zip(bound, fresh, strict=True)}
            bound, args = fresh, tuple(rewrite(arg, moved) for arg in args)
        inside = loops + bound
        shape = self._shape(inside)
        values = [self.value(arg, inside, guard).expand(shape) for arg in args]
        return bound, [v.flatten(len(loops)) if bound else v.unsqueeze(-1) for v in values]

    def _reduce(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Any:
        _, values = self._rows(expr, loops, guard)
        return REDUCTIONS[expr.payload.kind](*values)

    def _part(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        mean, m2 = self.value(expr.args[0], loops, guard)
        return mean if expr.payload == "mean" else m2

    def _scan(self, expr: Expr, loops: tuple[Var, ...], guard: Guard) -> Tensor:
        kind, variable = expr.payload
        value = self.value(expr.args[0], loops, guard).expand(self._shape(loops))
        return SCANS[kind](_wide(value), loops.index(variable))


HANDLERS: dict[str, Callable[..., Any]] = {
    "const": Evaluation._const,
    "load": Evaluation._load,
    "index": Evaluation._index_value,
    "size": Evaluation._size,
    "check_index": Evaluation._check_index,
    "wrap_index": Evaluation._wrap_index,
    "group_of": Evaluation._group_of,
    "cast": Evaluation._cast,
    "bitcast": Evaluation._bitcast,
    "masked": Evaluation._masked,
    "random": Evaluation._random,
    "reduce": Evaluation._reduce,
    "part": Evaluation._part,
    "scan": Evaluation._scan,
}


def _wide(value: Tensor) -> Tensor:
    return value.double() if value.is_floating_point() else value


def _moments(value: Tensor) -> tuple[Tensor, Tensor]:
    wide = value.double()
    mean = wide.mean(-1)
    return mean.to(value.dtype), (wide - mean.unsqueeze(-1)).square().sum(-1).to(value.dtype)


def _number_of(best: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The least number among the best elements; NaN is better than anything."""

    def find(value: Tensor, number: Tensor) -> Tensor:
        hit = value == best(value).unsqueeze(-1)
        if value.is_floating_point():
            missing = value.isnan()
            hit = torch.where(missing.any(-1, keepdim=True), missing, hit)
        return torch.where(hit, number, torch.iinfo(torch.int64).max).amin(-1)

    return find


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": lambda x: _wide(x).sum(-1, dtype=_wide(x).dtype),
    "prod": lambda x: _wide(x).prod(-1, dtype=_wide(x).dtype),
    "min": lambda x: x.amin(-1),
    "max": lambda x: x.amax(-1),
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "argmin": _number_of(lambda x: x.amin(-1)),
    "argmax": _number_of(lambda x: x.amax(-1)),
    "welford": _moments,
}

SCANS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, dim: torch.cumsum(x, dim, dtype=x.dtype),
    "prod": lambda x, dim: torch.cumprod(x, dim, dtype=x.dtype),
    "min": lambda x, dim: torch.cummin(x, dim).values,
    "max": lambda x, dim: torch.cummax(x, dim).values,
}


def _set_last(flat: Tensor, target: Tensor, values: Tensor) -> None:
    order = target.argsort(stable=True)
    where = target[order]
    last = torch.ones_like(where, dtype=torch.bool)
    last[:-1] = where[1:] != where[:-1]
    flat[where[last]] = values[order][last]


def _combining(name: str) -> Callable[[Tensor, Tensor, Tensor], None]:
    def combine(flat: Tensor, target: Tensor, values: Tensor) -> None:
        flat.scatter_reduce_(0, target, values, name)

    return combine


SCATTERS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "set": _set_last,
    "add": lambda flat, target, values: flat.index_put_((target,), values, accumulate=True),
    "mul": _combining("prod"),
    "min": _combining("amin"),
    "max": _combining("amax"),
}
