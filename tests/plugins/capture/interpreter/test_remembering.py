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
from turret.errors import CaptureError

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


def of_tensors(maxsize, body, counts):
    log = []

    @functools.lru_cache(maxsize=maxsize)
    def kept(first, second=None):
        if counts:
            log.append(1)
        return body(first) if second is None else body(first) * second

    return kept, log


def adds(kept, log, x, y):
    return kept(x) + 1, len(log)


def takes_two(kept, log, x, y):
    return kept(x, y) * kept(x, second=y), kept(y, x) is kept(x, y)


def writes_behind(kept, log, x, y):
    z = kept(x)
    x.add_(1)
    return z + x


def writes_ahead(kept, log, x, y):
    x.add_(1)
    return kept(x) + 1


def gives_itself(kept, log, x, y):
    return kept(x) is x, kept(x, x) + 1


def in_no_gradients(kept, log, x, y):
    with torch.no_grad():
        z = kept(x)
    return z + 1, z.requires_grad, kept(x) is z


def behind_draws(kept, log, x, y):
    drawn = torch.rand(3)
    return kept(x).shape, drawn.shape


BODIES = {
    "sine": torch.sin,
    "view": lambda v: v[1:],
    "itself": lambda v: v,
    "number": lambda v: v.dim(),
    "raises": lambda v: [][0],
    "writes": lambda v: v.add_(1),
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(
    "program", [adds, takes_two, writes_behind, writes_ahead, gives_itself, in_no_gradients, behind_draws]
)
@pytest.mark.parametrize("maxsize", [0, 1, None])
@pytest.mark.parametrize("counts", [False, True])
def test_what_is_remembered_of_tensors_is_found_as_python_finds_it(program, body, maxsize, counts):
    def told(make):
        kept, log = of_tensors(maxsize, BODIES[body], counts)
        run = make(functools.partial(program, kept, log))
        given = [(torch.arange(3.0) + n, torch.ones(3) * n) for n in range(3)]
        found = [outcome(run, given[n], {}) for n in (0, 0, 1, 0, 2, 1, 2)]
        return found, given, len(log)

    expected = told(lambda function: function)
    assert_same(told(Observed), expected)
    whole = told(functools.partial(Observed, fullgraph=True))
    if not any(isinstance(error, CaptureError) for _, error in whole[0]):
        assert_same(whole, expected)


@pytest.mark.parametrize("program", [adds, takes_two, writes_behind, gives_itself, in_no_gradients])
def test_one_graph_holds_calls_of_tensors_that_change_nothing(program):
    (mine, log), (theirs, _) = (of_tensors(3, torch.sin, counts=False) for _ in range(2))
    observed = Observed(functools.partial(program, mine, log), fullgraph=True)
    for number in range(5):  # the cache is full of tensors that are gone, as it is in any loop
        given = X[:3] + number, X[:3] * number
        assert_same(observed(*map(torch.clone, given)), program(theirs, log, *map(torch.clone, given)))
    assert len(observed.graphs) <= 1 and not observed.recompiles


def test_a_method_that_remembers_its_results_is_called_of_its_object_and_a_tensor():
    class Scaled:
        @functools.lru_cache
        def of(self, x):
            return x * 2

    scaled = Scaled()
    observed = Observed(lambda x: scaled.of(x) + 1, fullgraph=True)
    for x in (X, X + 1, X):
        assert_same(observed(x), x * 2 + 1)
    assert len(observed.graphs) == 1
    assert Scaled.of.cache_info().misses == 2


def noise():
    @functools.lru_cache(maxsize=8)
    def drawn(number):
        return torch.rand(number)

    return drawn


def draws_once(drawn, x):
    return drawn(3) + x, drawn(2)


def draws_behind(drawn, x):
    first = torch.rand(3)
    return drawn(3), first


@pytest.mark.parametrize("program", [draws_once, draws_behind])
def test_random_numbers_that_a_function_remembers_are_drawn_in_their_place(program):
    def told(make):
        run = make(functools.partial(program, noise()))
        torch.manual_seed(7)
        return [run(X[:3]) for _ in range(3)], torch.random.get_rng_state()

    compile_eagerly = functools.partial(turret.compile, backend="eager", options={"cache": False})
    assert_same(told(compile_eagerly), told(lambda function: function))
