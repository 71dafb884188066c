"""The translation unit of a graph: its kernels, each once, and the segments that run several in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from turret.plugins.codegen.cpp.emission.prelude import prelude_for
from turret.plugins.codegen.cpp.kernel import CppKernel

BREAK = "//:\n"
"""The line ahead of each function of a unit."""


@attrs.frozen
class SegmentEntry:
    """One kernel of a segment: its function, where its pointers and sizes are in the plan's tables, its streams, and
    its numbers (C++ of 64-bit words)."""

    function: str
    buffer_slots: tuple[int, ...]
    size_slots: tuple[int, ...]
    streams: tuple[int, ...] = ()
    numbers: tuple[str, ...] = ()


@attrs.frozen
class Checks:
    """Where in the size table extents of slots begin, and where the report is (``turret.plan.bounds``)."""

    extents: int
    report: int

    def words(self, entry: SegmentEntry) -> list[str]:
        """What a kernel is handed behind its sizes and streams."""
        extents = [
            f"sizes[{self.extents + 2 * slot}], sizes[{self.extents + 2 * slot + 1}], {slot}"
            for slot in entry.buffer_slots
        ]
        return [*extents, f"(int64_t)(sizes + {self.report})"]

    def note(self, number: int) -> str:
        """A statement that adds the kernel's number to the report."""
        return f"((int64_t*)sizes)[{self.report + 3}] = {number};"


@attrs.frozen
class CppSegment:
    """Kernels run in order by one call of ``int64_t name(void** slots, const int64_t* sizes, int threads)``.

    It stops at the first kernel that does not return 0, and returns what that kernel returned.  ``checks``: its kernels
    check their accesses.
    """

    name: str
    entries: tuple[SegmentEntry, ...]
    checks: Checks | None = None


def segment(
    name: str,
    entries: Iterable[tuple[CppKernel, Sequence[int], Sequence[int]]],
    checks: Checks | None = None,
) -> CppSegment:
    """A segment from ``(kernel, buffer slots, size slots)``."""
    made = tuple(SegmentEntry(k.function, tuple(b), tuple(s), k.streams, k.numbers) for k, b, s in entries)
    return CppSegment(name, made, checks)


def translation_unit(kernels: Iterable[CppKernel], segments: Iterable[CppSegment] = ()) -> str:
    """C++ source of all kernels and segments; the same for the same arguments, to the byte."""
    unique: dict[str, CppKernel] = {}
    comments: dict[str, None] = {}
    for kernel in kernels:
        unique.setdefault(kernel.function, kernel)
        comments.setdefault(f"{kernel.function}: {kernel.comment}")
    body = "\n".join(BREAK + text for text in [*(k.source for k in unique.values()), *map(_segment_text, segments)])
    head = "".join(f"// {line}\n" for comment in comments for line in comment.splitlines())
    return f"{head}{prelude_for(body)}\n{body}"


def parts(source: str, count: int) -> list[str]:
    """A unit as at most ``count`` units of about the same length, which make the same library together.

    Each declares the functions of the others.
    """
    head, *functions = source.split(BREAK)
    declared = [function[: function.index(" {\n")] + ";\n" for function in functions]
    homes: list[list[int]] = [[] for _ in range(min(count, len(functions)))]
    lengths = [0] * len(homes)
    for number in sorted(range(len(functions)), key=lambda n: (-len(functions[n]), n)):
        least = lengths.index(min(lengths))
        homes[least].append(number)
        lengths[least] += len(functions[number])
    made = []
    for own in homes:
        elsewhere = [text for number, text in enumerate(declared) if number not in own]
        made.append(head + "".join(elsewhere) + "".join(functions[number] for number in sorted(own)))
    return made


def _segment_text(segment: CppSegment) -> str:
    lines = [f'extern "C" BRIEFLY int64_t {segment.name}(void** slots, const int64_t* sizes, int threads) {{']
    for number, entry in enumerate(segment.entries):
        buffers = ", ".join(f"slots[{slot}]" for slot in entry.buffer_slots)
        values = [f"sizes[{slot}]" for slot in entry.size_slots] + [f"(int64_t){s}ull" for s in entry.streams]
        values += segment.checks.words(entry) if segment.checks else []
        values += entry.numbers
        lines.append("  {")
        lines.append(f"    void* const buffers[] = {{{buffers}}};")
        table = "sizes"
        if values:
            lines.append(f"    const int64_t own[] = {{{', '.join(values)}}};")
            table = "own"
        lines.append(f"    const int64_t code = {entry.function}(buffers, {table}, threads);")
        note = segment.checks.note(number) if segment.checks else ""
        lines.append(f"    if (code) {{ {note} return code; }}" if note else "    if (code) return code;")
        lines.append("  }")
    return "\n".join([*lines, "  return 0;", "}", ""])
