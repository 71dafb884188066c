"""Kernels whose sources differ in numbers alone, as one function that is handed the numbers.

Blocks of a model that differ in width have kernels that differ in extents and strides.  A compiler takes as long for
each of them as for the first; as one function they take it once.  Every number keeps its C++ type, so that values are
what they were, and numbers that the speed of the code hangs on stay in it: those of short loops, divisors of integers,
and of a loop of vectors what is left behind its last whole vector.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import attrs

from turret.plugins.codegen.cpp.emission.dtypes import CTYPES
from turret.plugins.codegen.cpp.kernel import CppKernel, function

LEAST = 64
"""Integers below it are part of the code: loops of few vectors are unrolled, accesses near one another joined."""
UNROLLED = 16
"""Loops over the groups of lanes of a row stay as they are where they have so few steps: those are unrolled, and what
is kept of the row lies in registers (128 floats: 48 ns a row against 82)."""
SMALL_WORK = 1 << 19
"""Operations on elements of kernels that such rows are merged in, too: they take some ten microseconds, and four more
are less than what compiling each (a twentieth of a second) is worth, where there are many."""
MANY = 4
VECTOR = 16
"""A loop of vectors has a bound of so many elements times a number, and a rest that is part of the code."""

_MARK = "__attribute__((noinline, noclone)) "
_GAP = "\0"
_ELEMENTS = "|".join(sorted({name for kind in CTYPES.values() for name in (kind.value, kind.element)}))
_NUMBER = re.compile(r"(?<![\w.<])(\d+(?:\.\d*)?(?:e[+-]?\d+)?)(f|ull|ll|u)?(?![\w.])")
_ARRAY = re.compile(rf"\s*(?:{_ELEMENTS}) \w+\[(.*)\];")
_DECODING = re.compile(r"\s*const int64_t \w+ = \w+ % \d+, \w+ = \w+ / \d+;")
_GROUPS = re.compile(r"\s*for \(; \w+ \+ (\d+) <= (\d+);")
_DIVISION = re.compile(r"(?:div|mod)(?:<\w+>)?\(")
_INTEGERS = {"": "int", "u": "uint32_t", "ll": "int64_t", "ull": "uint64_t"}


@attrs.frozen
class _Number:
    """A number of a source: its text, its C++ type, and what becomes of it.

    ``as_given``: it may be handed over.  ``bound``: of a loop of vectors.  ``array``: the length of one, which may be
    more than is needed.
    """

    text: str
    type: str
    use: str
    rest: int = 0


_Member = tuple[CppKernel, str, tuple[_Number, ...]]


def merge_similar(kernels: Iterable[CppKernel]) -> list[CppKernel]:
    """The kernels in their order, those with a function in common of which the sources differ in numbers alone."""
    kernels = list(kernels)
    distinct = {kernel.function: kernel for kernel in kernels}
    merged: dict[str, CppKernel] = {}
    for members in _groups(distinct.values(), UNROLLED):
        if len(members) > 1:
            merged.update(_merged(members))
    short = [kernel for name, kernel in distinct.items() if name not in merged and _is_small(kernel)]
    for members in _groups(short, 0):
        if len(members) >= MANY:
            merged.update(_merged(members))
    return [_like(kernel, merged[kernel.function]) if kernel.function in merged else kernel for kernel in kernels]


def _is_small(kernel: CppKernel) -> bool:
    return kernel.work is not None and kernel.work <= SMALL_WORK


def _groups(kernels: Iterable[CppKernel], unrolled: int) -> list[list[_Member]]:
    """Kernels that can be one function; rows of up to ``unrolled`` groups of lanes only with those of their length."""
    groups: dict[object, list[_Member]] = defaultdict(list)
    for kernel in kernels:
        text, numbers = _with_gaps(kernel.source[kernel.source.index("{") :], unrolled)
        kinds = tuple((number.type, number.use, number.rest) for number in numbers)
        groups[text, kinds, kernel.words, kernel.check_bounds].append((kernel, text, numbers))
    return list(groups.values())


def _like(kernel: CppKernel, merged: CppKernel) -> CppKernel:
    """A kernel with the function and the numbers of one that has the same source."""
    return attrs.evolve(kernel, function=merged.function, source=merged.source, numbers=merged.numbers)


def _merged(members: Sequence[_Member]) -> dict[str, CppKernel]:
    """By the functions that the members had: each with one that all of them have."""
    first, text, template = members[0]
    columns = zip(*(numbers for _, _, numbers in members), strict=True)
    handed: dict[tuple[str, tuple[str, ...]], str] = {}
    filled = [
        _filled(number, [n.text for n in column], handed) for number, column in zip(template, columns, strict=True)
    ]
    pieces = text.split(_GAP)
    body = pieces[0] + "".join(number + piece for number, piece in zip(filled, pieces[1:], strict=True))
    taken = [_taken(kind, name, first.words + at) for at, ((kind, _), name) in enumerate(handed.items())]
    name, source = function("{\n" + "\n".join(taken) + body.removeprefix("{"), _MARK)
    words = [[_word(kind, texts[at]) for kind, texts in handed] for at in range(len(members))]
    return {
        kernel.function: attrs.evolve(kernel, function=name, source=source, numbers=tuple(own))
        for (kernel, _, _), own in zip(members, words, strict=True)
    }


def _filled(number: _Number, texts: list[str], handed: dict[tuple[str, tuple[str, ...]], str]) -> str:
    """What stands for a number in the common source; ``handed``: the types and values that have names, and those."""
    if len(set(texts)) == 1:
        return texts[0]
    if number.use == "array":
        return max(texts, key=int)
    if number.use == "bound":
        whole = tuple(str(int(text) // VECTOR) for text in texts)
        name = handed.setdefault(("uint32_t", whole), f"number{len(handed)}")
        return f"(int)({name} * {VECTOR}u + {number.rest}u)"
    return handed.setdefault((number.type, tuple(texts)), f"number{len(handed)}")


def _taken(kind: str, name: str, position: int) -> str:
    word = f"sizes[{position}]"
    if kind in ("float", "double"):
        word = f"bits_of<{kind}>((u{'int32_t' if kind == 'float' else 'int64_t'}){word})"
    return f"  const {kind} {name} = ({kind}){word};"


def _word(kind: str, text: str) -> str:
    """A number as a 64-bit word."""
    if kind in ("float", "double"):
        return f"(int64_t)bits_of<u{'int32_t' if kind == 'float' else 'int64_t'}>({text})"
    return f"(int64_t){text}"


# ---------------------------------------------------------------- reading


def _with_gaps(body: str, unrolled: int) -> tuple[str, tuple[_Number, ...]]:
    """A body with gaps for the numbers that others like it may have in their place, and those numbers."""
    numbers: list[_Number] = []
    lines = []
    vectors = False
    depth, inside = 0, None
    for line in body.splitlines():
        pragma = line.lstrip().startswith("#")
        in_vectors = vectors or inside is not None
        lines.append(line if pragma else _line_with_gaps(line, vectors, in_vectors, unrolled, numbers))
        if not pragma:
            opened = line.count("{") - line.count("}")
            if vectors and opened > 0:
                inside = depth
            depth += opened
            if inside is not None and depth <= inside:
                inside = None
        vectors = line.lstrip().startswith("#pragma omp simd")
    return "\n".join(lines) + "\n", tuple(numbers)


def _line_with_gaps(line: str, header: bool, in_vectors: bool, unrolled: int, numbers: list[_Number]) -> str:
    array, groups = _ARRAY.match(line), _GROUPS.match(line)
    if groups is not None and int(groups[2]) <= unrolled * int(groups[1]):
        return line
    decodes = _DECODING.match(line) is not None

    def gap(match: re.Match[str]) -> str:
        before = line[: match.start()]
        found = _number(match, before, header, in_vectors, decodes)
        if array is not None:
            found = _Number(match[0], "int", "array") if array[1].isdigit() else None
        if found is None or "[](" in before:
            return match[0]
        numbers.append(found)
        return _GAP

    return _NUMBER.sub(gap, line)


def _number(match: re.Match[str], before: str, header: bool, in_vectors: bool, decodes: bool) -> _Number | None:
    """A number that may be another one; None for one that is part of the code."""
    text, suffix = match[1], match[2] or ""
    divides = before.endswith(("/ ", "% ")) or _DIVISION.search(before) is not None
    if suffix == "f" or not text.isdigit():
        return None if divides and in_vectors else _Number(match[0], "float" if suffix == "f" else "double", "as_given")
    if int(text) < LEAST or (divides and not decodes):
        return None
    if header and not suffix:
        return _Number(match[0], "int", "bound", int(text) % VECTOR)
    return _Number(match[0], _INTEGERS[suffix], "as_given")
