"""``turret::seed`` and ``turret::random``: a pure function of the seed and the element's position."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from turret.graph.ops import random_ops

KNOWN = [  # published known answers of Philox4x32-10: key, counter, block
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("key", "counter", "block"), KNOWN)
def test_philox_gives_the_published_answers(key, counter, block):
    words = random_ops.philox(tuple(map(torch.tensor, key)), tuple(map(torch.tensor, counter)))
    assert tuple(int(word) for word in words) == block


def test_element_depends_on_its_linear_index_alone():
    seed = torch.tensor(-5)
    flat = random_ops.random(seed, [24], 3, "uniform", torch.float32)
    assert torch.equal(random_ops.random(seed, [2, 3, 4], 3, "uniform", torch.float32).flatten(), flat)
    assert torch.equal(random_ops.random(seed, [7], 3, "uniform", torch.float32), flat[:7])


def test_streams_and_seeds_differ():
    draws = [
        random_ops.random(torch.tensor(seed), [64], stream, "bits", torch.int64)
        for seed in (0, 1, 2**40)
        for stream in (0, 1)
    ]
    assert len({tuple(draw.tolist()) for draw in draws}) == len(draws)


def test_same_arguments_give_the_same_bits():
    a, b = (random_ops.random(torch.tensor(9), [100], 0, "normal", torch.float64) for _ in range(2))
    assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", sorted(random_ops.UNIFORM_BITS, key=str))
def test_uniform_is_in_the_half_open_interval_and_spread_evenly(dtype):
    x = random_ops.random(torch.tensor(1), [100_000], 0, "uniform", dtype).double()
    assert x.min() >= 0 and x.max() < 1
    counts = torch.histc(x, 8, 0, 1)
    assert ((counts - 12_500).abs() < 600).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_has_the_moments_of_a_standard_normal(dtype):
    x = random_ops.random(torch.tensor(2), [200_000], 0, "normal", dtype).double()
    assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01 and abs((x**4).mean() - 3) < 0.1
    assert torch.isfinite(x).all()


def test_seed_follows_the_default_generator():
    device = torch.device("cpu")
    torch.manual_seed(7)
    first, second = random_ops.seed(device), random_ops.seed(device)
    torch.manual_seed(7)
    assert torch.equal(random_ops.seed(device), first) and not torch.equal(first, second)
    assert first.dtype == torch.int64 and first.shape == ()


def test_fake_tensors_flow_through():
    with FakeTensorMode():
        x = random_ops.random(random_ops.seed(torch.device("cpu")), [3, 5], 0, "normal", torch.bfloat16)
    assert x.shape == (3, 5) and x.dtype == torch.bfloat16 and x.is_contiguous()


@pytest.mark.parametrize(
    ("kind", "dtype"), [("cauchy", torch.float32), ("uniform", torch.int64), ("bits", torch.int32)]
)
def test_bad_kind_or_dtype_is_named(kind, dtype):
    with pytest.raises(ValueError, match=r"turret::random: (unknown kind 'cauchy'|kind '(uniform|bits)' cannot)"):
        random_ops.random(torch.tensor(0), [2], 0, kind, dtype)
