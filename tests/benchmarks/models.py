"""Models that the benchmarks compile: random weights, float32, sized so that two CPU cores run a step in well
under a second.

``MODELS`` maps a name to a builder; ``build(name)`` seeds torch and returns a ``Workload``.  A name may carry
the number of layers, ``bert-2``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@attrs.frozen(eq=False)
class Workload:
    """A module with the inputs of its inference call and of its training call.

    ``module(*inputs)`` returns the tensors that inference is judged by.  ``loss(module(*training_inputs))`` is
    the scalar that training differentiates; language models compute it inside the module, where it is compiled.
    """

    module: nn.Module
    inputs: tuple[Any, ...]
    training_inputs: tuple[Any, ...]
    loss: Callable[[Any], Tensor]


def _mean_square(output: Any) -> Tensor:
    tensors = output if isinstance(output, (tuple, list)) else (output,)
    return sum(t.float().square().mean() for t in tensors)  # type: ignore[return-value]


def _itself(output: Any) -> Tensor:
    return output


# -- transformers ------------------------------------------------------------------------------------------------


class CausalLM(nn.Module):
    """Logits of a causal language model, or its loss when labels are given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = self.model(input_ids=ids, use_cache=False, return_dict=False)[0]
        if labels is None:
            return logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class MaskedLM(nn.Module):
    """Logits of an encoder with a language-model head, or its loss when labels are given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = self.model(input_ids=ids, attention_mask=mask, return_dict=False)[0]
        if labels is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Seq2SeqLM(nn.Module):
    """Logits of an encoder-decoder, or its loss when labels are given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, decoder_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = self.model(input_ids=ids, decoder_input_ids=decoder_ids, use_cache=False, return_dict=False)[0]
        if labels is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class SpeechLM(nn.Module):
    """Logits of a model from spectrograms to text, or its loss when labels are given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, spectrograms: Tensor, ids: Tensor, labels: Tensor | None = None) -> Tensor:
        named = {"input_features": spectrograms, "decoder_input_ids": ids, "use_cache": False, "return_dict": False}
        logits = self.model(**named)[0]
        if labels is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class FirstOutput(nn.Module):
    """A transformers model called with one positional tensor, returning its first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x, return_dict=False)[0]


_HIDDEN, _HEADS, _VOCABULARY, _BATCH, _LENGTH = 256, 4, 4096, 4, 128


