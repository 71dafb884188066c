"""Expressions to text: what code generators do alike, whatever the language.

Every node of the loop IR becomes one named value, in the outermost block of the kernel that can compute it.  A *mask*
is the condition under which a value is wanted (from ``masked``).  Only what would be unsafe where it is masked off,
loads that may lie outside and checks that may report, is written under it; the rest is plain arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import sympy
import torch

from turret.errors import UnsupportedError
from turret.ir.conditions import NeedsMask, both
from turret.ir.emit.scopes import Scope
from turret.ir.expr import Expr, call, constant, size_value
from turret.ir.index import Div, Index, Mod, Size, Value, Var, provably_nonnegative
from turret.ir.nest import always_inside
from turret.ir.program import TensorDecl

Mask = Expr | None
Key = tuple[Expr, Mask]


Namer = Callable[[str], str]
"""From a size symbol to its name in the source."""
Printer = Callable[[list[str]], str]
"""From the texts of a function's operands to that of the function."""


def written_size(
    value: Size,
    namer: Namer,
    number: Callable[[int], str],
    printer_of: Callable[[str, tuple[Any, ...]], Printer | None],
    language: str,
) -> str:
    """A size as an expression; ``UnsupportedError`` names a function of sizes that the language does not know.

    ``number`` writes an int; ``printer_of`` gives the printer of a function of sympy, by its name and operands.
    """
    if isinstance(value, int):
        return number(value)
    value = sympy.sympify(value)
    if value.is_Integer:
        return number(int(value))
    if value.is_Symbol:
        return namer(value.name)

    def text(operand: Size) -> str:
        return written_size(operand, namer, number, printer_of, language)

    kind = type(value).__name__
    if kind == "Pow" and value.args[1].is_Integer and value.args[1] >= 1:
        return f"({' * '.join([text(value.args[0])] * int(value.args[1]))})"
    if kind == "floor":
        value = sympy.Tuple(*value.args[0].as_numer_denom())
    printer = printer_of(kind, value.args)
    if printer is None:
        raise UnsupportedError(f"{language} kernels cannot compute the size {value} ({kind})")
    return printer([text(operand) for operand in value.args])


def infix(sign: str) -> Printer:
    """The printer of a sum or a product."""
    return lambda args: f"({sign.join(sorted(args))})"


class ExprFacts:
    """What an emitter asks about the expressions of one kernel, whose loads are flat; every answer is computed once."""

    def __init__(self, tensors: Mapping[str, TensorDecl]) -> None:
        self.tensors = tensors
        # Whether evaluating an expression where it is masked off would be unsafe.
        self.needs_mask = NeedsMask(self._is_unsafe, self.is_along_row)

    def variables(self, expr: Expr) -> frozenset[Var]:
        """Loops that must be open where ``expr`` is evaluated."""
        return expr.variables

    def atom_variables(self, atom: Var | Div | Mod | Value) -> frozenset[Var]:
        """Loops that one atom of an index needs."""
        found: frozenset[Var] = atom.variables
        return found

    def level(self, expr: Expr) -> int:
        """How many phases of row reductions must be over before ``expr`` can be evaluated."""
        raise NotImplementedError

    def is_along_row(self, expr: Expr) -> bool:
        """Whether a node is a scan or a reduction along the row: its operands have what mask it needs
        (``turret.ir.conditions``)."""
        raise NotImplementedError

    def reports(self, expr: Expr) -> bool:
        """Whether a node other than a load or the check of an index may make the kernel report an error."""
        return False

    def _is_unsafe(self, node: Expr) -> bool:
        may_be_outside = node.op == "load" and not always_inside(node.coords[0], self.tensors[node.tensor])
        return may_be_outside or self.reports(node)


