"""Graph breaks: the instruction that capture does not follow, written as Python behind what came before, and a tail
call of the resume function that goes on after it (or in its exception handler)."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

from turret.frames import frame_hook
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.facts.fingerprints import HEAP_TYPE
from turret.plugins.capture.interpreter.frame import Frame, Generator
from turret.plugins.capture.python import resume
from turret.plugins.capture.python.bytecode import live_variables
from turret.plugins.capture.python.instructions import (
    BINARY_OPERATIONS,
    CONVERSIONS,
    NULL_IS_ABOVE,
    Instruction,
    around_star,
    behind_loop,
    comparison,
    formatting,
    has_keywords,
    name_of,
)
from turret.plugins.capture.python.lifetimes import has_finalizer, has_observable_finalizer, is_built_in_iterator
from turret.plugins.capture.python.places import MARK
from turret.plugins.capture.rebuilding.rebuild import FrameRebuilder
from turret.plugins.capture.values.base import NULL, PREVIOUS, Lazy, Value
from turret.plugins.capture.values.functions import Cell, Known
from turret.plugins.capture.values.groups import Group
from turret.plugins.capture.values.iterators import Iterator
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import Sequence

Action = Callable[["_Break", Instruction], "list[str] | None"]
ACTIONS: dict[str, Action] = {}
_FRAME_BOUND = (super, locals, globals, vars, dir, eval, exec)
_MISSING = object()


def write(frame: Frame, r: FrameRebuilder) -> list[str]:
    """The lines that run the current instruction of ``frame`` and go on after it."""
    return _Break(frame, r).lines()


def action(*names: str) -> Callable[[Action], Action]:
    """Register how instructions are written as Python."""

    def register(function: Action) -> Action:
        for name in names:
            ACTIONS[name] = function
        return function

    return register


class _Break:
    """One break.  Actions take operands off ``stack`` (expressions, None for NULL) and push their results."""

    def __init__(self, frame: Frame, r: FrameRebuilder) -> None:
        self.frame, self.r = frame, r
        self.values = list(frame.stack)
        self.index = frame.current
        self.instruction = frame.instructions[self.index]
        if any(isinstance(v, Group) and v.part_of is not None for v in (*frame.stack, *frame.handling)):
            raise Unsupported("a graph break in except*, which would lose what the parts of a group have in common")
        self.handling = [r.load(v) for v in frame.handling]
        self.stack: list[str | None] = self.entries()
        self.before = list(self.stack)
        self.live = live_variables(frame.code, self.index)
        self.locals = self.load_locals()
        held = (frame.locals[slot] for slot in self.locals)
        r.variables.update(map(id, (*frame.handling, *(v for v in frame.stack if v not in (NULL, PREVIOUS)), *held)))
        self.hidden = frame.hidden_cells()
        self.cells = [
            f"{r.constant(types.CellType)}()" if n in self.hidden else r.load(frame.cell_named(n))
            for n in resume.cell_names(frame.code)
        ]
        self.tails: list[str] | None = None

    def entries(self) -> list[str | None]:
        """The stack as expressions: None for NULL, ``#exception`` where the handler of an exception begins."""
        handling = iter(self.handling)
        made: list[str | None] = []
        for value in self.frame.stack:
            if value is NULL:
                made.append(None)
            else:
                made.append("#" + next(handling) if value is PREVIOUS else self.r.load(value))
        return made

    def load_locals(self) -> dict[int, str]:
        """Variables that are bound and still needed, and those whose end can be seen."""
        found = {}
        keeps_first = "super" in self.frame.code.co_names  # super() reads the first variable of the frame
        for slot in range(len(self.frame.code.co_varnames)):
            value = self.frame.locals[slot]
            first = value.content if isinstance(value, Cell) else value
            if slot == 0 and keeps_first and first is not None:
                found[0] = self.r.load(first)
            elif value is not None and not isinstance(value, Cell) and (slot in self.live or _is_kept(self.r, value)):
                found[slot] = self.r.load(value)
        return found

    def pop(self) -> str:
        self.values.pop()
        taken = self.stack.pop()
        if taken is None:
            raise Unsupported("NULL as an operand")
        return taken

    def push(self, expression: str | None) -> None:
        self.stack.append(expression)
        self.values.append(NULL if expression is None else Value())

    def result(self, expression: str) -> list[str]:
        """One result, pushed."""
        name = self.r.fresh()
        self.push(name)
        return [f"{name} = {expression}"]

    # Writing.

    def lines(self) -> list[str]:
        perform = ACTIONS.get(self.instruction.name)
        if perform is None:
            raise Unsupported(f"a graph break at the instruction {self.instruction.name}")
        did = perform(self, self.instruction)
        done = did or []
        tails = self.tails if self.tails is not None else self.go_on(self.index + 1, self.stack)
        entry = self.frame.decoded.handler(self.index)
        let_go = self.let_go(0 if entry is None else entry.depth) if done else ""
        if not done:
            return tails
        body = "".join(f"\n    {line}{MARK}{self.frame.line()}" for line in self.handled(done))
        place = f"at_line(error, f, {self.frame.line()}{self.kept_by_tracebacks()})"
        if entry is None:
            return [f"try:{body}\n  except BaseException as error: {let_go}{place}; raise", *tails]
        raised = self.r.fresh()  # a list, emptied in the end: the exception's traceback holds this frame
        target, arguments = self.destination(self.index, self.before[: entry.depth], raised)
        caught = f"try:{body}\n  except BaseException as error: {let_go}{raised} = [{place}]"
        handing_on = f"{raised}.append({arguments}); {self.let_go(0, True)}return tail({target}, {raised}.pop())"
        return [f"{raised} = None", caught, f"if {raised} is not None: {handing_on}", *tails]

    def let_go(self, depth: int, variables: bool = False) -> str:
        """Unbind what is on the stack above ``depth``, where its end can be seen: a traceback would keep it.

        Not what is a variable too, unless ``variables`` says so: then the variables are let go of as well.
        """
        held = list(zip(self.before[depth:], self.frame.stack[depth:], strict=True))
        kept = () if variables else self.locals.values()
        if variables:
            held += [(name, self.frame.locals[slot]) for slot, name in self.locals.items()]
        names = dict.fromkeys(n for n, v in held if n and n.isidentifier() and n not in kept and ends_visibly(v))
        return "".join(f"{name} = None; " for name in names)

    def kept_by_tracebacks(self) -> str:
        """The variables whose end can be seen, as an argument: an exception keeps those of frames that it leaves."""
        names = self.frame.code.co_varnames
        held = {names[n]: name for n, name in self.locals.items() if ends_visibly(self.frame.locals[n])}
        return f", {{{', '.join(f'{n!r}: {name}' for n, name in held.items())}}}" if held else ""

    def handled(self, lines: list[str]) -> list[str]:
        """The lines, run while the exceptions are handled that the frame is handling."""
        for held in reversed(self.handling if lines else []):
            trace, context = self.r.fresh(), self.r.fresh()
            # Raising it here puts this frame into its traceback, and the frame holds it; and gives it a context.
            lines = [f"{held}.__traceback__, {held}.__context__ = {trace}, {context}", *lines]
            lines = [f"try: raise {held}", "except BaseException:", *("  " + line for line in lines)]
            lines = [f"{trace}, {context} = {held}.__traceback__, {held}.__context__", *lines]
        return lines

    def go_on(self, index: int, stack: list[str | None], raised: str | None = None) -> list[str]:
        """Go on at an instruction with a stack; with ``raised``, raise that there."""
        if raised is None and self.frame.instructions[index].name == "RETURN_VALUE":
            return [f"return {stack[-1]}"]
        target, arguments = self.destination(index, stack, raised)
        return [f"return tail({target}, {arguments})"]

    def destination(self, index: int, stack: list[str | None], raised: str | None = None) -> tuple[str, str]:
        """The resume function that goes on at an instruction, and the tuple of its arguments, as expressions."""
        code, function = self.frame.code, self.frame
        letters = _letters(stack)
        unbound = frozenset(n for n in range(self.plain_count()) if n not in self.locals)
        made = resume.resume_code(code, index, letters, unbound, raising=raised is not None, hidden=self.hidden)
        frame_hook.load().mark(made, frame_hook.FrameKind.CAPTURE)
        name = code.co_name
        if self.cells:
            cells = "".join(c + "," for c in self.cells)
            scope = self.r.constant(function.scope)
            target = f"{self.r.constant(resume.make_function)}({self.r.constant(made)}, {scope}, {name!r}, ({cells}))"
        else:
            target = self.r.constant(resume.make_function(made, function.scope, name, ()))
        arguments = [self.locals.get(slot, "None") for slot in range(self.plain_count())]
        arguments += [entry.removeprefix("#") for entry in stack if entry is not None] + (
            [f"{raised}.pop()"] if raised else []
        )
        return target, f"({''.join(a + ',' for a in arguments)})"

    def plain_count(self) -> int:
        """Variables of the user's code (a resume function has more: its stack)."""
        origin, _ = resume.origin_of(self.frame.code, 0)
        return len(origin.co_varnames)

    def branch(self, condition: str, yes: tuple[int, list], no: tuple[int, list]) -> None:
        """Two ways to go on."""
        first, second = self.go_on(*yes), self.go_on(*no)
        self.tails = [f"if {condition}: {first[0]}", *second]


