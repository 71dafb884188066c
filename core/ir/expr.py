"""The expressions of the loop IR: one immutable, hash-consed node type over the table of scalar ops.

An expression is the value of one element, as a function of the loop variables that occur free in it.  Nodes
are interned, so equal expressions are the same object: common subexpressions, shared reductions and equal
kernels are found by identity.  Build with ``call``, ``constant``, ``load``, ``reduce`` and friends; they fold
what is exact and check arity.

Dtypes are torch's.  Arithmetic ops want arguments of one dtype and give that dtype back (comparisons give
bool): a lowering writes the casts, so that no later stage needs promotion rules.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Literal

import attrs
import torch

from turret.errors import VerificationError
from turret.graph.dtypes import HALF, INTEGERS
from turret.graph.scalar_ops import OPS as OPS
from turret.graph.scalar_ops import ScalarOp
from turret.hooks.text.notation import dtype_text, name_text
from turret.ir.index import Index, Size, Value, Var

STRUCTURAL = frozenset(
    [
        "const",
        "load",
        "index",
        "check_index",
        "wrap_index",
        "group_of",
        "cast",
        "bitcast",
        "reduce",
        "part",
        "scan",
        "random",
        "size",
    ]
)
"""Nodes with a payload, each built by the function of its name below."""

ReductionKind = Literal["sum", "prod", "min", "max", "any", "all", "argmin", "argmax", "welford"]


@attrs.frozen
class Reduction:
    """Payload of ``reduce``: how elements combine, and the variables bound and reduced over, outermost first."""

    kind: ReductionKind
    variables: tuple[Var, ...]


class Expr:
    """One node. ``op``, ``args`` (nodes), ``dtype`` and ``payload`` (hashable) identify it."""

    __slots__ = (
        "__weakref__",
        "_children",
        "_loads",
        "_text",
        "args",
        "dtype",
        "op",
        "payload",
        "reports",
        "variables",
    )
    _interned: ClassVar[weakref.WeakValueDictionary[Any, Any]] = weakref.WeakValueDictionary()

    op: str
    args: tuple[Expr, ...]
    dtype: torch.dtype
    payload: Any
    variables: frozenset[Var]
    _text: str | None
    _loads: tuple[Expr, ...] | None
    _children: tuple[Expr, ...]
    reports: bool
    """Whether evaluating it may report an error: a ``check_index`` or an integer division is here or below."""

    @classmethod
    def make(cls, op: str, args: tuple[Expr, ...], dtype: torch.dtype, payload: Any = None) -> Expr:
        """The node, without folding or checks; use the builders below."""
        # 0.0, -0.0, False and 0 are equal to Python yet different constants; repr tells them apart.
        key = (op, args, dtype, repr(payload) if op == "const" else payload)
        found = cls._interned.get(key)
        if found is None:
            found = object.__new__(cls)
            found.op, found.args, found.dtype, found.payload = op, args, dtype, payload
            found._text = found._loads = None
            found._children = args
            free = frozenset().union(*(arg.variables for arg in args)) if args else frozenset()
            for coord in found.coords:
                free |= coord.variables
                found._children += coord.values
            if op == "reduce":
                free -= frozenset(payload.variables)
            elif op == "scan":
                free |= {payload[1]}
            found.variables = free
            found.reports = (
                op == "check_index" or divides_by_zero(found) or any(child.reports for child in found._children)
            )
            cls._interned[key] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return (Expr.make, (self.op, self.args, self.dtype, self.payload))

    def children(self) -> tuple[Expr, ...]:
        """Arguments, then the expressions inside indices."""
        return self._children

    @property
    def coords(self) -> tuple[Index, ...]:
        """The indices in the payload (of ``load`` and ``index``)."""
        if self.op == "load":
            found: tuple[Index, ...] = self.payload[1]
            return found
        return (self.payload,) if self.op == "index" else ()

    @property
    def tensor(self) -> str:
        """Name of the tensor that a ``load`` reads."""
        name: str = self.payload[0]
        return name

    def __repr__(self) -> str:
        if self._text is None:
            self._text = _text(self)
        return self._text


def _text(expr: Expr) -> str:
    dtype = dtype_text(expr.dtype)
    args = ", ".join(map(str, expr.args))
    match expr.op:
        case "const":
            return f"{expr.payload}:{dtype}"
        case "load":
            return f"{name_text(expr.tensor)}[{', '.join(map(str, expr.coords))}]"
        case "index":
            return f"({expr.payload})"
        case "size":
            return f"size({expr.payload})"
        case "cast" | "bitcast":
            return f"{'bits_' if expr.op == 'bitcast' else 'exact_' if expr.payload else ''}{dtype}({args})"
        case "reduce":
            return f"{expr.payload.kind}<{', '.join(f'{v}<{v.extent}' for v in expr.payload.variables)}>({args})"
        case "check_index" | "wrap_index" | "group_of":
            return f"{expr.op}({args}, {expr.payload})"
        case "part":
            return f"part.{expr.payload}({args})"
        case "scan":
            return f"scan.{expr.payload[0]}<{expr.payload[1]}>({args})"
        case "random":
            return f"random.{expr.payload[0]}({args}, {expr.payload[1]})"
        case _:
            return f"{expr.op}({args})"


# ---------------------------------------------------------------- builders


def constant(value: float | int | bool, dtype: torch.dtype) -> Expr:
    """A literal of ``dtype``: a half type's is rounded, an integer out of range wraps around, as in a tensor."""
    if dtype == torch.bool:
        value = bool(value)
    elif dtype.is_floating_point:
        value = torch.tensor(float(value), dtype=dtype).item() if dtype in HALF else float(value)
    else:
        value = _wrapped(int(value), dtype)
    return Expr.make("const", (), dtype, value)


