"""Kernels of random expressions, dtypes, layouts, conditions, reductions and scans, for the code generators' tests."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.plugins.codegen.cpp.kernel_lab import Case
from turret.testing.corpus.chooser import DrawnChooser
from turret.testing.loops.programs import draw_loops


@st.composite
def cases(draw, symbolic: bool = False) -> Case:
    """Loops of ``turret.testing`` as one kernel, drawn and shrunk by hypothesis."""
    loops = draw_loops(DrawnChooser(lambda low, high: draw(st.integers(low, high))), symbolic)
    return Case(loops.kernel(), loops.tensors, loops.declarations, loops.sizes)


def has_half(case: Case) -> bool:
    """Whether something is rounded so coarsely that an order of additions shows."""
    return any(str(t.dtype) == "torch.bfloat16" for t in case.tensors.values())