class CLIP(nn.Module):
    """Similarities of images and texts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, images: Tensor) -> Tensor:
        return self.model(input_ids=ids, pixel_values=images, return_dict=False)[0]


class DecoderBlock(nn.Module):
    """A layer of a Llama-like decoder for one token of one sequence; keys and values so far lie in static buffers."""

    def __init__(self, hidden: int, cache: int) -> None:
        super().__init__()
        self.heads = hidden // 64
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, hidden, bias=False)
        self.up, self.down = nn.Linear(hidden, 6 * hidden, bias=False), nn.Linear(3 * hidden, hidden, bias=False)
        self.first, self.second = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.register_buffer("keys", torch.randn(self.heads, cache, 64))
        self.register_buffer("values", torch.randn(self.heads, cache, 64))

    def forward(self, x: Tensor, position: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).view(3, self.heads, 1, 64).unbind(0)
        q, k = (t * cos + torch.cat([-t[..., 32:], t[..., :32]], -1) * sin for t in (q, k))
        self.keys.index_copy_(1, position, k)
        self.values.index_copy_(1, position, v)
        attended = F.scaled_dot_product_attention(q[None], self.keys[None], self.values[None], attn_mask=mask)
        x = x + self.out(attended.reshape(1, -1))
        gate, up = self.up(self.second(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    """Logits of the token after the one at ``position``: a decode step over a static cache."""

    def __init__(self, layers: int, hidden: int, vocabulary: int, cache: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, hidden), nn.Linear(hidden, vocabulary, bias=False)
        self.blocks = nn.ModuleList(DecoderBlock(hidden, cache) for _ in range(layers))
        self.norm = nn.RMSNorm(hidden)
        angles = torch.outer(torch.arange(cache).float(), 10000 ** (-torch.arange(0, 64, 2) / 64)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("places", torch.arange(cache))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        x, cos, sin = self.embedding(token), self.cos[position], self.sin[position]
        mask = (self.places <= position)[None]
        for block in self.blocks:
            x = block(x, position, cos, sin, mask)
        return self.head(self.norm(x))


def _ids(length: int = _LENGTH) -> Tensor:
    return torch.randint(0, _VOCABULARY, (_BATCH, length))


def bert(layers: int = 12) -> Workload:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _HIDDEN,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    ids, mask = _ids(), torch.ones(_BATCH, _LENGTH, dtype=torch.int64)
    mask[1, _LENGTH // 2 :] = 0
    return Workload(MaskedLM(BertForMaskedLM(config)), (ids, mask), (ids, mask, _ids()), _itself)


def gpt2(layers: int = 12) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=_VOCABULARY,
        n_positions=2 * _LENGTH,
        n_embd=_HIDDEN,
        n_layer=layers,
        n_head=_HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=1,
    )
    ids = _ids()
    return Workload(CausalLM(GPT2LMHeadModel(config)), (ids,), (ids, ids), _itself)


def llama(layers: int = 12) -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=704,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS // 2,
        max_position_embeddings=2 * _LENGTH,
    )
    ids = _ids()
    return Workload(CausalLM(LlamaForCausalLM(config)), (ids,), (ids, ids), _itself)


def t5(layers: int = 6) -> Workload:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=_VOCABULARY,
        d_model=_HIDDEN,
        d_kv=_HIDDEN // _HEADS,
        d_ff=4 * _HIDDEN,
        num_layers=layers,
        num_heads=_HEADS,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    ids, decoder_ids = _ids(), _ids(_LENGTH // 2)
    module = Seq2SeqLM(T5ForConditionalGeneration(config))
    return Workload(module, (ids, decoder_ids), (ids, decoder_ids, _ids(_LENGTH // 2)), _itself)


def vit(layers: int = 12) -> Workload:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=_HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        intermediate_size=4 * _HIDDEN,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        image_size=128,
        patch_size=16,
        num_labels=100,
    )
    images = torch.randn(_BATCH, 3, 128, 128)
    return Workload(FirstOutput(ViTForImageClassification(config)), (images,), (images,), _mean_square)


# -- convolutional ----------------------------------------------------------------------------------------------


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions, or a 1x1-3x3-1x1 bottleneck, around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            layers = [_conv_bn(inputs, width, 1), _conv_bn(width, width, 3, stride), _conv_bn(width, outputs, 1)]
        else:
            layers = [_conv_bn(inputs, width, 3, stride), _conv_bn(width, outputs, 3)]
        nn.init.constant_(layers[-1][1].weight, 0.02)
        self.layers = nn.ModuleList(layers)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else _conv_bn(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return F.relu(self.layers[-1](x) + shortcut)


class ResNet(nn.Module):
    """The residual network for images of He et al., 2015.

    The last norm of each block starts at a small scale, as is usual; from a start at 1 the gradients of a deep
    one are so ill-conditioned that two correct float32 runs differ by a percent.
    """

    def __init__(self, blocks: tuple[int, ...], bottleneck: bool, classes: int = 100) -> None:
        super().__init__()
        self.stem = _conv_bn(3, 64, 7, 2)
        stages: list[nn.Module] = []
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 << stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(ResidualBlock(inputs, width, stride, bottleneck))
                inputs = 4 * width if bottleneck else width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        x = self.stages(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet18() -> Workload:
    images = torch.randn(_BATCH, 3, 96, 96)
    return Workload(ResNet((2, 2, 2, 2), bottleneck=False), (images,), (images,), _mean_square)


def resnet50() -> Workload:
    images = torch.randn(_BATCH, 3, 96, 96)
    return Workload(ResNet((3, 4, 6, 3), bottleneck=True), (images,), (images,), _mean_square)


class UNet(nn.Module):
    """Encoder and decoder with skips, group norm and SiLU, upsampling by interpolation."""

    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(depth)]
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(self._block(w, min(2 * w, widths[-1])) for w in widths)
        self.middle = self._block(widths[-1], widths[-1])
        self.up = nn.ModuleList(self._block(2 * min(2 * w, widths[-1]), w) for w in reversed(widths))
        self.head = nn.Conv2d(width, 3, 1)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            skip = skips.pop()
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            if x.shape[1] != skip.shape[1]:
                x = x.repeat(1, skip.shape[1] // x.shape[1], 1, 1)
            x = block(torch.cat((x, skip), dim=1))
        return self.head(x)


def unet() -> Workload:
    images = torch.randn(2, 3, 64, 64)
    return Workload(UNet(), (images,), (images,), _mean_square)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7 convolution, layer norm over channels, pointwise MLP with GELU, layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.expand = nn.Linear(width, 4 * width)
        self.project = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.project(F.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """A small ConvNeXt (Liu et al., 2022)."""

    def __init__(self, depths: tuple[int, ...] = (2, 2, 4, 2), widths: tuple[int, ...] = (48, 96, 192, 384)) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, stride=4), nn.GroupNorm(1, widths[0])]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            if stage:
                layers += [nn.GroupNorm(1, widths[stage - 1]), nn.Conv2d(widths[stage - 1], width, 2, stride=2)]
            layers += [ConvNeXtBlock(width) for _ in range(depth)]
        self.stages = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(widths[-1])
        self.head = nn.Linear(widths[-1], 100)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stages(x).mean((2, 3))))


def convnext() -> Workload:
    images = torch.randn(_BATCH, 3, 128, 128)
    return Workload(ConvNeXt(), (images,), (images,), _mean_square)


# -- recurrent, recommendation, small ---------------------------------------------------------------------------


class LSTMClassifier(nn.Module):
    """Embedding, two-layer LSTM, linear head on the last step."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, hidden)
        self.lstm = nn.LSTM(hidden, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 32)

    def forward(self, ids: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(ids))
        return self.head(torch.tanh(states[:, -1]))


