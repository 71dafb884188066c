"""The translation unit of a graph: its kernels, each once, and the segments that run several in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from turret.plugins.codegen.cpp.emission.prelude import prelude_for
from turret.plugins.codegen.cpp.kernel import CppKernel


@attrs.frozen
class SegmentEntry:
    """One kernel of a segment: its function, where its pointers and sizes are in the plan's tables, and its streams."""

    function: str
    buffer_slots: tuple[int, ...]
    size_slots: tuple[int, ...]
    streams: tuple[int, ...] = ()


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
    entries: Iterable[tuple[str, Sequence[int], Sequence[int], Sequence[int]]],
    checks: Checks | None = None,
) -> CppSegment:
    """A segment from ``(function, buffer slots, size slots, streams)``."""
    made = tuple(SegmentEntry(f, tuple(b), tuple(s), tuple(r)) for f, b, s, r in entries)
    return CppSegment(name, made, checks)


def translation_unit(kernels: Iterable[CppKernel], segments: Iterable[CppSegment] = ()) -> str:
    """C++ source of all kernels and segments; the same for the same arguments, to the byte."""
    unique: dict[str, CppKernel] = {}
    comments: dict[str, None] = {}
    for kernel in kernels:
        unique.setdefault(kernel.function, kernel)
        comments.setdefault(kernel.comment)
    body = "\n".join([kernel.source for kernel in unique.values()] + [_segment_text(s) for s in segments])
    head = "".join(f"// {line}\n" for comment in comments for line in comment.splitlines())
    return f"{head}{prelude_for(body)}\n{body}"


def _segment_text(segment: CppSegment) -> str:
    lines = [f'extern "C" int64_t {segment.name}(void** slots, const int64_t* sizes, int threads) {{']
    for number, entry in enumerate(segment.entries):
        buffers = ", ".join(f"slots[{slot}]" for slot in entry.buffer_slots)
        values = [f"sizes[{slot}]" for slot in entry.size_slots] + [f"(int64_t){s}ull" for s in entry.streams]
        values += segment.checks.words(entry) if segment.checks else []
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
