"""Small models, each with the inputs of a step: the ones that libraries bring come last."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@attrs.frozen
class Model:
    """``make()`` gives the module, ``inputs()`` those of a call, on the CPU; ``library``: what has to be installed."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    library: str = ""


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def _tokens(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(1))


class Residual(nn.Module):
    """Two convolutions with batch norm and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(y)))


class Attention(nn.Module):
    """A block of a transformer: attention under a causal mask, and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = parts.unbind(0)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        attended = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.between(x))))


class Recurrent(nn.Module):
    """A gated cell over the steps of a sequence, of embedded tokens."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.gate, self.update = nn.Linear(2 * width, width), nn.Linear(2 * width, width)
        self.read = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        embedded = self.embedding(tokens)
        state = embedded.new_zeros(embedded.shape[0], embedded.shape[-1])
        for step in embedded.unbind(1):
            both = torch.cat((state, step), -1)
            gate = torch.sigmoid(self.gate(both))
            state = gate * state + (1 - gate) * torch.tanh(self.update(both))
        return self.read(state).log_softmax(-1)


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))


def _convolutions() -> nn.Module:
    layers = nn.Conv2d(3, 8, 3, stride=2, padding=1), Residual(8), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 5))


def _transformer() -> nn.Module:
    return nn.Sequential(nn.Embedding(32, 16), Attention(16, 2), Attention(16, 2), nn.Linear(16, 32))


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        intermediate_size=64,
    )
    return BertModel(config)


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=32,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def _resnet() -> nn.Module:
    import timm  # pyright: ignore[reportMissingImports] - for who has it

    return timm.create_model("resnet18", num_classes=10)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("perceptron", _perceptron, lambda: (_random(8, 6),)),
        Model("convolutions", _convolutions, lambda: (_random(4, 3, 16, 16),)),
        Model("transformer", _transformer, lambda: (_tokens(32, 2, 12),)),
        Model("recurrent", lambda: Recurrent(20, 12), lambda: (_tokens(20, 3, 5),)),
        Model("bert", _bert, lambda: (_tokens(64, 2, 12),), "transformers"),
        Model("gpt2", _gpt2, lambda: (_tokens(64, 2, 12),), "transformers"),
        Model("resnet18", _resnet, lambda: (_random(2, 3, 64, 64),), "timm"),
    )
}
"""The models by name, the quick ones first."""
