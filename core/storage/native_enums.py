"""Numbers that Python and C++ share: Python's enum is the table, and the header that C++ includes is made of it.

A native part names its enums; they are part of its key, and ``HEADER`` is made beside it whenever it is compiled, ahead
of time or at first use.  So the two sides cannot differ.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path

HEADER = "turret_enums.h"
"""What C++ includes: for each enum a struct with its members, their type ``Value``, and their ``count``."""

Enums = tuple[type[enum.IntEnum], ...]


def header_text(enums: Sequence[type[enum.IntEnum]]) -> str:
    """The header for some enums."""
    return "\n".join(["#pragma once", "#include <cstdint>", *map(_struct, enums), ""])


def _struct(table: type[enum.IntEnum]) -> str:
    members = ", ".join(f"{member.name} = {member.value}" for member in table)
    return (
        f"struct {table.__name__} {{\n"
        f"  enum Value : std::int64_t {{ {members} }};\n"
        f"  static constexpr std::int64_t count = {len(table)};\n"
        "};"
    )


def write_header(folder: str, enums: Sequence[type[enum.IntEnum]]) -> str:
    """Write the header into a folder; the flag with which a compiler finds it there."""
    Path(folder, HEADER).write_text(header_text(enums))
    return f"-I{folder}"
