"""Property test: random kernels as interpreted Triton give what torch gives."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.codegen.cpp.kernel_lab import Case
from tests.plugins.codegen.cpp.random_kernels import cases, has_half
from tests.plugins.codegen.triton.triton_lab import FORMS, check, rows_in

EXAMPLES = int(os.environ.get("TURRET_KERNEL_EXAMPLES", "300"))


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=EXAMPLES)
@given(case=st.booleans().flatmap(cases), hint=st.none() | st.sampled_from((1, 48, 1000)))
@pytest.mark.thorough
def test_random_kernels_agree_with_torch(form: str, case: Case, hint: int | None) -> None:
    hints = case.sizes if hint is None else dict.fromkeys(case.sizes, hint)
    tolerance = {"rtol": 3e-2 if has_half(case) else 2e-4, "atol": 2e-3}
    with rows_in(form) as properties:
        # Of zeros of both signs the interpreter's minimum and maximum take another one than a device's.
        check([case], options={"properties": properties, "hints": hints}, signed_zeros=False, **tolerance)
