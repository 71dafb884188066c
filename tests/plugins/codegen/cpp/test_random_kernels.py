"""Property test: random kernels as C++ give what torch gives."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.codegen.cpp.kernel_lab import Case, check
from tests.plugins.codegen.cpp.random_kernels import cases, has_half

EXAMPLES = int(os.environ.get("TURRET_KERNEL_EXAMPLES", "10"))


@settings(max_examples=EXAMPLES)
@given(st.lists(st.booleans().flatmap(cases), min_size=6, max_size=6))
def test_random_kernels_agree_with_torch(drawn: list[Case]) -> None:
    check(drawn, threads=(1, 2), rtol=3e-2 if any(map(has_half, drawn)) else 2e-4, atol=2e-3)
