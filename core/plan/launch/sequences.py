"""Kernels of libraries launched by themselves, in one native call with the segments of a plan around them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import attrs

from turret.errors import CodegenError
from turret.plan.launch.device import Segment
from turret.plan.launch.driver_library import LAUNCHER, message
from turret.plan.launch.enums import PartKind


@attrs.frozen
class KnownLaunch:
    """One launch as it was recorded: ``how`` (``NativeGraph.launch_words``), its arguments in words, and places of
    addresses in them: offset in bytes, entry of the table of slots, and what is added to what that holds."""

    how: Sequence[int]
    arguments: Sequence[int]
    places: Sequence[tuple[int, int, int]]


@attrs.frozen
class KnownFill:
    """Memory that is filled, as it was recorded: where, as in ``KnownLaunch.places``, with which number of ``size``
    bytes (1 or 4), and how many of them."""

    entry: int
    delta: int
    value: int
    size: int
    count: int


def make_sequence(
    device: int,
    parts: Sequence[int | KnownLaunch | KnownFill],
    entries: int,
    aligned: Sequence[int],
    stored: Sequence[int],
    keeper: object,
    library: ctypes.CDLL | None = None,
) -> Segment:
    """What launches all of ``parts``, of which an int is the handle of a segment, which ``keeper`` keeps alive.

    ``entries``: how many the table of slots has; ``aligned``: those that must be multiples of 16 bytes; ``stored``:
    those that are written.  Raises ``CodegenError`` where a part is not well formed.
    """
    library = LAUNCHER.load() if library is None else library
    segments = [part for part in parts if isinstance(part, int)]
    words = [len(aligned), *aligned, len(parts)]
    for part in parts:
        if isinstance(part, int):
            words += [PartKind.SEGMENT, segments.index(part)]
        else:
            words += _fill(part) if isinstance(part, KnownFill) else _launch(part)
    table, handles = (ctypes.c_int64 * len(words))(*words), (ctypes.c_void_p * max(1, len(segments)))(*segments)
    made: int = library.turret_sequence(device, table, len(words), handles, len(segments), entries)
    if not made:
        raise CodegenError(message(library))
    found = Segment(library, library.turret_sequence_run, made, stored, keeper)
    weakref.finalize(found, library.turret_sequence_free, made)
    return found


def _fill(fill: KnownFill) -> list[int]:
    return [PartKind.FILL, fill.entry, fill.delta, fill.value, fill.size, fill.count]


def _launch(launch: KnownLaunch) -> list[int]:
    arguments = [word - (1 << 64) if word >> 63 else word for word in launch.arguments]
    places = [number for place in launch.places for number in place]
    return [PartKind.KERNEL, *launch.how, len(arguments), *arguments, len(launch.places), *places]
