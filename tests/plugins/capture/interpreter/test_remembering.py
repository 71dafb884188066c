"""The methods of functions under ``functools.lru_cache`` in compiled code: counts, parameters, clearing."""

from __future__ import annotations

import functools

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.arange(4.0)


class Made:
    pass


def remembering():
    @functools.lru_cache(maxsize=16)
    def table(number):
        return Made() if number < 0 else number * 2 + 1

    return table


def reads_counts(table, x):
    info = table.cache_info()
    return x * info.currsize, info, info.hits + info.misses, table.cache_info() == info


def reads_parameters(table, x):
    return x * table.cache_parameters()["maxsize"], table.__wrapped__(3), table.__name__


def clears(table, x):
    table.cache_clear()
    table.cache_clear()
    return x + 1


def clears_behind_a_call(table, x):
    y = x * table(3)
    table.cache_clear()
    return y


@pytest.mark.parametrize("program", [reads_counts, reads_parameters, clears, clears_behind_a_call])
def test_one_graph_reads_counts_and_clears(program):
    mine, theirs = remembering(), remembering()
    observed, plain = Observed(functools.partial(program, mine), fullgraph=True), functools.partial(program, theirs)
    for number in range(6):
        for table in (mine, theirs):
            table(number)
            table(number // 2)
        assert_same(observed(X), plain(X))
        assert mine.cache_info().currsize == theirs.cache_info().currsize
    assert len(observed.graphs) <= 3


def calls_behind_clearing(table, x):
    first = table(-1)
    table.cache_clear()
    return x + 1, table(-1) is first, table(-1) is table(-1)


def counts_behind_clearing(table, x):
    table.cache_clear()
    return x + 1, table.cache_info().currsize


def counts_behind_a_refusal(table, x):
    try:
        table([])
    except TypeError:
        x = x + 1
    return x, table.cache_info().currsize


@pytest.mark.parametrize("program", [calls_behind_clearing, counts_behind_clearing, counts_behind_a_refusal])
def test_what_is_read_beside_calls_is_left_to_python(program):
    mine, theirs = remembering(), remembering()
    observed, plain = Observed(functools.partial(program, mine)), functools.partial(program, theirs)
    for _ in range(3):
        assert_same(observed(X), plain(X))
    assert observed.breaks or observed.fallbacks
