"""Launch tables: the kernels of a plan and the order they are launched in, as data.

A segment becomes flat int64 words for ``launcher.cpp``.  Counts that depend on sizes (grids, bytes to clear, places
in the arena) are expressions in postfix order over the size table: a table read from the cache needs no compiler,
where a function compiled for each graph would, and costs a few nanoseconds more than compiled code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

import attrs

from turret.errors import UnsupportedError
from turret.plan.launch.enums import Operation, ParameterKind
from turret.storage.codec import record

Words = tuple[int, ...]

NUMBER, SIZE = Operation.NUMBER.value, Operation.SIZE.value


@record
@attrs.frozen
class KernelBinary:
    """A compiled kernel.

    ``function`` is its name in the binary ``file`` (beside the table).  ``threads`` is the number in a block,
    ``shared`` bytes of dynamic shared memory, ``cluster`` blocks in a cluster by dimension; the grid counts clusters.
    ``programmatic``: it waits by itself for the kernel ahead of it in the stream, before it touches memory, so that the
    driver need not keep it back until that one has ended.
    """

    function: str
    file: str
    threads: int
    shared: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False
    programmatic: bool = False


@record
@attrs.frozen
class LazyKernel:
    """A kernel that is compiled when sizes first ask for it (``turret.plan.launch.lazy_kernels``).

    ``function`` is its name, ``request`` what the compiler of its ``language`` is handed.  ``parameters``: how many it
    is launched with; it may turn out to take fewer.
    """

    function: str
    language: str
    request: str
    parameters: int


@record
@attrs.frozen
class LaunchTable:
    """All segments of a plan over its kernels.

    ``segments`` maps a segment's name to its words; kernels are numbered in the order of ``kernels``.
    ``stored`` maps a segment's name to the slots that it writes.
    """

    kernels: tuple[KernelBinary | LazyKernel, ...]
    segments: dict[str, Words]
    stored: dict[str, tuple[int, ...]]


@attrs.frozen
class SlotPointer:
    """Parameter: the address in a slot."""

    slot: int


@attrs.frozen
class ArenaPointer:
    """Parameter: an address in the arena, ``offset`` (an expression) bytes from its start."""

    offset: Words


@attrs.frozen
class SizeValue:
    """Parameter: an entry of the size table, as int64 or (``narrow``) as int32."""

    size: int
    narrow: bool = False


@attrs.frozen
class Number:
    """Parameter: a number that is the same in every run; 0 as a null pointer (scratch memory that is not used)."""

    value: int


Parameter = SlotPointer | ArenaPointer | SizeValue | Number


@attrs.frozen
class KernelLaunch:
    """One launch: number of the kernel in its table, parameters in order, and three counts of programs.

    ``aligned``: slots whose addresses the kernel takes for multiples of 16.  Where one of ``assumes`` (expressions) is
    more than zero, ``otherwise`` is launched instead, which may assume less; the last of them assumes nothing.
    """

    kernel: int
    parameters: tuple[Parameter, ...]
    grid: tuple[Words, Words, Words]
    aligned: tuple[int, ...] = ()
    assumes: tuple[Words, ...] = ()
    otherwise: KernelLaunch | None = None

    @property
    def alternatives(self) -> tuple[KernelLaunch, ...]:
        """The launches of which one is chosen in each run, in the order in which they are asked."""
        return (self,) if self.otherwise is None else (self, *self.otherwise.alternatives)


@attrs.frozen
class Clear:
    """Write zeros to ``bytes`` (an expression) bytes at ``target``."""

    target: SlotPointer | ArenaPointer
    bytes: Words


def segment_words(arena_slot: int, steps: tuple[KernelLaunch | Clear, ...]) -> Words:
    """The words of a segment; ``arena_slot`` is the entry of the slot table with the arena's address."""
    launches = [each for step in steps if isinstance(step, KernelLaunch) for each in step.alternatives]
    aligned = sorted({slot for step in launches for slot in step.aligned})
    always = [step for step in launches if not step.assumes]
    narrow = sorted({p.size for s in always for p in s.parameters if isinstance(p, SizeValue) and p.narrow})
    words = [arena_slot, len(aligned), *aligned, len(narrow), *narrow, len(steps)]
    for step in steps:
        if isinstance(step, Clear):
            words += [0, 1, *_parameter(step.target), *_sized(step.bytes)]
            continue
        words += _launch(step)
    return tuple(words)


def _launch(step: KernelLaunch) -> list[int]:
    words = [step.kernel + 1, len(step.parameters)]
    for parameter in step.parameters:
        words += _parameter(parameter)
    for count in step.grid:
        words += _sized(count)
    words.append(len(step.assumes))
    for assumed in step.assumes:
        words += _sized(assumed)
    if not step.assumes:
        return words
    assert step.otherwise is not None
    return words + _launch(step.otherwise)


