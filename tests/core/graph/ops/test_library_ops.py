"""Library calls into memory they are given are what the calls themselves return."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.graph.externs import recorded_variant, resolve_op, unset_results

aten = torch.ops.aten


@settings(max_examples=30, deadline=None)
@given(
    dims=st.integers(1, 3),
    groups=st.sampled_from((1, 2)),
    transposed=st.booleans(),
    biased=st.booleans(),
    last=st.booleans(),
    out_last=st.booleans(),
    stride=st.sampled_from((1, 2)),
)
def test_a_convolution_into_memory_is_the_convolution(
    dims: int, groups: int, transposed: bool, biased: bool, last: bool, out_last: bool, stride: int
) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, *[6] * dims), torch.randn(4, 4 // groups, *[3] * dims)
    bias = torch.randn(4) if biased else None
    if last and dims > 1:
        x = x.contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    arguments = (x, w, bias, [stride] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, groups)
    want = aten.convolution.default(*arguments)
    out = torch.full_like(want, torch.nan)
    if out_last:
        out = out.transpose(1, -1).contiguous().transpose(1, -1)
    name = recorded_variant(aten.convolution.default)
    assert name is not None
    assert resolve_op(name)(*arguments, out=out) is out
    torch.testing.assert_close(out, want)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_states_of_generators_matter_where_something_is_dropped(dropout: float) -> None:
    op = aten._scaled_dot_product_cudnn_attention.default
    places = unset_results(op, (None, None, None, None, True, dropout), {})
    assert {op._schema.returns[n].name for n in places} == (set() if dropout else {"philox_seed", "philox_offset"})
    assert not unset_results(aten.mm.default, (), {})