def _is_kept(r: FrameRebuilder, value: Any) -> bool:
    """Whether a variable that nothing reads is handed on all the same: it holds an object of a class of the program's,
    which a weak reference may lead to (but nothing is made for it again), or one whose end can be seen."""
    if isinstance(value, Lazy):
        return ends_visibly(value) or _is_of_program(type(value.object))
    is_there = type(value) is Instance and (value.source is not None or id(value) in r.names)
    return ends_visibly(value) or (is_there and _is_of_program(value.kind))


def _is_of_program(kind: type) -> bool:
    return type(kind) is type and kind.__flags__ & HEAP_TYPE != 0 and kind.__weakrefoffset__ != 0


def ends_visibly(value: Any) -> bool:
    """Whether letting go of a value runs code of the program: a ``__del__``, or the ``try`` a generator waits in.

    A container or an iterator that the frame made, or put something into, holds that alone, perhaps.
    """
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Lazy):
            if is_built_in_iterator(type(found.object)) or has_observable_finalizer(found.object):
                return True
            waiting.append(found.made)  # which may hold more by now
        elif isinstance(found, Instance):
            if has_finalizer(found.kind):
                return True
        elif isinstance(found, Generator):
            if not found.finished:
                return True
        elif id(found) not in seen:
            seen.add(id(found))
            waiting += _held_by(found)
    return False


