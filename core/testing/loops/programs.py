"""Random loops: kernels of drawn expressions, dtypes, layouts, conditions, reductions and scans, with their inputs.

They are drawn from a ``Chooser``, so that a seed, a list of choices or hypothesis can stand for one.  As a kernel
(``DrawnLoops.kernel``) they test a code generator by itself, as a loop program everything from the schedule on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import sympy
import torch

from turret.hooks.devices import HOST
from turret.ir import (
    Definition,
    Expr,
    Kernel,
    LoopProgram,
    Ref,
    SizeSource,
    Store,
    TensorDecl,
    call,
    cast,
    check_index,
    constant,
    flatten,
    index_value,
    load,
    part,
    reduce,
    rewrite,
    scan,
    unflatten,
    wrap_index,
)
from turret.ir.index import Index, Size, Var, product
from turret.testing.corpus.chooser import Chooser, chance, choice
from turret.testing.corpus.inputs import Mover

DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16, torch.uint8, torch.bool)
EXTENTS = (1, 2, 3, 5, 8, 16, 17, 31, 64, 65, 130)
UNARY = {
    "float": ("neg", "abs", "sin", "tanh", "sigmoid", "floor", "sign"),
    "int": ("neg", "abs", "sign", "bitwise_not"),
    "bool": ("logical_not",),
}
BINARY = {
    "float": ("add", "sub", "mul", "min", "max"),
    "int": ("add", "sub", "mul", "min", "max", "bitwise_and", "bitwise_xor"),
    "bool": ("logical_and", "logical_or", "logical_xor"),
}
REDUCTIONS = {"float": ("sum", "max", "min"), "int": ("sum", "min", "max", "prod"), "bool": ("any", "all")}


def family(dtype: torch.dtype) -> str:
    return "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"


@attrs.frozen(eq=False)
class Output:
    """``name[coordinates] = expr`` over ``loops``, which are its dimensions in their order."""

    name: str
    loops: tuple[Var, ...]
    expr: Expr


@attrs.frozen(eq=False)
class DrawnLoops:
    """Loops over drawn tensors.  ``tensors`` holds inputs, and zeros for outputs; ``sizes`` are those of symbols."""

    outer: tuple[Var, ...]
    inner: tuple[Var, ...]
    outputs: tuple[Output, ...]
    tensors: dict[str, torch.Tensor]
    declarations: dict[str, TensorDecl]
    sizes: dict[str, int]

    @property
    def has_half(self) -> bool:
        """Whether something is rounded so coarsely that an order of additions shows."""
        return any(t.dtype == torch.bfloat16 for t in self.tensors.values())

    @property
    def inputs(self) -> tuple[str, ...]:
        made = {output.name for output in self.outputs}
        return tuple(name for name in self.tensors if name not in made)

    def kernel(self) -> Kernel:
        """One kernel with a row of ``inner`` loops."""
        stores = (Store(o.name, tuple(v.index for v in o.loops), o.expr) for o in self.outputs)
        return Kernel("random", self.outer, self.inner, tuple(stores))

    def program(self, device: str = HOST.type) -> LoopProgram:
        """A loop program with a definition for each reduction and each output; sizes are its last inputs."""
        where = torch.device(device)
        declared = {name: attrs.evolve(decl, device=where) for name, decl in self.declarations.items()}
        apart = _Reductions(where)
        outputs = [Definition(declared[o.name], o.loops, rewrite(o.expr, replace=apart)) for o in self.outputs]
        inputs = self.inputs
        symbols = {name: SizeSource(len(inputs) + k, None) for k, name in enumerate(self.sizes)}
        return LoopProgram(
            "random",
            (*(declared[name] for name in inputs), *(None for _ in self.sizes)),
            (*apart.definitions, *outputs),
            tuple(Ref(o.name) for o in self.outputs),
            symbols=symbols,
            hints=dict(self.sizes),
        )

    def arguments(self, device: str = HOST.type) -> list[Any]:
        """Fresh inputs of the program on a device."""
        move = Mover(device)
        return [*(move(self.tensors[name]) for name in self.inputs), *self.sizes.values()]


class _Reductions:
    """Takes reductions out of expressions, into definitions of their own with variables of their own."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.definitions: list[Definition] = []

    def __call__(self, node: Expr) -> Expr | None:
        """The load of a reduction's result; operands have been dealt with."""
        if node.op == "part":
            return self._taken_out(node.args[0], lambda reduction: part(reduction, node.payload))
        if node.op == "reduce" and node.payload.kind != "welford":
            return self._taken_out(node, lambda reduction: reduction)
        return None

    def _taken_out(self, node: Expr, result: Callable[[Expr], Expr]) -> Expr:
        loops = tuple(sorted(node.variables, key=lambda v: v.name))
        own = {v: Var(f"r{k}", v.extent) for k, v in enumerate(node.payload.variables)}
        moved = {v: other.index for v, other in own.items()}
        expr = result(reduce(node.payload.kind, own.values(), *(rewrite(arg, moved) for arg in node.args)))
        shape = tuple(v.extent for v in loops)
        stride = tuple(product(shape[k + 1 :]) for k in range(len(shape)))
        name = f"reduced{len(self.definitions)}"
        self.definitions.append(Definition(TensorDecl(name, shape, stride, expr.dtype, self.device), loops, expr))
        return load(name, [v.index for v in loops], expr.dtype)


