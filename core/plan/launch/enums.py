"""Numbers that the launcher and the graph patcher share with Python (``turret.storage.native_enums``)."""

from __future__ import annotations

import enum


class Operation(enum.IntEnum):
    """Operations of an expression over sizes; the first two are followed by their operand."""

    NUMBER = 0
    SIZE = 1
    ADD = 2
    SUBTRACT = 3
    MULTIPLY = 4
    FLOOR_DIVIDE = 5
    MODULO = 6
    LESS = 7
    MINIMUM = 8
    MAXIMUM = 9


class ParameterKind(enum.IntEnum):
    """Where a parameter of a kernel comes from."""

    SLOT = 0
    SIZE = 1
    ARENA = 2
    NUMBER = 3


class PartKind(enum.IntEnum):
    """What a part of a sequence is."""

    SEGMENT = 0
    KERNEL = 1
    FILL = 2


class Status(enum.IntEnum):
    """How a run ended, in its low byte; the slot, the size or the kernel concerned is in the bits above."""

    DONE = 0
    DRIVER_ERROR = 1
    MISALIGNED = 2
    SIZE_TOO_LARGE = 3
    NOT_COMPILED = 4


class NodeKind(enum.IntEnum):
    """What a node of a captured graph is."""

    KERNEL = 0
    COPY = 1
    CLEAR = 2
    OTHER = 3