def _held_by(value: Any) -> list[Any]:
    """What a container or an iterator holds that the frame made; nothing of any other value."""
    if isinstance(value, Sequence) and not value.mutable():  # tuples, which no change lets go of anything of
        return list(value.items)
    if not isinstance(value, Iterator):
        return list(value.contents()) if isinstance(value, Value) and not isinstance(value, Cell) else []
    parts = vars(value).values()
    return [v for part in parts for v in (part if isinstance(part, list) else [part]) if isinstance(v, Value)]


def _letters(stack: list[str | None]) -> str:
    """The kinds of the entries of a stack, as ``resume_code`` takes them."""
    return "".join("n" if entry is None else "p" if entry[0] == "#" else "v" for entry in stack)


# Actions.


@action("CALL", "CALL_KW")
def _call(b: _Break, i: Instruction) -> list[str]:
    names = b.frame.keyword_names
    if i.name == "CALL_KW":
        names = b.values[-1].constant()
        b.pop()
    entries = [(b.stack.pop(), b.values.pop()) for _ in range(i.arg)][::-1]
    first, second = (b.stack.pop(), b.values.pop()), (b.stack.pop(), b.values.pop())
    if NULL_IS_ABOVE:
        function, own = second, None if first[0] is None else first
    else:
        function, own = (first, None) if second[0] is None else (second, first)
    if own is not None:
        entries.insert(0, own)
    _refuse_frame_bound(function[1], len(entries))
    plain = entries[: len(entries) - len(names)]
    args = [str(e) for e, _ in plain]
    args += [f"{n}={e}" for n, (e, _) in zip(names, entries[len(plain) :], strict=True)]
    return b.result(f"{function[0]}({', '.join(args)})")


def _refuse_frame_bound(function: Value, count: int) -> None:
    """Refuse to call what looks at its caller's frame; ``count``: the arguments that it has for sure."""
    called = function.realize()
    if isinstance(called, Known) and called.object in _FRAME_BOUND:
        enough = 2 if called.object in (eval, exec) else 1  # the second is the scope
        if count < enough:
            raise Unsupported(f"{called.describe()}() looks at the frame that calls it")


@action("CALL_FUNCTION_EX")
def _call_ex(b: _Break, i: Instruction) -> list[str]:
    kwargs = f", **{b.pop()}" if has_keywords(i) else ""
    args = b.pop()
    if NULL_IS_ABOVE:
        b.stack.pop()
        b.values.pop()
    _refuse_frame_bound(b.values[-1], 0)
    function = b.pop()
    if not NULL_IS_ABOVE and b.stack and b.stack[-1] is None:
        b.stack.pop()
        b.values.pop()
    return b.result(f"{function}(*{args}{kwargs})")


