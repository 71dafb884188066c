"""Functions and small models that must come out on a GPU as eager's do."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEVICE = os.environ.get("TURRET_CHECK_DEVICE", "cuda")
"""``cpu`` tries the checks themselves where there is no GPU."""


@attrs.frozen(eq=False)
class Case:
    """``make(dtype)`` gives a callable (a module or a function) and its arguments, on ``DEVICE``.

    ``train``: compare gradients too.  ``dtypes``: those to run.
    """

    name: str
    make: Callable[[torch.dtype], tuple[Callable[..., Any], tuple[Any, ...]]]
    train: bool = True
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


def function(name: str, run: Callable[..., Any], *shapes: tuple[int, ...], train: bool = True, **further: Any) -> Case:
    """A case of a function of random tensors."""
    return Case(name, lambda dtype: (run, tuple(randn(*shape, dtype=dtype) for shape in shapes)), train, **further)


def _pointwise(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x * y + 1).mul(torch.tanh(x)) / (1 + y * y) + x.clamp(-0.5, 0.5)


def _rms_norm(x: Tensor, w: Tensor) -> Tensor:
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def _gather(x: Tensor) -> Tensor:
    index = torch.arange(x.shape[0], device=x.device).flip(0) // 2
    return x[index] + x.index_select(0, index).roll(1, 0)


def _parts_of_gathered(x: Tensor) -> tuple[Tensor, Tensor]:
    index = torch.arange(x.shape[0], device=x.device).flip(0) // 2
    summed = torch.slice_scatter(x, x[index].float().cumsum(1).to(x.dtype)[:, 3:-3], 1, 3, -3)
    return summed, torch.slice_scatter(x, x[index].softmax(1)[:, 3:], 1, 3)


def _scatter(x: Tensor) -> Tensor:
    index = torch.arange(x.shape[0], device=x.device) % 7
    return torch.zeros(7, x.shape[1], device=x.device, dtype=x.dtype).index_add(0, index, x)


def _mutates(x: Tensor, state: Tensor) -> Tensor:
    state.mul_(0.9).add_(x.sum(0), alpha=0.1)
    return x - state


def _many_outputs(x: Tensor) -> tuple[Tensor, ...]:
    return x.amax(1), x.argmax(1), x.var(0), x.std(1), (x > 0).sum(), x.prod(1), x.abs().amin()


def _host_scalar(x: Tensor) -> Tensor:
    return x * torch.tensor(3.0) + torch.full((), 2.0)


FUNCTIONS = (
    function("pointwise", _pointwise, (513, 300), (513, 300)),
    function("broadcast", lambda x, y: (x + y) * y.exp(), (64, 1, 129), (33, 1)),
    function("transposed add", lambda x, y: x + y.t(), (700, 333), (333, 700)),
    function("row sum", lambda x: (x * 2).sum(1), (300, 1000)),
    function("column sum", lambda x: (x * 2).sum(0), (3000, 70)),
    function("full sum", lambda x: x.square().sum(), (1000, 777)),
    function("long row", lambda x: torch.softmax(x, -1), (7, 100_003)),
    function("softmax", lambda x: torch.softmax(x * 0.5, -1), (256, 1000)),
    function("log softmax of 3d", lambda x: torch.log_softmax(x, 1), (8, 50, 60)),
    function("layer norm", lambda x, w, b: F.layer_norm(x, (768,), w, b), (512, 768), (768,), (768,)),
    function("rms norm", _rms_norm, (512, 1024), (1024,)),
    function("group norm", lambda x, w, b: F.group_norm(x, 8, w, b), (4, 32, 28, 28), (32,), (32,)),
    function("rotary", _rotary, (2, 4, 64, 32), (64, 32), (64, 32)),
    function("cumsum", lambda x: x.cumsum(1) + x.cumsum(0), (100, 333)),
    function("gather", _gather, (300, 65)),
    function("parts of gathered rows", _parts_of_gathered, (130, 300)),
    function("scatter", _scatter, (500, 33), dtypes=(torch.float32,)),
    function("cat and pad", lambda x, y: F.pad(torch.cat((x, y), 1), (1, 2)), (64, 30), (64, 50)),
    function("pooling", lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1), (4, 16, 32, 32)),
    function("upsample", lambda x: F.interpolate(x, scale_factor=2, mode="nearest") * 2, (2, 8, 16, 16)),
    function("matmul with epilogue", lambda x, w, b: F.gelu(x @ w.t() + b), (128, 256), (300, 256), (300,)),
    function("empty", lambda x: x + 1, (0, 5)),
    function("scalar", lambda x: x.sin() * 2, ()),
    function("many outputs", _many_outputs, (120, 130), train=False),
    function("mutated input", _mutates, (40, 50), (50,), train=False),
    function("views returned", lambda x: (x.t(), x[1:], (x * 2).view(-1)), (40, 50), train=False),
    function("host scalar", _host_scalar, (40, 50), train=False),
    function(
        "integers",
        lambda x: ((x * 10).long() // 3) % 5 + (x > 0).int(),
        (100, 50),
        train=False,
        dtypes=(torch.float32,),
    ),
)


class Block(nn.Module):
    """A transformer block with attention through SDPA."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Windows(nn.Module):
    """A norm of positions that attention then looks at by windows, of enough elements to sum over both axes at once."""

    def __init__(self, width: int = 96, side: int = 7) -> None:
        super().__init__()
        self.side, self.norm, self.out = side, nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, columns, width = x.shape
        shifted = self.norm(x).roll((-3, -3), (1, 2))
        windows = shifted.view(batch, height // self.side, self.side, columns // self.side, self.side, width)
        return self.out(windows.transpose(2, 3).reshape(-1, self.side**2, width))


class Language(nn.Module):
    """Embedding, two blocks, and the cross entropy of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        self.blocks = nn.Sequential(Block(128, 4), Block(128, 4))
        self.head = nn.Linear(128, 1000)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.blocks(self.embedding(tokens)))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2),
        nn.BatchNorm2d(32), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(300, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 10), nn.LogSoftmax(-1))


def model(name: str, build: Callable[[], nn.Module], make_input: Callable[[torch.dtype], Tensor]) -> Case:
    def make(dtype: torch.dtype) -> tuple[nn.Module, tuple[Tensor]]:
        torch.manual_seed(0)
        return build().to(DEVICE, dtype), (make_input(dtype),)

    return Case(name, make)


MODELS = (
    model("perceptron", perceptron, lambda dtype: randn(64, 300, dtype=dtype)),
    model("block", Block, lambda dtype: randn(4, 100, 256, dtype=dtype)),
    model("windows", Windows, lambda dtype: randn(16, 28, 28, 96, dtype=dtype)),
    model("language", Language, lambda dtype: torch.randint(0, 1000, (4, 65), device=DEVICE)),
    model("convolutions", convolutions, lambda dtype: randn(8, 3, 32, 32, dtype=dtype)),
)

CASES = FUNCTIONS + MODELS
