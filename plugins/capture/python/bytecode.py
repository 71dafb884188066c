"""Code objects as lists of instructions, their exception tables, and which locals are still needed where."""

from __future__ import annotations

import builtins
import dis
import functools
import types
from typing import Any, NamedTuple

from turret.plugins.capture.python.instructions import (
    CACHE_COUNT,
    STOP_ITERATION_ERROR,
    WAITING_POINTS_AHEAD,
    Instruction,
    name_of,
    two_slots,
)

_RELATIVE = frozenset(dis.hasjrel)


class ExceptionEntry(NamedTuple):
    """Instructions from ``start`` to ``end`` (indices, exclusive) are handled at ``target``."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


class Decoded(NamedTuple):
    """A code object taken apart."""

    code: types.CodeType
    instructions: tuple[Instruction, ...]
    handlers: tuple[ExceptionEntry, ...]
    index_of: dict[int, int]
    slots: tuple[str, ...]
    """Names of the local slots: variables, then cells that are no parameters, then free variables."""

    def handler(self, index: int) -> ExceptionEntry | None:
        """The entry that covers an instruction, or None."""
        for entry in self.handlers:
            if entry.start <= index < entry.end:
                return entry
        return None

    def guards(self, index: int, scope: dict[str, Any]) -> bool:
        """Whether the program put a ``try`` or ``with`` around an instruction that the end of a generator enters."""
        entry = self.handler(index)
        while entry is not None:
            first, second = self.instructions[entry.target : entry.target + 2]
            if first.name == "CLEANUP_THROW" or (first.name, second.name) == ("COPY", "POP_EXCEPT"):
                entry = self.handler(entry.target)  # of a delegation, or behind a handler
            elif (reraised := self._lets_generator_exit_pass(entry.target, scope)) is not None:
                entry = self.handler(reraised)
            else:  # or the interpreter's own, which turns StopIteration into RuntimeError
                return (first.name, first.arg) != ("CALL_INTRINSIC_1", STOP_ITERATION_ERROR) or second.name != "RERAISE"
        return False

    def _lets_generator_exit_pass(self, index: int, scope: dict[str, Any]) -> int | None:
        """Where a handler that is for other exceptions alone (``except IndexError``) raises GeneratorExit again."""
        if self.instructions[index].name != "PUSH_EXC_INFO":
            return None
        index += 1
        while self.instructions[index].name == "LOAD_GLOBAL":
            load, match, jump = self.instructions[index : index + 3]
            name = self.code.co_names[name_of(load)[0]]
            kind = scope.get(name, getattr(builtins, name, None))
            named = isinstance(kind, type) and not issubclass(GeneratorExit, kind)
            if not named or match.name != "CHECK_EXC_MATCH" or "IF_FALSE" not in jump.name or jump.target is None:
                return None
            index = jump.target
        return index if self.instructions[index].name == "RERAISE" else None

    def line(self, index: int) -> int:
        """The line of the source that an instruction came from."""
        return self.line_at(self.instructions[index].offset)

    def line_at(self, offset: int) -> int:
        """The same of the instruction at an offset."""
        return _lines(self.code)[offset // 2] or self.code.co_firstlineno


@functools.lru_cache(maxsize=4096)
def _lines(code: types.CodeType) -> list[int | None]:
    return [position[0] for position in code.co_positions()]


@functools.lru_cache(maxsize=4096)
def decode(code: types.CodeType) -> Decoded:
    """Take a code object apart; the result is shared among callers."""
    raw: list[tuple[str, int, int, int]] = []
    content = code.co_code
    offset, extended, start = 0, 0, None
    index_of: dict[int, int] = {}
    while offset < len(content):
        op, arg = content[offset], content[offset + 1] | extended
        if start is None:
            start = offset
        if op == dis.EXTENDED_ARG:
            extended = arg << 8
            offset += 2
            continue
        following = offset + 2 + 2 * CACHE_COUNT[op]
        name = dis.opname[op]
        index_of[start] = index_of[offset] = len(raw)
        raw.append((name, arg, offset, _jump(op, name, arg, following)))
        offset, extended, start = following, 0, None
    index_of[len(content)] = len(raw)
    instructions = tuple(
        Instruction(name, arg, offset, index_of[target] if target >= 0 else -1) for name, arg, offset, target in raw
    )
    handlers = tuple(
        ExceptionEntry(index_of[s], index_of[e], index_of[t], depth, lasti)
        for s, e, t, depth, lasti in read_exception_table(code.co_exceptiontable)
    )
    return Decoded(code, instructions, handlers, index_of, slot_names(code))


def waiting_at(generator: types.GeneratorType) -> int:
    """The index of the instruction at which a generator waits; it must not have ended."""
    assert generator.gi_frame is not None
    after = decode(generator.gi_code).index_of[generator.gi_frame.f_lasti]
    return after - 1 if WAITING_POINTS_AHEAD else after


def _jump(op: int, name: str, arg: int, following: int) -> int:
    if op not in _RELATIVE:
        return -1
    return following - 2 * arg if "BACKWARD" in name else following + 2 * arg


def slot_names(code: types.CodeType) -> tuple[str, ...]:
    """Names of the slots of ``localsplus``, in order."""
    variables = code.co_varnames
    return (*variables, *(n for n in code.co_cellvars if n not in variables), *code.co_freevars)


def read_exception_table(table: bytes) -> list[tuple[int, int, int, int, bool]]:
    """Entries as (start, end, target, depth, lasti), in byte offsets."""
    entries, values = [], _varints(table)
    for start in values:
        length, target, packed = next(values), next(values), next(values)
        entries.append((2 * start, 2 * (start + length), 2 * target, packed >> 1, bool(packed & 1)))
    return entries


def _varints(table: bytes):
    content = iter(table)
    for byte in content:
        value = byte & 63
        while byte & 64:
            byte = next(content)
            value = value << 6 | byte & 63
        yield value


def write_exception_table(entries: list[tuple[int, int, int, int, bool]]) -> bytes:
    """The inverse of ``read_exception_table``."""
    made = bytearray()
    for start, end, target, depth, lasti in entries:
        for number, value in enumerate((start // 2, (end - start) // 2, target // 2, depth << 1 | lasti)):
            groups = []
            while True:
                groups.append(value & 63)
                value >>= 6
                if not value:
                    break
            groups.reverse()
            for position, group in enumerate(groups):
                first = 128 if number == 0 and position == 0 else 0
                more = 64 if position < len(groups) - 1 else 0
                made.append(first | more | group)
    return bytes(made)


_FRAME_READERS = frozenset({"locals", "vars", "eval", "exec", "dir"})


@functools.lru_cache(maxsize=4096)
def _liveness(code: types.CodeType) -> list[frozenset[int]]:
    """For each instruction, the variable slots whose values may still be read from there on."""
    decoded = decode(code)
    if _FRAME_READERS & set(code.co_names):
        everything = frozenset(range(len(code.co_varnames)))
        return [everything] * (len(decoded.instructions) + 1)
    count = len(decoded.instructions)
    live: list[set[int]] = [set() for _ in range(count + 1)]
    changed = True
    while changed:
        changed = False
        for number in range(count - 1, -1, -1):
            instruction = decoded.instructions[number]
            after: set[int] = set()
            if instruction.name not in _NO_FALLTHROUGH:
                after |= live[number + 1]
            if instruction.target >= 0:
                after |= live[instruction.target]
            reads, writes = variable_access(instruction)
            now = (after - writes) | reads
            handler = decoded.handler(number)
            if handler is not None:
                now |= live[handler.target]
            if not now <= live[number]:
                live[number] |= now
                changed = True
    return [frozenset(s) for s in live]


_NO_FALLTHROUGH = frozenset(
    {
        "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
    }
)  # fmt: skip


def variable_access(instruction: Instruction) -> tuple[set[int], set[int]]:
    """Slots that an instruction reads, and slots that it writes."""
    name, arg = instruction.name, instruction.arg
    if name in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE", "DELETE_FAST"):
        return {arg}, set()
    if name == "LOAD_FAST_AND_CLEAR":
        return {arg}, set()
    if name == "STORE_FAST":
        return set(), {arg}
    first, second = two_slots(instruction)
    if name == "LOAD_FAST_LOAD_FAST":
        return {first, second}, set()
    if name == "STORE_FAST_LOAD_FAST":
        return ({second} - {first}), {first}
    if name == "STORE_FAST_STORE_FAST":
        return set(), {first, second}
    return set(), set()


def live_variables(code: types.CodeType, index: int) -> frozenset[int]:
    """Variable slots that may still be read from instruction ``index`` on."""
    return _liveness(code)[index]
