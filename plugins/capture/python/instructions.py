"""What instructions mean: how their arguments are packed, and where operands lie on the stack.

All that differs between CPython 3.11, 3.12 and 3.13 in what instructions do is here and nowhere else; how code objects
hold them is in ``bytecode``.
"""

from __future__ import annotations

import dis
import opcode
import operator
import sys
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

VersionInfo = type(sys.version_info)
_VERSION = sys.version_info[:2]


class Instruction(NamedTuple):
    """One instruction; ``target`` is the index (not the offset) that a jump goes to."""

    name: str
    arg: int
    offset: int
    target: int


# What versions do in different ways.

NULL_IS_ABOVE = _VERSION >= (3, 13)
"""Whether the NULL that stands for no receiver lies above a function to be called; before, it lay below."""
CALL_INSTRUCTIONS = ("CALL",) if _VERSION >= (3, 12) else ("PRECALL", "CALL")
"""The instructions of a call."""
VALUES_OF_END_FOR = 2 if _VERSION == (3, 12) else 1
"""How many values the end of a loop takes off the stack."""
SEND_KEEPS_RECEIVER = _VERSION >= (3, 12)
"""Whether the generator of a ``yield from`` is still on the stack when it has ended."""
FUNCTION_PARTS_ARE_OPERANDS = _VERSION < (3, 13)
"""Whether making a function takes its defaults and cells off the stack; else instructions behind it add them."""
CELLS_ARE_LOADED_AS_VARIABLES = _VERSION >= (3, 13)
"""Whether a closure takes cells by the instruction that loads variables."""
WAITING_POINTS_AHEAD = _VERSION >= (3, 13)
"""Whether a frame that waits remembers the instruction that comes next, rather than the one at which it waits."""
LOCALS_ARE_NEW = _VERSION >= (3, 13)
"""Whether each call of ``locals()`` makes a dict; before, a frame had one, which each brought up to date."""
CLOSE_GIVES_RESULT = _VERSION >= (3, 13)
"""Whether ``generator.close`` gives what the generator returns then."""


def _cache_counts() -> list[int]:
    entries: Any = opcode._inline_cache_entries  # type: ignore[attr-defined]
    if _VERSION >= (3, 13):
        return [entries.get(name, 0) for name in dis.opname]
    return list(entries)


CACHE_COUNT = _cache_counts()
"""For each opcode, how many words of caches follow it."""


def behind_loop(target: int) -> int:
    """The index of what comes after a loop whose iterator has ended, of the target of its FOR_ITER."""
    return target if _VERSION < (3, 12) else target + (1 if _VERSION < (3, 13) else 2)  # END_FOR, POP_TOP


def comparison(i: Instruction) -> tuple[str, bool]:
    """The operator of a COMPARE_OP, and whether it gives the truth of the result."""
    if _VERSION >= (3, 13):
        return dis.cmp_op[i.arg >> 5], bool(i.arg & 16)
    return dis.cmp_op[i.arg if _VERSION < (3, 12) else i.arg >> 4], False


def name_of(i: Instruction) -> tuple[int, bool]:
    """The number of the name that is looked up, and whether a place for a receiver is pushed with what is found."""
    if i.name == "LOAD_METHOD":
        return i.arg, True
    if i.name == "LOAD_SUPER_ATTR":
        return i.arg >> 2, bool(i.arg & 1)
    if i.name == "LOAD_ATTR" and _VERSION < (3, 12):
        return i.arg, False
    return i.arg >> 1, bool(i.arg & 1)


# What all of them do alike.


def _binary_operations() -> list[tuple[Callable, bool]]:
    symbols = {
        "+": operator.add, "&": operator.and_, "//": operator.floordiv, "<<": operator.lshift, "@": operator.matmul,
        "*": operator.mul, "%": operator.mod, "|": operator.or_, "**": operator.pow, ">>": operator.rshift,
        "-": operator.sub, "/": operator.truediv, "^": operator.xor, "[]": operator.getitem,
    }  # fmt: skip
    return [(symbols[s.removesuffix("=")], s.endswith("=")) for _, s in dis._nb_ops]  # type: ignore[attr-defined]


BINARY_OPERATIONS = _binary_operations()
"""By the argument of BINARY_OP, the operator and whether it is in place."""
CONVERSIONS: dict[int, Any] = {0: None, 1: str, 2: repr, 3: ascii}
"""By a number, how a value in an f-string is converted."""
DEFAULTS, KEYWORD_DEFAULTS, ANNOTATIONS, CLOSURE = 1, 2, 4, 8
"""Parts of a function, as bits of an argument; on the stack they lie in this order."""
STOP_ITERATION_ERROR, UNARY_POSITIVE, LIST_TO_TUPLE = 3, 5, 6
"""Arguments of CALL_INTRINSIC_1."""
TYPE_PARAMETERS = {7: typing.TypeVar, 8: typing.ParamSpec, 9: typing.TypeVarTuple}
"""By others of them, what ``def f[T]`` makes of the name."""
PREPARE_RERAISE, SET_FUNCTION_TYPE_PARAMS = 1, 4
"""Those of CALL_INTRINSIC_2."""


def formatting(i: Instruction) -> tuple[Any, bool]:
    """The conversion of an instruction that formats a value, and whether it has a format."""
    if i.name == "FORMAT_VALUE":
        return CONVERSIONS[i.arg & 3], bool(i.arg & 4)
    return None, i.name == "FORMAT_WITH_SPEC"


def two_slots(i: Instruction) -> tuple[int, int]:
    """The variables of an instruction on two, in the order in which it goes through them."""
    return i.arg >> 4, i.arg & 15


def around_star(i: Instruction) -> tuple[int, int]:
    """How many names of an UNPACK_EX are before the one with a star, and how many behind it."""
    return i.arg & 255, i.arg >> 8


def has_keywords(i: Instruction) -> bool:
    """Whether a CALL_FUNCTION_EX has a ``**``."""
    return bool(i.arg & 1)


def has_arguments_of_super(i: Instruction) -> bool:
    """Whether a LOAD_SUPER_ATTR stands for ``super(class, owner)`` with both written out."""
    return bool(i.arg & 2)


def resumes_delegation(i: Instruction) -> bool:
    """Whether a RESUME goes on inside of a ``yield from``."""
    return i.arg & 3 == 2
