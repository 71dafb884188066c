"""The loop program: one graph as definitions of tensors, before any scheduling.

A program is a list of statements in dependency order.  A ``Definition`` gives one tensor's elements as an
expression over its own loop variables; nothing says yet which tensors exist in memory.  Loads address tensors
by coordinates, so layouts are decided later.  What loops cannot express is an ``Extern`` call on tensors in
memory, and a ``StridedView`` names a view for such calls and for outputs.
"""

from __future__ import annotations

from typing import Any, Literal

import attrs
import sympy
import torch

from turret.graph.externs import op_name
from turret.hooks.size_source import Binding as Binding
from turret.hooks.size_source import SizeSource as SizeSource
from turret.hooks.text.notation import constant_text, layout_text, name_text, symbol_kind, tail_text, value_text
from turret.ir.analysis.symbols import (
    symbols_of_expr,
    symbols_of_index,
    symbols_of_size,
    symbols_of_sizes,
    symbols_within,
)
from turret.ir.expr import Expr, loads
from turret.ir.index import Index, Size, Var


@attrs.frozen(eq=False)
class TensorDecl:
    """A named tensor: shape, dtype, device, and the strides (in elements) it has if it lies in memory."""

    name: str
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def is_static(self) -> bool:
        """Whether the layout is the same in every call."""
        return all(isinstance(n, int) for n in (*self.shape, *self.stride))

    @property
    def last_offset(self) -> Size:
        """How far the last element lies from the first, in elements (of a tensor that has any)."""
        last: Size = 0
        for extent, stride in zip(self.shape, self.stride, strict=True):
            last = last + (extent - 1) * stride
        return last

    def __str__(self) -> str:
        return layout_text(self.name, self.shape, self.stride, self.dtype, self.device)


@attrs.frozen(eq=False)
class Definition:
    """``tensor[variables] = expr`` for all values of ``variables`` (one for each dimension, outermost first).

    ``expr``'s only free variables are ``variables``; reductions inside bind their own.  ``origins`` are names of
    the FX nodes it came from, ``source`` the user's line where known.
    """

    tensor: TensorDecl
    variables: tuple[Var, ...]
    expr: Expr
    origins: tuple[str, ...] = ()
    source: str = ""

    def __str__(self) -> str:
        return (
            f"{self.tensor}  [{_loops(self.variables)}] = {self.expr}{tail_text(self, 'tensor', 'variables', 'expr')}"
        )


ScatterMode = Literal["set", "add", "mul", "min", "max"]


@attrs.frozen(eq=False)
class Scatter:
    """``tensor = copy of initial; for all variables where condition: tensor[coords] (mode)= expr``.

    ``initial`` names a tensor of the same shape and dtype.  Elements may be hit more than once; with ``"set"``
    the last in row-major order of ``variables`` wins.
    """

    tensor: TensorDecl
    initial: str
    variables: tuple[Var, ...]
    coords: tuple[Index, ...]
    expr: Expr
    mode: ScatterMode
    condition: Expr | None = None
    origins: tuple[str, ...] = ()
    source: str = ""

    def __str__(self) -> str:
        where = "" if self.condition is None else f" where {self.condition}"
        target = f"[{_loops(self.variables)}] [{', '.join(map(str, self.coords))}]"
        tail = tail_text(self, "tensor", "initial", "variables", "coords", "expr", "mode", "condition")
        return f"{self.tensor}  = {Ref(self.initial)} with {target} {self.mode} {self.expr}{where}{tail}"


@attrs.frozen(eq=False)
class StridedView:
    """``tensor`` views ``base``'s memory: its own shape and strides, ``offset`` elements from base's start."""

    tensor: TensorDecl
    base: str
    offset: Size

    def __str__(self) -> str:
        return f"{self.tensor}  = view {Ref(self.base)} at {self.offset}"


@attrs.frozen
class Ref:
    """A tensor of the program among the arguments of an extern call."""

    name: str

    def __str__(self) -> str:
        return f"%{name_text(self.name)}"


