"""Reads a line of the text of programs, schedules and plans: values, sizes, indices and expressions.

``notation`` and the ``__str__`` of each class write what is read here.  ``Names`` are what names stand for.
"""

from __future__ import annotations

import enum
import json
import operator
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar, get_args

import attrs
import sympy
import torch

from turret.errors import TextError
from turret.hooks.host import HOST
from turret.hooks.text.notation import NAME, row_major, span
from turret.ir.expr import OPS, Expr, Reduction, ReductionKind, ScanKind
from turret.ir.index import Div, Index, Mod, Size, Value, Var
from turret.ir.program import Ref, TensorDecl
from turret.torch_compat.sizes import of_sizes

_TOKEN = re.compile(
    rf'\s*(?P<token>"(?:[^"\\]|\\.)*"|\d+(?:\.\d+)?(?:e[+-]?\d+)?|{NAME}|//|\*\*|\.\.\.|\S)',
)
_CONSTANTS = {"None": None, "True": True, "False": False, "inf": float("inf"), "nan": float("nan")}
T = TypeVar("T")
_REDUCTIONS: dict[str, ReductionKind] = {kind: kind for kind in get_args(ReductionKind)}
_SCANS: dict[str, ScanKind] = {f"scan.{kind}": kind for kind in get_args(ScanKind)}
_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_CASTS = {
    **{name: ("cast", dtype, None) for name, dtype in _DTYPES.items()},
    **{f"exact_{name}": ("cast", dtype, True) for name, dtype in _DTYPES.items()},
    **{f"bits_{name}": ("bitcast", dtype, None) for name, dtype in _DTYPES.items()},
}
_SUMS = {"+": operator.add, "-": operator.sub}
_PRODUCTS = {"*": operator.mul, "/": lambda a, b: sympy.sympify(a) / b, "//": of_sizes.FloorDiv, "%": of_sizes.Mod}


@attrs.define
class Names:
    """What names stand for: tensors, size symbols, loop variables, and classes of records."""

    tensors: dict[str, TensorDecl] = attrs.field(factory=dict)
    symbols: dict[str, sympy.Symbol] = attrs.field(factory=dict)
    variables: dict[str, Var] = attrs.field(factory=dict)
    records: dict[str, type] = attrs.field(factory=dict)


