"""A step of a loop costs capture as much after a thousand others as at first."""

from __future__ import annotations

import collections
import cProfile
import pstats

import pytest
import torch

import turret


def appended(x, steps):
    found = []
    for number in range(steps):
        found.append(number)
    return x * len(found)


def inserted(x, steps):
    found = []
    for number in range(steps):
        found.insert(0, number)
    return x * len(found)


def extended(x, steps):
    found = []
    for number in range(steps):
        found += [number]
    return x * len(found)


def popped(x, steps):
    found = list(range(steps))
    while found:
        found.pop()
    return x * len(found)


def assigned(x, steps):
    found = [0] * steps
    for number in range(steps):
        found[number] = number
    return x * found[-1]


def named(x, steps):
    found = {}
    for number in range(steps):
        found[number] = number
    return x * len(found)


def named_and_taken(x, steps):
    found = dict.fromkeys(range(steps))
    for number in range(steps):
        del found[number]
    return x * len(found)


def added(x, steps):
    found = set()
    for number in range(steps):
        found.add(number)
    return x * len(found)


def queued(x, steps):
    found = collections.deque()
    for number in range(steps):
        found.append(number)
    return x * len(found)


def computed(x, steps):
    n = 1
    for number in range(steps):
        n = (n * 31 + number) % 1009
    return x * n


PROGRAMS = [appended, inserted, extended, popped, assigned, named, named_and_taken, added, queued, computed]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_step_costs_the_same_however_many_there_are(program):
    def calls(steps):
        profile, x = cProfile.Profile(), torch.ones(2)
        run = turret.compile(lambda x: program(x, steps), options={"cache": False, "on_error": "raise"})
        profile.enable()
        result = run(x)
        profile.disable()
        torch.testing.assert_close(result, program(x, steps))
        return pstats.Stats(profile).total_calls

    calls(1)
    fixed, few, many = calls(2), calls(200), calls(1000)
    assert (many - fixed) / 1000 < 1.3 * (few - fixed) / 200
