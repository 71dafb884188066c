"""What is recorded of symbolic sizes must be the same in every process."""

from __future__ import annotations

import math

import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from turret.plugins.joint.recorder import Recorder
from turret.torch_compat.fakes import FakeTensorMode


def test_sizes_in_a_product_are_read_in_the_order_of_their_names():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 6)
    x = mode.from_tensor(torch.empty(2, 3, 5, 7, 11, 13), symbolic_context=dynamic)
    recorder = Recorder()
    recorder.placeholder("x", x)
    recorder.size(math.prod(x.shape))
    read = [n for n in recorder.graph.nodes if n.target is torch.ops.aten.sym_size.int]
    assert [n.args[1] for n in read] == sorted(range(6), key=lambda d: str(x.shape[d].node.expr))
