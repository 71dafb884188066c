"""Expressions to C++: every node becomes one named temporary, in the outermost scope that can compute it.

What needs no guard is plain arithmetic, so that loops stay free of branches and vectorise.
"""

from __future__ import annotations

import torch

from turret.emitter import Guard, TextEmitter
from turret.errors import UnsupportedError
from turret.ir.expr import OPS, Expr, divides_by_zero, range_error
from turret.ir.index import Div, Mod, Size, Value, Var, provably_nonnegative
from turret.ir.nest import FlatStore, Nest
from turret.native.functions import INDEX_ERROR, OUT_OF_RANGE, ZERO_DIVISION
from turret.plugins.codegen.cpp.dtypes import accumulator, ctype, literal, reduction_identity
from turret.plugins.codegen.cpp.facts import Facts
from turret.plugins.codegen.cpp.operators import alone_text, bitcast_text, cast_text, combine_text, scalar_text
from turret.plugins.codegen.cpp.scopes import Scope
from turret.plugins.codegen.cpp.sizes import size_text

EXTENT_WORDS = 3
"""What a kernel that checks its accesses is told of a buffer: first element, one past the last, number of its slot."""


class Emitter(TextEmitter):
    """The state of writing one kernel."""

    def __init__(self, nest: Nest, facts: Facts, check_bounds: bool = False) -> None:
        super().__init__(Scope(), facts)
        self.nest, self.check_bounds = nest, check_bounds
        self.stored = {store.tensor for store in nest.stores}
        # Where scans keep their running values; an ``@`` stands for the index of the lane within its block.
        self.scan_states: dict[Expr, str] = {}
        self.lane_slot = "0"

    # ------------------------------------------------------------ sizes and indices

    def size(self, value: Size) -> str:
        text = size_text(value, self.symbol)
        if isinstance(value, int) or text in self.symbols.values():
            return text
        return self.named(self.base, ("size", text), "n", text)

    @staticmethod
    def is_plain(text: str) -> bool:
        return text.replace("_", "").isalnum()

    def assignment(self, name: str, text: str, dtype: torch.dtype) -> str:
        return f"const {ctype(dtype).value} {name} = {text};"

    def term(self, atom: Var | Div | Mod | Value, coefficient: Size, scope: Scope, guard: Guard) -> str:
        text = self._atom(atom, scope, guard)
        return text if coefficient == 1 else f"{self.size(coefficient)} * {text}"

    def _atom(self, atom: Var | Div | Mod | Value, scope: Scope, guard: Guard) -> str:
        if isinstance(atom, Var):
            return scope.variable(atom)
        if isinstance(atom, Value):
            return self.value(atom.expr, scope, guard)
        numerator = self.index(atom.numerator, scope, guard)
        sign = "/" if isinstance(atom, Div) else "%"
        low, high = atom.numerator.bounds()
        if low is None or not provably_nonnegative(low):
            return f"floor_{'div' if sign == '/' else 'mod'}({numerator}, {self.size(atom.divisor)})"
        if isinstance(atom.divisor, int) and isinstance(high, int) and high < 1 << 31:
            # 32-bit division by a constant vectorises.
            return f"(int64_t)((uint32_t)({numerator}) {sign} {atom.divisor}u)"
        return f"(({numerator}) {sign} {self.size(atom.divisor)})"

    # ------------------------------------------------------------ values

    def constant(self, expr: Expr) -> str:
        return literal(expr.payload, expr.dtype)

    def scalar(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        if expr.op not in OPS:
            raise UnsupportedError(f"C++ kernels do not know the node {expr.op!r}")
        args = [self.value(arg, scope, guard) for arg in expr.args]
        if divides_by_zero(expr):
            self._report(f"{args[1]} == 0", ZERO_DIVISION, scope, guard)
        return scalar_text(expr, args)

    def _report(self, condition: str, code: int, scope: Scope, guard: Guard) -> str:
        """Note an error where ``condition`` holds; the name of the condition."""
        if guard is not None:
            condition = f"({condition}) & {self.value(guard, scope)}"
        name = self.fresh("b")
        scope.line(f"const bool {name} = {condition};")
        scope.line(f"error |= {name} ? {code} : 0;")
        return name

    def write_load(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        if 0 in self.nest.tensors[expr.tensor].shape:
            self.index(expr.coords[0], scope, guard)  # its checks still report
            return literal(0, expr.dtype)
        guard = self.guard_of_access(expr.coords[0], scope, guard)
        offset = self.index(expr.coords[0], scope, guard)
        kind = ctype(expr.dtype)
        text = kind.load(self.element(expr.tensor, offset))
        return text if guard is None else f"{self.value(guard, scope)} ? {text} : {literal(0, expr.dtype)}"

    def element(self, tensor: str, offset: str) -> str:
        """The text of an element in memory; where accesses are checked, of a spare word instead of one outside."""
        pointer = self.pointer(tensor)
        return (
            f"*checked_place({pointer}, {offset}, {self.extent(tensor)})"
            if self.check_bounds
            else f"{pointer}[{offset}]"
        )

    def extent(self, tensor: str) -> str:
        """What a check is handed: the words that say how far a tensor's memory reaches, and the report."""
        return f"bounds + {EXTENT_WORDS * list(self.pointers).index(tensor)}, report"

    def write_index(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        return self.index(expr.payload, scope, guard)

    def write_alone(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        args = [self.value(arg, scope, guard) for arg in expr.args]
        return alone_text(Expr.make(expr.payload, expr.args, expr.dtype), args)

    def write_size(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        return self.size(expr.payload)

    def write_check_index(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        value = self.value(expr.args[0], scope, guard)
        code = OUT_OF_RANGE if range_error(expr) is RuntimeError else INDEX_ERROR
        bad = self._report(f"(uint64_t){value} >= (uint64_t){self.size(expr.payload)}", code, scope, guard)
        return f"{bad} ? 0 : {value}"

    def write_wrap_index(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        value = self.value(expr.args[0], scope, guard)
        return f"{value} < 0 ? {value} + {self.size(expr.payload)} : {value}"

    def write_cast(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        source = expr.args[0]
        return cast_text(self.value(source, scope, guard), ctype(source.dtype), ctype(expr.dtype))

    def write_bitcast(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        source = expr.args[0]
        return bitcast_text(self.value(source, scope, guard), ctype(source.dtype), ctype(expr.dtype))

    def write_masked(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        condition, inside, outside = expr.args
        inside_text = self.value(inside, scope, self.both(guard, condition))
        return f"{self.value(condition, scope, guard)} ? {inside_text} : {self.value(outside, scope)}"

    def write_random(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        kind, stream = expr.payload
        seed, linear = (self.value(arg, scope, guard) for arg in expr.args)
        words = f"philox((uint64_t){seed}, (uint64_t){linear}, {self.stream(stream)})"
        where = ctype(expr.dtype)
        if kind == "bits":
            return f"random_bits({words})"
        if where.bits == 64:
            return f"random_{kind}_double({words})"
        digits = {"": 24, "f16": 11, "bf16": 8}[where.half]
        return f"random_uniform<{digits}>({words})" if kind == "uniform" else where.round(f"random_normal({words})")

    def write_scan(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        state = self.scan_states[expr].replace("@", self.lane_slot)
        wide = accumulator(expr.payload[0], expr.dtype)
        value = self.value(expr.args[0], scope)
        step = combine_text(expr.payload[0], wide, state, f"({wide.value}){value}")
        scope.line(f"{state} = {step};")
        return ctype(expr.dtype).round(f"({ctype(expr.dtype).value}){state}")

    def write_reduce(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        """A reduction of its own, not over the row: a plain loop where its value is wanted."""
        kind = expr.payload.kind
        wide = accumulator(kind, expr.dtype)
        total = self.fresh("q")
        opened = []
        inside = scope
        for variable in expr.payload.variables:
            name = self.fresh("k")
            inside = Scope(inside, f"for (int64_t {name} = 0; {name} < {self.size(variable.extent)}; {name}++)")
            inside.bind(variable, name)
            opened.append(inside)
        value = self.value(expr.args[0], inside, guard)
        inside.line(f"{total} = {combine_text(kind, wide, total, f'({wide.value}){value}')};")
        scope.line(f"{wide.value} {total} = {reduction_identity(kind, expr.dtype)};")
        for loop in reversed(opened):
            loop.close()
        text = f"({ctype(expr.dtype).value}){total}"
        # Named here: the loop variable ``total`` is not constant, and must not be taken for a plain name.
        return ctype(expr.dtype).round(text)

    def write_row(self, expr: Expr, scope: Scope, guard: Guard) -> str:
        raise AssertionError(f"row reduction {expr} is used before its phase")

    # ------------------------------------------------------------ stores

    def store(self, store: FlatStore, scope: Scope) -> None:
        """Write one element in ``scope``, where all loops that the store mentions are open."""
        kind = ctype(store.expr.dtype)
        packed = self._narrowed(store, scope)
        value = packed or self.value(store.expr, scope)
        element = self.element(store.tensor, self.index(store.offset, scope))
        if store.mode not in (None, "set"):
            mode = {"add": "sum", "mul": "prod"}.get(store.mode, store.mode)
            before = self.fresh("e")
            value = kind.round(combine_text(mode, kind, before, value))
            text = f"{{ const {kind.value} {before} = {kind.load(element)}; {element} = {kind.pack(f'({value})')}; }}"
        else:
            text = f"{element} = {packed or kind.pack(value)};"
        conditions = [c for c in (self.guard_of_access(store.offset, scope), store.condition) if c is not None]
        if conditions:
            text = f"if ({' && '.join(self.value(c, scope) for c in conditions)}) {text}"
        scope.line(text)

    def _narrowed(self, store: FlatStore, scope: Scope) -> str:
        """The packed half of a wider value that is stored and nothing else: rounded and packed in one go."""
        half, root = ctype(store.expr.dtype).half, store.expr
        if not half or root.op != "cast" or store.mode not in (None, "set"):
            return ""
        source = root.args[0]
        if source.dtype != torch.float32 or scope.named((root, None), self.base) is not None:
            return ""
        return f"{half}_narrow({self.value(source, scope)})"
