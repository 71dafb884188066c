"""Expressions to Triton: every node becomes one named value, in the outermost scope that can compute it.

A value has a dimension for each tile dimension, of size 1 where it does not vary; what varies along none is a scalar.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator

import torch

from turret.errors import UnsupportedError
from turret.graph.ops.random_ops import UNIFORM_BITS
from turret.graph.scalar_ops import neutral_value
from turret.ir.emit.emitter import Mask, TextEmitter
from turret.ir.expr import OPS, Expr, expr_of
from turret.ir.index import Div, Index, Mod, Size, Value, Var, product, provably_nonnegative
from turret.plugins.codegen.triton.emission.operators import bitcast_text, cast_text, combine_text, scalar_text
from turret.plugins.codegen.triton.emission.scopes import RowPart, Scope
from turret.plugins.codegen.triton.tiles.dtypes import (
    accumulator,
    from_accumulator,
    literal,
    to_accumulator,
    triton_type,
    typed_literal,
)
from turret.plugins.codegen.triton.tiles.facts import Facts
from turret.plugins.codegen.triton.tiles.specialization import divided_text, is_multiple
from turret.plugins.codegen.triton.tiles.tiling import Tile, Tiling

_BARE_LITERALS = frozenset(
    ["add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge", "min", "max", "where", "masked", "pow"]
)
"""Ops that take a bare number beside a tensor; elsewhere Triton wants a tensor, or would guess its type."""


class Emitter(TextEmitter):
    """The state of writing one kernel.

    ``narrow``: symbolic sizes are such that all indices fit 32 bits.  ``divisible``: symbols that are multiples of 16.
    ``sizes`` are those that the text computes, ``described`` the pointers that tensor descriptors begin at.
    """

    symbol_stem = "n"

    def __init__(self, tiling: Tiling, narrow: bool = False, divisible: Collection[str] = ()) -> None:
        super().__init__(Scope(), Facts(tiling))
        self.tiling, self.tensors, self.narrow, self.divisible = tiling, tiling.nest.tensors, narrow, divisible
        self.sizes: dict[Size, None] = {}
        self.described: set[str] = set()
        self.tiles = {tile.variable: tile for tile in tiling.dimensions}
        self.asserts = False
        self.wide, self.half = not narrow and self.facts.is_wide(), self.facts.is_half()
        # Of rows in vectors: where these end, the elements at both ends, the parts of a row in one block, the loop over
        # such rows, and the part that is being written.
        self.row_end: str | None = None
        self.edges: RowPart | None = None
        self.parts: list[RowPart] = []
        self.rows_loop: Scope | None = None
        self.row_part: RowPart | None = None
        # What writes a reduction along the row, or a scan; set by the writer of rows.
        self.row_writer: Callable[[Expr, Scope], str] | None = None
        self.scan_writer: Callable[[Expr, Scope], str] | None = None

    # ------------------------------------------------------------ sizes and shapes

    @property
    def index_type(self) -> str:
        return "tl.int64" if self.wide else "tl.int32"

    def size(self, value: Size) -> str:
        text = divided_text(value, self.symbol, self.divisible)
        self.sizes[value] = None
        if isinstance(value, int) or text in self.symbols.values():
            return text
        return self.named(self.base, ("size", text), "size", text)

    def shape(self, variables: frozenset[Var]) -> str:
        """The shape of a block that varies along ``variables``."""
        sizes = [self._block(tile) if tile.variable in variables else "1" for tile in self.tiling.dimensions]
        return f"[{', '.join(sizes)}]"

    def _block(self, tile: Tile) -> str:
        return tile.block if self.row_part is None or not tile.is_row else self.row_part.block

    @contextlib.contextmanager
    def within(self, part: RowPart | None) -> Iterator[None]:
        """While a part of the row is written, or (None) a block of it."""
        around, self.row_part = self.row_part, part
        yield
        self.row_part = around

    def spread(self, text: str, have: frozenset[Var], want: frozenset[Var]) -> str:
        """``text``, which varies along ``have``, as a block that has all of ``want``."""
        want = want & self.tiles.keys()
        if want <= have:
            return text
        return f"tl.broadcast_to({text}, {self.shape(want | (have & self.tiles.keys()))})"

    @staticmethod
    def is_plain(text: str) -> bool:
        return text.isidentifier()

    def assignment(self, name: str, text: str, dtype: torch.dtype) -> str:
        return f"{name} = {text}"

    # ------------------------------------------------------------ masks

    def tile_mask(self, tile: Tile, scope: Scope) -> str:
        """Name of the mask of a tile dimension."""
        home = scope.home((tile.variable,), 0)
        name = f"{tile.letter}mask"
        if name not in home.names:
            home.names[name] = name
            home.line(f"{name} = {home.variable(tile.variable)} < {self.end(tile)}")
        return home.names[name]

    def end(self, tile: Tile) -> str:
        """Where a tile dimension ends: of a row in parts, where the program's part of it does."""
        part = self.tiling.part
        if tile.is_row and self.row_end is not None:
            return self.row_end
        if part is None or part.length is None or not tile.is_row:
            return self.size(tile.extent)
        chunk = self.size(tile.extent)
        rest = f"tl.minimum({self.size(part.length)} - {self.base.variable(part.number)} * {chunk}, {chunk})"
        return self.named(self.base, "row end", "rend", f"tl.maximum({rest}, 0)")

    def needs_mask(self, tile: Tile, scope: Scope) -> bool:
        """Whether blocks may reach beyond a tile's extent where a scope is."""
        return self.tiling.needs_mask(tile) and not any(tile.variable in s.whole for s in scope.chain())

    def masks(self, variables: frozenset[Var], scope: Scope, mask: Mask = None) -> str:
        """The mask of a value that varies along ``variables``; empty where it needs none."""
        parts = [
            self.tile_mask(tile, scope)
            for tile in self.tiling.tiles
            if tile.variable in variables and self.needs_mask(tile, scope)
        ]
        if mask is not None:
            parts.append(self.value(mask, scope))
        return " & ".join(parts)

    # ------------------------------------------------------------ indices

    def index(self, index: Index, scope: Scope, mask: Mask = None) -> str:  # type: ignore[override]
        """As in the base; what lies along vectors of the row is counted from where these begin, which is a multiple."""
        edges, row = self.tiling.edges, self.tiling.row
        if edges is None or row is None or index.coefficient(row.variable) != 1:
            return super().index(index, scope, mask)
        vectors = scope.home(index.variables, 0).vectors
        distance = index - row.variable.index - edges.start
        sizes = (distance.const, *(step for _, step in distance.terms))
        if not vectors or not all(is_multiple(step, edges.unit, self.divisible) for step in sizes):
            return super().index(index, scope, mask)
        rest = super().index(distance, scope, mask)
        return vectors if rest == "0" else f"{vectors} + {rest}"

    def term(  # type: ignore[override]
        self, atom: Var | Div | Mod | Value, coefficient: Size, scope: Scope, mask: Mask
    ) -> str:
        text = self._atom(atom, scope, mask)
        return text if coefficient == 1 else f"{text} * {self._factor(coefficient)}"

    def _factor(self, value: Size) -> str:
        text = self.size(value)
        return f"({text})" if text.startswith("-") else text

    def _atom(self, atom: Var | Div | Mod | Value, scope: Scope, mask: Mask) -> str:
        if isinstance(atom, Var):
            return scope.variable(atom)
        if isinstance(atom, Value):
            text = self.value(expr_of(atom), scope, mask)
            low, high = atom.bounds()
            if not self.wide and isinstance(low, int) and isinstance(high, int) and low >= 0 and high < 1 << 31:
                return self.named(scope, ("narrow", text), "k", f"{text}.to(tl.int32)")
            return text
        numerator = self.index(atom.numerator, scope, mask)
        divisor = self.size(atom.divisor)
        low, _ = atom.numerator.bounds()
        if low is None or not provably_nonnegative(low):
            text = f"floor_{'div' if isinstance(atom, Div) else 'mod'}({numerator}, {divisor})"
        else:
            grouped = numerator if self.is_plain(numerator) else f"({numerator})"
            text = f"{grouped} {'//' if isinstance(atom, Div) else '%'} {divisor}"
        return self.named(scope, ("quotient", text), "i", text)

    # ------------------------------------------------------------ values

    def span(self, expr: Expr, mask: Mask = None) -> frozenset[Var]:
        """Along what the block of ``key(expr, mask)`` has more than one element."""
        mask = self.key(expr, mask)[1]
        return self.facts.span(expr) if mask is None else self.facts.span(expr) | self.facts.span(mask)

    def constant(self, expr: Expr) -> str:
        return self.named(self.base, expr, "c", typed_literal(expr.payload, expr.dtype))

    def _operands(self, expr: Expr, scope: Scope, mask: Mask) -> list[str]:
        bare = expr.op in _BARE_LITERALS and any(arg.op != "const" for arg in expr.args)
        return [
            _bare(arg) if bare and arg.op == "const" and _is_bare(arg) else self.value(arg, scope, mask)
            for arg in expr.args
        ]

    def scalar(self, expr: Expr, scope: Scope, mask: Mask) -> str:  # type: ignore[override]
        if expr.op not in OPS:
            raise UnsupportedError(f"Triton kernels do not know the node {expr.op!r}")
        triton_type(expr.dtype)
        if expr.op in _COMPARISONS:
            narrow = [text for arg in expr.args if (text := self._narrow(arg, scope)) is not None]
            if len(narrow) == len(expr.args) and any(arg.op != "const" for arg in expr.args):
                return scalar_text(expr, narrow)
        return scalar_text(expr, self._operands(expr, scope, mask), self.half)

    def _narrow(self, expr: Expr, scope: Scope) -> str | None:
        """An index or a constant as a number of the index type: it is compared without widening it to int64."""
        if expr.op == "const" and not expr.dtype.is_floating_point and abs(expr.payload) < 1 << 31:
            return f"({expr.payload})" if expr.payload < 0 else str(expr.payload)
        if expr.op != "index" or expr.payload.values:
            return None
        low, high = expr.payload.bounds()
        known = isinstance(low, int) and isinstance(high, int) and low >= -(1 << 31) and high < 1 << 31
        text = self.index(expr.payload, scope) if known or self.wide or self.narrow else None
        return text if text is None or self.is_plain(text) else f"({text})"

    def write_load(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        decl = self.tensors[expr.tensor]
        kind = triton_type(expr.dtype)
        (offset,) = expr.coords
        if 0 in decl.shape:
            self.index(offset, scope, mask)  # its checks still report
            return self.spread(typed_literal(0, expr.dtype), frozenset(), offset.variables)
        mask = self.mask_of_access(expr.coords[0], scope, mask)
        have = offset.variables.union(*(self.span(value, mask) for value in offset.values))
        want = have if mask is None else have | self.facts.span(mask)
        if isinstance(scope, RowPart) and scope.ahead is not None and mask is None and not offset.values:
            return kind.load(self._loaded_ahead(expr, scope, scope.ahead))
        text = self.index(offset, scope, mask)
        if mask is not None:
            text = self.spread(self._as_tensor(text), have, want)
        return kind.load(self._load_text(expr.tensor, text, self.masks(want, scope, mask)))

    def _load_text(self, tensor: str, place: str, masks: str) -> str:
        arguments = f"{self.pointer(tensor)} + {_grouped(place)}" if place != "0" else self.pointer(tensor)
        return f"tl.load({arguments}, {masks})" if masks else f"tl.load({arguments})"

    def _loaded_ahead(self, expr: Expr, scope: RowPart, rows: tuple[RowPart, RowPart]) -> str:
        """What was loaded of a row before the one ahead of it was computed; the next row is loaded then."""
        ahead, held = self.fresh("ahead"), self.fresh("held")
        scope.line(f"{held} = {ahead}")
        for part in rows:
            place = self.index(expr.coords[0], part)
            part.line(f"{ahead} = {self._load_text(expr.tensor, place, part.names['rmask'])}")
        return held

    def _as_tensor(self, text: str) -> str:
        """An offset that may be a bare number as something that can be broadcast."""
        return f"tl.full([], {text}, {self.index_type})" if text.lstrip("-").isdigit() else text

    def write_index(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        text = self.index(expr.payload, scope, mask)
        if text.lstrip("-").isdigit():
            return typed_literal(int(text), expr.dtype)
        return f"({text}).to(tl.int64)" if not self.is_plain(text) else f"{text}.to(tl.int64)"

    def write_size(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        return f"{self.size(expr.payload)}.to(tl.int64)"

    def write_check_index(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        value = self.value(expr.args[0], scope, mask)
        self.asserts = True
        inside = f"({value} >= 0) & ({value} < {self.size(expr.payload)})"
        have, want = self.span(expr.args[0], mask), self.span(expr, mask)
        inside = self.spread(f"({inside})", have, want) if mask is not None else inside
        masks = self.masks(want, scope, mask)
        scope.line(f'tl.device_assert({inside}, "index out of range"{f", {masks}" if masks else ""})')
        return self.spread(value, have, want)

    def write_wrap_index(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        value = self.value(expr.args[0], scope, mask)
        return f"tl.where({value} < 0, {value} + {self.size(expr.payload)}, {value})"

    def write_group_of(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        first, row = expr.args
        place, found, step = self.value(row, scope, mask), self.fresh("group"), self.fresh("step")
        scope.line(f"{found} = {place} * 0")
        inside = Scope(scope, f"for {step} in range(0, {expr.payload}):")
        inside.line(f"{found} += (tl.load({self.pointer(first.tensor)} + {step}) <= {place}).to(tl.int64)")
        inside.close()
        return found

    def write_cast(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        source = expr.args[0]
        if source.op == "index" and (expr.dtype.is_floating_point or (expr.dtype == torch.int32 and not self.wide)):
            narrow = self._narrow(source, scope)
            if narrow is not None and self.is_plain(narrow):
                held = torch.int64 if self.wide else torch.int32
                return cast_text(narrow, triton_type(held), triton_type(expr.dtype))
        return cast_text(self.value(source, scope, mask), triton_type(source.dtype), triton_type(expr.dtype))

    def write_bitcast(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        source = expr.args[0]
        return bitcast_text(self.value(source, scope, mask), triton_type(source.dtype), triton_type(expr.dtype))

    def write_masked(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        condition, inside, outside = expr.args
        inside_text = self.value(inside, scope, self.both(mask, condition))
        outside_text = _bare(outside) if _is_bare(outside) and inside.op != "const" else self.value(outside, scope)
        return f"tl.where({self.value(condition, scope, mask)}, {inside_text}, {outside_text})"

    def write_random(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        kind, stream = expr.payload
        where = triton_type(expr.dtype)
        seed, linear = (self.value(arg, scope, mask) for arg in expr.args)
        arguments = f"{seed}, {linear}, {self.stream(stream)}"
        if kind == "bits":
            return f"random_bits({arguments})"
        if where.bits == 64:
            return f"random_{kind}_double({arguments})"
        if kind == "normal":
            return where.round(f"random_normal({arguments})")
        return f"random_uniform({arguments}, {UNIFORM_BITS[expr.dtype]})"

    def write_reduce(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        row = self.tiling.row
        if row is not None and expr.payload.variables == (row.variable,):
            return self._of_row(expr, scope)
        return self._serial_reduction(expr, scope, mask)

    def _serial_reduction(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        """A reduction of its own, not along the row: a loop inside the tile."""
        kind, variables = expr.payload.kind, expr.payload.variables
        if kind in ("welford", "argmin", "argmax"):
            raise UnsupportedError(f"{kind} over {', '.join(map(str, variables))}, which is not the row of the kernel")
        dtype = accumulator(kind, expr.dtype)
        neutral = literal(neutral_value(kind, dtype), dtype)
        varying = self.span(expr, mask) & self.tiles.keys()
        total = self.fresh("q")
        inside, opened = scope, []
        for variable in variables:
            step, name = self.fresh("step"), self.fresh("k")
            inside = Scope(inside, f"for {step} in range(0, {self.size(variable.extent)}):")
            inside.line(f"{name} = tl.full([], 0, {self.index_type}) + {step}")
            inside.variables[variable] = name
            opened.append(inside)
        value = to_accumulator(self.value(expr.args[0], inside, mask), expr.dtype, dtype)
        inside.line(f"{total} = {combine_text(kind, dtype.is_floating_point, total, value)}")
        shape = self.shape(varying) if varying else "[]"
        scope.line(f"{total} = tl.full({shape}, {neutral}, {triton_type(dtype).register})")
        for loop in reversed(opened):
            loop.close()
        return triton_type(expr.dtype).round(from_accumulator(total, dtype, expr.dtype))

    def write_part(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        return self._of_row(expr, scope)

    def _of_row(self, expr: Expr, scope: Scope) -> str:
        assert self.row_writer is not None, f"{expr} is of no row"
        return self.row_writer(expr, scope)

    def write_scan(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        assert self.scan_writer is not None, f"{expr} is in no row"
        return self.scan_writer(expr, scope)

    def count(self, variables: tuple[Var, ...], register: str) -> str:
        """How many points loops have, as a floating-point number."""
        number = product(v.extent for v in variables)
        if isinstance(number, int):
            return f"{float(number)!r}" if register == "tl.float32" else f"tl.full([], {float(number)!r}, {register})"
        return f"{self.size(number)}.to({register})"


_COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


def _is_bare(expr: Expr) -> bool:
    """Whether a literal has by itself the type that it should have."""
    return expr.op == "const" and triton_type(expr.dtype).register in ("tl.float32", "tl.int32")


def _bare(expr: Expr) -> str:
    text = literal(expr.payload, expr.dtype)
    return f"({text})" if text.startswith("-") else text


def _grouped(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() or text.startswith("tl.") else f"({text})"
