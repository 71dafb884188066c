"""Sizes that depend on data: parts of tensors are written to, whatever the sizes turn out to be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret


def written(shape: tuple, steps: list, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    size = count.item()
    made = x.new_zeros([size if n == "n" else n for n in shape])
    part = made
    for step in steps:
        part = part.transpose(0, -1) if step == "turned" else part[step]
    part.add_(x[0])
    return made * 2


def check(program: Callable, **options: Any) -> None:
    fast, x = (
        turret.compile(program, options={"cache": False, "capture_scalar_outputs": True, **options}),
        torch.ones(2),
    )
    for size in (4, 3, 1, 0, 6):
        count = torch.tensor(size)
        made, expected = fast(x, count), program(x, count)
        torch.testing.assert_close(made, expected)
        assert made.stride() == expected.stride()


ALL = slice(None)
CASES = [
    (("n",), [slice(1, -1)]),
    (("n", 4), [(ALL, slice(1, 3)), slice(None, -1)]),
    ((2, "n", 3), [(ALL, slice(None, -1), slice(1, None))]),
    ((2, "n", 3), [(ALL, slice(1, None)), "turned", slice(None, 2)]),
    (("n", "n"), [(slice(1, None), slice(None, -1))]),
    ((3, "n", 2, 5), [(ALL, slice(None, -1), ALL, slice(2, None)), (..., slice(None, 2))]),
    ((3, "n"), ["turned", slice(1, 2)]),
]


@pytest.mark.parametrize(("shape", "steps"), CASES)
def test_a_write_to_a_part_of_a_tensor_whose_size_depends_on_data_is_in_the_graph(shape: tuple, steps: list) -> None:
    check(lambda x, count: written(shape, steps, x, count), on_error="raise")


ENDS = st.sampled_from([None, 1, 2, -1, -2])
PARTS = st.builds(lambda ends, dims: (*[ALL] * dims, slice(*ends)), st.tuples(ENDS, ENDS), st.integers(0, 1))


@pytest.mark.filterwarnings("ignore::turret.TurretWarning")
@settings(max_examples=15, deadline=None)
@given(
    shape=st.sampled_from([(3, "n"), ("n", 4), (2, "n", 3), ("n", "n"), (4, 3, "n")]),
    steps=st.lists(st.one_of(PARTS, st.just("turned")), min_size=1, max_size=3),
)
def test_writes_to_parts_of_tensors_whose_sizes_depend_on_data_are_eagers(shape: tuple, steps: list) -> None:
    check(lambda x, count: written(shape, steps, x, count))


def test_what_is_known_of_a_size_is_known_when_it_turns_out_to_be_that_of_an_input() -> None:
    """The rows that are written number one fewer than data say, as many as an input has: still fewer than there are."""

    def program(x: torch.Tensor, w: int) -> torch.Tensor:
        chunks = torch.div(x.shape[1] * w, w, rounding_mode="trunc")
        grid = x.new_zeros((x.shape[0], chunks + 1, w, 2 * w + 1))
        grid[:, :-1, :, w:] = x[:, :, :w, : w + 1]
        rows = grid.view(x.shape[0], -1, 2 * w + 1)
        rows[:, :w, : w + 1] = torch.full_like(rows[:, :w, : w + 1], -1.0)
        return rows

    options = {"on_error": "raise", "capture_scalar_outputs": True}
    fast = turret.compile(program, fullgraph=True, dynamic=True, options=options)
    for sizes, w in (((4, 3, 7, 9), 5), ((5, 6, 8, 8), 4), ((2, 2, 3, 4), 3)):
        x = torch.randn(sizes)
        made, expected = fast(x, w), program(x, w)
        assert torch.equal(made, expected)
        assert made.stride() == expected.stride()
