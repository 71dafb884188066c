"""Calls that eager refuses for the values of their tensors raise, whether or not anybody reads their result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st

import turret

GOOD, BAD = torch.tensor([0, 1, 2]), torch.tensor([0, 1, 9])
MARGINS = torch.tensor([[0, 2, -1], [1, -1, 0], [2, 1, 0]])

CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "item": lambda x, i: x[i],
    "items": lambda x, i: x[:, i],
    "pair": lambda x, i: x[i, i],
    "index_select": lambda x, i: x.index_select(1, i),
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "take": lambda x, i: x.take(i * 3),
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding_bag": lambda x, i: F.embedding_bag(i[None], x),
    "index_put": lambda x, i: x.index_put((i,), x[0]),
    "_unsafe_index": lambda x, i: torch.ops.aten._unsafe_index(x, [None, i]),
    "_unsafe_index_put": lambda x, i: torch.ops.aten._unsafe_index_put.default(x, [i], x[0]),
    "index_put in place": lambda x, i: (x + 1).index_put_((i,), x[0], accumulate=True),
    "index_add": lambda x, i: x.index_add(0, i, x),
    "index_copy": lambda x, i: x.index_copy(1, i, x),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "scatter": lambda x, i: x.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda x, i: x.scatter_add(1, i[:, None], x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(1, i[:, None], x, "amax"),
    "put": lambda x, i: x.put(i * 3, x[0]),
    "nll_loss": lambda x, i: F.nll_loss(x, i),
    "cross_entropy": lambda x, i: F.cross_entropy(x, i),
    "one_hot": lambda x, i: F.one_hot(i, 3),
    "multi_margin_loss": lambda x, i: F.multi_margin_loss(x, i),
    "binary_cross_entropy": lambda x, i: F.binary_cross_entropy(x * i, x, reduction="none"),
    "max_unpool1d": lambda x, i: F.max_unpool1d(x[None], i.expand(1, 3, 3) * 2, 2),
    "max_unpool2d": lambda x, i: F.max_unpool2d(x[None, :1], i[None, None], (1, 3), (1, 1)),
    "bincount": lambda x, i: torch.bincount(3 - i),
    "floor_divide": lambda x, i: i // (i - 9),
    "floor_divide in place": lambda x, i: i.clone().floor_divide_(i - 9),
    "remainder": lambda x, i: i % (i - 9),
    "fmod": lambda x, i: torch.fmod(i, i - 9),
    "div": lambda x, i: torch.div(i, i - 9, rounding_mode="trunc"),
    "searchsorted": lambda x, i: torch.searchsorted(x[0], x[1], sorter=i),
    "multinomial": lambda x, i: torch.multinomial(x * (5 - i), 1),
    "quantile": lambda x, i: torch.quantile(x, (4 - i) / 10),
    "nanquantile": lambda x, i: torch.nanquantile(x, (4 - i) / 10, dim=1),
    "fake_quantize": lambda x, i: torch.fake_quantize_per_channel_affine(x, x[0], i.int(), 1, 0, 7),
    "eigh": lambda x, i: torch.linalg.eigh(torch.where(i > 3, torch.nan, x))[0],
    "svd": lambda x, i: torch.linalg.svd(torch.where(i > 3, torch.nan, x))[1],
    "inv": lambda x, i: torch.linalg.inv(torch.where(i > 3, 0, x)),
    "inv_ex": lambda x, i: torch.linalg.inv_ex(torch.where(i > 3, 0, x), check_errors=True).inverse,
    "lu_factor_ex": lambda x, i: torch.linalg.lu_factor_ex(torch.where(i > 3, 0, x), check_errors=True).LU,
    "lu_unpack": lambda x, i: torch.lu_unpack(x, i.int() + 1),
    "pinv": lambda x, i: torch.linalg.pinv(torch.where(i > 3, torch.nan, x)),
    "cholesky": lambda x, i: torch.linalg.cholesky(x @ x.T + torch.eye(3) * (3 - i)),
    "cholesky of old": lambda x, i: torch.cholesky(x @ x.T + torch.eye(3) * (3 - i)),
    "cholesky_inverse": lambda x, i: torch.cholesky_inverse(torch.where(i > 3, 0, x)),
}


def outcome(function: Callable, *args: Any) -> Any:
    torch.manual_seed(0)
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def check(program: Callable, layout: Callable = torch.clone, *, raises: bool = True) -> None:
    """Compare with eager, on the memory of ``layout`` of a matrix, for an index in range and one that is not."""
    compiled = turret.compile(program, options={"cache": False})
    raised = set()
    for index in (GOOD, BAD):
        made = torch.rand(3, 3, generator=torch.Generator().manual_seed(5))
        mine, theirs = layout(made), layout(made.clone())
        log: list[str] = []
        found, effects = outcome(compiled, mine, index, log), list(log)
        log.clear()
        expected = outcome(program, theirs, index, log)
        assert effects == log
        torch.testing.assert_close(mine, theirs)
        if isinstance(expected, type):
            raised.add(expected)
            assert found is expected
        else:
            torch.testing.assert_close(found, expected, equal_nan=True)
    assert raised or not raises, "eager accepts this call"


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_whose_result_nobody_reads_raises_as_in_eager(name):
    def program(x, index, log):
        log.append("before")
        CALLS[name](x, index)
        log.append("after")
        return x + 1

    check(program)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_call_that_raises_leaves_the_writes_and_effects_of_the_lines_before(name):
    def program(x, index, log):
        log.append("before")
        x.mul_(0.5)
        result = CALLS[name](x, index)
        x.zero_()
        return result

    check(program)


@pytest.mark.parametrize("divide", [torch.remainder, torch.floor_divide, torch.fmod, torch.Tensor.remainder_])
def test_a_division_by_the_number_zero_raises_though_nobody_reads_its_result(divide):
    def program(x, number):
        divide(x.clone(), number)
        return x + 1

    compiled = turret.compile(program, options={"cache": False})
    for number in (2, 0, 3, 0):
        for run in (program, compiled):
            assert (outcome(run, GOOD, number) is RuntimeError) == (number == 0)


@settings(max_examples=6, deadline=None)
@given(st.lists(st.sampled_from(sorted(CALLS)), min_size=1, max_size=4), st.integers(0, 3), st.booleans())
def test_among_several_calls_the_first_that_eager_refuses_is_what_raises(names, read, writes):
    def program(x, index, log):
        results = []
        for number, name in enumerate(names):
            log.append(name)
            if writes:
                x.add_(0.01)
            results.append(CALLS[name](x.sigmoid(), index))
            log.append(number)
        return results[read % len(results)]

    check(program)


TABLES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": lambda x: x.new_zeros(3, 3),
    "one row": lambda x: x[0].expand(3, 3),
    "one column": lambda x: (x * 2)[:, :1].expand(3, 3),
    "one element": lambda x: x[0, 0].expand(3, 3),
    "ones where equal": lambda x: torch.eye(3),
}
"""Tables that are the same at several positions, so that a value may not depend on the position at all."""
USES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "returned": lambda x, r: r,
    "summed": lambda x, r: r.sum() + x.sum(),
    "not chosen": lambda x, r: torch.where(torch.zeros(()) > 1, r.float().sum(), x),
    "overwritten": lambda x, r: torch.select_scatter(r.float().reshape(1, -1), x.new_ones(r.numel()), 0, 0),
    "first taken": lambda x, r: r.reshape(-1)[0] + x,
}


@settings(max_examples=8, deadline=None)
@given(st.sampled_from(sorted(CALLS)), st.sampled_from(sorted(TABLES)), st.sampled_from(sorted(USES)))
@example("item", "zeros", "returned")
@example("gather", "one row", "returned")
@example("items", "one element", "not chosen")
@example("item", "ones where equal", "overwritten")
@example("cross_entropy", "zeros", "summed")
def test_what_a_table_does_not_depend_on_is_checked_as_well(name, table, use):
    def program(x, index, log):
        return USES[use](x, CALLS[name](TABLES[table](x), index))

    check(program, raises=False)


@pytest.mark.parametrize("name", ["item", "items", "index_select", "gather", "embedding", "nll_loss", "index_add"])
@pytest.mark.parametrize("dim", [0, 1])
def test_an_index_along_a_dimension_of_stride_0_is_checked(name, dim):
    def program(x, index, log):
        return CALLS[name](x, index)

    check(program, lambda x: x.select(dim, 0).unsqueeze(dim).expand(3, 3))


def test_a_scatter_into_nothing_raises_and_writes_nothing():
    def program(x, index, n):
        return x.new_full((abs(n) % 3, 2), n).scatter(0, index, 1)

    for options in ({"cache": False}, {"cache": False, "check_bounds": True}):
        compiled = turret.compile(program, options=options)
        for n in (5, -9, 4):
            index = torch.zeros(1, 2, dtype=torch.int64)
            expected, found = (outcome(f, torch.ones(2), index, n) for f in (program, compiled))
            assert found is expected if isinstance(expected, type) else torch.equal(found, expected)


NARROWED = {
    "index": lambda x, i, n: x[:, : max(n, 0)][i],
    "index of the last": lambda x, i, n: x[: max(n, 0)][:, i].sum(0),
    "index_select": lambda x, i, n: x[:, : max(n, 0)].index_select(0, i),
    "embedding": lambda x, i, n: torch.nn.functional.embedding(i, x[:, : max(n, 0)]).sum(-1),
    "index_put": lambda x, i, n: x[:, : max(n, 0)].clone().index_put((i,), torch.ones(()), accumulate=True),
    "index_add": lambda x, i, n: x[:, : max(n, 0)].clone().index_add(0, i, x[:1, : max(n, 0)]),
    "repeated": lambda x, i, n: x[i.expand(max(n, 0))].sum(0),
    "division": lambda x, i, n: (x.long()[:, : max(n, 0)] // (i - i)).sum(-1),
}


def result_and_gradient(function: Callable, *args: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    x = torch.arange(28.0).reshape(7, 4).requires_grad_()
    result = function(x, *args)
    if result.requires_grad:
        result.sum().backward()
    return result.detach(), x.grad


@pytest.mark.parametrize("name", NARROWED)
def test_what_is_computed_for_no_element_raises_where_eager_s_does(name):
    program = NARROWED[name]
    compiled = turret.compile(program, dynamic=True, options={"cache": False})
    for size, at in ((3, 1), (2, 50), (0, 1), (0, 50), (-2, 50), (0, -50)):
        seen = []
        for run in (program, compiled):
            seen.append(outcome(result_and_gradient, run, torch.tensor([at]), size))
        if isinstance(seen[0], type):
            assert seen[1] is seen[0], (size, at)
        else:
            torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=0)


def test_a_custom_op_with_a_registered_effect_runs_though_nobody_reads_its_result() -> None:
    seen: list[float] = []

    @torch.library.custom_op("turret_tests::noticed", mutates_args=())
    def noticed(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.sum().item())
        return x.clone()

    noticed.register_fake(torch.empty_like)
    if not hasattr(noticed, "register_effect"):
        pytest.skip("this version of torch has no effects to register")
    noticed.register_effect(torch.library.EffectType.ORDERED)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).relu()
        noticed(y)
        noticed(y + 1)
        return y * x

    x = torch.ones(3, requires_grad=True)
    turret.compile(program, fullgraph=True, options={"on_error": "raise", "cache": False})(x).sum().backward()
    assert seen == [6.0, 9.0]


OF_DIMENSIONS = {
    "sort": lambda x, dim: x.sort(dim),
    "argsort": lambda x, dim: x.argsort(dim),
    "cummax": lambda x, dim: x.cummax(dim),
    "cummin": lambda x, dim: x.cummin(dim),
    "softmax": lambda x, dim: x.softmax(dim),
    "index_select": lambda x, dim: x.index_select(dim, torch.tensor([0])),
}


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", OF_DIMENSIONS)
def test_a_dimension_that_is_not_there_is_refused_though_nobody_reads_the_result(name, rank):
    x = torch.ones([2] * rank)
    for dim in (0, -1, 2, -3):

        def program(x, dim=dim):
            OF_DIMENSIONS[name](x, dim)
            return x + 1

        assert type(outcome(turret.compile(program), x)) is type(outcome(program, x))
        assert (outcome(turret.compile(program), x) is IndexError) == (dim in (2, -3))
