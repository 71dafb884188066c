"""Bytes saved by a cut, and by saving everything, as text for people."""

from __future__ import annotations

import attrs


@attrs.frozen
class CutReport:
    """Figures of one cut; bytes count what is held on top of the inputs, sizes with their hints."""

    partitioner: str
    bytes_saved: int
    bytes_saved_by_all: int
    tensors: int
    tensors_saved_by_all: int
    recomputed: int
    budget: float

    def __str__(self) -> str:
        ratio = self.bytes_saved / self.bytes_saved_by_all if self.bytes_saved_by_all else 1.0
        lines = [
            f"saved for backward: {format_bytes(self.bytes_saved)} in {self.tensors} activations "
            f"({ratio:.0%} of saving everything)",
            f"saving everything:  {format_bytes(self.bytes_saved_by_all)} in {self.tensors_saved_by_all} activations",
            f"recomputed in backward: {self.recomputed} ops (views not counted)",
        ]
        budget = "" if self.budget >= 1.0 else f", memory budget {self.budget:g}"
        return f"partitioner {self.partitioner}{budget}\n" + "\n".join("  " + line for line in lines)


def format_bytes(count: int) -> str:
    """``count`` bytes in the largest binary unit that keeps it at least 1."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"
