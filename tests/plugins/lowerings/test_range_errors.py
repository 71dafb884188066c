"""An index out of range raises what eager raises, before and after a write to an input, and any other is taken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.lowerings.lowering_lab import lowered
from turret.testing.loops.interpreter import run_program

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def ones(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """A source for a write of slices along the first dimension."""
    return x.new_ones(index.numel(), *x.shape[1:])


BY_ELEMENT: dict[str, Program] = {
    "gather": lambda x, i: x.gather(0, i),
    "take_along_dim": lambda x, i: x.take_along_dim(i, 0),
    "scatter": lambda x, i: x.scatter(0, i, torch.ones_like(x)),
    "scatter a number": lambda x, i: x.scatter(0, i, 3.0),
    "scatter, multiplied": lambda x, i: x.scatter(0, i, torch.ones_like(x), reduce="multiply"),
    "scatter_add": lambda x, i: x.scatter_add(0, i, torch.ones_like(x)),
    "scatter_reduce": lambda x, i: x.scatter_reduce(0, i, torch.ones_like(x), "amax"),
    "scatter_reduce without self": lambda x, i: x.scatter_reduce(0, i, torch.ones_like(x), "sum", include_self=False),
    "take": torch.take,
    "put": lambda x, i: x.put(i, torch.ones_like(x)),
}
"""By programs whose index has the tensor's shape."""

BY_SLICE: dict[str, Program] = {
    "getitem": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, ones(x, i)),
    "index_add, scaled": lambda x, i: x.index_add(0, i, ones(x, i), alpha=2.5),
    "index_copy": lambda x, i: x.index_copy(0, i, ones(x, i)),
    "index_fill": lambda x, i: x.index_fill(0, i, 2.0),
    "index_put": lambda x, i: x.index_put((i,), torch.tensor(2.0)),
    "index_put, added": lambda x, i: x.index_put((i,), torch.tensor(2.0), accumulate=True),
    "index_reduce": lambda x, i: x.index_reduce(0, i, ones(x, i), "prod"),
}
"""By programs whose index has one dimension."""

SHAPES = ((), (1,), (4,), (1, 1), (4, 3), (1, 3))