def draw_loops(chooser: Chooser, symbolic: bool) -> DrawnLoops:
    """Draw loops; ``symbolic``: some have sizes that are known when they run, and tensors of those are contiguous."""
    return _Builder(chooser, symbolic).loops()


def declare(name: str, value: torch.Tensor, shape: tuple[Size, ...] | None = None) -> TensorDecl:
    """A declaration that fits ``value`` (contiguous over ``shape`` where that is symbolic)."""
    if shape is None:
        return TensorDecl(name, tuple(value.shape), tuple(value.stride()), value.dtype, value.device)
    stride = [product(shape[k + 1 :]) for k in range(len(shape))]
    return TensorDecl(name, shape, tuple(stride), value.dtype, value.device)


def at_sizes(value: Size, sizes: Mapping[str, int]) -> int:
    """A size with numbers for its symbols."""
    return value if isinstance(value, int) else int(value.subs({s: sizes[s.name] for s in value.free_symbols}))


class _Builder:
    """Draws the loops and their expressions; inputs are made as they are needed."""

    def __init__(self, chooser: Chooser, symbolic: bool) -> None:
        self.chooser = chooser
        self.seed = chooser.integer(0, 2**20)
        self.tensors: dict[str, torch.Tensor] = {}
        self.declarations: dict[str, TensorDecl] = {}
        self.sizes: dict[str, int] = {}
        count = chooser.integer(0, 3)
        loops = tuple(Var(f"i{k}", self.extent(symbolic)) for k in range(count))
        while loops and self.number(product(v.extent for v in loops)) > 60000:
            loops = loops[1:]
        rows = chooser.integer(0, min(2, len(loops)))
        order = self.shuffled(loops)
        self.inner = tuple(v for v in loops if v in order[:rows])
        self.outer = tuple(v for v in loops if v not in self.inner)

    def extent(self, symbolic: bool) -> Size:
        """A number, or a symbol, which may be that of another loop."""
        if not symbolic or self.chooser.integer(0, 3) == 0:
            return self.one_of(EXTENTS)
        name = f"s{self.chooser.integer(0, len(self.sizes))}"
        self.sizes.setdefault(name, self.one_of(EXTENTS))
        return sympy.Symbol(name, integer=True, positive=True)

    def number(self, size: Size) -> int:
        return at_sizes(size, self.sizes)

    def one_of(self, options):
        return choice(self.chooser, list(options))

    def flag(self) -> bool:
        return chance(self.chooser, 50)

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        """Items in a drawn order, their own one first."""
        left, found = list(items), []
        while left:
            found.append(left.pop(self.chooser.integer(0, len(left) - 1)))
        return found

    def fresh_tensor(self, shape: tuple[Size, ...], dtype: torch.dtype) -> str:
        """A tensor of a drawn layout: contiguous, permuted, every second element, or expanded."""
        generator = torch.Generator().manual_seed(self.seed + len(self.tensors))

        def filled(*sizes: int) -> torch.Tensor:
            if dtype == torch.bool:
                return torch.randint(0, 2, sizes, generator=generator).bool()
            if dtype.is_floating_point:
                return (torch.randn(sizes, generator=generator) * 2).to(dtype)
            return torch.randint(0 if dtype == torch.uint8 else -9, 9, sizes, generator=generator).to(dtype)

        numbers = tuple(map(self.number, shape))
        known = all(isinstance(n, int) for n in shape)
        layout = self.one_of(("contiguous", "permuted", "strided", "expanded")) if shape and known else "contiguous"
        if layout == "permuted":
            order = self.shuffled(range(len(shape)))
            value = filled(*(numbers[k] for k in order)).permute([order.index(k) for k in range(len(shape))])
        elif layout == "strided":
            value = filled(*numbers[:-1], 2 * numbers[-1])[..., ::2]
        elif layout == "expanded":
            value = filled(*(1 if k == 0 else n for k, n in enumerate(numbers))).expand(numbers)
        else:
            value = filled(*numbers)
        return self.named(f"x{len(self.tensors)}", value, shape)

    def named(self, name: str, value: torch.Tensor, shape: tuple[Size, ...]) -> str:
        self.tensors[name] = value
        known = all(isinstance(n, int) for n in shape)
        self.declarations[name] = declare(name, value, None if known else shape)
        return name

    def load(self, dtype: torch.dtype) -> Expr:
        loops = self.outer + self.inner
        shape = tuple(v.extent for v in loops)
        coords = [v.index for v in loops]
        ways = (
            self.plain, self.flipped, self.reshaped, self.padded, self.gathered, self.dropped, self.number_of_place,
        )  # fmt: skip
        way = self.one_of(ways)
        return way(dtype, shape, coords) if loops else self.plain(dtype, shape, coords)

    def plain(self, dtype: torch.dtype, shape: tuple[Size, ...], coords: list[Index]) -> Expr:
        return load(self.fresh_tensor(shape, dtype), coords, dtype)

    def flipped(self, dtype: torch.dtype, shape: tuple[Size, ...], coords: list[Index]) -> Expr:
        at = self.chooser.integer(0, len(shape) - 1)
        coords[at] = Index.constant(shape[at] - 1) - coords[at]
        return self.plain(dtype, shape, coords)

    def reshaped(self, dtype: torch.dtype, shape: tuple[Size, ...], coords: list[Index]) -> Expr:
        whole = product(shape)
        divisors = [d for d in range(1, whole + 1) if whole % d == 0] if isinstance(whole, int) else [1]
        first = self.one_of(divisors)
        target = (first, whole // first if isinstance(whole, int) else whole)
        return self.plain(dtype, target, list(unflatten(flatten(coords, shape), target)))

    def dropped(self, dtype: torch.dtype, shape: tuple[Size, ...], coords: list[Index]) -> Expr:
        at = self.chooser.integer(0, len(shape) - 1)
        return self.plain(dtype, shape[:at] + shape[at + 1 :], coords[:at] + coords[at + 1 :])

    def number_of_place(self, dtype: torch.dtype, shape: tuple[Size, ...], coords: list[Index]) -> Expr:
        if family(dtype) == "bool" or dtype.itemsize <= 2:
            return self.plain(dtype, shape, coords)
        return cast(index_value(self.one_of(coords) * self.chooser.integer(1, 3) - 5), dtype)

    def padded(self, dtype: torch.dtype, shape: tuple[Size, ...], coords: list[Index]) -> Expr:
        at = self.chooser.integer(0, len(shape) - 1)
        before, after = self.chooser.integer(0, 3), self.chooser.integer(0, 3)
        extent = max(1, shape[at] - before - after) if isinstance(shape[at], int) else shape[at]
        moved = index_value(coords[at] - before)
        inside = call(
            "logical_and",
            call("ge", moved, constant(0, torch.int64)),
            call("lt", moved, index_value(Index.constant(extent))),
        )
        source = self.fresh_tensor((*shape[:at], extent, *shape[at + 1 :]), dtype)
        value = load(source, [*coords[:at], coords[at] - before, *coords[at + 1 :]], dtype)
        return call("masked", inside, value, constant(1, dtype))

    def gathered(self, dtype: torch.dtype, shape: tuple[Size, ...], coords: list[Index]) -> Expr:
        table = self.fresh_tensor((7,), dtype)
        variable = self.one_of(self.outer + self.inner)
        places = torch.arange(self.number(variable.extent)) % 14 - 7
        name = self.named(f"x{len(self.tensors)}", places, (variable.extent,))
        at = check_index(wrap_index(load(name, (variable,), torch.int64), 7), 7)
        return load(table, (Index.of_value(at),), dtype)

    def window(self, depth: int, dtype: torch.dtype) -> Expr:
        """A reduction that is not along the row."""
        if dtype in (torch.bfloat16, torch.uint8):
            return self.leaf(depth, dtype)
        loops = self.outer + self.inner
        along = Var("q0", self.one_of((2, 3, 20)))
        source = self.fresh_tensor((*(v.extent for v in loops), along.extent), dtype)
        return reduce(self.one_of(REDUCTIONS[family(dtype)][:2]), (along,), load(source, (*loops, along), dtype))

    def row(self, depth: int, dtype: torch.dtype) -> Expr:
        """A reduction along the row."""
        if not self.inner or dtype in (torch.bfloat16, torch.uint8):
            return self.leaf(depth, dtype)
        below = depth - 1
        if dtype == torch.int64 and self.flag():
            number = index_value(flatten([v.index for v in self.inner], tuple(v.extent for v in self.inner)))
            return reduce(self.one_of(("argmin", "argmax")), self.inner, self.value(below, torch.int32), number)
        if dtype.is_floating_point and self.chooser.integer(0, 3) == 0:
            return part(reduce("welford", self.inner, self.value(below, dtype)), self.one_of(("mean", "m2")))
        return reduce(self.one_of(REDUCTIONS[family(dtype)]), self.inner, self.value(below, dtype))

    def value(self, depth: int, dtype: torch.dtype) -> Expr:
        """An expression of at most so many levels above its leaves."""
        ways = (
            self.leaf, self.unary, self.binary, self.binary, self.where, self.masked, self.compare, self.cast,
            self.row, self.scan, self.window,
        )  # fmt: skip
        return self.one_of(ways)(depth, dtype) if depth else self.leaf(depth, dtype)

    def leaf(self, depth: int, dtype: torch.dtype) -> Expr:
        if self.flag() and depth == 0 and family(dtype) != "bool":
            return constant(self.chooser.integer(0, 5), dtype)
        return self.load(dtype)

    def unary(self, depth: int, dtype: torch.dtype) -> Expr:
        return call(self.one_of(UNARY[family(dtype)]), self.value(depth - 1, dtype))

    def binary(self, depth: int, dtype: torch.dtype) -> Expr:
        op = self.one_of(BINARY[family(dtype)])
        return call(op, self.value(depth - 1, dtype), self.value(depth - 1, dtype))

    def where(self, depth: int, dtype: torch.dtype) -> Expr:
        return call("where", *(self.value(depth - 1, d) for d in (torch.bool, dtype, dtype)))

    def masked(self, depth: int, dtype: torch.dtype) -> Expr:
        return call("masked", self.value(depth - 1, torch.bool), self.value(depth - 1, dtype), constant(1, dtype))

    def compare(self, depth: int, dtype: torch.dtype) -> Expr:
        other = self.one_of(DTYPES[:6])
        op = self.one_of(("lt", "eq", "ge"))
        return cast(call(op, self.value(depth - 1, other), self.value(depth - 1, other)), dtype)

    def cast(self, depth: int, dtype: torch.dtype) -> Expr:
        source = self.one_of(DTYPES)
        value = self.value(depth - 1, source)
        if source.is_floating_point and not dtype.is_floating_point and dtype != torch.bool:
            # Scaled, for no value may lie where one unit in the last place decides the integer.
            value = call("floor", call("mul", call("tanh", value), constant(0.75, source)))
        return cast(value, dtype)

    def scan(self, depth: int, dtype: torch.dtype) -> Expr:
        if len(self.inner) != 1 or dtype not in (torch.float32, torch.float64, torch.int64):
            return self.leaf(depth, dtype)
        return scan(self.one_of(("sum", "min", "max")), self.inner[0], self.value(depth - 1, dtype))

    def loops(self) -> DrawnLoops:
        outputs = []
        for number in range(self.chooser.integer(1, 2)):
            dtype = self.one_of(DTYPES)
            expr = self.value(self.chooser.integer(0, 4), dtype)
            along_row = self.flag() or bool(expr.variables & set(self.inner))
            loops = tuple(self.shuffled(self.outer + self.inner if along_row else self.outer))
            out = torch.zeros([self.number(v.extent) for v in loops], dtype=dtype)
            outputs.append(Output(self.named(f"out{number}", out, tuple(v.extent for v in loops)), loops, expr))
        return DrawnLoops(self.outer, self.inner, tuple(outputs), self.tensors, self.declarations, self.sizes)