def _wrapped(value: int, dtype: torch.dtype) -> int:
    bounds = torch.iinfo(dtype)
    return (value - bounds.min) % (bounds.max - bounds.min + 1) + bounds.min


def load(tensor: str, coords: Iterable[Index | Var | int], dtype: torch.dtype) -> Expr:
    """Element of a named tensor at coordinates (one for each of its dimensions)."""
    return Expr.make("load", (), dtype, (tensor, tuple(Index.wrap(c) for c in coords)))


def index_value(index: Index | Var | Size, dtype: torch.dtype = torch.int64) -> Expr:
    """An index used as a number."""
    index = Index.wrap(index)
    if index.is_constant and isinstance(index.const, int):
        return constant(index.const, dtype)
    if len(index.terms) == 1 and index.const == 0 and index.terms[0][1] == 1 and index.values:
        value = getattr(index.terms[0][0], "expr", None)
        if value is not None:
            return cast(value, dtype)
    return cast(Expr.make("index", (), torch.int64, index), dtype)


def check_index(expr: Expr, extent: Size, error: type[Exception] = IndexError) -> Expr:
    """``expr``, promised to lie in ``range(extent)``; where it does not, the kernel reports an error.

    ``error`` is ``IndexError`` or ``RuntimeError``, as eager's kernel has it; the second is noted as a second argument.
    """
    noted = (constant(True, torch.bool),) if error is RuntimeError else ()
    return Expr.make("check_index", (cast(expr, torch.int64), *noted), torch.int64, extent)


def keep_checks(value: Expr, where: Iterable[Index]) -> Expr:
    """``value``, evaluated with every check in ``where``: the coordinates that it was read at.

    A value may not depend on one of them, as along a dimension that was expanded, or be a constant altogether.
    """
    demanded = [found for index in where for found in index.values if found.reports]
    if demanded:
        kept = set(walk(value))
        for node in reversed(list(walk(*demanded))):
            if node.op == "check_index" and node not in kept:
                kept.update(walk(node))
                passed = call("ge", node, constant(0, torch.int64))
                value = call("where", passed, value, constant(0, value.dtype))
    return value


def range_error(check: Expr) -> type[Exception]:
    """What a failed ``check_index`` raises."""
    return RuntimeError if len(check.args) > 1 else IndexError


def divides_by_zero(expr: Expr) -> bool:
    """Whether the op can meet an integer division by zero at run time."""
    info = OPS.get(expr.op)
    if info is None or not info.checks_zero or expr.dtype.is_floating_point:
        return False
    return expr.args[1].op != "const" or expr.args[1].payload == 0


def wrap_index(expr: Expr, extent: Size) -> Expr:
    """``expr + extent`` where ``expr`` is negative: Python's indices from the end."""
    return Expr.make("wrap_index", (cast(expr, torch.int64),), torch.int64, extent)


