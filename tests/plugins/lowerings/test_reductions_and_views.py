"""Reductions, scans and views give eager's values; what leaves the graph has eager's strides and memory of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import turret
from tests.plugins.lowerings.lowering_lab import check, lowered
from turret.ir import Definition, StridedView
from turret.testing.loops.interpreter import run_program

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.rand(*shape) < 0.5) if dtype == torch.bool else torch.randn(*shape).mul(2).abs().to(dtype)


def folds(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True), x.prod(1), x.prod(), x.amax(0), x.amin((1, 2)))


def truths(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.any(), x.all(1), torch.any(x, 2, keepdim=True), torch.all(x))


def positions(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x.argmax(), x.argmax(1), x.argmin(0, keepdim=True), x.max(1).indices, x.min(2).indices)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_match_eager(dtype: torch.dtype) -> None:
    x = numbers(3, 4, 5, dtype=dtype)
    check(folds, x)
    check(truths, x)
    if dtype != torch.bool:
        check(positions, x)


def test_the_first_of_equals_and_nan_win() -> None:
    x = torch.tensor([[1.0, 3.0, 3.0], [math.nan, 5.0, math.nan], [0.0, -0.0, 0.0]])
    check(lambda a: (a.argmax(1), a.argmin(1), a.amax(1), a.amin(1), a.max(0).values), x)


def test_variances_and_softmax() -> None:
    x = numbers(4, 6) + 1000
    check(lambda a: (*torch.var_mean(a, 1), a.var(0, correction=0), a.std(), torch.var(a, 1, correction=6)), x)
    check(lambda a: (a.softmax(1), a.log_softmax(0), a.logsumexp(1)), x)


def test_reductions_over_nothing_give_their_identity() -> None:
    check(lambda a: (a.sum(0), a.prod(0), a.any(0), a.all(0), a.sum(), a.mean(0)), torch.empty(0, 3))


@pytest.mark.parametrize("dtype", DTYPES[:-1])
def test_scans_match_eager(dtype: torch.dtype) -> None:
    x = numbers(3, 5, dtype=dtype)
    check(lambda a: (a.cumsum(0), a.cumsum(1), a.cumsum(-1, dtype=torch.float64)), x, loops_only=True)
    check(lambda a: (a[:, :3].cumprod(1), a.t().cumsum(0)), x, loops_only=True)


VIEWS: dict[str, Callable] = {
    "transposed": lambda x: x.t(),
    "reshaped": lambda x: x.reshape(2, 3, 4),
    "sliced": lambda x: x[1:, ::2],
    "selected": lambda x: x[:, -1],
    "diagonal": lambda x: x.diagonal(1),
    "unfolded": lambda x: x.unfold(1, 3, 2),
    "strided": lambda x: x.as_strided((2, 2), (1, 6), 3),
    "squeezed": lambda x: x[:1].squeeze(0).unsqueeze(-1),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_move_nothing_and_read_the_right_elements(name: str) -> None:
    view = VIEWS[name]
    program = check(lambda a: (view(a) + 1, (view(a) * 2).sum()), numbers(4, 6))
    sums = [s for s in program.statements if isinstance(s, Definition)]
    assert len(sums) <= 4, program
    check(lambda a: (view(a + 1),), numbers(4, 6))


def test_a_reshape_that_no_strides_express_is_read_in_order() -> None:
    check(lambda a: (a.t().flatten(), a.t().reshape(4, 6).sum(1)), numbers(4, 6))


def test_an_expanded_result_keeps_one_element_in_memory() -> None:
    program = check(lambda a: ((a + 1).expand(3, 4), (a * 2).expand(2, 3, 4)[:, 1]), numbers(1, 4))
    assert any(isinstance(s, StridedView) for s in program.statements)
    for output in run_program(program, [torch.zeros(1, 4)]):
        assert 0 in output.stride() and output.untyped_storage().nbytes() <= 4 * 4


def test_two_results_of_one_memory_are_apart() -> None:
    def both(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        value = a + 1
        return value, value.t(), value[0]

    first, second, third = run_program(lowered(both, numbers(3, 3)), [torch.zeros(3, 3)])
    assert len({t.untyped_storage().data_ptr() for t in (first, second, third)}) == 3


def test_dynamic_sizes_have_one_program() -> None:
    def function(a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a.sum(0), a.t().reshape(-1), a[1:].cumsum(0), a.flatten().view(a.shape[1], -1), a.softmax(-1)

    program = lowered(function, numbers(4, 6), dynamic=True)
    assert {program.hints[name] for name in program.symbols} == {4, 6}
    for shape in ((4, 6), (7, 3)):
        x = numbers(*shape)
        for one, other in zip(run_program(program, [x]), function(x), strict=True):
            torch.testing.assert_close(one, other)


EMPTY = {
    "repeat": lambda x: x.repeat(2, 3),
    "stack": lambda x: torch.stack([x, x]),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "transposed": lambda x: (x + 1).t(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
}


@pytest.mark.parametrize("name", EMPTY)
def test_results_without_elements_are_laid_out_as_eager_s(name: str) -> None:
    program, x = EMPTY[name], torch.randn(0, 3)
    compiled = turret.compile(program, options={"cache": False, "on_error": "raise"})
    found, expected = compiled(x), program(x)
    assert (found.shape, found.stride()) == (expected.shape, expected.stride())


def attention(x: torch.Tensor) -> torch.Tensor:
    heads = x.transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)


OF_ONE = {
    "made of numbers, like a part": lambda x: torch.ones_like(x.transpose(1, -1)[:1]),
    "a constant in a part": lambda x: torch.full_like(x.transpose(1, 2)[:, :1], 2),
    "attention": attention,
    "a sum": lambda x: x.transpose(1, 2).sum(0, keepdim=True),
    "a call in between": lambda x: torch.cumsum(x.transpose(1, 2), 1),
    "sorted": lambda x: x.transpose(1, 2).sort(-1).values,
    "normalized": lambda x: torch.nn.functional.group_norm(x.transpose(1, 2), 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", OF_ONE)
def test_results_have_eager_s_strides_along_dimensions_of_size_1(name: str) -> None:
    program = OF_ONE[name]
    compiled = turret.compile(program, dynamic=False, options={"cache": False, "on_error": "raise"})
    for shape in ((1, 5, 2, 4), (2, 1, 3, 4), (2, 3, 1, 4), (1, 1, 1, 4)):
        for x in (torch.randn(*shape), torch.randn(*shape[:3], 8)[..., :4]):
            found, expected = compiled(x), program(x)
            assert (found.shape, found.stride()) == (expected.shape, expected.stride()), x.stride()
            torch.testing.assert_close(found, expected)
