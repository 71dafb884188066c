"""One frame under symbolic execution: its locals, its value stack, its exception handlers."""

from __future__ import annotations

import builtins
import inspect
import types
from typing import Any, TypeAlias

from turret.frames.sources import BoundSource, Source
from turret.plugins.capture.branches.conditional import split
from turret.plugins.capture.branches.undecided import Split, Undecided
from turret.plugins.capture.errors import DecidedByData, Raised, Unsupported
from turret.plugins.capture.python import lookups, polyfills, resume
from turret.plugins.capture.python.bytecode import Decoded, decode
from turret.plugins.capture.python.instructions import (
    CLOSE_GIVES_RESULT,
    SEND_KEEPS_RECEIVER,
    STOP_ITERATION_ERROR,
    name_of,
    resumes_delegation,
)
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import NULL, Constant, Rebuilder, Tracer, Unread, Value
from turret.plugins.capture.values.exceptions import ExceptionInstance
from turret.plugins.capture.values.functions import Cell
from turret.plugins.capture.values.iterators import Iterator
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import List
from turret.plugins.capture.values.sets import Set

_Start: TypeAlias = "tuple[list[Value], tuple[str, ...], tuple[Any, ...]]"


class Signal:
    """Why ``run`` came back."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


_ENDS_OF_LOOPS = ("StopIteration", "StopAsyncIteration", "GeneratorExit")
"""What is raised where nothing is wrong."""
_LEAVES = ("RETURN", "YIELD", "SEND", "FOR_ITER", "RERAISE")
"""How the names of instructions begin that hand something on, or go elsewhere."""

RETURNED, YIELDED, STOPPED = Signal("returned"), Signal("yielded"), Signal("stopped")
JOINED = Signal("joined")
"""At the instruction where the ways behind a jump meet."""


class Frame:
    """A frame; ``run`` executes it until it returns, yields or (the root alone) must stop for a graph break."""

    def __init__(
        self,
        tracer: Tracer,
        code: types.CodeType,
        scope: dict[str, Any],
        scope_source: Source | None,
        closure: list[Cell],
    ) -> None:
        self.tracer, self.code, self.scope = tracer, code, scope
        self.scope_source = scope_source or BoundSource(f"G[{scope.get('__name__', '?')}]", scope)
        self.decoded: Decoded = decode(code)
        tracer.provenance.codes.add(code)
        self.instructions = self.decoded.instructions
        self.locals: list[Any] = [None] * len(self.decoded.slots)
        self.closure = closure
        self.variables: Value | None = None
        """The dict that ``locals()`` gave, where a frame has but one."""
        self.stack: list[Value] = []
        self.index = 0
        """Of the next instruction; during one, of the one after it."""
        self.current = 0
        self.keyword_names: tuple[str, ...] = ()
        self.result: Value = Constant(None)
        self.handling: list[Value] = []
        """Exceptions being handled, innermost last."""
        found = scope.get("__builtins__", builtins)
        self.builtins: dict[str, Any] = found if isinstance(found, dict) else vars(found)

    # The stack.

    def push(self, value: Value) -> None:
        self.stack.append(value)

    def pop(self) -> Value:
        """The top value, looked at."""
        return self.stack.pop().realize()

    def pop_key(self) -> tuple[Value, Value]:
        """A key and a container below it, looked at; but for a key of a dict that only the call itself can look at."""
        key, container = self.stack.pop(), self.pop()
        return key if isinstance(key, Unread) and type(container) is Dict else key.realize(), container

    def popn(self, count: int) -> list[Value]:
        """The top values as they are, the deepest first."""
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def assertion(self) -> str | None:
        """The message where the current instruction decides whether an ``assert`` holds, else None."""
        following = [self.instructions[self.current]]
        following += self.instructions[self.current + 1 : self.current + 4]
        names = [i.name for i in following]
        decides = names[0].startswith("POP_JUMP") and names[0].endswith("IF_TRUE")
        if not decides or names[1:2] != ["LOAD_ASSERTION_ERROR"]:
            return None
        said = self.code.co_consts[following[2].arg] if names[2:3] == ["LOAD_CONST"] else ""
        return said if isinstance(said, str) else ""

    def goes_on(self) -> bool | None:
        """The truth with which the current instruction goes on, where the other one raises an exception at once.

        None where neither does, or both do.
        """
        jump = self.instructions[self.current]
        if not jump.name.startswith("POP_JUMP") or not jump.name.endswith(("IF_TRUE", "IF_FALSE")):
            return None
        if self.handles():
            return None
        jumps, falls = self._raises(jump.target), self._raises(self.current + 1)
        return None if jumps == falls else jump.name.endswith("IF_TRUE") is falls

    def _raises(self, number: int) -> bool:
        """Whether the instructions from here on end in a ``raise``, without a branch."""
        for instruction in self.instructions[number:]:
            if instruction.name == "RAISE_VARARGS":
                return True
            if instruction.name == "LOAD_GLOBAL" and self.code.co_names[name_of(instruction)[0]] in _ENDS_OF_LOOPS:
                return False
            if "JUMP" in instruction.name or instruction.name.startswith(_LEAVES):
                return False
        return False

    # Execution.

    def run(self) -> Signal:
        """Execute until the frame has something to hand back."""
        self.tracer.call_stack.enter(self)
        try:
            return self.execute()
        finally:
            self.tracer.call_stack.leave()

    def execute(self, join: int | None = None, jump: int | None = None) -> Signal:
        """Execute, in a run, until there is something to hand back, or up to ``join``: a way from ``jump`` to there."""
        instructions, handlers, call_stack = self.instructions, registry.instructions, self.tracer.call_stack
        while self.index != join:
            self.current = index = self.index
            instruction = instructions[index]
            self.index = index + 1
            if call_stack.root is self and call_stack.stop_here():
                return STOPPED
            handler = handlers.get(instruction.name)
            if handler is None:
                raise Unsupported(f"the instruction {instruction.name}")
            start = self.state() if self.tracer.undecided else None
            try:
                signal = handler(self, instruction)
            except Split as needed:
                signal = self.split(needed.value, start)
            except Raised as raised:
                if jump is not None and self.decoded.handler(self.current) is self.decoded.handler(jump):
                    raise  # out of the way
                self.unwind(raised)
                continue
            if signal is not None:
                return signal
        return JOINED

    def state(self) -> _Start:
        """What an instruction takes, and what its handler may have done to all else by now."""
        recorder, effects = self.tracer.recorder, self.tracer.effects
        done = recorder.graph, recorder.calls, effects.count, len(effects.later), len(self.handling)
        return list(self.stack), self.keyword_names, done

    def split(self, value: Undecided, start: _Start | None) -> Signal | None:
        """Follow the instruction under way for either of two objects."""
        if start is None or start[2] != self.state()[2]:
            raise DecidedByData(value.describe())
        stack, self.keyword_names, _ = start
        result = split(self, value, stack)
        if result is None:
            return None
        self.result = result
        return RETURNED

    def unwind(self, raised: Raised) -> None:
        """Go on at the handler of the current instruction, or let the exception out of the frame."""
        exception = raised.value
        if isinstance(exception, ExceptionInstance) and not self.passes_on():
            self.trace(exception)
        entry = self.decoded.handler(self.current)
        if entry is None:
            try:
                raise raised
            finally:
                del raised  # else it is held by this frame, which it holds
        if isinstance(exception, ExceptionInstance) and not self.passes_on():
            handled = self.tracer.call_stack.handled()
            exception.find_context(self.tracer, handled)
        del self.stack[entry.depth :]
        if entry.lasti:
            self.push(Constant(self.current))
        self.push(exception)
        self.index = entry.target

    def catches(self) -> bool:
        """Whether there is a handler of what the current instruction raises."""
        return self.decoded.handler(self.current) is not None

    def handles(self) -> bool:
        """Whether the program handles what the current instruction raises, for all that is known: no ``with`` does."""
        entry = self.decoded.handler(self.current)
        while entry is not None:
            first, second = self.instructions[entry.target : entry.target + 2]
            leaves = second.name == "WITH_EXCEPT_START" or (first.name, second.name) == ("COPY", "POP_EXCEPT")
            if not leaves and (first.name, first.arg) != ("CALL_INTRINSIC_1", STOP_ITERATION_ERROR):
                return True
            entry = self.decoded.handler(entry.target)
        return False

    def passes_on(self) -> bool:
        """Whether the current instruction raises again what was raised before: its traceback stays as it is."""
        instruction = self.instructions[self.current]
        return instruction.name == "RERAISE" or (instruction.name, instruction.arg) == ("RAISE_VARARGS", 0)

    def trace(self, exception: ExceptionInstance) -> None:
        """Put the current instruction into an exception's traceback, unless C code of the program's runs here."""
        module = self.scope.get("__name__", "__main__")
        if module != polyfills.__name__:
            offset = self.instructions[self.current].offset
            exception.go_through(self.tracer, self.code, module, offset, self.line())

    def line(self) -> int:
        """The source line under execution."""
        return self.decoded.line(self.current)

    def cell(self, slot: int) -> Cell:
        found = self.locals[slot]
        if not isinstance(found, Cell):
            raise Unsupported("a cell that was not made")
        return found

    def cell_named(self, name: str) -> Cell:
        """The cell of a variable.  In a resume function the frame's own cells have come in as free variables too."""
        origin, _ = resume.origin_of(self.code, 0)
        slots = self.decoded.slots
        slot = slots.index(name) if name in origin.co_cellvars else len(slots) - 1 - slots[::-1].index(name)
        found = self.locals[slot]
        if not isinstance(found, Cell):
            raise Unsupported("a graph break before the cells of a function are made")
        return found

    def hidden_cells(self) -> frozenset[str]:
        """Variables with a cell whose slots a comprehension has for its own (3.12 on): no cell is there for a while."""
        origin, _ = resume.origin_of(self.code, 0)
        shared = (n for n in origin.co_cellvars if n in origin.co_varnames)
        return frozenset(n for n in shared if not isinstance(self.locals[origin.co_varnames.index(n)], Cell))