def cast(expr: Expr, dtype: torch.dtype, exact: bool = False) -> Expr:
    """``expr`` converted as ``Tensor.to(dtype)`` converts.

    ``exact``: the program asked for this conversion, so that a scheduler may not drop its rounding, as it may
    between ops of half types inside a kernel.
    """
    if expr.dtype == dtype:
        return expr
    if expr.op == "const" and math.isfinite(expr.payload) and _fits(expr.payload, dtype):
        return constant(expr.payload, dtype)
    if expr.op == "cast" and expr.args[0].dtype == dtype and dtype.itemsize == 2 and expr.dtype == torch.float32:
        # A float32 keeps every half and every 16-bit integer.
        return expr.args[0]
    return Expr.make("cast", (expr,), dtype, True if exact else None)


def _fits(value: float | int, dtype: torch.dtype) -> bool:
    """Whether a literal survives the conversion exactly (or is rounded once, float to float32 and up)."""
    if dtype == torch.bool or dtype in (torch.float64, torch.float32):
        return True
    if dtype.is_floating_point:
        return float(torch.tensor(value, dtype=torch.float64).to(dtype)) == value
    bounds = torch.iinfo(dtype)
    return value == int(value) and bounds.min <= value <= bounds.max


def bitcast(expr: Expr, dtype: torch.dtype) -> Expr:
    """The same bits as another dtype of the same width."""
    return expr if expr.dtype == dtype else Expr.make("bitcast", (expr,), dtype)


def group_of(ends: str, row: Expr, count: int) -> Expr:
    """Number of the group that ``row`` (int64) is in, of ``count`` consecutive ones; ``count`` for rows behind all.

    ``ends`` is a contiguous int32 tensor of where each group ends, ascending (else the number is any of those).
    """
    first = load(ends, (0,), torch.int32)  # which says that the tensor is read
    return Expr.make("group_of", (first, row), torch.int64, count)


def size_value(value: Size, dtype: torch.dtype = torch.int64) -> Expr:
    """A size (an int or an expression over size symbols) as a number.

    Of a symbol that stands for a float the table of sizes holds the bits.
    """
    if isinstance(value, int):
        return constant(value, dtype)
    if value.is_Symbol and not value.is_integer:
        return cast(bitcast(Expr.make("size", (), torch.int64, value), torch.float64), dtype)
    return cast(Expr.make("size", (), torch.int64, value), dtype)


def call(op: str, *args: Expr) -> Expr:
    """A scalar op of the table ``OPS``; folded where that is exact and loses no error that would be reported."""
    info = OPS.get(op)
    if info is None or len(args) != info.arity:
        raise VerificationError(f"loop IR op {op!r} with {len(args)} arguments; known: {', '.join(sorted(OPS))}")
    dtype = info.dtype([arg.dtype for arg in args])
    return _fold(info, args, dtype) or Expr.make(op, args, dtype)


def _fold(info: ScalarOp, args: tuple[Expr, ...], dtype: torch.dtype) -> Expr | None:
    """Rewrites that are exact for every value, NaN and signed zeros included; None where there is none."""
    if info.undoes_itself and args[0].op == info.name:
        return args[0].args[0]
    fold = _FOLDS.get(info.name)
    folded = None if fold is None else fold(*args)
    return folded or _fold_integers(info, args, dtype)


def _fold_where(condition: Expr, chosen: Expr, other: Expr) -> Expr | None:
    if condition.op == "const":
        kept, left = (chosen, other) if condition.payload else (other, chosen)
        return None if left.reports else kept
    return chosen if chosen is other and not condition.reports else None


def _fold_masked(condition: Expr, chosen: Expr, other: Expr) -> Expr | None:
    """As of ``where``; what is masked reports nothing."""
    if condition.op != "const":
        return None
    return chosen if condition.payload else other


def _fold_mul(one: Expr, other: Expr) -> Expr | None:
    if _is_one(other):
        return one
    return other if _is_one(one) else None


def _fold_div(dividend: Expr, divisor: Expr) -> Expr | None:
    return dividend if _is_one(divisor) else None


def _is_one(expr: Expr) -> bool:
    return expr.op == "const" and expr.payload == 1 and expr.dtype != torch.bool


def _fold_logical_and(*args: Expr) -> Expr | None:
    for one, other in (args, args[::-1]):
        if one.op == "const" and (one.payload or not other.reports):
            return other if one.payload else one
    return None


