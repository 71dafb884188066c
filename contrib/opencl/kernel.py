"""One kernel of a schedule as an OpenCL kernel: each work group runs a part of one of its loops."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import Any

import attrs
import sympy
import torch

from turret.contrib.opencl.language import bitcast_text, cast_text, combined, ctype, identity, literal, scalar_text
from turret.emitter import ExprFacts, Guard, TextEmitter
from turret.errors import UnsupportedError
from turret.ir import Expr, Kernel, Size, TensorDecl, Var, call, product, range_error, reduce, size_value, walk
from turret.ir import divides_by_zero
from turret.ir.conditions import guard_operands
from turret.ir.index import Div, Mod, Value, hinted, provably_nonnegative
from turret.ir.nest import FlatStore, Nest, flat_load, map_roots, nest_of, scan_variable, split_loops
from turret.native.functions import INDEX_ERROR, OUT_OF_RANGE, ZERO_DIVISION
from turret.scopes import Scope

GROUP_WORK = 1 << 15
"""Steps of loops that a work group should have at least."""


@attrs.frozen
class OpenClKernel:
    """A kernel's name (made from its content) and source; which tensors, sizes and streams its places stand for, in
    order; and the most groups that are worth their start."""

    name: str
    source: str
    tensors: tuple[str, ...]
    symbols: tuple[str, ...]
    streams: tuple[int, ...]
    groups: int


def emit(kernel: Kernel, tensors: dict[str, TensorDecl], hints: Mapping[str, int]) -> OpenClKernel:
    """Write a kernel; ``UnsupportedError`` where loops in OpenCL cannot express it."""
    nest = normalised(kernel, tensors)
    emitter = Emitter(nest)
    shared = _shared_loop(nest, hints)
    emitter.write(shared)
    lines = []
    for number, (tensor, pointer) in enumerate(emitter.pointers.items()):
        lines.append(f"__global {(word := ctype(tensors[tensor].dtype).element)}* const {pointer} = BUFFER({word}, {number});")
    names = [*emitter.pointers, *emitter.symbols, *emitter.streams]
    lines += [f"const long {name} = SIZE({names.index(s)});" for s, name in emitter.symbols.items()]
    lines += [f"const ulong {name} = (ulong)PLACE({names.index(s)});" for s, name in emitter.streams.items()]
    body = "\n  ".join([*lines, "int error = 0;", *emitter.base.lines, "REPORT(error);"])
    name = f"turret_{hashlib.sha256(body.encode()).hexdigest()[:16]}"
    loops = {*nest.loops, *(v for node in nest.reductions for v in node.payload.variables)}
    steps = product(hinted(v.extent, hints) or 1 for v in loops)
    groups = 1 if shared is None else 1 + steps // GROUP_WORK
    source = f"__kernel void {name}(ulong frame, ulong places) {{\n  {body}\n}}\n"
    return OpenClKernel(name, source, *map(tuple, (emitter.pointers, emitter.symbols, emitter.streams)), groups)


def normalised(kernel: Kernel, tensors: dict[str, TensorDecl]) -> Nest:
    """A kernel's loops, the variable of its scans innermost, with flat loads, and plain and arg reductions alone."""

    def simpler(node: Expr) -> Expr | None:
        if node.op == "load":
            return flat_load(node, tensors)
        if node.op != "part":
            return None
        variables, value = node.args[0].payload.variables, node.args[0].args[0]
        count = size_value(product(v.extent for v in variables), value.dtype)
        mean = call("div", reduce("sum", variables, value), count)
        return mean if node.payload == "mean" else reduce("sum", variables, call("square", call("sub", value, mean)))

    nest = nest_of(kernel, tensors)
    if (scanned := scan_variable(nest)) is not None:
        if scanned in nest.outer and nest.inner:
            raise UnsupportedError(f"{kernel.name}: a scan over {scanned} around a row")
        outer, inner = (tuple(v for v in loops if v is not scanned) for loops in (nest.outer, nest.inner))
        nest = attrs.evolve(nest, outer=outer, inner=(*inner, scanned))
    nest = map_roots(guard_operands(nest, divides_by_zero), simpler)
    bound = {v for node in nest.reductions for v in node.payload.variables} - set(nest.inner)
    if bound & set(nest.loops) or nest.scattered:
        return nest
    return split_loops(nest, nest.scan_variables)


