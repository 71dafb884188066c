"""Checks of library calls that are launched by themselves, on a GPU: results are those of calls, to the bit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import turret
from tests.plugins.cudagraphs.direct_lab import Heard

BF16 = torch.bfloat16


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(found)
        return x + self.down(F.gelu(self.up(self.norm(x))))


def rand(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def mlp(width: int, layers: int, dtype: torch.dtype = BF16) -> nn.Module:
    made = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*made).to("cuda", dtype)


def both(function: Callable, dynamic: bool | None = None) -> tuple[Any, Any, Heard]:
    """The function compiled without launches, and with, and what is said about those."""
    heard = Heard()
    plain = turret.compile(function, dynamic=dynamic, options={"direct_library_calls": False, "cache": False})
    return plain, turret.compile(function, dynamic=dynamic, plugins=[heard], options={"cache": False}), heard


@torch.no_grad()
def memory_streams_and_settings_may_be_any() -> None:
    """Other inputs, which begin anywhere, another stream, a setting that changes, and a graph of the program's."""
    plain, direct, heard = both(mlp(512, 4))
    for _ in range(6):
        x = rand(64, 512)
        assert torch.equal(direct(x), plain(x))
    heard.expect("4 of 4")
    memory = rand(64 * 512 + 8)
    for offset in (1, 2, 3, 8):
        x = memory[offset : offset + 64 * 512].view(64, 512)
        assert torch.allclose(direct(x), plain(x), atol=4e-3)  # a library has other kernels for what is not aligned
    with torch.cuda.stream(torch.cuda.Stream()):
        x = rand(64, 512)
        assert torch.equal(direct(x), plain(x))
    torch.cuda.synchronize()
    products = torch.backends.cuda.matmul
    before = products.allow_bf16_reduced_precision_reduction
    products.allow_bf16_reduced_precision_reduction = not before
    assert torch.equal(direct(x), plain(x))
    products.allow_bf16_reduced_precision_reduction = before
    graph, given = torch.cuda.CUDAGraph(), rand(64, 512)
    with torch.cuda.graph(graph):
        result = direct(given)
    given.copy_(x)
    graph.replay()
    assert torch.equal(result, plain(x))


@torch.no_grad()
def threads_have_memory_of_their_own_for_what_calls_work_in() -> None:
    """Products of one row are cut into parts, which are added up in memory that is nobody's."""
    plain, direct, heard = both(nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 4096)).to("cuda", torch.float32))
    inputs = [rand(64, 4096, dtype=torch.float32) for _ in range(8)]
    expected = [plain(x) for x in inputs]
    for x in inputs:
        direct(x)
    heard.expect("2 of 2")
    wrong: list[int] = []

    def call(number: int) -> None:
        with torch.no_grad():
            for _ in range(100):
                if not torch.equal(direct(inputs[number]), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.no_grad()
def sizes_have_launches_of_their_own() -> None:
    """Each size that comes again, with attention among the calls."""
    plain, direct, heard = both(nn.Sequential(Block(), Block()).to("cuda", BF16), dynamic=True)
    for _ in range(5):
        for length in (64, 96, 128):
            x = rand(2, length, 256)
            assert torch.equal(direct(x), plain(x))
    assert len(heard.messages) == 3
    x = rand(2, 72, 256)
    assert torch.equal(direct(x), plain(x))


def gradients_are_those_of_calls() -> None:
    """Forward and backward, in which products have other layouts, and memory is taken and given back."""
    model = nn.Sequential(Block(), Block()).to("cuda", BF16)
    plain, direct, heard = both(model)

    def gradients(run: Callable, x: Tensor) -> list[Tensor]:
        model.zero_grad()
        run(x).float().square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for _ in range(6):
        x = rand(2, 64, 256)
        assert all(map(torch.equal, gradients(direct, x), gradients(plain, x)))
    assert len(heard.messages) == 2


@torch.no_grad()
def convolutions_and_batched_products_come_out_the_same() -> None:
    """Other libraries' kernels, of which some are not known ahead of a call."""
    convolutions = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3)).to("cuda", BF16)
    plain, direct, _ = both(lambda x: torch.bmm(convolutions(x).flatten(0, 1), convolutions(x).flatten(0, 1)))
    for _ in range(6):
        x = rand(4, 16, 34, 34)
        assert torch.allclose(direct(x), plain(x), rtol=1e-2, atol=1e-2)


DIRECT_CHECKS = (
    memory_streams_and_settings_may_be_any,
    threads_have_memory_of_their_own_for_what_calls_work_in,
    sizes_have_launches_of_their_own,
    gradients_are_those_of_calls,
    convolutions_and_batched_products_come_out_the_same,
)