@attrs.frozen(eq=False)
class Extern:
    """A call of an ATen (or custom) op on tensors in memory.

    ``op`` is an ``OpOverload``.  ``args`` and ``kwargs`` hold ``Ref``, sizes (``Size``), plain values, and
    lists or tuples of them.  ``outputs`` has one entry for each tensor that the op returns (None where it
    returns None or the result is not used).  ``mutates`` names arguments that the op writes to.
    ``symbol_bindings`` are the numbers that the call gives.  ``reason`` says why it is not loops.  ``source`` is
    the user's line where known, ``location`` its file and number.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[TensorDecl | None, ...]
    returns_sequence: bool = False
    mutates: tuple[str, ...] = ()
    reason: str = ""
    origins: tuple[str, ...] = ()
    source: str = ""
    symbol_bindings: tuple[Binding, ...] = ()
    location: str = ""

    def __str__(self) -> str:
        results = ", ".join("_" if o is None else str(o) for o in self.outputs)
        arguments = [argument_text(a) for a in self.args]
        arguments += [f"{k}={argument_text(v)}" for k, v in self.kwargs.items()]
        tail = tail_text(self, "op", "args", "kwargs", "outputs")
        return f"{results}  = {op_name(self.op)}({', '.join(arguments)}){tail}"


@attrs.frozen(eq=False)
class Template(Extern):
    """A library call that a code generator may write itself, from a template of kernels of this ``kind``.

    ``kind`` is one of ``TEMPLATE_KINDS``; the operands say the rest.  A code generator that has no such template runs
    the call, as it does any ``Extern``; one that has may take the definitions that alone read the result into it.
    """

    kind: str = attrs.field(kw_only=True)


@attrs.frozen(eq=False)
class Number:
    """``symbol = value``: a number computed by the host from others, for kernels and calls that come after it."""

    symbol: str
    value: Size
    is_float: bool = False
    origins: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{name_text(self.symbol)} = {argument_text(self.value)}{tail_text(self, 'symbol', 'value')}"


@attrs.frozen(eq=False)
class CopyInto:
    """Write the elements of ``source`` into the memory of ``target`` (an input that the graph mutates)."""

    target: str
    source: str
    origins: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{Ref(self.target)}[...] = {Ref(self.source)}{tail_text(self, 'target', 'source')}"


Statement = Definition | Scatter | StridedView | Extern | CopyInto | Number


OutputValue = Ref | Size | float | bool | None


@attrs.frozen(eq=False)
class LoopProgram:
    """One graph.

    ``inputs[i]`` is the declaration of tensor input ``i``, or None where input ``i`` is a number.
    ``constants`` are tensors that belong to the program.  ``symbols`` maps the name of each size symbol that inputs
    tell to its source; other symbols are numbers that statements bind (``bound_symbols``).  ``outputs`` are in the
    graph's order.  ``output_strides[i]``, where not None, is demanded.  ``hints``: what symbols were in the call that
    the graph was made for; a program is right whatever they are, and may be fast where later ones are like them.
    ``overwritten``: outputs, by name, with the input that takes their elements when the program has run, and which has
    their layout; they may be made where the input lies once it was read for the last time.
    """

    name: str
    inputs: tuple[TensorDecl | None, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[OutputValue, ...]
    constants: dict[str, torch.Tensor] = attrs.field(factory=dict)
    symbols: dict[str, SizeSource] = attrs.field(factory=dict)
    hints: dict[str, int] = attrs.field(factory=dict)
    overwritten: dict[str, str] = attrs.field(factory=dict)

    def declarations(self) -> dict[str, TensorDecl]:
        """Every tensor by name: inputs, constants and whatever statements define."""
        table = {decl.name: decl for decl in self.inputs if decl is not None}
        for name, value in self.constants.items():
            table[name] = TensorDecl(name, tuple(value.shape), tuple(value.stride()), value.dtype, value.device)
        for statement in self.statements:
            for decl in defined(statement):
                table[decl.name] = decl
        return table

    def __str__(self) -> str:
        lines = [f"loop program {name_text(self.name)}:"]
        order = list(self.symbols)
        sizes = sorted(symbols_within(self), key=lambda s: order.index(s.name) if s.name in order else len(order))
        lines += [f"  size {self._size_text(symbol)}" for symbol in sizes]
        lines += ["  input number" if decl is None else f"  input {decl}" for decl in self.inputs]
        lines += [f"  constant {constant_text(name, value)}" for name, value in self.constants.items()]
        lines += [f"  {statement}" for statement in self.statements]
        lines += [f"  overwrite {Ref(target)} with {Ref(output)}" for output, target in self.overwritten.items()]
        lines.append(f"  return {', '.join(map(argument_text, self.outputs))}")
        return "\n".join(lines)

    def _size_text(self, symbol: sympy.Symbol) -> str:
        """A size symbol: what is known of it, where it comes from, and what it was when the graph was made."""
        name = symbol.name
        source = f" = {argument_text(self.symbols[name])}" if name in self.symbols else ""
        hint = f"  {{hint: {self.hints[name]}}}" if name in self.hints else ""
        return f"{name_text(name)}: {symbol_kind(symbol)}{source}{hint}"


def defined(statement: Statement) -> tuple[TensorDecl, ...]:
    """Tensors that a statement defines."""
    if isinstance(statement, Extern):
        return tuple(o for o in statement.outputs if o is not None)
    return () if isinstance(statement, CopyInto | Number) else (statement.tensor,)


def bound_symbols(statement: Statement) -> tuple[str, ...]:
    """Names of the numbers that are known once a statement has run."""
    if isinstance(statement, Extern):
        return tuple(b.symbol for b in statement.symbol_bindings)
    return (statement.symbol,) if isinstance(statement, Number) else ()


def _of_declaration(decl: TensorDecl) -> frozenset[str]:
    return symbols_of_sizes((*decl.shape, *decl.stride))


def _of_arguments(value: Any) -> frozenset[str]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (list, tuple)):
        return frozenset().union(*map(_of_arguments, value))
    return symbols_of_size(value)


def mentioned_symbols(statement: Statement, expr: Expr | None = None) -> frozenset[str]:
    """Names of the symbols that must be known before a statement runs.

    ``expr`` stands in for a definition's own expression (a scheduler may have put others into it).
    """
    match statement:
        case Definition():
            found = symbols_of_expr(statement.expr if expr is None else expr)
            return found | _of_declaration(statement.tensor)
        case Scatter():
            roots = [statement.expr, *(v for c in statement.coords for v in c.values)]
            roots += [] if statement.condition is None else [statement.condition]
            found = frozenset().union(*map(symbols_of_expr, roots), *map(symbols_of_index, statement.coords))
            loops = symbols_of_sizes(v.extent for v in statement.variables)
            return found | loops | _of_declaration(statement.tensor)
        case StridedView():
            return _of_declaration(statement.tensor) | symbols_of_size(statement.offset)
        case Extern():
            results = frozenset().union(*(_of_declaration(o) for o in statement.outputs if o is not None))
            found = _of_arguments((*statement.args, statement.kwargs)) | results
            return found - frozenset(bound_symbols(statement))
        case Number():
            return symbols_of_size(statement.value)
        case CopyInto():
            return frozenset()


def used(statement: Statement) -> tuple[str, ...]:
    """Names of the tensors that a statement reads or writes to, each once."""
    match statement:
        case Definition():
            names = [node.tensor for node in loads(statement.expr)]
        case Scatter():
            roots = [statement.expr, *(v for c in statement.coords for v in c.values)]
            if statement.condition is not None:
                roots.append(statement.condition)
            names = [statement.initial, *(node.tensor for node in loads(*roots))]
        case StridedView():
            names = [statement.base]
        case CopyInto():
            names = [statement.target, statement.source]
        case Extern():
            names = [ref.name for ref in references((*statement.args, statement.kwargs))]
        case Number():
            names = []
    return tuple(dict.fromkeys(names))


def references(value: Any) -> list[Ref]:
    """All ``Ref`` in nested lists, tuples and dicts."""
    if isinstance(value, Ref):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [ref for item in value for ref in references(item)]
    return []


def argument_text(value: Any) -> str:
    """An argument of a call, or an output of a program."""
    return value_text(value, lambda found: str(found) if isinstance(found, Ref) else None)


def _loops(variables: tuple[Var, ...]) -> str:
    return ", ".join(f"{v.name}<{v.extent}" for v in variables)
