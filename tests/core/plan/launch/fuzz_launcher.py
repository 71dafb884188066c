"""Hands the launcher launch tables that were changed at random; a process of its own, as one may crash.

Usage: ``python fuzz_launcher.py LAUNCHER DRIVER SEED TABLES``.  Prints how many tables were refused, and how many ran.
"""

from __future__ import annotations

import collections
import ctypes
import random
import re
import sys

from turret.plan.launch.driver_library import LAUNCHER, message
from turret.plan.launch.table import (
    ArenaPointer,
    Clear,
    KernelLaunch,
    Number,
    Parameter,
    SizeValue,
    SlotPointer,
    Words,
    segment_words,
)

SLOTS, SIZES = 4, 3
ENDS = (0, 1, -1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 1 << 40)


def wrapped(value: int) -> int:
    """The low 64 bits, as a signed number."""
    return (value + 2**63) % 2**64 - 2**63


def computed(words: Words, sizes: list[int]) -> int:
    """What an expression is, by Python's arithmetic cut to 64 bits."""
    stack: list[int] = []
    position = 0
    while position < len(words):
        op = words[position]
        if op < 2:
            stack.append(sizes[words[position + 1]] if op else words[position + 1])
            position += 2
            continue
        right, left = stack.pop(), stack.pop()
        quotient = left // right if right else 0
        results = (left + right, left - right, left * right, quotient, left - quotient * right, int(left < right),
                   min(left, right), max(left, right))  # fmt: skip
        stack.append(wrapped(results[op - 2]))
        position += 1
    return stack[0]


def some_expression(draw: random.Random) -> Words:
    words: list[int] = []
    for n in range(draw.randint(1, 5)):
        words += [1, draw.randrange(SIZES)] if draw.random() < 0.4 else [0, draw.choice(ENDS)]
        words += [draw.randint(2, 9)] if n else []
    return tuple(words)


def some_parameter(draw: random.Random) -> Parameter:
    return draw.choice(
        [
            SlotPointer(draw.randrange(SLOTS)),
            SizeValue(draw.randrange(SIZES), narrow=draw.random() < 0.2),
            ArenaPointer(some_expression(draw)),
            Number(draw.choice(ENDS)),
        ]
    )


def some_launch(draw: random.Random, variants: int = 4) -> KernelLaunch:
    grid = tuple(some_expression(draw) if draw.random() < 0.4 else (0, draw.randint(0, 9)) for _ in range(3))
    plain = variants == 1 or draw.random() < 0.6
    assumes = () if plain else tuple(some_expression(draw) for _ in range(draw.randint(1, 3)))
    parameters = tuple(some_parameter(draw) for _ in range(3))
    aligned = (draw.randrange(SLOTS),) if draw.random() < 0.1 else ()
    otherwise = some_launch(draw, variants - 1) if assumes else None
    return KernelLaunch(draw.randrange(2), parameters, grid, aligned, assumes, otherwise)


def changed(draw: random.Random, words: Words) -> list[int]:
    """The words of a table, some of them others, some gone, some doubled."""
    made = list(words)
    for _ in range(draw.choice([0, 1, 1, 2, 4])):
        place = draw.randrange(len(made)) if made else 0
        way = draw.randrange(4)
        if way == 0:
            made[place : place + 1] = [draw.choice([*ENDS, *range(-2, 12)])]
        elif way == 1:
            del made[place : place + draw.randint(1, 5)]
        elif way == 2:
            made[place:place] = [draw.randint(-2, 12) for _ in range(draw.randint(1, 3))]
        else:
            made = made[:place]
    return made


def check_launches(log: str, steps: list[KernelLaunch | Clear], sizes: list[int], slots: list[int]) -> None:
    """That what the driver was asked for is what the steps say."""
    launched = iter(re.findall(r"^launch\S* (\w+) (\d+) (\d+) (\d+) x .* \((.*)\)$", log, re.MULTILINE))
    for step in steps:
        if isinstance(step, Clear):
            continue
        while any(computed(words, sizes) > 0 for words in step.assumes):
            step = step.otherwise
        grid = [computed(words, sizes) for words in step.grid]
        if min(grid) <= 0:
            continue
        if max(grid) > 2**31 - 1:  # the driver would refuse it, and what comes after it
            return
        values = []
        for parameter in step.parameters:
            match parameter:
                case SlotPointer(slot):
                    values.append(wrapped(slots[slot]))
                case SizeValue(size):
                    values.append(sizes[size])
                case ArenaPointer(offset):
                    values.append(wrapped(slots[SLOTS - 1] + computed(offset, sizes)))
                case Number(value):
                    values.append(value)
        expected = (f"kernel{step.kernel}", *map(str, grid), ", ".join(map(str, values)))
        assert next(launched) == expected, (expected, steps, sizes)
    assert next(launched, None) is None


def main(launcher: str, driver: str, seed: int, tables: int) -> None:
    draw = random.Random(seed)
    library, fake = LAUNCHER.open(ctypes.CDLL(launcher), driver), ctypes.CDLL(driver)
    fake.fake_log.restype = ctypes.c_char_p
    fake.fake_idle()
    one = (ctypes.c_int64 * 3)(1, 1, 1)
    # A driver reads as many parameters as a kernel has; those that changed tables launch have none.
    takes3, takes0 = (
        [library.turret_kernel(image, 7, b"kernel%d" % n, 32, 0, one, 0, 0) for n in range(2)]
        for image in (b"fake 3\0", b"fake 0\0")
    )
    assert library.turret_kernel(None, 7, b"x", 1, 0, one, 0, 0) is None
    assert library.turret_segment(0, None, 4, None, 0, 1, 1) is None
    assert library.turret_segment_run(None, None, None, None) == 1 and library.turret_segment_prepare(None) == 1
    counts: collections.Counter[str] = collections.Counter()
    for _ in range(tables):
        steps = [
            Clear(draw.choice([SlotPointer(0), ArenaPointer((0, 8))]), some_expression(draw))
            if draw.random() < 0.2
            else some_launch(draw)
            for _ in range(draw.randint(0, 3))
        ]
        words = segment_words(SLOTS - 1, tuple(steps))
        given = changed(draw, words)
        made = takes3 if tuple(given) == words else takes0
        there = [*made] if draw.random() < 0.95 else [made[0], None]
        kernels = (ctypes.c_void_p * 2)(*there)
        table = (ctypes.c_int64 * len(given))(*given)
        device = draw.choice([0, 0, 0, 0, 0, 0, 3, 4, 63, 64, -1])
        segment = library.turret_segment(device, table, len(given), kernels, 2, SLOTS, SIZES)
        if not segment:
            counts["refused"] += 1
            assert message(library)
            assert tuple(given) != words or device not in (0, 3) or None in there, (words, message(library))
            continue
        slots = [draw.randrange(2**40) * draw.choice([1, 16]) for _ in range(SLOTS)]
        sizes = [draw.choice([*ENDS, *range(20)]) for _ in range(SIZES)]
        fake.fake_clear()
        status = library.turret_segment_run(
            segment, (ctypes.c_void_p * SLOTS)(*slots), (ctypes.c_int64 * SIZES)(*sizes), 5
        )
        assert status & 0xFF in range(4) and 0 <= status >> 8 < max(SLOTS, SIZES), status
        counts[f"ran with status {status & 0xFF}"] += 1
        if status & 0xFF == 0 and tuple(given) == words:
            check_launches(fake.fake_log().decode(), steps, sizes, slots)
            counts["compared"] += 1
        library.turret_segment_free(segment)
    print(dict(counts))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