def _shared_loop(nest: Nest, hints: Mapping[str, int]) -> Var | None:
    """The longest loop whose iterations may run at once; None where there is none."""
    loops = nest.outer if nest.inner else nest.loops
    for store in nest.stores:
        if store.mode is not None:
            loops = tuple(v for v in loops if any(coord.single_variable is v for coord in store.coords))
    return max(loops, key=lambda v: hinted(v.extent, hints) or 1, default=None)


class Facts(ExprFacts):
    """All reductions are loops where their values are wanted: there are no phases."""

    def __init__(self, nest: Nest) -> None:
        super().__init__(nest.tensors)
        self.row = frozenset(nest.inner)

    def level(self, expr: Expr) -> int:
        return 0

    def is_along_row(self, expr: Expr) -> bool:
        return expr.op == "scan" or (expr.op == "reduce" and frozenset(expr.payload.variables) == self.row)

    def reports(self, expr: Expr) -> bool:
        return divides_by_zero(expr)


class Loop(Scope):
    """A loop over a variable, from ``low`` up to ``high``; the outermost block has none."""

    def __init__(self, parent: Loop | None = None, variable: Var | None = None, name="", low="0", high="") -> None:
        super().__init__(parent)
        self.header = f"for (long {name} = {low}; {name} < {high}; {name}++) {{"
        if variable is not None:
            self.variables[variable] = name

    def close(self) -> Loop:
        """End the loop; the block around it."""
        self.parent.lines += [self.header, *(f"  {line}" for line in self.lines), "}"]
        return self.parent


_SIZES = {
    "FloorDiv": "floor_div({0}, {1})",
    "CleanDiv": "floor_div({0}, {1})",
    "CeilDiv": "(-floor_div(-({0}), {1}))",
    "Mod": "floor_mod({0}, {1})",
    "PythonMod": "floor_mod({0}, {1})",
    "ModularIndexing": "floor_mod(floor_div({0}, {1}), {2})",
    "Abs": "(long)abs({0})",
}