def outcome(program: Program, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor | type[Exception]:
    try:
        return program(x.clone(), index)
    except (IndexError, RuntimeError) as error:
        return type(error)


def check_last(program: Program, x: torch.Tensor, good: torch.Tensor, last: list[int], **options: object) -> None:
    """Compare with eager, with each of ``last`` as the last index."""
    compiled = turret.compile(program, dynamic=False, options={"cache": False, **options})
    for value in (0, *last):
        index = good.clone()
        index.view(-1)[-1] = value
        expected, found = outcome(program, x, index), outcome(compiled, x, index)
        if isinstance(expected, type):
            assert found is expected, (value, found)
        else:
            assert isinstance(found, torch.Tensor), (value, found)
            torch.testing.assert_close(found, expected)


@settings(max_examples=24)
@given(
    st.sampled_from(sorted(BY_ELEMENT | BY_SLICE)),
    st.sampled_from(SHAPES),
    st.lists(st.integers(-6, 6) | st.sampled_from((-(1 << 40), 1 << 40)), min_size=2, max_size=4),
    st.booleans(),
    st.booleans(),
    st.sampled_from((0, 1, 7)),
)
def test_indices_are_taken_and_refused_as_eager_does(
    name: str, shape: tuple[int, ...], last: list[int], writes: bool, checks: bool, stride: int
) -> None:
    """``stride``: along dimensions of size 1, where any is right."""
    program = BY_ELEMENT.get(name) or BY_SLICE[name]
    x = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)
    x = x.as_strided(shape, [stride if size == 1 else usual for size, usual in zip(shape, x.stride(), strict=True)])
    good = torch.zeros(shape if name in BY_ELEMENT else shape[:1] or (1,), dtype=torch.int64)

    def written(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return program(x.mul_(2), index)

    check_last(written if writes else program, x, good, last, check_bounds=checks)


@pytest.mark.parametrize("shape", [(4,), (4, 3)])
@pytest.mark.parametrize("name", ["gather", "scatter", "index_add", "index_copy", "index_fill", "index_select"])
def test_the_error_is_eagers_also_after_a_write_to_an_input(name: str, shape: tuple[int, ...]) -> None:
    program = BY_ELEMENT.get(name) or BY_SLICE[name]
    good = torch.zeros(shape if name in BY_ELEMENT else shape[:1], dtype=torch.int64)
    check_last(lambda x, i: program(x.mul_(2), i), torch.randn(shape), good, [-1, 4])


@pytest.mark.parametrize("name", sorted(set(BY_ELEMENT | BY_SLICE) - {"put", "take"}))
def test_a_dimension_of_size_1_that_has_no_stride_is_checked(name: str) -> None:
    program = BY_ELEMENT.get(name) or BY_SLICE[name]
    good = torch.zeros((1, 9) if name in BY_ELEMENT else 1, dtype=torch.int64)
    check_last(program, torch.arange(9.0).as_strided((1, 9), (0, 1)), good, [-1, 1])


def test_losses_by_index_raise_what_their_kernels_raise() -> None:
    x, target = torch.randn(3, 4), torch.zeros(3, dtype=torch.int64)
    check_last(lambda x, t: F.nll_loss(x.mul_(2), t), x, target, [-1, 3, 4])
    check_last(lambda x, t: F.multi_margin_loss(x.mul_(2), t), x, target, [-1, 3, 4])


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64, torch.bfloat16])
def test_slices_are_added_and_copied_in_any_dtype(dtype: torch.dtype) -> None:
    x, source = torch.ones(4, 3).to(dtype), torch.arange(6).reshape(2, 3).to(dtype)
    for program in (
        lambda x, i: x.index_add(0, i, source),
        lambda x, i: x.t().index_add(1, i, source.t(), alpha=2),
        lambda x, i: x.index_copy(0, i, source),
        lambda x, i: x.index_fill(0, i, 2),
    ):
        check_last(program, x, torch.tensor([1, 1]), [0, -1, 3, 4])


def test_what_multiplies_a_source_fits_its_type() -> None:
    x, source, index = torch.zeros(3, dtype=torch.int8), torch.ones(2, dtype=torch.int8), torch.tensor([0, 0])
    for alpha in (2.5, True, 300):

        def program(x: torch.Tensor, index: torch.Tensor, alpha: float = alpha) -> torch.Tensor:
            return x.index_add(0, index, source, alpha=alpha)

        expected, found = outcome(program, x, index), outcome(turret.compile(program), x, index)
        assert found is expected if isinstance(expected, type) else torch.equal(found, expected)


def test_the_reference_raises_what_a_check_names() -> None:
    x = torch.randn(4, 3)
    for program, index, error in (
        (lambda x, i: (x.gather(0, i),), torch.full((4, 3), 4), RuntimeError),
        (lambda x, i: (x[i],), torch.tensor([4]), IndexError),
    ):
        with pytest.raises(error, match="out of range"):
            run_program(lowered(program, x, index), [x, index])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_probability_outside_of_its_range_is_eagers_error(reduction: str) -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x, target, reduction=reduction)

    x, target = torch.rand(5, 7), torch.rand(5, 7)
    compiled = turret.compile(loss, options={"cache": False})
    torch.testing.assert_close(compiled(x, target), loss(x, target))
    for value in (-0.1, 1.1, float("nan")):
        wrong = x.clone()
        wrong[4, 6] = value
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            compiled(wrong, target)
        if value == value:
            with pytest.raises(RuntimeError, match="between 0 and 1"):
                compiled(x, wrong)


def test_positions_of_unpooling_are_checked() -> None:
    x, where = torch.randn(1, 1, 4), torch.arange(4)[None, None]
    compiled = turret.compile(lambda x, i: F.max_unpool1d(x, i, 2), options={"cache": False})
    torch.testing.assert_close(compiled(x, where), F.max_unpool1d(x, where, 2))
    with pytest.raises(RuntimeError, match="invalid"):
        compiled(x, where - (1 << 40))
