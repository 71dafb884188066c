"""Loads that a kernel may begin before the kernel ahead of it in the stream has ended.

From compute capability 9.0 on kernels are launched while the one ahead still runs, and wait for it.  What no kernel of
the program writes, weights most of all, needs no waiting: its loads stand in front of the wait, so that the memory has
work to do where one kernel ends and the next begins.  What is converted is converted behind the wait, or the
conversion would wait for the load.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

_ASSIGNED = re.compile(r"(\w+) = (.*)")
_CONVERTED = re.compile(r"(tl\.load\(.*\))(\.to\(tl\.\w+\))")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ORDERED = ("tl.store(", "tl.atomic_", "tl.device_assert(", "tl.sum(", "tl.reduce(", "tl.dot(", "tl.associative_scan(")
"""What stays where it is; nothing behind a check of an index comes to stand in front of it."""


def ahead(lines: Sequence[str], pointers: Collection[str], given: Collection[str]) -> tuple[list[str], list[str]]:
    """The lines of a kernel's body as those in front of its wait, and those behind it.

    ``pointers`` are the parameters that point to memory, ``given`` those of them whose memory nobody writes to.
    """
    assigned = Counter(name for line in lines for name in re.findall(r"^\s*(\w+)\s*[-+*/|&]?=", line))
    defined = {name for name, count in assigned.items()}
    found: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(lines):
        if "tl.device_assert(" in line:
            break
        match = _ASSIGNED.fullmatch(line)
        if match is None or assigned[match[1]] != 1 or any(word in line for word in _ORDERED):
            continue
        names = set(_NAME.findall(match[2]))
        if names & set(pointers) <= set(given) and names & defined <= found.keys():
            found[match[1]] = number, match[2]
    return _parted(lines, found)


def _parted(lines: Sequence[str], found: dict[str, tuple[int, str]]) -> tuple[list[str], list[str]]:
    """Loads among what could stand in front, and what they need, in front."""
    wanted: set[str] = set()
    waiting = [name for name, (_, text) in found.items() if "tl.load(" in text]
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            waiting += [needed for needed in _NAME.findall(found[name][1]) if needed in found]
    needed_there = {n for name in wanted for n in _NAME.findall(found[name][1]) if n in wanted}
    front, moved = [], {}
    for name in sorted(wanted, key=lambda name: found[name][0]):
        number, text = found[name]
        match = _CONVERTED.fullmatch(text)
        if match is None or name in needed_there:
            front.append(lines[number])
            moved[number] = ""
        else:
            front.append(f"{name}_ahead = {match[1]}")
            moved[number] = f"{name} = {name}_ahead{match[2]}"
    return front, [kept for number, line in enumerate(lines) if (kept := moved.get(number, line))]
