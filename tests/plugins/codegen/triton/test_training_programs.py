"""Property test: gradients of random blocks, with every threshold of size so low that small tensors take each form."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import turret
from tests.plugins.codegen.triton.interpreted_codegen import InterpretedCodegen
from turret.plugins.codegen.triton import DeviceProperties
from turret.plugins.codegen.triton.tiles import normalise, row_column, split, tiling

EXAMPLES = int(os.environ.get("TURRET_KERNEL_EXAMPLES", "300")) // 50
WIDTH = 12
Step = tuple[str, int, int]

ROWS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "roll": lambda x, a, b: x.roll((1 + a, b), (1, 2)),
    "windows": lambda x, a, b: _windows(x, 2 + a % 2, 2),
    "turned": lambda x, a, b: x.transpose(1, 2),
    "flipped": lambda x, a, b: x.flip(1 + a % 2),
    "padded": lambda x, a, b: F.pad(x, (0, 0, a, 1, 1, b))[:, 1 : 1 + x.shape[1], a : a + x.shape[2]],
    "pieces": lambda x, a, b: torch.cat([x[:, 1 + a % 2 :], x[:, : 1 + a % 2]], 1),
    "even and odd": lambda x, a, b: torch.stack([x[:, ::2], x[:, 1::2]], 2).flatten(1, 2),
    "activated": lambda x, a, b: F.gelu(x) if a % 2 else F.silu(x) * x,
    "scaled by rows": lambda x, a, b: x * x.mean((1 + a % 2,), keepdim=True),
    "softmax": lambda x, a, b: x.softmax((-1, 1, 2)[a % 3]),
    "residual": lambda x, a, b: x + x.roll(1, 1).tanh(),
    "repeated": lambda x, a, b: x + x[:, :1].expand_as(x) * 0.5,
    "normalised": lambda x, a, b: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5),
}
"""What becomes of a tensor of (batch, height, width, channels), with two small numbers."""


def _windows(x: Tensor, down: int, across: int) -> Tensor:
    batch, height, width, channels = x.shape
    cut = x.view(batch, height // down, down, width // across, across, channels).transpose(2, 3)
    return cut.reshape(batch, height, width, channels)


def block(steps: list[Step]) -> Callable[..., Tensor]:
    """A norm with parameters after each step, as layers of networks have it."""

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        for (name, a, b), weight, bias in zip(steps, parameters[::2], parameters[1::2], strict=True):
            x = F.layer_norm(ROWS[name](x, a, b), (WIDTH,), weight, bias)
        return x

    return run


@contextlib.contextmanager
def low_thresholds(form: str) -> Iterator[DeviceProperties]:
    few = {"LEAST_WORK": 16, "LEAST_CHUNK": {True: 4, False: 4}} if form == "split" else {}
    short = {"PERSISTENT_INNER": 4, "PERSISTENT_OUTER": 4} if form == "passes" else {}
    with (
        mock.patch.object(row_column, "LEAST_ELEMENTS", 64),
        mock.patch.object(normalise, "LANES_ENOUGH", 64),
        mock.patch.dict(vars(tiling), short),
        mock.patch.dict(vars(split), few),
    ):
        yield DeviceProperties(multiprocessors=1 << 20 if form == "split" else 4)


@pytest.mark.parametrize("form", ["block", "passes", "split"])
@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(list(ROWS)), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=4),
    st.sampled_from([(2, 6, 4), (8, 6, 2), (4, 12, 4), (1, 6, 6)]),
    st.booleans(),
)
@pytest.mark.thorough
def test_gradients_of_random_blocks_are_eagers(form: str, steps: list[Step], shape: tuple, dynamic: bool) -> None:
    run = block(steps)
    generator = torch.Generator().manual_seed(0)
    args = [torch.randn(s, generator=generator) for s in ((*shape, WIDTH), *[(WIDTH,)] * (2 * len(steps)))]
    args = [a.requires_grad_() for a in args]
    exact = [a.detach().double().requires_grad_() for a in args]
    want = run(*exact)
    weight = torch.randn(want.shape, generator=generator)
    expected = torch.autograd.grad(want, exact, weight.double())
    with low_thresholds(form) as properties:
        compiled = turret.compile(
            run, plugins=[InterpretedCodegen(properties=properties)], options={"on_error": "raise"}, dynamic=dynamic
        )
        found = torch.autograd.grad(compiled(*args), args, weight)
    for mine, theirs in zip(found, expected, strict=True):
        apart = (mine.double() - theirs).norm() / (theirs.norm() + 0.1)
        assert apart < 1e-4, (tuple(mine.shape), float(apart))