_FOLDS: dict[str, Callable[..., Expr | None]] = {
    "where": _fold_where,
    "masked": _fold_masked,
    "mul": _fold_mul,
    "div": _fold_div,
    "logical_and": _fold_logical_and,
}
"""Rewrites by op, of its arguments."""


def _fold_integers(info: ScalarOp, args: tuple[Expr, ...], dtype: torch.dtype) -> Expr | None:
    """An op of constants alone."""
    if info.fold is None or args[0].dtype not in INTEGERS or any(arg.op != "const" for arg in args):
        return None
    value = info.fold(*(arg.payload for arg in args))
    return constant(value, dtype) if dtype == torch.bool or _fits(value, dtype) else None


def reduce(kind: ReductionKind, variables: Iterable[Var], *args: Expr) -> Expr:
    """Combine ``args[0]`` over all values of ``variables``, in the dtype of ``args[0]``.

    ``argmin``, ``argmax`` take the value and an int64 that numbers the elements; they give the least number of a
    best one (a NaN is better than anything).  ``welford`` gives a triple: read it with ``part``.
    Over no elements: sum 0, prod 1, any False, all True; the others are for the lowering to refuse.
    """
    variables = tuple(v for v in variables if v.extent != 1)
    if not variables and kind not in ("argmin", "argmax", "welford"):
        return args[0]
    dtype = torch.int64 if kind in ("argmin", "argmax") else args[0].dtype
    return Expr.make("reduce", args, dtype, Reduction(kind, variables))


def from_zero(value: Expr) -> Expr:
    """The sum of one element, started at +0 as eager starts it: the sum of -0 is +0."""
    return call("add", value, constant(0, value.dtype)) if value.dtype.is_floating_point else value


def part(expr: Expr, which: Literal["mean", "m2"]) -> Expr:
    """One result of a ``welford`` reduction: the mean, or the sum of squared differences from it."""
    return Expr.make("part", (expr,), expr.dtype, which)


ScanKind = Literal["sum", "prod", "min", "max"]


def scan(kind: ScanKind, variable: Var, body: Expr) -> Expr:
    """Running combination of ``body`` over ``range(variable + 1)``; ``variable`` stays free."""
    if variable.extent == 1:
        return body
    return Expr.make("scan", (body,), body.dtype, (kind, variable))


RandomKind = Literal["uniform", "normal", "bits"]


def random(kind: RandomKind, seed: Expr, linear: Expr, offset: int) -> Expr:
    """Philox random number ``linear`` of the stream ``(seed, offset)``; float32, or int64 for ``bits``."""
    dtype = torch.int64 if kind == "bits" else torch.float32
    return Expr.make("random", (seed, cast(linear, torch.int64)), dtype, (kind, offset))