class Reader:
    """A line, read from left to right; ``TextError`` says where it is not as expected."""

    def __init__(self, line: str, number: int, names: Names) -> None:
        self.line, self.number, self.names = line, number, names
        self.tokens = [match["token"] for match in _TOKEN.finditer(line)]
        self.at = 0

    def read(self, statement: Callable[[Reader], None]) -> None:
        """Have all of the line read by ``statement``; whatever goes wrong is a ``TextError`` that names the line."""
        try:
            statement(self)
        except TextError:
            raise
        except Exception as error:
            raise TextError(f"line {self.number}: {type(error).__name__}: {error}\n  in {self.line.strip()}") from error
        if self.next:
            self.fail("the end of the line")

    @property
    def next(self) -> str:
        """The token that is not read yet; empty at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def fail(self, expected: str) -> NoReturn:
        """Say what was given, what was expected, and where."""
        given = repr(self.next) if self.next else "the end of the line"
        raise TextError(f"line {self.number}: given {given}, expected {expected}\n  in {self.line.strip()}")

    def take(self) -> str:
        token = self.next
        self.at += 1
        return token

    def accept(self, *tokens: str) -> bool:
        """Read these tokens, if they come next."""
        found = tuple(self.tokens[self.at : self.at + len(tokens)]) == tokens
        self.at += len(tokens) if found else 0
        return found

    def expect(self, *tokens: str) -> None:
        if not self.accept(*tokens):
            self.fail(" ".join(tokens))

    def name(self, expected: str = "a name") -> str:
        """A name, in quotes or not."""
        if self.next.startswith('"'):
            return str(json.loads(self.take()))
        if not re.fullmatch(NAME, self.next):
            self.fail(expected)
        return self.take()

    def known(self, table: dict[str, Any], what: str) -> Any:
        """What a name stands for."""
        name = json.loads(self.next) if self.next.startswith('"') else self.next
        if name not in table:
            self.fail(f"{what}, one of: {', '.join(table) or 'none are declared'}")
        self.at += 1
        return table[name]

    def many(self, read: Callable[[], Any], close: str) -> tuple[Any, ...]:
        """Items with commas between, up to ``close``; an empty one is the end of the line."""
        found = []
        while not (self.accept(close) if close else not self.next):
            found.append(read())
            if self.next != close:
                self.expect(",")
        return tuple(found)

    # ------------------------------------------------------------ values
    def value(self) -> Any:
        """Plain data, a size, or a record."""
        token = self.next
        if token.startswith('"'):
            return self.name()
        if token in _CONSTANTS:
            return _CONSTANTS[self.take()]
        if token.startswith("torch."):
            return getattr(torch, self.take().removeprefix("torch."))
        if self.accept("["):
            return list(self.many(self.value, "]"))
        if self.accept("{"):
            return dict(self.many(self._pair, "}"))
        if self.accept("%"):
            return Ref(self.name())
        if self.accept("device", "("):
            return torch.device(self.many(self.name, ")")[0])
        if self.accept("complex", "("):
            return complex(*self.many(self.size, ")"))
        if self.accept("slice", "("):
            return slice(*self.many(self.value, ")"))
        if self.accept("..."):
            return ...
        if token in self.names.records:
            return self._record()
        if token.partition(".")[0] in self.names.records:
            return self._member()
        return self.size()

    def _pair(self) -> tuple[Any, Any]:
        key = self.value()
        self.expect(":")
        return key, self.value()

    def _record(self) -> Any:
        cls = self.names.records[self.name()]
        self.expect("(")
        return self.made(cls, dict(self.many(self._field, ")")))

    def _member(self) -> enum.Enum:
        """``Class.NAME`` of an enum."""
        cls = self.next.partition(".")[0]
        members = getattr(self.names.records[cls], "__members__", {})
        found: enum.Enum = self.known({f"{cls}.{name}": member for name, member in members.items()}, f"a {cls}")
        return found

    def _field(self) -> tuple[str, Any]:
        name = self.name("a field")
        self.expect("=")
        return name, self.value()

    def made(self, cls: type[T], fields: dict[str, Any]) -> T:
        """An object of its fields; those that its class does not have, or misses, are an error."""
        known = {a.name for a in getattr(cls, "__attrs_attrs__", ())}
        if not fields.keys() <= known:
            raise TextError(
                f"line {self.number}: {cls.__name__} has no field {', '.join(sorted(fields.keys() - known))}; "
                f"expected some of {', '.join(sorted(known))}\n  in {self.line.strip()}"
            )
        return cls(**fields)

    def tail(self) -> dict[str, Any]:
        """The fields in braces at the end of a statement."""
        if not self.accept("{"):
            return {}
        return dict(self.many(self._tail_field, "}"))

    def _tail_field(self) -> tuple[str, Any]:
        name = self.name("a field")
        self.expect(":")
        return name, self.value()

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Values, and values by name, up to the bracket that closes."""
        named: dict[str, Any] = {}
        values = self.many(lambda: self._argument(named), ")")
        return tuple(v for v in values if v is not named), named

    def _argument(self, named: dict[str, Any]) -> Any:
        """A value; or one by name, put into ``named``, and ``named`` itself."""
        if self.tokens[self.at + 1 : self.at + 2] != ["="]:
            return self.value()
        name, value = self._field()
        named[name] = value
        return named

    # ------------------------------------------------------------ sizes and indices
    def size(self) -> Any:
        """Arithmetic on numbers, size symbols and loop variables: a size, or an index where variables are in it."""
        return self._chain(_SUMS, lambda: self._chain(_PRODUCTS, self._signed))

    def index(self) -> Index:
        found = self.size()
        return found if isinstance(found, Index) else Index.make((), found)

    def _chain(self, operators: dict[str, Callable[..., Any]], operand: Callable[[], Any]) -> Any:
        found = operand()
        while self.next in operators:
            sign = self.take()
            found = _combined(sign, operators[sign], found, operand())
        return found

    def _signed(self) -> Any:
        if self.accept("-"):
            found = self._signed()
            return -1 * found if isinstance(found, Index) else -found
        base = self._atom()
        return _plain(base ** self._signed()) if self.accept("**") else base

    def _atom(self) -> Any:
        token = self.next
        if token[:1].isdigit():
            return float(self.take()) if re.search(r"[.e]", token) else int(self.take())
        if token in _CONSTANTS:
            return _CONSTANTS[self.take()]
        if self.accept("["):
            value = self.expression()
            self.expect("]")
            return Index.make(((Value(value), 1),), 0)
        if self.accept("("):
            return self._group()
        if token in self.names.variables:
            return Index.make(((self.names.variables[self.take()], 1),), 0)
        if token in self.names.symbols:
            return self.names.symbols[self.take()]
        found = getattr(of_sizes, token, None) or getattr(sympy, token or "-", None)
        if isinstance(found, type) and issubclass(found, sympy.Basic) and self.accept(token, "("):
            return _plain(found(*self.many(self.size, ")")))
        self.fail(f"a number or one of: {', '.join((*self.names.variables, *self.names.symbols)) or 'none declared'}")

    def _group(self) -> Any:
        """What stands in round brackets: one item, or a tuple of values."""
        if self.accept(")"):
            return ()
        first = self.value()
        if self.accept(")"):
            return first
        self.expect(",")
        return (first, *self.many(self.value, ")"))

    def variables(self, close: str) -> tuple[Var, ...]:
        """``i0<8, i1<s0`` up to ``close``."""
        return self.many(self.variable, close)

    def variable(self) -> Var:
        name = self.name("a loop variable")
        self.expect("<")
        return Var(name, self.size())

    def within(self, variables: tuple[Var, ...], read: Callable[[], Any]) -> Any:
        """What is read where these variables are known, too."""
        around = self.names.variables
        self.names.variables = {**around, **{v.name: v for v in variables}}
        try:
            return read()
        finally:
            self.names.variables = around

    # ------------------------------------------------------------ expressions
    def expression(self) -> Expr:
        """One expression of the loop IR, exactly as it was: nothing is folded."""
        token = self.next
        if token[:1].isdigit() or token in ("-", *_CONSTANTS):
            return self._constant()
        if self.accept("("):
            found = self.index()
            self.expect(")")
            return Expr.make("index", (), torch.int64, found)
        name = self.name("an expression")
        if self.accept("["):
            self.at -= 2
            return self._load()
        if self.accept("<"):
            return self._reduction(name)
        self.expect("(")
        return self._call(name)

    def _constant(self) -> Expr:
        value = -self._number() if self.accept("-") else self._number()
        self.expect(":")
        dtype = self.known(_DTYPES, "a dtype")
        return Expr.make("const", (), dtype, value)

    def _number(self) -> Any:
        if self.next in _CONSTANTS or self.next[:1].isdigit():
            return self._atom()
        self.fail("a number")

    def _load(self) -> Expr:
        decl = self.known(self.names.tensors, "a tensor")
        self.expect("[")
        return Expr.make("load", (), decl.dtype, (decl.name, self.many(self.index, "]")))

    def _reduction(self, kind: str) -> Expr:
        known = _SCANS if kind.startswith("scan.") else _REDUCTIONS
        if kind not in known:
            self.at -= 2
            self.fail(f"a reduction or a scan, one of: {', '.join((*_REDUCTIONS, *_SCANS))}")
        if kind in _SCANS:
            variable = self.known(self.names.variables, "a loop variable")
            self.expect(">", "(")
            (body,) = self.many(self.expression, ")")
            return Expr.make("scan", (body,), body.dtype, (_SCANS[kind], variable))
        bound = self.variables(">")
        self.expect("(")
        args = self.within(bound, lambda: self.many(self.expression, ")"))
        dtype = torch.int64 if kind in ("argmin", "argmax") else args[0].dtype
        return Expr.make("reduce", args, dtype, Reduction(_REDUCTIONS[kind], bound))

    def _call(self, op: str) -> Expr:
        if op == "size":
            (value,) = self.many(self.size, ")")
            return Expr.make("size", (), torch.int64, value)
        if op in ("check_index", "wrap_index", "group_of"):
            return self._bounded(op)
        if op.startswith("random."):
            drawn = self.expression(), self._after_comma(self.expression)
            offset = self._after_comma(self.size)
            self.expect(")")
            kind = op.removeprefix("random.")
            return Expr.make("random", drawn, torch.int64 if kind == "bits" else torch.float32, (kind, offset))
        if op not in OPS and op not in _CASTS and not op.startswith("part."):
            self.at -= 2
            self.fail(f"an op of the loop IR: {', '.join(OPS)}, a dtype, or a tensor that is read at [coordinates]")
        args = self.many(self.expression, ")")
        if len(args) != (OPS[op].arity if op in OPS else 1):
            self.fail(f"{OPS[op].arity if op in OPS else 1} arguments of {op} before it")
        if op in _CASTS:
            way, dtype, payload = _CASTS[op]
            return Expr.make(way, args, dtype, payload)
        if op.startswith("part."):
            return Expr.make("part", args, args[0].dtype, op.removeprefix("part."))
        return Expr.make(op, args, OPS[op].dtype([arg.dtype for arg in args]))

    def _after_comma(self, read: Callable[[], Any]) -> Any:
        self.expect(",")
        return read()

    def _bounded(self, op: str) -> Expr:
        """``check_index(expression, extent)``, with the note on the error between them where it has one, and others."""
        args = [self.expression()]
        self.expect(",")
        if self.next == "True" or op == "group_of":
            args.append(self.expression())
            self.expect(",")
        extent = self.size()
        self.expect(")")
        return Expr.make(op, tuple(args), torch.int64, extent)

    # ------------------------------------------------------------ declarations
    def declaration(self) -> TensorDecl:
        """``x: float32[8, 16] strides [1, 8] on cuda:0``."""
        name = self.name("a tensor's name")
        self.expect(":")
        dtype = self.known(_DTYPES, "a dtype")
        self.expect("[")
        shape = self.many(self.size, "]")
        stride = self.many(self.size, "]") if self.accept("strides", "[") else row_major(shape)
        device = self.device() if self.accept("on") else HOST
        return TensorDecl(name, shape, stride, dtype, device)

    def device(self) -> torch.device:
        """A device as torch writes it."""
        name = self.name("a device")
        if self.next == ":" and self.tokens[self.at + 1 : self.at + 2] != []:
            name += self.take() + self.take()
        return torch.device(name)

    def constant(self) -> tuple[str, torch.Tensor]:
        """A tensor with its elements."""
        decl = self.declaration()
        self.expect("=")
        if self.next == "...":
            self.fail(f"the elements of the constant {decl.name}, which were too many for the text")
        memory = torch.tensor(self.value(), dtype=decl.dtype, device=decl.device)
        if memory.numel() != span(decl.shape, decl.stride):
            self.fail(f"{span(decl.shape, decl.stride)} elements of {decl} before it; there are {memory.numel()}")
        return decl.name, memory.as_strided(decl.shape, decl.stride)


def _combined(sign: str, operation: Callable[..., Any], left: Any, right: Any) -> Any:
    """Arithmetic of two sizes, or of an index and another, whose terms stay as they are written."""
    if not isinstance(left, Index) and not isinstance(right, Index):
        return _plain(operation(left, right))
    if sign in ("//", "%"):
        return Index.make((((Div if sign == "//" else Mod)(left, right), 1),), 0)
    if sign in ("*", "/"):
        factor, index = (left, right) if isinstance(right, Index) else (right, left)
        return Index.make(tuple((atom, factor * c) for atom, c in index.terms), factor * index.const)
    left, right = Index.wrap(left), Index.wrap(right) * (-1 if sign == "-" else 1)
    return Index.make(left.terms + right.terms, _plain(left.const + right.const))


def _plain(value: Size) -> Any:
    """A size as an int where it is one."""
    return int(value) if isinstance(value, sympy.Integer) else value
