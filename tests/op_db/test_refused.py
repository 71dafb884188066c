"""What eager refuses, a compiled program refuses: operations whose shape functions in torch would let it pass."""

from __future__ import annotations

import pytest

from tests.op_db.refused import refused, runs
from turret.torch_compat.operators.opinfo import op_db

NAMES = (
    "_softmax_backward_data",
    "addmm",
    "addmv",
    "argmax",
    "as_strided_scatter",
    "cross",
    "diagonal_scatter",
    "heaviside",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "index_select",
    "put",
    "select_scatter",
    "slice_scatter",
    "sub",
    "nn.functional.binary_cross_entropy",
    "nn.functional.cross_entropy",
    "nn.functional.group_norm",
    "nn.functional.layer_norm",
    "nn.functional.nll_loss",
)
IN_PLACE = ("addmm", "addmv", "addr", "floor_divide")


@pytest.mark.parametrize("op", [op for op in op_db if op.name in NAMES], ids=lambda op: op.name)
@pytest.mark.thorough
def test_what_eager_refuses_does_not_run(op) -> None:
    calls = [call for call in refused(op) if "not implemented for" not in call.error]
    assert calls
    assert not [(call.what, call.error) for call in calls if runs(call)]


@pytest.mark.parametrize("op", [op for op in op_db if op.name in IN_PLACE], ids=lambda op: op.name)
def test_what_eager_refuses_to_write_does_not_run(op) -> None:
    calls = [call for call in refused(op, in_place=True) if "not implemented for" not in call.error]
    assert calls
    assert not [(call.what, call.error) for call in calls if runs(call)]
