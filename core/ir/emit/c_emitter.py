"""What code generators for languages of the C family do alike: blocks, types, sizes, and most nodes of the loop IR.

A language gives a ``CEmitter`` its words: its types by dtype, the text of a scalar op, of casts and of a step of a
reduction.  C++ is one (``plugins/codegen/cpp``), OpenCL C another (``contrib/opencl``).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import attrs
import torch

from turret.errors import UnsupportedError
from turret.graph.ops.random_ops import UNIFORM_BITS
from turret.graph.scalar_ops import COMBINED_BY, neutral_value
from turret.hooks.devices import INDEX_ERROR, OUT_OF_RANGE, ZERO_DIVISION
from turret.ir.emit.emitter import ExprFacts, Mask, Namer, Printer, TextEmitter, infix, written_size
from turret.ir.emit.scopes import Scope
from turret.ir.expr import OPS, Expr, divides_by_zero, expr_of, range_error, walk
from turret.ir.index import Div, Mod, Size, Value, Var, provably_nonnegative
from turret.ir.nest import FlatStore, Nest, accumulator_dtype

# ---------------------------------------------------------------- types


@attrs.frozen
class CType:
    """One dtype: types of value and element, suffix of its literals, and the prefix of its half helpers.

    Half-precision values live in ``float`` registers and are rounded after every operation that can leave the format,
    as eager PyTorch does, so a store only drops bits that are zero already.
    """

    value: str
    element: str
    bits: int
    kind: str
    suffix: str = ""
    half: str = ""

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def register_bytes(self) -> int:
        """Bytes of a value in a register or a scratch array."""
        return 4 if self.half else self.bits // 8

    def load(self, element: str) -> str:
        """The value of the element expression ``element``."""
        if self.half:
            return f"{self.half}_load({element})"
        return f"({element} != 0)" if self.kind == "bool" else element

    def pack(self, value: str) -> str:
        """The element that holds ``value``."""
        if self.half:
            return f"{self.half}_pack({value})"
        return f"({self.element}){value}" if self.kind == "bool" else value

    def round(self, value: str) -> str:
        """``value``, computed in a wider register, rounded to this format."""
        return f"{self.half}_round({value})" if self.half else value


@functools.lru_cache(maxsize=4096, typed=True)
def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(value, dtype=torch.float64).to(torch.float32).to(dtype))


def literal(value: float | int | bool, dtype: torch.dtype, kind: CType, long: str = "ll") -> str:
    """A literal with exactly the value that torch gives ``value`` in ``dtype``; ``long``: suffix of 64-bit integers."""
    if kind.kind == "bool":
        return "true" if value else "false"
    if not kind.is_float:
        return _integer(int(value), kind, long)
    value = float(value)
    if dtype != torch.float64:
        value = math.copysign(_rounded(abs(value), dtype), value) if math.isfinite(value) else value
    if math.isnan(value):
        return f'__builtin_nan{kind.suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{kind.suffix}()"
    return f"{value!r}{kind.suffix}" if math.copysign(1.0, value) > 0 else f"(-{-value!r}{kind.suffix})"


def _integer(value: int, kind: CType, long: str) -> str:
    if kind.kind == "uint":
        return f"{value % (1 << kind.bits)}{'u' if kind.bits <= 32 else 'u' + long}"
    value = (value + (1 << kind.bits - 1)) % (1 << kind.bits) - (1 << kind.bits - 1)
    if value == -(1 << 63):
        return f"(-{(1 << 63) - 1}{long} - 1)"
    text = str(value) if abs(value) < 1 << 31 else f"{value}{long}"
    return f"({text})" if value < 0 else text


def cast_text(value: str, source: CType, target: CType) -> str:
    """``value`` of one dtype converted to another as ``Tensor.to`` does.

    The text may call ``to_int32``, ``to_int64`` and ``to_uint64`` of a float, which give what x86 gives: the least
    integer where it does not fit.
    """
    if target.kind == "bool":
        return f"{value} != 0"
    if target.is_float:
        if source.kind == "bool":
            return f"{value} ? 1.0{target.suffix} : 0.0{target.suffix}"  # a plain conversion does not vectorise
        if target.half:
            return value if source.half == target.half else target.round(f"(float){value}")
        return value if source.value == target.value else f"({target.value}){value}"
    if not source.is_float:
        return f"({target.value}){value}"
    if target.bits == 64 or target.kind == "uint":
        return f"({target.value})to_{target.kind if target.bits == 64 else 'int'}64({value})"
    return f"({target.value})to_int32({value})" if target.bits < 32 else f"to_int32({value})"


# ---------------------------------------------------------------- sizes


def size_text(value: Size, namer: Namer, language: str = "C++", long: str = "ll") -> str:
    """``value`` as an expression; ``UnsupportedError`` names a function of sizes that is not known.

    The text may call ``floor_div``, ``floor_mod``, ``least`` and ``most`` of two 64-bit integers.
    """

    def number(value: int) -> str:
        return str(value) if abs(value) < 1 << 31 else f"{value}{long}"

    return written_size(value, namer, number, lambda kind, operands: _PRINTERS.get(kind), language)


def _fold(function: str) -> Printer:
    return lambda args: functools.reduce(lambda left, right: f"{function}({left}, {right})", args)


_PRINTERS: dict[str, Printer] = {
    "Add": infix(" + "),
    "Mul": infix(" * "),
    "floor": _fold("floor_div"),
    "FloorDiv": _fold("floor_div"),
    "CleanDiv": _fold("floor_div"),
    "CeilDiv": lambda args: f"(-floor_div(-{args[0]}, {args[1]}))",
    "Mod": _fold("floor_mod"),
    "PythonMod": _fold("floor_mod"),
    "ModularIndexing": lambda args: f"floor_mod(floor_div({args[0]}, {args[1]}), {args[2]})",
    "Max": _fold("most"),
    "Min": _fold("least"),
    "Abs": lambda args: f"most({args[0]}, -({args[0]}))",
}


# ---------------------------------------------------------------- blocks and nodes


class Block(Scope):
    """A block of source, with what stands ahead of its brace."""

    def __init__(self, parent: Block | None = None, header: str = "") -> None:
        super().__init__(parent)
        self.header = header

    def bind(self, variable: Var, name: str) -> None:
        """Say which variable of the source a loop variable is from here on."""
        self.variables[variable] = name

    def close(self) -> None:
        """Hand the finished block to the parent."""
        assert self.parent is not None
        self.parent.lines += self.text()

    def text(self) -> list[str]:
        """The block's lines, header and braces included."""
        body = [line if line.startswith("#") else "  " + line for line in self.lines]
        return [f"{self.header} {{".lstrip(), *body, "}"]


