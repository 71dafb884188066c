"""Layers of LSTMs by the library: what the fake says of a call is what comes out of it."""

from __future__ import annotations

import pytest
import torch

from turret.graph.ops import define_own_ops
from turret.graph.ops.recurrent_ops import has_trained_kernel
from turret.torch_compat.fakes import FakeTensorMode

define_own_ops()


def _given(dtype, steps=4, batch=3, features=5, hidden=7):
    sizes = [
        (steps, batch, features), (4 * hidden, features), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,),
        (batch, hidden), (batch, hidden),
    ]  # fmt: skip
    return [torch.randn(size, dtype=dtype) for size in sizes]


def _layouts(tensors):
    return [(t.dtype, tuple(t.shape), t.stride()) for t in tensors]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("steps", [1, 4])
def test_fakes_tell_the_layouts_of_results(dtype, reverse, steps):
    given = _given(dtype, steps)
    if not has_trained_kernel(given[0], given[1:]):
        pytest.skip("the library has no kernel for it here")
    ops, how = torch.ops.turret, (reverse, True, True)
    with torch.no_grad():
        made = ops.lstm_layer(*given, *how)
        back = ops.lstm_layer_backward(*given, *made[:3], made[0], None, None, made[3], *how)
    assert made[3].numel() > 0
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(t) for t in given]
        told = ops.lstm_layer(*fakes, *how)
        told_back = ops.lstm_layer_backward(*fakes, *told[:3], told[0], None, None, told[3], *how)
    assert _layouts(told) == _layouts(made)
    assert _layouts(told_back) == _layouts(back)


def test_what_the_library_does_not_train_is_refused():
    x, *others = _given(torch.float32)
    assert has_trained_kernel(x, others) == torch.backends.mkldnn.is_available()
    assert not has_trained_kernel(x.double(), [t.double() for t in others])
    assert not has_trained_kernel(x.double(), others)
    assert not has_trained_kernel(x[:0], others)
    assert not has_trained_kernel(x[0], others)
    with torch.autocast("cpu"):
        assert not has_trained_kernel(x, others)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not has_trained_kernel(x, others)
