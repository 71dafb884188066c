"""Calls with packed weights give what ATen's give, and notice what happens to a weight."""

from __future__ import annotations

import gc
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from turret.graph.ops import packed_ops
from turret.graph.ops.packed_ops import packs

linear, convolution = torch.ops.turret.frozen_linear.default, torch.ops.turret.frozen_convolution.default

pytestmark = pytest.mark.skipif(not packs(torch.float32), reason="torch without oneDNN")

TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 2e-2, "atol": 5e-2}}
DTYPES = [dtype for dtype in TOLERANCE if packs(dtype)]


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def is_packed(weight: torch.Tensor) -> bool:
    return bool(packed_ops._seen[id(weight)].packed)


def check(op, arguments: tuple, wanted: torch.Tensor) -> None:
    """The call on tensors and on fakes of them: values, dtype, shape and strides."""
    got = op(*arguments)
    assert (got.dtype, got.shape, got.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
    torch.testing.assert_close(got, wanted, **TOLERANCE[got.dtype])
    mode = FakeTensorMode()
    fake = op(*(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments))
    assert (fake.dtype, fake.shape, fake.stride()) == (wanted.dtype, wanted.shape, wanted.stride())


@settings(max_examples=30, deadline=None)
@given(
    rows=st.sampled_from((0, 1, 2, 17, 64)),
    columns=st.sampled_from((1, 8, 33)),
    depth=st.sampled_from((1, 7, 64)),
    biased=st.booleans(),
    strided=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_products_are_atens(rows: int, columns: int, depth: int, biased: bool, strided: bool, dtype) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(columns, depth, dtype=dtype), torch.randn(columns, dtype=dtype) if biased else None
    for _ in range(3):
        x = torch.randn(rows, 2 * depth, dtype=dtype)[:, :depth] if strided else torch.randn(rows, depth, dtype=dtype)
        wanted = x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())
        check(linear, (x, weight, bias), wanted)
    assert is_packed(weight)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.sampled_from((1, 3)),
    channels=st.sampled_from((3, 4)),
    filters=st.sampled_from((2, 6)),
    size=st.sampled_from((1, 4, 7)),
    window=st.sampled_from((1, 3)),
    places=st.tuples(st.sampled_from((1, 2)), st.sampled_from((1, 2)), st.sampled_from((1, 2))),
    grouped=st.booleans(),
    biased=st.booleans(),
    last=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_convolutions_are_atens(
    batch: int,
    channels: int,
    filters: int,
    size: int,
    window: int,
    places,
    grouped: bool,
    biased: bool,
    last: bool,
    dtype,
) -> None:
    torch.manual_seed(0)
    stride, padding, dilation = places
    groups = 2 if grouped and channels % 2 == 0 and filters % 2 == 0 else 1
    padding = max(padding, dilation * (window // 2))
    weight = torch.randn(filters, channels // groups, window, window, dtype=dtype)
    bias = torch.randn(filters, dtype=dtype) if biased else None
    pairs = [stride, stride], [padding, padding], [dilation, dilation]
    for _ in range(3):
        x = torch.randn(batch, channels, size, size, dtype=dtype)
        x = x.contiguous(memory_format=torch.channels_last) if last else x
        wanted = torch.convolution(x, weight, bias, *pairs, False, [0, 0], groups)
        check(convolution, (x, weight, bias, *pairs, groups), wanted)
    assert is_packed(weight)


def test_what_happens_to_a_weight_is_noticed() -> None:
    x, weight = torch.randn(8, 64), torch.nn.Parameter(torch.randn(32, 64))

    def same() -> None:
        for _ in range(3):
            torch.testing.assert_close(linear(x, weight, None), x @ weight.t())
        assert is_packed(weight)

    same()
    weight.mul_(2)
    same()
    weight.view(-1)[3] = 100.0
    same()
    for _ in range(4):  # memory that is free by then is soon taken again
        weight.data = torch.randn(32, 64)
        same()
    weight.data = torch.randn(64, 32).t()
    same()
    weight.data = torch.randn(16, 64)
    same()


def test_a_weight_that_is_written_to_between_calls_is_never_packed() -> None:
    x, weight = torch.randn(8, 64), torch.randn(32, 64)
    with mock.patch.object(packed_ops, "pack_linear", side_effect=AssertionError):
        for _ in range(4):
            torch.testing.assert_close(linear(x, weight, None), x @ weight.t())
            weight.add_(1)


def test_tensors_without_a_version_are_not_packed() -> None:
    with torch.inference_mode():
        x, weight = torch.randn(8, 64), torch.randn(32, 64)
        for _ in range(3):
            torch.testing.assert_close(linear(x, weight, None), x @ weight.t())
            weight.mul_(2)
    assert id(weight) not in packed_ops._seen


def test_a_weight_that_is_gone_is_forgotten() -> None:
    x, weight = torch.randn(8, 64), torch.randn(32, 64)
    for _ in range(2):
        linear(x, weight, None)
    number = id(weight)
    assert number in packed_ops._seen
    del weight
    gc.collect()
    assert number not in packed_ops._seen


def test_without_onednn_calls_are_atens(monkeypatch) -> None:
    x, weight = torch.randn(8, 64), torch.randn(32, 64)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    for _ in range(3):
        assert torch.equal(linear(x, weight, None), x @ weight.t())
    assert id(weight) not in packed_ops._seen
