"""Reductions and scans of which not every row, or not every element of a row, is wanted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import turret
from tests.plugins.codegen.cpp.conditional_kernels import KINDS, PROGRAMS, arguments, conditional
from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen
from tests.plugins.codegen.triton.triton_lab import FORMS, check, compile_offline, rows_in
from turret.plugins.codegen.triton import emit

SHAPES = ((5, 3), (40, 17), (3, 900))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by_element", [False, True], ids=["rows", "elements"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_wanted_is_not_read_and_what_is_wanted_is_whole(kind: str, by_element: bool, form: str) -> None:
    with rows_in(form) as properties:
        cases = [conditional(kind, *shape, by_element) for shape in SHAPES]
        check(cases, options={"properties": properties}, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_such_kernels_compile_for_a_device(kind: str, form: str) -> None:
    case = conditional(kind, 3, 100, by_element=True)
    with rows_in(form) as properties:
        kernels = emit(case.kernel, case.declarations, properties)
    assert all(compile_offline(kernel).asm["cubin"] for kernel in kernels)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_slice_of_what_was_gathered_is_eagers(program: Callable, dynamic: bool) -> None:
    inputs, options = arguments(70), {"on_error": "raise", "cache": False}
    found = turret.compile(program, dynamic=dynamic, options=options, plugins=[InterpretedCodegen()])(*inputs)
    torch.testing.assert_close(found, program(*inputs))