class LoopFacts(ExprFacts):
    """Facts of a nest whose reductions are all written as loops where their values are wanted: there are no phases."""

    def __init__(self, nest: Nest) -> None:
        super().__init__(nest.tensors)
        self._row = frozenset(nest.inner)

    def level(self, expr: Expr) -> int:
        return 0

    def is_along_row(self, expr: Expr) -> bool:
        return expr.op == "scan" or (expr.op == "reduce" and frozenset(expr.payload.variables) == self._row)

    def reports(self, expr: Expr) -> bool:
        return divides_by_zero(expr)


_WHOLE: Mapping[Var, tuple[str, str]] = {}


class CEmitter(TextEmitter):
    """The state of writing one kernel in a language of the C family.

    ``index_type`` is a signed integer of 64 bits, ``unsigned`` and ``narrow`` unsigned ones of 64 and 32.  A kernel
    notes errors in a variable ``error``: the codes of ``turret.plan.launch.functions``, joined by or.
    """

    language: ClassVar[str] = "C"
    index_type: ClassVar[str] = "int64_t"
    unsigned: ClassVar[str] = "uint64_t"
    narrow: ClassVar[str] = "uint32_t"
    long: ClassVar[str] = "ll"

    def __init__(self, nest: Nest, facts: ExprFacts | None = None, base: Block | None = None) -> None:
        super().__init__(base or Block(), facts or LoopFacts(nest))
        self.nest = nest

    # ------------------------------------------------------------ the language's words

    ctypes: ClassVar[Mapping[torch.dtype, CType]] = {}

    def ctype(self, dtype: torch.dtype) -> CType:
        """The types of a dtype; ``UnsupportedError`` for those that kernels do not compute with."""
        if dtype not in self.ctypes:
            raise UnsupportedError(f"{self.language} kernels do not compute with {dtype}")
        return self.ctypes[dtype]

    def op_text(self, op: str, where: CType, args: list[str], constant: Any = None) -> str:
        """One op of the table ``OPS`` on values of one type, not rounded yet.

        ``constant`` is what the last argument is known to be, if anything: powers may be products.
        """
        raise NotImplementedError

    def scalar_text(self, expr: Expr, args: list[str]) -> str:
        """One op of the table ``OPS`` (``masked`` apart) on names or literals, rounded to its dtype."""
        last = expr.args[-1]
        where = self.ctype(last.dtype)
        text = self.op_text(expr.op, where, args, last.payload if last.op == "const" else None)
        info = OPS[expr.op]
        return text if info.result == "bool" or info.exact_in_half else where.round(text)

    def bitcast_text(self, value: str, source: CType, target: CType) -> str:
        """The bits of a value as another type of the same width."""
        raise NotImplementedError

    def combine_text(self, kind: str, where: CType, left: str, right: str) -> str:
        """One step of a reduction, scan or scatter: ``left`` is what there was."""
        op = COMBINED_BY[kind]
        # Of two zeros minima and maxima take the second; eager's rows keep the first.
        return self.op_text(op, where, [right, left] if kind in ("min", "max") else [left, right])

    def constant(self, expr: Expr) -> str:
        return self.literal(expr.payload, expr.dtype)

    def literal(self, value: float | int | bool, dtype: torch.dtype) -> str:
        """A number of a dtype."""
        return literal(value, dtype, self.ctype(dtype), self.long)

    # ------------------------------------------------------------ sizes and indices

    def size(self, value: Size) -> str:
        text = size_text(value, self.symbol, self.language, self.long)
        if isinstance(value, int) or text in self.symbols.values():
            return text
        return self.named(self.base, ("size", text), "n", text)

    @staticmethod
    def is_plain(text: str) -> bool:
        return text.replace("_", "").isalnum()

    def assignment(self, name: str, text: str, dtype: torch.dtype) -> str:
        return f"const {self.ctype(dtype).value} {name} = {text};"

    def term(self, atom: Var | Div | Mod | Value, coefficient: Size, scope: Scope, mask: Mask) -> str:
        text = self._atom(atom, scope, mask)
        return text if coefficient == 1 else f"{self.size(coefficient)} * {text}"

    def _atom(self, atom: Var | Div | Mod | Value, scope: Scope, mask: Mask) -> str:
        if isinstance(atom, Var):
            return scope.variable(atom)
        if isinstance(atom, Value):
            return self.value(expr_of(atom), scope, mask)
        numerator = self.index(atom.numerator, scope, mask)
        sign = "/" if isinstance(atom, Div) else "%"
        low, high = atom.numerator.bounds()
        if low is None or not provably_nonnegative(low):
            return f"floor_{'div' if sign == '/' else 'mod'}({numerator}, {self.size(atom.divisor)})"
        if isinstance(atom.divisor, int) and isinstance(high, int) and high < 1 << 31:
            # 32-bit division by a constant vectorises.
            return f"({self.index_type})(({self.narrow})({numerator}) {sign} {atom.divisor}u)"
        return f"(({numerator}) {sign} {self.size(atom.divisor)})"

    # ------------------------------------------------------------ nodes

    def scalar(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        if expr.op not in OPS:
            raise UnsupportedError(f"{self.language} kernels do not know the node {expr.op!r}")
        args = [self.value(arg, scope, mask) for arg in expr.args]
        if divides_by_zero(expr):
            self.report(f"{args[1]} == 0", ZERO_DIVISION, scope, mask)
        return self.scalar_text(expr, args)

    def report(self, condition: str, code: int, scope: Scope, mask: Mask) -> str:
        """Note an error where ``condition`` holds; the name of the condition."""
        if mask is not None:
            condition = f"({condition}) & {self.value(mask, scope)}"
        name = self.fresh("b")
        scope.line(f"const bool {name} = {condition};")
        scope.line(f"error |= {name} ? {code} : 0;")
        return name

    def element(self, tensor: str, offset: str) -> str:
        """The text of an element in memory."""
        return f"{self.pointer(tensor)}[{offset}]"

    def write_load(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        if 0 in self.nest.tensors[expr.tensor].shape:
            self.index(expr.coords[0], scope, mask)  # its checks still report
            return self.literal(0, expr.dtype)
        mask = self.mask_of_access(expr.coords[0], scope, mask)
        offset = self.index(expr.coords[0], scope, mask)
        text = self.ctype(expr.dtype).load(self.element(expr.tensor, offset))
        return text if mask is None else f"{self.value(mask, scope)} ? {text} : {self.literal(0, expr.dtype)}"

    def write_index(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        return self.index(expr.payload, scope, mask)

    def write_size(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        return self.size(expr.payload)

    def write_check_index(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        value = self.value(expr.args[0], scope, mask)
        code = OUT_OF_RANGE if range_error(expr) is RuntimeError else INDEX_ERROR
        outside = f"({self.unsigned}){value} >= ({self.unsigned}){self.size(expr.payload)}"
        return f"{self.report(outside, code, scope, mask)} ? 0 : {value}"

    def write_wrap_index(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        value = self.value(expr.args[0], scope, mask)
        return f"{value} < 0 ? {value} + {self.size(expr.payload)} : {value}"

    def write_group_of(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        first, row = expr.args
        found, place = self.fresh("group"), self.value(row, scope, mask)
        scope.line(f"{self.ctype(torch.int64).value} {found} = 0;")
        scope.line(f"while ({found} < {expr.payload} && {self.element(first.tensor, found)} <= {place}) ++{found};")
        return found

    def write_cast(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        source = expr.args[0]
        return cast_text(self.value(source, scope, mask), self.ctype(source.dtype), self.ctype(expr.dtype))

    def write_bitcast(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        source = expr.args[0]
        return self.bitcast_text(self.value(source, scope, mask), self.ctype(source.dtype), self.ctype(expr.dtype))

    def write_masked(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        condition, inside, outside = expr.args
        inside_text = self.value(inside, scope, self.both(mask, condition))
        return f"{self.value(condition, scope, mask)} ? {inside_text} : {self.value(outside, scope)}"

    def write_random(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        kind, stream = expr.payload
        seed, linear = (self.value(arg, scope, mask) for arg in expr.args)
        words = f"philox(({self.unsigned}){seed}, ({self.unsigned}){linear}, {self.stream(stream)})"
        where = self.ctype(expr.dtype)
        if kind == "bits":
            return f"random_bits({words})"
        if where.bits == 64:
            return f"random_{kind}_double({words})"
        if kind == "normal":
            return where.round(f"random_normal({words})")
        return f"random_uniform({words}, {UNIFORM_BITS[expr.dtype]})"

    def write_reduce(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        """A reduction as a plain loop where its value is wanted; innermost is the loop that a scan in it goes along."""
        assert isinstance(scope, Block)
        kind, dtype = expr.payload.kind, accumulator_dtype(expr.payload.kind, expr.dtype)
        wide, total = self.ctype(dtype), self.fresh("q")
        scanned = {node.payload[1] for node in walk(expr.args[0]) if node.op == "scan"}
        inside = self.open_loops(scope, sorted(expr.payload.variables, key=scanned.__contains__), stem="k")
        value = self.value(expr.args[0], inside, mask)
        inside.line(f"{total} = {self.combine_text(kind, wide, total, f'({wide.value}){value}')};")
        scope.line(f"{wide.value} {total} = {self.literal(neutral_value(kind, dtype), dtype)};")
        self.close_loops(inside, scope)
        # Named here: the loop variable ``total`` is not constant, and must not be taken for a plain name.
        result = self.ctype(expr.dtype)
        return result.round(f"({result.value}){total}")

    def write_scan(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        """A running value, carried from step to step of the loop that the scan goes along: the innermost one."""
        kind, variable = expr.payload
        if variable not in scope.variables:
            raise UnsupportedError(f"{self.language} kernels have no scan over {variable} around another loop")
        dtype, state = accumulator_dtype(kind, expr.dtype), self.fresh("state")
        wide, result = self.ctype(dtype), self.ctype(expr.dtype)
        assert scope.parent is not None  # the loop that the scan goes along is open
        scope.parent.line(f"{wide.value} {state} = {self.literal(neutral_value(kind, dtype), dtype)};")
        value = f"({wide.value}){self.value(expr.args[0], scope)}"
        scope.line(f"{state} = {self.combine_text(kind, wide, state, value)};")
        return result.round(f"({result.value}){state}")

    # ------------------------------------------------------------ loops and stores

    def open_loops(
        self, scope: Block, variables: Iterable[Var], parts: Mapping[Var, tuple[str, str]] = _WHOLE, stem: str = "i"
    ) -> Block:
        """Loops in a block, each in the one before it; the innermost block.  ``parts``: bounds of those cut short."""
        for variable in variables:
            low, high = parts.get(variable) or ("0", self.size(variable.extent))
            name = self.fresh(stem)
            scope = type(scope)(scope, f"for ({self.index_type} {name} = {low}; {name} < {high}; {name}++)")
            scope.bind(variable, name)
        return scope

    def close_loops(self, scope: Block, until: Block) -> None:
        """Close the blocks from ``scope`` out to ``until``, which stays open."""
        while scope is not until:
            scope.close()
            assert scope.parent is not None
            scope = scope.parent

    def write_nest(self, parts: Mapping[Var, tuple[str, str]] = _WHOLE) -> None:
        """The loops of the nest, of some only a part, with its stores in their order."""
        outer = self.open_loops(self.base, self.nest.outer, parts)
        inner = frozenset(self.nest.inner)
        for in_row, stores in itertools.groupby(self.nest.stores, key=lambda s: not s.variables.isdisjoint(inner)):
            scope = self.open_loops(outer, self.nest.inner if in_row else ())
            for store in stores:
                self.store(store, scope)
            self.close_loops(scope, outer)
        self.close_loops(outer, self.base)

    def store(self, store: FlatStore, scope: Scope) -> None:
        """Write one element in ``scope``, where all loops that the store mentions are open."""
        kind = self.ctype(store.expr.dtype)
        packed = self.packed(store, scope)
        element = self.element(store.tensor, self.index(store.offset, scope))
        if store.mode in (None, "set"):
            text = f"{element} = {packed};"
        else:
            mode = {"add": "sum", "mul": "prod"}.get(store.mode, store.mode)
            before = self.fresh("e")
            value = kind.round(self.combine_text(mode, kind, before, self.value(store.expr, scope)))
            text = f"{{ const {kind.value} {before} = {kind.load(element)}; {element} = {kind.pack(f'({value})')}; }}"
        conditions = [c for c in (self.mask_of_access(store.offset, scope), store.condition) if c is not None]
        if conditions:
            text = f"if ({' && '.join(self.value(c, scope) for c in conditions)}) {text}"
        scope.line(text)

    def packed(self, store: FlatStore, scope: Scope) -> str:
        """The element that a store's value is in memory."""
        return self.ctype(store.expr.dtype).pack(self.value(store.expr, scope))