def _parameter(parameter: Parameter) -> list[int]:
    match parameter:
        case SlotPointer(slot):
            return [ParameterKind.SLOT.value, slot]
        case SizeValue(size):
            return [ParameterKind.SIZE.value, size]
        case ArenaPointer(offset):
            return [ParameterKind.ARENA.value, *_sized(offset)]
        case Number(value):
            return [ParameterKind.NUMBER.value, value]


def _sized(expression: Words) -> list[int]:
    return [len(expression), *expression]


_BINARY = {
    ast.Add: (Operation.ADD.value, lambda a, b: a + b),
    ast.Sub: (Operation.SUBTRACT.value, lambda a, b: a - b),
    ast.Mult: (Operation.MULTIPLY.value, lambda a, b: a * b),
    ast.FloorDiv: (Operation.FLOOR_DIVIDE.value, lambda a, b: a // b),
    ast.Mod: (Operation.MODULO.value, lambda a, b: a % b),
}
_DIVISIONS = {"floor_div": ast.FloorDiv, "floor_mod": ast.Mod}
_FOLDS = {"min": (Operation.MINIMUM.value, min), "max": (Operation.MAXIMUM.value, max)}


def expression(text: str | int, sizes: Mapping[str, int], values: Mapping[str, int]) -> Words:
    """Words of an int expression in Python source.

    ``sizes`` maps names to entries of the size table, ``values`` names to ints known now.  ``+ - * // % ** < >``,
    ``min``, ``max``, ``cdiv``, ``floor_div`` and ``floor_mod`` are known; ``UnsupportedError`` names anything else.
    """
    if isinstance(text, int):
        return (NUMBER, text)
    return _Expression(text, sizes, values).words(ast.parse(text, mode="eval").body)


class _Expression:
    def __init__(self, text: str, sizes: Mapping[str, int], values: Mapping[str, int]) -> None:
        self.text, self.sizes, self.known = text, sizes, values

    def unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(f"the launcher cannot compute {what} in the size {self.text!r}")

    def words(self, node: ast.expr) -> Words:
        match node:
            case ast.Constant(value=int() as value):
                return (NUMBER, int(value))
            case ast.Name(id=name):
                if name in self.known:
                    return (NUMBER, int(self.known[name]))
                if name in self.sizes:
                    return (SIZE, self.sizes[name])
                raise self.unsupported(f"the name {name}")
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._join(ast.Sub, (NUMBER, 0), self.words(operand))
            case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)) if power >= 1:
                base = self.words(left)
                return self._fold([base] * power, lambda a, b: self._join(ast.Mult, a, b))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return self._join(type(op), self.words(left), self.words(right))
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return self._call(name, [self.words(a) for a in arguments])
            case ast.Compare(left=left, ops=[ast.Lt() | ast.Gt() as op], comparators=[right]):
                sides = [self.words(left), self.words(right)]
                return _joined(
                    Operation.LESS.value,
                    lambda a, b: int(a < b),
                    *(sides if isinstance(op, ast.Lt) else reversed(sides)),
                )
        raise self.unsupported(ast.unparse(node))

    def _call(self, name: str, arguments: list[Words]) -> Words:
        if name == "cdiv" and len(arguments) == 2:
            count, block = arguments
            above = self._join(ast.Add, count, self._join(ast.Sub, block, (NUMBER, 1)))
            return self._join(ast.FloorDiv, above, block)
        if name in _DIVISIONS and len(arguments) == 2:
            return self._join(_DIVISIONS[name], *arguments)
        if name in _FOLDS and arguments:
            code, fold = _FOLDS[name]
            return self._fold(arguments, lambda a, b: _joined(code, fold, a, b))
        raise self.unsupported(f"{name} of {len(arguments)} values")

    def _fold(self, items: list[Words], join: Callable[[Words, Words], Words]) -> Words:
        result = items[0]
        for item in items[1:]:
            result = join(result, item)
        return result

    def _join(self, op: type[ast.operator], left: Words, right: Words) -> Words:
        if op in (ast.FloorDiv, ast.Mod) and right == (NUMBER, 0):
            raise self.unsupported("a division by zero")
        code, fold = _BINARY[op]
        return _joined(code, fold, left, right)


def _joined(code: int, fold: Callable[[int, int], int], left: Words, right: Words) -> Words:
    """An operation on two expressions, done at once where both are numbers."""
    if _number(left) and _number(right):
        return (NUMBER, fold(left[1], right[1]))
    return (*left, *right, code)


def _number(words: Words) -> bool:
    return len(words) == 2 and words[0] == NUMBER