# ---------------------------------------------------------------- walking and rewriting


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every node reachable from the roots once, operands before users (indices' values included)."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif node not in seen:
            seen.add(node)
            if node._children:
                stack.append((node, True))
                stack += [(child, False) for child in node._children if child not in seen]
            else:
                yield node


def loads(*roots: Expr) -> tuple[Expr, ...]:
    """Every distinct load below the roots, in a deterministic order; kept with each root, which is asked often."""
    if len(roots) == 1:
        return _loads(roots[0])
    return tuple(dict.fromkeys(node for root in roots for node in _loads(root)))


def expr_of(value: Value) -> Expr:
    """The expression of an integer in an index that the program computes; ``ir.index`` does not know its class."""
    assert isinstance(value.expr, Expr)
    return value.expr


def _loads(root: Expr) -> tuple[Expr, ...]:
    if root.op == "load":  # not kept: a node that refers to itself would outlive its last user
        return tuple(node for node in walk(root) if node.op == "load")
    if root._loads is None:
        root._loads = tuple(node for node in walk(root) if node.op == "load")
    return root._loads


def rebuild(expr: Expr, args: tuple[Expr, ...], coords: tuple[Index, ...] = ()) -> Expr:
    """The same node over other arguments and coordinates, folded again."""
    match expr.op:
        case "load":
            return load(expr.tensor, coords, expr.dtype)
        case "index":
            return index_value(coords[0])
        case "cast":
            return cast(args[0], expr.dtype, bool(expr.payload))
        case op if op in OPS:
            return call(op, *args)
        case _:
            return Expr.make(expr.op, args, expr.dtype, expr.payload)


def _keep(node: Expr) -> Expr | None:
    return None


def rewrite(
    root: Expr,
    variables: Mapping[Var, Index] | None = None,
    replace: Callable[[Expr], Expr | None] = _keep,
    rebind: tuple[tuple[Var, ...], tuple[Var, ...]] | None = None,
) -> Expr:
    """Substitute loop variables, and replace nodes, bottom-up.

    ``replace`` sees each node after its operands and variables were rewritten and returns its replacement or
    None; what it returns is not rewritten again.  Variables bound by a reduction are renamed where a
    substituted index would be captured.  ``rebind=(old, new)``: reductions over the variables ``old`` become
    reductions over ``new``; ``variables`` then gives each of ``old`` as an index over ``new``.
    """
    # A chain of ops over one shape has the same variables everywhere, and each of them is put into the next one.
    moving = {v: index for v, index in variables.items() if index.single_variable != v} if variables else {}
    if not moving and replace is _keep and rebind is None:
        return root
    return _Rewriter(moving, replace, rebind).visit(root)


class _Rewriter:
    def __init__(
        self,
        variables: Mapping[Var, Index],
        replace: Callable[[Expr], Expr | None],
        rebind: tuple[tuple[Var, ...], tuple[Var, ...]] | None = None,
    ) -> None:
        self.variables, self.replace, self.rebind = variables, replace, rebind
        self.incoming = frozenset().union(*(i.variables for i in variables.values())) if variables else frozenset()
        self.done: dict[Expr, Expr] = {}

    def visit(self, expr: Expr) -> Expr:
        found = self.done.get(expr)
        if found is None:
            found = (
                self._reduction(expr)
                if expr.op == "reduce"
                else self._scan(expr)
                if expr.op == "scan"
                else self._plain(expr)
            )
            self.done[expr] = found = self.replace(found) or found
        return found

    def _plain(self, expr: Expr) -> Expr:
        args = tuple(self.visit(arg) for arg in expr.args)
        coords = tuple(coord.substitute(self.variables, self.visit) for coord in expr.coords)
        same = all(a is b for a, b in zip(args, expr.args, strict=True))
        if same and all(a is b for a, b in zip(coords, expr.coords, strict=True)):
            return expr
        return rebuild(expr, args, coords)

    def _scan(self, expr: Expr) -> Expr:
        kind, variable = expr.payload
        target = self.variables.get(variable)
        if target is None:
            return self._plain(expr)
        moved = target.single_variable
        if moved is None or moved.extent != variable.extent:
            raise VerificationError(f"the scan {expr} runs over {variable}, which cannot become {target}")
        return Expr.make("scan", tuple(self.visit(a) for a in expr.args), expr.dtype, (kind, moved))

    def _reduction(self, expr: Expr) -> Expr:
        bound = expr.payload.variables
        if self.rebind is not None and bound == self.rebind[0]:
            args = tuple(self.visit(arg) for arg in expr.args)
            return Expr.make("reduce", args, expr.dtype, Reduction(expr.payload.kind, self.rebind[1]))
        inner: Mapping[Var, Index] = self.variables
        clash = [v for v in bound if v in self.incoming or v in inner]
        if not clash:
            return self._plain(expr)
        inner = {v: i for v, i in inner.items() if v not in bound and v in expr.variables}
        captured = frozenset().union(*(i.variables for i in inner.values())) if inner else frozenset()
        taken = captured | expr.variables | set(bound)
        renamed = []
        for variable in bound:
            if variable in captured:
                fresh = fresh_variable(variable, taken)
                taken |= {fresh}
                inner = {**inner, variable: fresh.index}
                variable = fresh
            renamed.append(variable)
        nested = _Rewriter(inner, self.replace)
        args = tuple(nested.visit(arg) for arg in expr.args)
        return Expr.make("reduce", args, expr.dtype, Reduction(expr.payload.kind, tuple(renamed)))


def fresh_variable(variable: Var, taken: Iterable[Var]) -> Var:
    """A variable of the same extent whose name differs from those taken (``r0`` to ``r0_1``, ...)."""
    stem = variable.name.split("_")[0]
    names = {v.name for v in taken}
    count = 1
    while f"{stem}_{count}" in names:
        count += 1
    return Var(f"{stem}_{count}", variable.extent)