@action("BINARY_OP")
def _binary(b: _Break, i: Instruction) -> list[str]:
    right, left = b.pop(), b.pop()
    operation, inplace = BINARY_OPERATIONS[i.arg]
    if inplace:
        operation = getattr(operator, "i" + operation.__name__.rstrip("_"))
    return b.result(f"{b.r.constant(operation)}({left}, {right})")


@action("BINARY_SUBSCR")
def _item(b: _Break, i: Instruction) -> list[str]:
    key, container = b.pop(), b.pop()
    return b.result(f"{container}[{key}]")


@action("BINARY_SLICE")
def _slice(b: _Break, i: Instruction) -> list[str]:
    stop, start, container = b.pop(), b.pop(), b.pop()
    return b.result(f"{container}[{start}:{stop}]")


@action("STORE_SUBSCR")
def _store_item(b: _Break, i: Instruction) -> list[str]:
    key, container, value = b.pop(), b.pop(), b.pop()
    return [f"{container}[{key}] = {value}"]


@action("STORE_SLICE")
def _store_slice(b: _Break, i: Instruction) -> list[str]:
    stop, start, container, value = b.pop(), b.pop(), b.pop(), b.pop()
    return [f"{container}[{start}:{stop}] = {value}"]


@action("DELETE_SUBSCR")
def _delete_item(b: _Break, i: Instruction) -> list[str]:
    key, container = b.pop(), b.pop()
    return [f"del {container}[{key}]"]


@action("UNARY_NEGATIVE", "UNARY_POSITIVE", "UNARY_INVERT", "UNARY_NOT", "TO_BOOL")
def _unary(b: _Break, i: Instruction) -> list[str]:
    symbol = {"NEGATIVE": "-", "POSITIVE": "+", "INVERT": "~", "NOT": "not ", "BOOL": "not not "}
    return b.result(f"{symbol[i.name.rpartition('_')[2]]}{b.pop()}")


@action("COMPARE_OP")
def _compare(b: _Break, i: Instruction) -> list[str]:
    right, left = b.pop(), b.pop()
    symbol, as_truth = comparison(i)
    text = f"{left} {symbol} {right}"
    return b.result(f"bool({text})" if as_truth else text)


@action("CONTAINS_OP")
def _contains(b: _Break, i: Instruction) -> list[str]:
    container, item = b.pop(), b.pop()
    return b.result(f"{item} {'not ' if i.arg else ''}in {container}")


@action("LOAD_ATTR", "LOAD_METHOD")
def _attribute(b: _Break, i: Instruction) -> list[str]:
    number, method = name_of(i)
    name = b.frame.code.co_names[number]
    owner = b.pop()
    if method and not NULL_IS_ABOVE:
        b.push(None)
    lines = b.result(f"{b.r.constant(getattr)}({owner}, {name!r})")
    if method and NULL_IS_ABOVE:
        b.push(None)
    return lines


@action("STORE_ATTR")
def _store_attribute(b: _Break, i: Instruction) -> list[str]:
    owner, value = b.pop(), b.pop()
    return [f"{b.r.constant(setattr)}({owner}, {b.frame.code.co_names[i.arg]!r}, {value})"]


@action("DELETE_ATTR")
def _delete_attribute(b: _Break, i: Instruction) -> list[str]:
    return [f"{b.r.constant(delattr)}({b.pop()}, {b.frame.code.co_names[i.arg]!r})"]


@action("IMPORT_NAME")
def _import(b: _Break, i: Instruction) -> list[str]:
    names, level = b.pop(), b.pop()
    scope = b.r.constant(b.frame.scope)
    return b.result(f"{b.r.constant(__import__)}({b.frame.code.co_names[i.arg]!r}, {scope}, None, {names}, {level})")


@action("GET_ITER")
def _iterate(b: _Break, i: Instruction) -> list[str]:
    return b.result(f"{b.r.constant(iter)}({b.pop()})")


@action("FOR_ITER")
def _for(b: _Break, i: Instruction) -> list[str]:
    iterator, item = b.stack[-1], b.r.fresh()
    missing = b.r.constant(_MISSING)
    b.branch(f"{item} is {missing}", (behind_loop(i.target), b.stack[:-1]), (b.index + 1, [*b.stack, item]))
    return [f"{item} = {b.r.constant(next)}({iterator}, {missing})"]