class Emitter(TextEmitter):
    """The state of writing one kernel."""

    def __init__(self, nest: Nest) -> None:
        super().__init__(Loop(), Facts(nest))
        self.nest = nest

    def write(self, shared: Var | None) -> None:
        """The loops and stores of the nest, in the order of the stores; each group has its part of the shared loop."""
        if shared is not None:
            self.base.line(f"const long part = ({self.size(shared.extent)} - 1) / (long)get_num_groups(0) + 1;")
            self.base.line("const long low = (long)get_group_id(0) * part;")
            self.base.line(f"const long high = min((long){self.size(shared.extent)}, low + part);")
        outer = self.base
        for variable in self.nest.outer:
            outer = self.open(outer, variable, *(("low", "high") if variable is shared else ()))
        in_row = lambda store: not store.variables.isdisjoint(self.nest.inner)  # noqa: E731
        for inside, stores in itertools.groupby(self.nest.stores, key=in_row):
            scope = outer
            for variable in self.nest.inner if inside else ():
                scope = self.open(scope, variable)
            for store in stores:
                self.store(store, scope)
            while scope is not outer:
                scope = scope.close()
        while outer is not self.base:
            outer = outer.close()

    def open(self, scope: Loop, variable: Var, low: str = "0", high: str = "") -> Loop:
        """A loop in a block."""
        return Loop(scope, variable, self.fresh("i"), low, high or self.size(variable.extent))

    # ------------------------------------------------------------ the language

    def size(self, value: Size) -> str:
        text = self._size_text(sympy.sympify(value))
        return text if self.is_plain(text) else self.named(self.base, ("size", text), "n", text)

    def _size_text(self, value: Any) -> str:
        if value.is_Integer:
            return literal(int(value), torch.int64)
        if value.is_Symbol:
            return self.symbol(value.name)
        kind, args = type(value).__name__, value.args
        if kind == "floor":
            kind, args = "FloorDiv", args[0].as_numer_denom()
        if kind == "Pow" and args[1].is_Integer and args[1] >= 1:
            kind, args = "Mul", [args[0]] * int(args[1])
        texts = [f"({self._size_text(arg)})" for arg in args]
        if kind in ("Add", "Mul"):
            return (" + " if kind == "Add" else " * ").join(sorted(texts))
        if kind in ("Max", "Min"):
            *rest, total = texts
            for text in rest:
                total = f"{kind.lower()}((long){text}, (long){total})"
            return total
        if kind not in _SIZES:
            raise UnsupportedError(f"OpenCL kernels cannot compute the size {value}")
        return _SIZES[kind].format(*texts)

    def constant(self, expr: Expr) -> str:
        return literal(expr.payload, expr.dtype)

    def assignment(self, name: str, text: str, dtype: torch.dtype) -> str:
        return f"const {ctype(dtype).value} {name} = {text};"

    @staticmethod
    def is_plain(text: str) -> bool:
        return text.replace("_", "").isalnum()

    def term(self, atom: Var | Div | Mod | Value, coefficient: Size, scope: Loop, guard: Guard) -> str:
        text = self._atom(atom, scope, guard)
        return text if coefficient == 1 else f"{self.size(coefficient)} * {text}"

    def _atom(self, atom: Var | Div | Mod | Value, scope: Loop, guard: Guard) -> str:
        if isinstance(atom, Var):
            return scope.variable(atom)
        if isinstance(atom, Value):
            return self.value(atom.expr, scope, guard)
        numerator, sign = self.index(atom.numerator, scope, guard), "/" if isinstance(atom, Div) else "%"
        low, high = atom.numerator.bounds()
        if low is None or not provably_nonnegative(low):
            return f"floor_{'div' if sign == '/' else 'mod'}({numerator}, {self.size(atom.divisor)})"
        if isinstance(atom.divisor, int) and isinstance(high, int) and high < 1 << 31:
            return f"(long)((uint)({numerator}) {sign} {atom.divisor}u)"
        return f"(({numerator}) {sign} {self.size(atom.divisor)})"

    def scalar(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        args = [self.value(arg, scope, guard) for arg in expr.args]
        if divides_by_zero(expr):
            self._report(f"{args[1]} == 0", ZERO_DIVISION, scope, guard)
        exponent = expr.args[-1].payload if expr.args[-1].op == "const" else None
        return scalar_text(expr.op, expr.args[-1].dtype, args, exponent)

    def _report(self, condition: str, code: int, scope: Loop, guard: Guard) -> str:
        """Note an error where a condition holds; the name of the condition."""
        name = self.fresh("b")
        wanted = "" if guard is None else f" & {self.value(guard, scope)}"
        scope.line(f"const bool {name} = ({condition}){wanted};")
        scope.line(f"error |= {name} ? {code} : 0;")
        return name

    # ------------------------------------------------------------ nodes

    def write_load(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        guard = self.guard_of_access(expr.coords[0], scope, guard)
        offset, nothing = self.index(expr.coords[0], scope, guard), literal(0, expr.dtype)
        if 0 in self.nest.tensors[expr.tensor].shape:
            return nothing
        text = ctype(expr.dtype).load(f"{self.pointer(expr.tensor)}[{offset}]")
        return text if guard is None else f"{self.value(guard, scope)} ? {text} : {nothing}"

    def write_index(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        return self.index(expr.payload, scope, guard)

    def write_size(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        return self.size(expr.payload)

    def write_check_index(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        value, extent = self.value(expr.args[0], scope, guard), self.size(expr.payload)
        code = OUT_OF_RANGE if range_error(expr) is RuntimeError else INDEX_ERROR
        return f"{self._report(f'(ulong){value} >= (ulong){extent}', code, scope, guard)} ? 0 : {value}"

    def write_wrap_index(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        value = self.value(expr.args[0], scope, guard)
        return f"{value} < 0 ? {value} + {self.size(expr.payload)} : {value}"

    def write_cast(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        return cast_text(self.value(expr.args[0], scope, guard), expr.args[0].dtype, expr.dtype)

    def write_bitcast(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        return bitcast_text(self.value(expr.args[0], scope, guard), expr.args[0].dtype, expr.dtype)

    def write_masked(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        condition, inside, outside = expr.args
        text = self.value(inside, scope, self.both(guard, condition))
        return f"{self.value(condition, scope, guard)} ? {text} : {self.value(outside, scope)}"

    def write_random(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        (kind, stream), where = expr.payload, ctype(expr.dtype)
        seed, linear = (self.value(arg, scope, guard) for arg in expr.args)
        words = f"philox((ulong){seed}, (ulong){linear}, {self.stream(stream)})"
        if kind == "bits":
            return f"(long){words}.x"
        if kind == "normal":
            return where.round(f"normal_{where.value}({words})")
        if where.value == "double":
            name = self.fresh("w")
            scope.line(f"const uint4 {name} = {words};")
            return f"wide({name}.x, {name}.y, 0)"
        digits = {"": 24, "f16": 11, "bf16": 8}[where.half]
        return f"(float)({words}.x >> {32 - digits}) * 0x1p-{digits}f"

    def write_scan(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        kind, variable = expr.payload
        wide, state = _accumulator(kind, expr.dtype), self.fresh("state")
        if variable not in scope.variables:
            raise UnsupportedError(f"a scan over {variable} inside of another loop")
        scope.parent.line(f"{ctype(wide).value} {state} = {identity(kind, wide)};")
        value = self.value(expr.args[0], scope)
        scope.line(f"{state} = {combined(kind, wide, state, f'({ctype(wide).value}){value}')};")
        return ctype(expr.dtype).round(f"({ctype(expr.dtype).value}){state}")

    def write_reduce(self, expr: Expr, scope: Loop, guard: Guard) -> str:
        kind, inside = expr.payload.kind, scope
        wide, total = _accumulator(kind, expr.args[0].dtype), self.fresh("q")
        scope.line(f"{ctype(wide).value} {total} = {identity(kind, wide)};")
        scans = {node.payload[1] for node in walk(expr.args[0]) if node.op == "scan"}
        for variable in sorted(expr.payload.variables, key=scans.__contains__):
            inside = self.open(inside, variable)
        value = self.value(expr.args[0], inside, guard)
        if kind in ("argmin", "argmax"):
            place, number = self.fresh("q"), self.value(expr.args[1], inside, guard)
            scope.line(f"long {place} = LONG_MAX;")
            better = f"{value} {'<' if kind == 'argmin' else '>'} {total} || ({value} != {value} && {total} == {total})"
            equal = f"({value} == {total} || ({value} != {value} && {total} != {total})) && {number} < {place}"
            inside.line(f"if ({better} || ({equal})) {{ {total} = {value}; {place} = {number}; }}")
            total = place
        else:
            inside.line(f"{total} = {combined(kind, wide, total, f'({ctype(wide).value}){value}')};")
        while inside is not scope:
            inside = inside.close()
        return ctype(expr.dtype).round(f"({ctype(expr.dtype).value}){total}")

    def store(self, store: FlatStore, scope: Loop) -> None:
        """Write one element in a block where all loops that the store mentions are open."""
        kind, value = ctype(store.expr.dtype), self.value(store.expr, scope)
        conditions = [c for c in (self.guard_of_access(store.offset, scope), store.condition) if c is not None]
        element = f"{self.pointer(store.tensor)}[{self.index(store.offset, scope)}]"
        if store.mode not in (None, "set"):
            before, mode = self.fresh("e"), {"add": "sum", "mul": "prod"}.get(store.mode, store.mode)
            value = combined(mode, store.expr.dtype, before, value)
            text = f"{{ const {kind.value} {before} = {kind.load(element)}; {element} = {kind.pack(value)}; }}"
        else:
            text = f"{element} = {kind.pack(value)};"
        wanted = " && ".join(self.value(c, scope) for c in conditions)
        scope.line(f"if ({wanted}) {text}" if wanted else text)


def _accumulator(kind: str, dtype: torch.dtype) -> torch.dtype:
    """What a reduction or a scan is carried in: double for sums and products of narrower floats."""
    return torch.float64 if dtype.is_floating_point and kind in ("sum", "prod") else dtype