def lstm() -> Workload:
    ids = torch.randint(0, _VOCABULARY, (8, 32))
    return Workload(LSTMClassifier(), (ids,), (ids,), _mean_square)


class DLRM(nn.Module):
    """Deep learning recommendation model (Naumov et al., 2019): embedding bags, pairwise dots, two MLPs."""

    def __init__(self, dense: int = 13, tables: int = 8, rows: int = 2000, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = self._mlp(dense, 128, 64, width)
        interactions = (tables + 1) * tables // 2
        self.top = self._mlp(width + interactions, 128, 64, 1)
        row, column = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("row", row)
        self.register_buffer("column", column)

    @staticmethod
    def _mlp(*widths: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = F.relu(self.bottom(dense))
        features = torch.stack([x, *(table(sparse[:, i]) for i, table in enumerate(self.tables))], dim=1)
        dots = torch.bmm(features, features.transpose(1, 2))[:, self.row, self.column]
        return torch.sigmoid(self.top(torch.cat((x, dots), dim=1)))


def dlrm() -> Workload:
    dense, sparse = torch.randn(512, 13), torch.randint(0, 2000, (512, 8, 4))
    return Workload(DLRM(), (dense, sparse), (dense, sparse), _mean_square)


class PointwiseChain(nn.Module):
    """Transcendental functions in a row over one large tensor, with a learned scale and shift."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))
        self.shift = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin(x) * torch.erf(x) + torch.exp(-x.abs())
        y = torch.tanh(y * self.scale + self.shift)
        return y * torch.sigmoid(x) + F.gelu(y)


def pointwise() -> Workload:
    x = torch.randn(1024, 1024)
    return Workload(PointwiseChain(), (x,), (x,), _mean_square)


class NestedModule(nn.Module):
    """Deeply nested small linears: a call costs mostly guards and dispatch."""

    def __init__(self, depth: int = 4, width: int = 3, features: int = 2) -> None:
        super().__init__()
        self.before = nn.Linear(features, features)
        self.after = nn.Linear(features, features)
        inner = [NestedModule(depth - 1, width, features) if depth else nn.Linear(features, features)
                 for _ in range(width)]  # fmt: skip
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        x = x + self.inner(x)
        return x + self.after(x)


def nested() -> Workload:
    x = torch.randn(1, 2)
    return Workload(NestedModule(), (x,), (x,), _mean_square)


class LayerNormBlock(nn.Module):
    """Residual add, layer norm, GELU and scale: the memory-bound part of a transformer."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        total = x + residual
        return F.gelu(self.norm(total)) * self.scale, total


def layer_norm() -> Workload:
    x, residual = torch.randn(8, 256, 768), torch.randn(8, 256, 768)
    return Workload(LayerNormBlock(), (x, residual), (x, residual), _mean_square)


class WidthBlock(nn.Module):
    """Layer norm and an MLP beside a linear shortcut, from one width to another."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        self.up, self.down = nn.Linear(inputs, 2 * inputs), nn.Linear(2 * inputs, outputs)
        self.shortcut = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.down(F.gelu(self.up(self.norm(x))))


def _width_blocks(widths: list[int]) -> Workload:
    x = torch.randn(64, widths[0])
    return Workload(nn.Sequential(*itertools.starmap(WidthBlock, itertools.pairwise(widths))), (x,), (x,), _mean_square)


def equal_blocks(layers: int = 16) -> Workload:
    return _width_blocks([128] * (layers + 1))


def unequal_blocks(layers: int = 16) -> Workload:
    """No two blocks have a matrix of one shape."""
    return _width_blocks([64 + 4 * number for number in range(layers + 1)])


MODELS: dict[str, Callable[..., Workload]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": vit,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "unet": unet,
    "lstm": lstm,
    "dlrm": dlrm,
    "pointwise": pointwise,
    "convnext": convnext,
    "nested": nested,
    "layer_norm": layer_norm,
}

BLOCKS: dict[str, Callable[..., Workload]] = {"equal_blocks": equal_blocks, "unequal_blocks": unequal_blocks}
"""Models of any number of blocks, which compile time is measured on."""

LAYERED = frozenset({"bert", "gpt2", "llama", "t5", "vit", *BLOCKS})
"""Models whose builder takes the number of layers."""


def build(name: str, *, training: bool = False, seed: int = 0) -> Workload:
    """Build a model by name (``"bert"``, or ``"bert-2"`` for two layers), in training or in eval mode.

    Raises ``KeyError`` for an unknown name.
    """
    base, _, layers = name.partition("-")
    known_models = {**MODELS, **BLOCKS}
    if base not in known_models or (layers and base not in LAYERED):
        known = f"known: {', '.join(known_models)}; with layers, as in bert-2: {', '.join(sorted(LAYERED))}"
        raise KeyError(f"no model {name!r}; {known}")
    torch.manual_seed(seed)
    make = known_models[base]
    workload = make(int(layers)) if layers else make()
    workload.module.train(training)
    return workload