class TextEmitter:
    """The state of writing one kernel: the names of what it reads, and of every value in the block where that is.

    A language's emitter says how it writes sizes, terms of indices, assignments and nodes: ``write_<op>`` gives the
    text of a node of that op, from the node, a block and a mask, and ``scalar`` that of all others.
    """

    symbol_stem: ClassVar[str] = "s"

    def __init__(self, base: Scope, facts: ExprFacts) -> None:
        self.base: Any = base
        self.facts: Any = facts
        self.pointers: dict[str, str] = {}
        self.symbols: dict[str, str] = {}
        self.streams: dict[int, str] = {}
        self._count: dict[str, int] = {}

    # ------------------------------------------------------------ the language

    def size(self, value: Size) -> str:
        """A size as a literal, or the name of a value in the outermost block."""
        raise NotImplementedError

    def constant(self, expr: Expr) -> str:
        """The text, or the name, of a literal."""
        raise NotImplementedError

    def scalar(self, expr: Expr, scope: Scope, mask: Mask) -> str:
        """The text of a node that has no writer of its own."""
        raise NotImplementedError

    def term(self, atom: Var | Div | Mod | Value, coefficient: Size, scope: Scope, mask: Mask) -> str:
        """The text of one term of an index."""
        raise NotImplementedError

    def assignment(self, name: str, text: str, dtype: torch.dtype) -> str:
        """The line that gives a value its name."""
        raise NotImplementedError

    @staticmethod
    def is_plain(text: str) -> bool:
        """Whether a text needs no name of its own."""
        raise NotImplementedError

    # ------------------------------------------------------------ names

    def fresh(self, stem: str) -> str:
        """A new name: ``stem`` and a number."""
        number = self._count.get(stem, 0)
        self._count[stem] = number + 1
        return f"{stem}{number}"

    def pointer(self, tensor: str) -> str:
        """Name of the pointer to a tensor's first element."""
        return self.pointers.setdefault(tensor, f"p{len(self.pointers)}")

    def symbol(self, name: str) -> str:
        """Name of the parameter that is a size symbol."""
        return self.symbols.setdefault(name, f"{self.symbol_stem}{len(self.symbols)}")

    def stream(self, number: int) -> str:
        """Name of a stream of random numbers: a parameter, so that layers with streams of their own are equal."""
        return self.streams.setdefault(number, f"stream{len(self.streams)}")

    def named(self, scope: Scope, key: object, stem: str, text: str, dtype: torch.dtype = torch.int64) -> str:
        """The name of a value with ``text`` in ``scope``, made on first use."""
        if key not in scope.names:
            name = self.fresh(stem)
            scope.line(self.assignment(name, text, dtype))
            scope.names[key] = name
        return scope.names[key]

    # ------------------------------------------------------------ indices

    def index(self, index: Index, scope: Scope, mask: Mask = None) -> str:
        """An index in ``scope``; what outer loops determine is computed there."""
        groups: dict[Scope, list[str]] = {}
        for atom, coefficient in index.terms:
            home = self._atom_home(atom, scope, mask)
            groups.setdefault(home, []).append(self.term(atom, coefficient, home, mask))
        if not groups:
            return self.size(index.const)
        homes = sorted(groups, key=lambda s: s.depth)
        total = ""
        for home in homes:
            parts = ([total] if total else []) + groups[home]
            if home is homes[-1] and index.const != 0:
                parts.append(self.size(index.const))
            total = " + ".join(parts)
            if home is not scope and not self.is_plain(total):
                total = self.named(home, ("offset", total), "o", total)
        return total

    def _atom_home(self, atom: Var | Div | Mod | Value, scope: Scope, mask: Mask) -> Scope:
        variables, level = self.facts.atom_variables(atom), 0
        for value in atom.values:
            level = max(level, self.facts.level(value))
            if mask is not None and self.facts.needs_mask(value):
                variables, level = variables | self.facts.variables(mask), max(level, self.facts.level(mask))
        return scope.home(variables, level)

    # ------------------------------------------------------------ values

    def key(self, expr: Expr, mask: Mask) -> Key:
        """What identifies a value: the mask counts only where leaving it out would be unsafe."""
        return expr, mask if mask is not None and self.facts.needs_mask(expr) else None

    def both(self, mask: Mask, condition: Expr) -> Expr:
        """The mask of what is inside of a condition that is itself under one."""
        return both(mask, condition, self.facts.needs_mask)

    def mask_of_access(self, offset: Index, scope: Scope, mask: Mask = None) -> Mask:
        """The mask under which to read or write an element: where a checked index may turn out to be one into an empty
        tensor, whose check reports but has to let something through, also that the tensor is not empty."""
        for value in offset.values:
            if value.op == "check_index" and not provably_nonnegative(value.payload - 1):
                self.value(value, scope, mask)  # the check itself
                some = call("gt", size_value(value.payload), constant(0, torch.int64))
                mask = some if mask is None else call("logical_and", mask, some)
        return mask

    def home(self, expr: Expr, mask: Mask, scope: Scope) -> Scope:
        """Where the value of ``key(expr, mask)`` belongs."""
        variables, level = self.facts.variables(expr), self.facts.level(expr)
        if mask is not None:
            variables, level = variables | self.facts.variables(mask), max(level, self.facts.level(mask))
        return scope.home(variables, level)

    def value(self, expr: Expr, scope: Scope, mask: Mask = None) -> str:
        """A name or a literal for the value of ``expr`` in ``scope``."""
        if expr.op == "const":
            return self.constant(expr)
        key = self.key(expr, mask)
        target = self.home(*key, scope)
        found = scope.named(key, target)
        if found is None:
            text = getattr(self, f"write_{expr.op}", self.scalar)(expr, target, key[1])
            if self.is_plain(text):
                target.names[key] = found = text
            else:
                found = self.named(target, key, "t", text, expr.dtype)
        return found
