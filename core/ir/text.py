"""Programs and schedules of their text: ``parse(str(product))`` equals the product.

A line is a statement; the lines of a kernel's stores follow its own.  What begins with ``--`` or ``#`` is for people.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, get_args

import attrs
import sympy
import torch

from turret.errors import TextError
from turret.graph.externs import resolve_op
from turret.graph.ops import define_own_ops
from turret.hooks.size_source import SizeSource
from turret.hooks.text.notation import SYMBOL_KINDS
from turret.ir.analysis.symbols import symbols_within
from turret.ir.program import (
    CopyInto,
    Definition,
    Extern,
    LoopProgram,
    Number,
    Scatter,
    ScatterMode,
    Statement,
    StridedView,
    Template,
    TensorDecl,
    defined,
)
from turret.ir.reader import Names, Reader
from turret.ir.schedule import (
    BufferPlan,
    FusionDecision,
    Kernel,
    MemoryPlan,
    ProductChoice,
    Schedule,
    ScheduleSection,
    Step,
    Store,
)
from turret.storage.codec import record_types

_DECISION = re.compile(r"(fused|apart) (\S+) \+ (\S+): (\?|-?\d+) bytes, (.*)")
_MODES: dict[str, ScatterMode | Literal["sum"]] = {mode: mode for mode in (*get_args(ScatterMode), "sum")}
_COMMENT = re.compile(r"\s*(?:--.*|#.*)?")
_ENDS_IN_COMMENT = re.compile(r":  # [\w, ]*$")

Line = tuple[int, str]
"""A line of the text and its number, from 1."""


def blocks(text: str) -> list[list[Line]]:
    """The lines that say something, apart where one is not indented: each block begins with such a line."""
    found: list[list[Line]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if _COMMENT.fullmatch(line):
            continue
        if not found or not line[0].isspace():
            found.append([])
        found[-1].append((number, _ENDS_IN_COMMENT.sub(":", line)))
    return found


def parse(text: str) -> LoopProgram | Schedule:
    """The loop program, or the schedule, of a text; ``TextError`` names the line that is not as expected."""
    found = blocks(text)
    kinds = [lines[0][1].split()[0] for lines in found]
    if kinds == ["loop"]:
        return _program(found[0])
    if kinds == ["schedule", "loop"]:
        return _schedule(found[0], _program(found[1]))
    raise TextError(
        "expected the text of a loop program ('loop program NAME:'), or of a schedule ('schedule NAME:') with its loop "
        f"program behind it; given {'a text that begins with ' + repr(text.strip()[:40]) if kinds else 'no lines'}"
    )


class _ProgramReader:
    """Gathers what the lines of a loop program say."""

    def __init__(self) -> None:
        self.names = Names(records=_records())
        self.inputs: list[TensorDecl | None] = []
        self.statements: list[Statement] = []
        self.constants: dict[str, torch.Tensor] = {}
        self.sources: dict[str, SizeSource] = {}
        self.hints: dict[str, int] = {}
        self.overwritten: dict[str, str] = {}
        self.outputs: tuple[Any, ...] = ()

    def read(self, line: Reader) -> None:
        """One line behind the first."""
        head = {
            "size": self._size,
            "input": self._input,
            "constant": self._constant,
            "overwrite": self._overwrite,
            "return": self._return,
        }.get(line.next)
        if head is not None and line.tokens[1:2] != [":"]:
            line.take()
            head(line)
        else:
            statement = read_statement(line)
            self.statements.append(statement)
            self._declare(*defined(statement))

    def _declare(self, *declarations: TensorDecl) -> None:
        self.names.tensors.update({decl.name: decl for decl in declarations})

    def _size(self, line: Reader) -> None:
        name = line.name("the name of a size")
        line.expect(":")
        kind = line.known(SYMBOL_KINDS, "what is known of the size")
        self.names.symbols[name] = sympy.Symbol(name, **kind)
        if line.accept("="):
            self.sources[name] = line.value()
        tail = line.tail()
        if tail:
            self.hints[name] = tail["hint"]

    def _input(self, line: Reader) -> None:
        found = None if line.accept("number") else line.declaration()
        self.inputs.append(found)
        self._declare(*[] if found is None else [found])

    def _constant(self, line: Reader) -> None:
        name, value = line.constant()
        self.constants[name] = value
        self._declare(TensorDecl(name, tuple(value.shape), tuple(value.stride()), value.dtype, value.device))

    def _overwrite(self, line: Reader) -> None:
        target = line.value()
        line.expect("with")
        self.overwritten[line.value().name] = target.name

    def _return(self, line: Reader) -> None:
        self.outputs = line.many(line.value, "")

    def program(self, name: str) -> LoopProgram:
        return LoopProgram(
            name,
            tuple(self.inputs),
            tuple(self.statements),
            self.outputs,
            self.constants,
            self.sources,
            self.hints,
            self.overwritten,
        )


def _program(lines: list[Line]) -> LoopProgram:
    reader = _ProgramReader()
    name = _title(lines[0], reader.names, "loop", "program")
    for number, line in lines[1:]:
        Reader(line, number, reader.names).read(reader.read)
    return reader.program(name)


def _title(line: Line, names: Names, *words: str) -> str:
    found: list[str] = []

    def read(reader: Reader) -> None:
        reader.expect(*words)
        found.append(reader.name())
        reader.expect(":")

    Reader(line[1], line[0], names).read(read)
    return found[0]


def read_statement(line: Reader) -> Statement:
    """A statement of a loop program, or a step of a schedule that is no kernel."""
    if line.accept("%"):
        return _copy(line)
    if line.tokens[1:2] == ["="] and line.next != "_":
        symbol, _ = line.take(), line.take()
        return line.made(Number, {"symbol": symbol.strip('"'), "value": line.value(), **line.tail()})
    results = _results(line)
    if line.accept("["):
        return _definition(line, _only(line, results))
    line.expect("=")
    if line.accept("view", "%"):
        base = line.name()
        line.expect("at")
        return StridedView(_only(line, results), base, line.size())
    if line.accept("%"):
        return _scatter(line, _only(line, results))
    return _extern(line, results)


def _results(line: Reader) -> list[TensorDecl | None]:
    """Declarations, and ``_`` for results that are none; there may be no result."""
    found: list[TensorDecl | None] = []
    while line.next != "=":
        declared = line.tokens[line.at + 1 : line.at + 2] == [":"]
        found.append(line.declaration() if declared or not line.accept("_") else None)
        if not line.accept(","):
            break
    return found


def _only(line: Reader, results: list[TensorDecl | None]) -> TensorDecl:
    """The one result of a statement that makes one."""
    if len(results) != 1 or results[0] is None:
        line.fail("a statement with one declared result before it")
    return results[0]


def _copy(line: Reader) -> CopyInto:
    target = line.name()
    line.expect("[", "...", "]", "=", "%")
    return line.made(CopyInto, {"target": target, "source": line.name(), **line.tail()})


def _definition(line: Reader, tensor: TensorDecl) -> Definition:
    variables = line.variables("]")
    line.expect("=")
    expr = line.within(variables, line.expression)
    return line.made(Definition, {"tensor": tensor, "variables": variables, "expr": expr, **line.tail()})


def _scatter(line: Reader, tensor: TensorDecl) -> Scatter:
    initial = line.name()
    line.expect("with", "[")
    variables = line.variables("]")
    fields = line.within(variables, lambda: _written(line))
    return line.made(Scatter, {"tensor": tensor, "initial": initial, "variables": variables, **fields, **line.tail()})


def _written(line: Reader) -> dict[str, Any]:
    """``[coordinates] mode expression``, of a scatter."""
    line.expect("[")
    coords = line.many(line.index, "]")
    mode = line.known({mode: mode for mode in get_args(ScatterMode)}, "how elements are written")
    return {"coords": coords, "mode": mode, "expr": line.expression(), "condition": _condition(line)}


def _condition(line: Reader) -> Any:
    return line.expression() if line.accept("where") else None


def _extern(line: Reader, results: list[TensorDecl | None]) -> Extern:
    op = _operator(line, line.name("an operator"))
    line.expect("(")
    args, named = line.arguments()
    fields = line.tail()
    cls = Template if "kind" in fields else Extern
    return line.made(cls, {"op": op, "args": args, "kwargs": named, "outputs": tuple(results), **fields})


def _operator(line: Reader, name: str) -> Any:
    """The operator of a name that ``op_name`` wrote."""
    define_own_ops()
    try:
        if name.startswith("higher_order::"):
            return getattr(torch.ops.higher_order, name.removeprefix("higher_order::").removesuffix(".graph"))
        return resolve_op(name)
    except (AttributeError, RuntimeError):
        line.at -= 1
        line.fail("an operator that is registered (namespace::name.overload)")


def _schedule(lines: list[Line], program: LoopProgram) -> Schedule:
    """A schedule over a program; steps that the program has as statements are the same objects."""
    names = _names_of(program)
    _title(lines[0], names, "schedule")
    made = _ScheduleReader(program, names)
    for number, line in lines[1:]:
        Reader(line, number, names).read(made.read)
    return made.schedule()


def _records() -> dict[str, type]:
    return {**record_types(), ScheduleSection.__name__: ScheduleSection}


def _names_of(program: LoopProgram) -> Names:
    """What the names of a program stand for."""
    symbols = {symbol.name: symbol for symbol in symbols_within(program)}
    return Names(tensors=program.declarations(), symbols=symbols, records=_records())


class _ScheduleReader:
    """Gathers what the lines of a schedule say."""

    def __init__(self, program: LoopProgram, names: Names) -> None:
        self.program, self.names = program, names
        self.known = {str(statement): statement for statement in program.statements}
        self.steps: list[Step] = []
        self.dead: dict[int, tuple[str, ...]] = {}
        self.sections: list[ScheduleSection] = []
        self.decisions: list[FusionDecision] = []
        self.choices: list[ProductChoice] = []
        self.buffers: dict[str, BufferPlan] = {}
        self.memory: dict[str, Any] = {}

    def read(self, line: Reader) -> None:
        """One line behind the first."""
        decision = _DECISION.fullmatch(line.line.strip())
        if decision is not None:
            self._decision(*decision.groups())
            line.at = len(line.tokens)
        elif line.line.startswith("    "):
            self._store(line)
        elif line.tokens[1:2] not in ([":"], ["="], ["["]) and line.next in self._heads:
            self._heads[line.take()](self, line)
        else:
            read = read_statement(line)
            step = self.known.get(str(read), read)
            if isinstance(step, Definition | Scatter):
                line.fail("a step of a schedule, which has kernels for what a program defines, before it")
            self.steps.append(step)

    def _decision(self, made: str, first: str, second: str, saved: str, reason: str) -> None:
        size = None if saved == "?" else int(saved)
        self.decisions.append(FusionDecision(first, second, made == "fused", size, reason))

    def _kernel(self, line: Reader) -> None:
        name = line.name()
        line.expect("(")
        origins = line.many(line.name, ")")
        line.expect(":")
        loops: dict[str, list[Any]] = {"for": [], "row": []}
        if not line.accept("once"):
            loops[line.name("for or row")].append(line.variable())
            while line.accept(";"):
                line.known(loops, "for or row").append(line.variable())
        fields = {"name": name, "outer": tuple(loops["for"]), "inner": tuple(loops["row"]), "origins": origins}
        self.steps.append(line.made(Kernel, {"stores": (), **fields, **line.tail()}))

    def _store(self, line: Reader) -> None:
        if not self.steps or not isinstance(self.steps[-1], Kernel):
            line.fail("a kernel on a line before")
        kernel = self.steps[-1]
        store = line.within((*kernel.outer, *kernel.inner), lambda: _stored(line))
        self.steps[-1] = attrs.evolve(kernel, stores=(*kernel.stores, store))

    def _free(self, line: Reader) -> None:
        self.dead[len(self.steps) - 1] = line.many(line.name, "")

    def _section(self, line: Reader) -> None:
        self.sections.append(line.value())

    def _product(self, line: Reader) -> None:
        product = line.name()
        line.expect(":")
        form = line.name("how the product is computed")
        line.expect("of")
        costs = [_cost(line)]
        while line.accept(","):
            costs.append(_cost(line))
        self.choices.append(line.made(ProductChoice, {"product": product, "form": form, "costs": tuple(costs)}))

    def _arena(self, line: Reader) -> None:
        self.memory["arena_bytes"] = line.size()
        line.expect("bytes")
        if line.accept("in", "steps"):
            spans = [_span(line)]
            while line.tokens[line.at : line.at + 2] != [",", "peak"]:
                line.expect(",")
                spans.append(_span(line))
            self.memory["arena_spans"] = tuple(spans)
        line.expect(",", "peak")
        self.memory["peak_bytes"] = line.value()

    def _buffer(self, line: Reader) -> None:
        decl = line.known(self.names.tensors, "a tensor of the program")
        self.buffers[decl.name] = line.made(BufferPlan, {"tensor": decl, **line.tail()})

    _heads: dict[str, Callable[[_ScheduleReader, Reader], None]] = {  # noqa: RUF012
        "kernel": _kernel,
        "free": _free,
        "section": _section,
        "arena": _arena,
        "buffer": _buffer,
        "product": _product,
    }

    def schedule(self) -> Schedule:
        memory = MemoryPlan(self.buffers, dead_after=self.dead, **self.memory)
        decisions, choices = tuple(self.decisions), tuple(self.choices)
        return Schedule(self.program, tuple(self.steps), memory, decisions, tuple(self.sections), choices)


def _stored(line: Reader) -> Store:
    """``tensor[coordinates] mode= expression``."""
    tensor = line.name("a tensor")
    line.expect("[")
    coords = line.many(line.index, "]")
    mode = None if line.next == "=" else line.known(_MODES, "how elements are written")
    line.expect("=")
    return Store(tensor, coords, line.expression(), mode, _condition(line))


def _cost(line: Reader) -> tuple[str, float]:
    """``form number us``, of a way to compute a product."""
    form = line.name("how a product is computed")
    microseconds = float(line.value())
    line.expect("us")
    return form, microseconds


def _span(line: Reader) -> tuple[int, int]:
    first = line.size()
    line.expect("to")
    return first, line.size()