def _done_so_far(t: Tracer) -> tuple[int, ...]:
    """Counts of what the frame has recorded and changed so far."""
    return t.recorder.calls, t.effects.count, len(t.effects.later), len(t.effects.globals)


def _exhausted() -> Any:
    """A generator that has nothing left."""
    nothing: tuple[Any, ...] = ()
    made = (v for v in nothing)
    next(made, None)
    return made


def _is_plain(value: Any) -> bool:
    return value is not None and not isinstance(value, Cell)


class Generator(Value):
    """A generator: a frame that runs when it is asked for its next value.

    One of the program's from before (which has a ``source``) was not asked for anything before the frame began.
    """

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.object: Any = None
        self.started = self.finished = self.running = False
        self.steps, self.is_pure = 0, True
        """Values that it gave, and whether it did nothing else, so that it may be run once more."""
        self.returned: Value = Constant(None)
        self.step = frame.tracer.call_stack.step
        """Of the root frame, when the generator was made."""
        self.made_at = frame.tracer.call_stack.location()
        frame.tracer.generators.append(self)

    def type(self) -> type:
        return types.GeneratorType

    def key(self, t: Tracer) -> Any:
        return self

    def iterate(self, t: Tracer) -> Value:
        return self

    def truth(self, t: Tracer) -> bool:
        return True

    def next(self, t: Tracer) -> Value:
        return self.send(t, Constant(None))

    def send(self, t: Tracer, value: Value) -> Value:
        """Run to the next ``yield``; StopIteration with the returned value at the end."""
        self.is_pure = self.is_pure and t.is_none(value)
        if not self.started and not self.finished and not t.is_none(value):
            raise t.raised(TypeError, "can't send non-None value to a just-started generator")
        return self.resume(t, lambda: self.frame.push(value))

    def throw(self, t: Tracer, exception: Value) -> Value:
        """Raise at the ``yield`` where the generator waits, or in the generator that it delegates to."""
        self.is_pure = False
        if isinstance(exception, ExceptionInstance):
            exception.settled = True
        if self.finished:
            raise Raised(exception)
        inner = self.delegate()
        if inner is not None and not self.running:
            self.running = True
            try:
                if not issubclass(exception.type(), GeneratorExit):
                    return inner.throw(t, exception)
                inner.m_close(t)
            except Raised as raised:
                exception = raised.value
                if isinstance(exception, ExceptionInstance) and issubclass(exception.kind, StopIteration):
                    self.running = False
                    result = exception.args[0] if exception.args else Constant(None)
                    return self.resume(t, lambda: self.delegated(result))
            finally:
                self.running = False

        def inject() -> None:
            if isinstance(exception, ExceptionInstance) and self.frame.handling and exception.has_no_context():
                exception.set_attr(t, "__context__", self.frame.handling[-1])
            self.frame.current = self.frame.index - 1
            self.frame.unwind(Raised(exception))

        return self.resume(t, inject)

    def waits_in_delegation(self) -> bool:
        """Whether the generator waits in a ``yield from``."""
        frame = self.frame
        if not self.started or self.finished or frame.instructions[frame.index - 1].name != "YIELD_VALUE":
            return False
        return resumes_delegation(frame.instructions[frame.index])

    def delegate(self) -> Generator | None:
        """The generator that this one waits for in a ``yield from``."""
        if not self.waits_in_delegation():
            return None
        receiver = self.frame.stack[-1].realize()
        if isinstance(receiver, Generator):
            return receiver
        if isinstance(receiver, Instance):
            raise Unsupported(f"an exception thrown into {receiver.describe()}, which a generator delegates to")
        return None

    def delegated(self, result: Value) -> None:
        """Go on behind a ``yield from`` with its result."""
        frame = self.frame
        sends = next(n for n in range(frame.index - 1, -1, -1) if frame.instructions[n].name == "SEND")
        frame.index = frame.instructions[sends].target
        if not SEND_KEEPS_RECEIVER:
            frame.stack.pop()
        frame.push(result)

    def ends_visibly(self) -> bool:
        """Whether the generator waits where an end of it would be noticed."""
        return self.started and not self.finished and self.frame.decoded.guards(self.frame.index - 1, self.frame.scope)

    def check_end(self, r: Rebuilder) -> None:
        """A generator that nobody holds any more is closed by the interpreter; refuse where that would do something."""
        if id(self) not in r.names and self.ends_visibly():
            message = "a generator that is left waiting in a try or with block, whose end runs when it is collected"
            raise Unsupported(message, step=self.step, location=self.made_at)

    def resume(self, t: Tracer, prepare: Any) -> Value:
        if self.running:
            raise t.raised(ValueError, "generator already executing")
        if self.finished:
            raise t.raised(StopIteration)
        t.effects.note(self)
        before = _done_so_far(t)
        self.running = self.started = True
        try:
            prepare()
            signal = self.frame.run()
        except Raised as raised:
            self.finished = True
            if isinstance(raised.value, ExceptionInstance) and issubclass(raised.value.kind, StopIteration):
                raise Raised(t.stopped_inside(raised.value)) from None
            raise
        except Unsupported:
            self.finished = True
            raise
        finally:
            self.running = False
            self.is_pure = self.is_pure and before == _done_so_far(t)
        if signal is RETURNED:
            self.finished = True
            self.returned = self.frame.result
            raise t.raised(StopIteration, *([] if t.is_none(self.returned) else [self.returned]))
        self.steps += 1
        return self.frame.result

    def rebuild(self, r: Rebuilder) -> str:
        """The generator from before, or a new one that is where this one is."""
        if self.source is not None:
            return r.source(self.source)
        if self.finished:
            return r.assign(f"{r.constant(_exhausted)}()")
        return self.rebuild_waiting(r)

    def rebuild_waiting(self, r: Rebuilder) -> str:
        """A new generator that waits where this one does."""
        if self.running:
            raise Unsupported("a generator that is running", step=self.step)
        frame = self.frame
        if frame.handling:
            raise Unsupported("a generator that waits while it handles an exception", step=self.step)
        if self.waits_in_delegation():
            raise Unsupported("a generator that waits in a yield from", step=self.step)
        unbound = frozenset(n for n in range(len(frame.code.co_varnames)) if not _is_plain(frame.locals[n]))
        at = frame.index - 1
        waiting = frame.instructions[at].name == "YIELD_VALUE"
        letters = "".join("n" if v is NULL else "v" for v in frame.stack)
        if not waiting:
            return self.rebuild_unstarted(r)
        made = resume.generator_code(frame.code, at, letters, unbound)
        cells = "".join(r.load(frame.cell_named(n)) + "," for n in resume.cell_names(frame.code))
        values = [frame.locals[n] if n not in unbound else None for n in range(len(frame.code.co_varnames))]
        arguments = ["None" if v is None else r.load(v) for v in values]
        arguments += [r.load(v) for v in frame.stack if v is not NULL]
        name = r.assign(
            f"{r.constant(resume.make_function)}({r.constant(made)}, {r.constant(frame.scope)}, "
            f"{frame.code.co_name!r}, ({cells}))({', '.join(arguments)})"
        )
        r.line(f"{r.constant(next)}({name})")
        return name

    def replay(self, r: Rebuilder) -> None:
        """Have a generator from before be where this one is: closed, as it was not started, or run as far once more."""
        if self.finished:
            r.effect(f"{r.load(self)}.close()")
            return
        if self.given(r) is None:
            message = "a generator from before that is left waiting"
            raise Unsupported(message, step=self.step, location=self.made_at)
        r.effect(f"{r.constant(lookups.advance)}({r.load(self)}, {self.steps})")

    def given(self, r: Rebuilder) -> int | None:
        """How many values it gave, if it may be run once more to give them."""
        return self.steps if self.is_pure and self.reads_nothing_changed(r) else None

    def reads_nothing_changed(self, r: Rebuilder) -> bool:
        """Whether the generator, run behind the graph, goes the same way: those of torch read modules alone."""
        left = [v for v in r.t.effects.changed.values() if not isinstance(v, (Generator, Iterator))]
        name = self.frame.scope.get("__name__") or ""
        of_modules = name.startswith("torch.") and all(isinstance(v, (List, Set)) for v in left)
        return not r.t.effects.globals and (of_modules or not left)

    def rebuild_unstarted(self, r: Rebuilder) -> str:
        """A new generator that was not asked for anything yet: its function called with the same arguments."""
        frame, code = self.frame, self.frame.code

        def load(slot: int) -> str:
            held = frame.locals[slot]
            value = held.content if isinstance(held, Cell) else held
            assert value is not None, "all parameters are bound before a generator starts"
            return r.load(value)

        count = code.co_argcount
        closure = "".join(r.load(c) + "," for c in frame.closure)
        arguments = [load(n) for n in range(count)]
        slot = count + code.co_kwonlyargcount
        named = [f"{code.co_varnames[n]}={load(n)}" for n in range(count, slot)]
        if code.co_flags & inspect.CO_VARARGS:
            arguments.append(f"*{load(slot)}")
            slot += 1
        if code.co_flags & inspect.CO_VARKEYWORDS:
            named.append(f"**{load(slot)}")
        return r.assign(
            f"{r.constant(resume.make_function)}({r.constant(code)}, {r.constant(frame.scope)}, {code.co_name!r}, "
            f"({closure}))({', '.join([*arguments, *named])})"
        )

    def m___next__(self, t: Tracer) -> Value:
        return self.next(t)

    def m___iter__(self, t: Tracer) -> Value:
        return self

    def m_send(self, t: Tracer, value: Value) -> Value:
        return self.send(t, value)

    def m_throw(self, t: Tracer, kind: Value, *rest: Value) -> Value:
        value = rest[0].realize() if rest else Constant(None)
        if t.is_none(value):
            return self.throw(t, t.exception_of(kind))
        if not isinstance(value, ExceptionInstance) or not t.exception_matches(value, kind.realize()):
            raise Unsupported("an exception thrown into a generator by its class and something else than an instance")
        return self.throw(t, value)

    def m_close(self, t: Tracer) -> Value:
        if self.running:
            raise t.raised(ValueError, "generator already executing")
        if self.finished or not self.started:
            t.effects.note(self)
            self.finished = True
            return Constant(None)
        try:
            self.throw(t, t.new_exception(GeneratorExit))
        except Raised as raised:
            if not issubclass(raised.value.type(), (GeneratorExit, StopIteration)):
                raise
            returned = CLOSE_GIVES_RESULT and issubclass(raised.value.type(), StopIteration)
            return raised.value.args[0] if returned and raised.value.args else Constant(None)
        raise t.raised(RuntimeError, "generator ignored GeneratorExit")
