"""Reductions and scans of which not every row, or not every element of a row, is wanted, in OpenCL."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.contrib.opencl.opencl_lab import check, compiled
from tests.plugins.codegen.cpp.conditional_kernels import KINDS, PROGRAMS, arguments, conditional

SHAPES = ((5, 3), (4, 40), (3, 3000), (300, 20))


@pytest.mark.thorough
@pytest.mark.parametrize("by_element", [False, True], ids=["rows", "elements"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_wanted_is_not_read_and_what_is_wanted_is_whole(kind: str, by_element: bool) -> None:
    check([conditional(kind, *shape, by_element) for shape in SHAPES], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_slice_of_what_was_gathered_is_eagers(program: Callable) -> None:
    inputs = arguments(70)
    found = compiled(program, dynamic=True)(*inputs)
    torch.testing.assert_close(found, program(*inputs))
