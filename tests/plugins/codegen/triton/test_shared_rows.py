"""Products of one row with many columns: programs take several columns, in one block or in a loop."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from tests.plugins.codegen.triton.triton_lab import launch
from tests.plugins.loop_lab import schedule
from turret.ir.text import parse
from turret.plugins.codegen.triton import emit
from turret.plugins.codegen.triton.tiles import tiling

PROGRAM = """\
loop program p:
  input x: float32[1, {depth}]
  input w: float32[{columns}, {depth}]
  y: float32[1, {columns}]  [i0<1, i1<{columns}] = sum<r0<{depth}>(mul(exp(x[i0, r0]), w[i1, r0]))
  return %y
"""


@pytest.mark.parametrize("longest", [4096, 8], ids=["block", "loop"])
@pytest.mark.parametrize(("columns", "depth"), [(24, 64), (26, 37), (19, 3000)])
def test_every_configuration_is_right(columns: int, depth: int, longest: int) -> None:
    program = parse(PROGRAM.format(columns=columns, depth=depth))
    (kernel,) = schedule(program).kernels
    with mock.patch.multiple(tiling, MANY_SHARING=8, LONGEST_SHARED=longest):
        kernels = emit(kernel, program.declarations())
    blocks = [dict(config.constants)["XBLOCK"] for config in kernels[-1].configs]
    assert max(blocks) > 1
    x, w = torch.randn(1, depth), torch.randn(columns, depth)
    for pick in range(len(kernels[-1].configs)):
        y = torch.full((1, columns), float("nan"))
        launch(kernels, {"x": x, "w": w, "y": y}, {}, pick)
        torch.testing.assert_close(y, x.exp() @ w.T, rtol=1e-4, atol=1e-3)