@action("UNPACK_SEQUENCE")
def _unpack(b: _Break, i: Instruction) -> list[str]:
    value = b.pop()
    names = [b.r.fresh() for _ in range(i.arg)]
    for name in reversed(names):
        b.push(name)
    return [f"({''.join(n + ',' for n in names)}) = {value}" if names else f"() = {value}"]


@action("UNPACK_EX")
def _unpack_ex(b: _Break, i: Instruction) -> list[str]:
    value = b.pop()
    before, after = around_star(i)
    names = [b.r.fresh() for _ in range(before + 1 + after)]
    for name in reversed(names):
        b.push(name)
    targets = [("*" if n == before else "") + name for n, name in enumerate(names)]
    return [f"{', '.join(targets)}, = {value}"]


@action(
    "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE",
    "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE",
)  # fmt: skip
def _jump_if(b: _Break, i: Instruction) -> list[str]:
    value, truth = b.pop(), b.r.fresh()
    there, here = (i.target, b.stack), (b.index + 1, b.stack)
    b.branch(truth, *((there, here) if i.name.endswith("TRUE") else (here, there)))
    return [f"{truth} = {b.r.constant(bool)}({value})"]


@action("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def _jump_or_pop(b: _Break, i: Instruction) -> list[str]:
    truth, value = b.r.fresh(), b.stack[-1]
    there, here = (i.target, b.stack), (b.index + 1, b.stack[:-1])
    b.branch(truth, *((there, here) if "TRUE" in i.name else (here, there)))
    return [f"{truth} = {b.r.constant(bool)}({value})"]


@action("BEFORE_WITH")
def _with(b: _Break, i: Instruction) -> list[str]:
    leave, entered = b.r.fresh(), b.r.fresh()
    line = f"{leave}, {entered} = {b.r.constant(enter_context)}({b.pop()})"
    b.push(leave)
    b.push(entered)
    return [line]


def enter_context(manager: Any) -> tuple[Any, Any]:
    """What ``with`` does first: the bound ``__exit__`` and the result of ``__enter__``."""
    kind = type(manager)
    if not hasattr(kind, "__enter__") or not hasattr(kind, "__exit__"):
        raise TypeError(f"{kind.__qualname__!r} object does not support the context manager protocol")
    leave = types.MethodType(kind.__exit__, manager)
    return leave, kind.__enter__(manager)


@action("FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC", "CONVERT_VALUE")
def _format(b: _Break, i: Instruction) -> list[str]:
    if i.name == "CONVERT_VALUE":
        return b.result(f"{b.r.constant(CONVERSIONS[i.arg])}({b.pop()})")
    conversion, has_spec = formatting(i)
    spec = b.pop() if has_spec else "''"
    value = b.pop()
    if conversion is not None:
        value = f"{b.r.constant(conversion)}({value})"
    return b.result(f"{b.r.constant(format)}({value}, {spec})")


@action("LIST_EXTEND", "SET_UPDATE", "DICT_UPDATE")
def _extend(b: _Break, i: Instruction) -> list[str]:
    more = b.pop()
    return [f"{b.stack[-i.arg]}.{'extend' if i.name == 'LIST_EXTEND' else 'update'}({more})"]


@action("LIST_APPEND", "SET_ADD")
def _append(b: _Break, i: Instruction) -> list[str]:
    item = b.pop()
    return [f"{b.stack[-i.arg]}.{'append' if i.name == 'LIST_APPEND' else 'add'}({item})"]


@action("MAP_ADD")
def _map_add(b: _Break, i: Instruction) -> list[str]:
    value, key = b.pop(), b.pop()
    return [f"{b.stack[-i.arg]}[{key}] = {value}"]


@action("WITH_EXCEPT_START")
def _leave_context(b: _Break, i: Instruction) -> list[str]:
    error, leave = b.stack[-1], b.stack[-4]
    return b.result(f"{leave}({b.r.constant(type)}({error}), {error}, {error}.__traceback__)")


@action("LOAD_BUILD_CLASS")
def _build_class(b: _Break, i: Instruction) -> list[str]:
    return b.result(b.r.constant(__build_class__))


@action("RAISE_VARARGS")
def _raise(b: _Break, i: Instruction) -> list[str]:
    if i.arg == 0:
        raise Unsupported("a bare raise outside of a handler")
    cause = f" from {b.pop()}" if i.arg == 2 else ""
    b.tails = ["return None"]
    return [f"raise {b.pop()}{cause}"]
