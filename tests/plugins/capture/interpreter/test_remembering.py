"""The methods of functions under ``functools.lru_cache`` in compiled code: counts, parameters, clearing."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, outcome

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


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.ones else result


class Entered(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 2 if function is torch.ops.aten.ones.default else result


MODES = {
    "none": contextlib.nullcontext,
    "function mode": Doubling,
    "dispatch mode": Entered,
    "no functions": torch._C.DisableTorchFunction,
    "inference": torch.inference_mode,
    "no gradients": torch.no_grad,
    "gradients": torch.enable_grad,
    "autocast": functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16),
    "device": functools.partial(torch.device, "meta"),
}


def keeps_tensors():
    weight = torch.arange(9.0).view(3, 3).requires_grad_()

    @functools.lru_cache(maxsize=8)
    def kept(number):
        return torch.ones(3, 3) @ weight * number

    return kept


def in_modes(make, kept, x):
    with make():
        found = kept(3)
        with make():
            inner = kept(4)
    outside = kept(4)
    return x + 1, [facts(v) for v in (found, inner, outside)], outside is inner


def facts(value):
    plain = value.detach().clone() if value.device.type == "cpu" else value.shape
    return value.dtype, value.device.type, value.requires_grad, value.is_inference(), plain


@pytest.mark.parametrize("inner", MODES)
@pytest.mark.parametrize("outer", MODES)
def test_what_is_remembered_was_computed_in_the_modes_of_the_call(inner, outer):
    mine, theirs = keeps_tensors(), keeps_tensors()
    observed = Observed(functools.partial(in_modes, MODES[inner], mine))
    for number in range(6):
        if number in (2, 3, 5):
            mine.cache_clear()
            theirs.cache_clear()
        with MODES[outer]():
            expected = outcome(functools.partial(in_modes, MODES[inner]), (theirs, X), {})
        with MODES[outer]():
            assert_same(outcome(observed, (X,), {}), expected)


HELD: dict[str, Any] = {}


@functools.lru_cache(maxsize=2)
def noted(number):
    HELD["log"].append(number)
    return number + 1


@pytest.mark.parametrize("numbers", [(3, 0, 0, 2, 3), (1, 2, 3, 1, 1, 2), (5, 5, 4, 4, 5)])
def test_a_function_that_changes_what_its_caller_made_does_so_where_its_cache_misses_alone(numbers):
    def program(x, number):
        log = []
        HELD["log"] = log
        for row in x:
            noted(number)
        return x + 1, log

    def told(run):
        noted.cache_clear()
        return [list(run(torch.ones(2, 3), number)[1]) for number in numbers]

    assert told(turret.compile(program)) == told(program)
