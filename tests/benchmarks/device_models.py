"""The models of ``models.py`` in sizes for a GPU, in a dtype and on a device of choice."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from tests.benchmarks import models
from tests.benchmarks.models import CausalLM, MaskedLM, Workload, _itself, _mean_square


@attrs.frozen
class Size:
    """How large the models are: ``layers`` and ``hidden`` of the transformers, ``batch`` x ``length`` tokens."""

    layers: int = 12
    hidden: int = 768
    batch: int = 8
    length: int = 512
    vocabulary: int = 30592
    images: int = 64
    pixels: int = 224
    elements: int = 1 << 27
    rows: int = 16384
    columns: int = 4096
    decoder_layers: int = 16
    decoder_hidden: int = 2048
    cache: int = 1024


TINY = Size(2, 64, 2, 16, 128, 2, 32, 1 << 12, 16, 32, 2, 128, 16)
"""To see on a CPU that every model runs."""


def bert(size: Size) -> Workload:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        intermediate_size=4 * size.hidden,
        max_position_embeddings=max(512, size.length),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    ids, labels = _ids(size), _ids(size)
    mask = torch.ones(size.batch, size.length, dtype=torch.int64)
    mask[1, size.length // 2 :] = 0
    return Workload(MaskedLM(BertForMaskedLM(config)), (ids, mask), (ids, mask, labels), _itself)


def gpt2(size: Size) -> Workload:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=size.vocabulary,
        n_positions=size.length,
        n_embd=size.hidden,
        n_layer=size.layers,
        n_head=size.hidden // 64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=1,
    )
    ids = _ids(size)
    return Workload(CausalLM(GPT2LMHeadModel(config)), (ids,), (ids, ids), _itself)


def llama(size: Size) -> Workload:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=8 * size.hidden // 3,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        num_key_value_heads=size.hidden // 64,
        max_position_embeddings=size.length,
    )
    ids = _ids(size)
    return Workload(CausalLM(LlamaForCausalLM(config)), (ids,), (ids, ids), _itself)


def opt(size: Size) -> Workload:
    """With a vocabulary that is no multiple of 8, as many published ones are."""
    from transformers import OPTConfig, OPTForCausalLM

    size = _with_odd_vocabulary(size)
    config = OPTConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        word_embed_proj_dim=size.hidden,
        ffn_dim=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.hidden // 64,
        max_position_embeddings=size.length,
        dropout=0.0,
        pad_token_id=1,
        bos_token_id=2,
        eos_token_id=2,
    )
    ids = _ids(size)
    return Workload(CausalLM(OPTForCausalLM(config)), (ids,), (ids, ids), _itself)


def qwen3(size: Size) -> Workload:
    """Heads of their own width, normed, and four queries a key."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    heads = max(size.hidden // 64, 1)
    config = Qwen3Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=3 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1),
        head_dim=128,
        max_position_embeddings=size.length,
    )
    ids = _ids(size)
    return Workload(CausalLM(Qwen3ForCausalLM(config)), (ids,), (ids, ids), _itself)


def mixtral(size: Size) -> Workload:
    """Eight experts, of which each token takes two."""
    from transformers import MixtralConfig, MixtralForCausalLM

    heads = max(size.hidden // 64, 1)
    config = MixtralConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=2 * size.hidden,
        num_hidden_layers=max(size.layers // 2, 1),
        num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1),
        max_position_embeddings=size.length,
        num_local_experts=8,
        sliding_window=None,
    )
    ids = _ids(size)
    return Workload(CausalLM(MixtralForCausalLM(config)), (ids,), (ids, ids), _itself)


def bart(size: Size) -> Workload:
    """With a vocabulary that is no multiple of 8, as the published one is."""
    from transformers import BartConfig, BartForConditionalGeneration

    size = _with_odd_vocabulary(size)
    half = max(size.layers // 2, 1)
    heads = size.hidden // 64
    config = BartConfig(
        vocab_size=size.vocabulary,
        d_model=size.hidden,
        encoder_layers=half,
        decoder_layers=half,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * size.hidden,
        decoder_ffn_dim=4 * size.hidden,
        max_position_embeddings=size.length,
        dropout=0.0,
    )
    ids, decoder_ids, labels = _ids(size), _ids(size), _ids(size)
    inputs = ids, decoder_ids
    return Workload(models.Seq2SeqLM(BartForConditionalGeneration(config)), inputs, (*inputs, labels), _itself)


def whisper(size: Size) -> Workload:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    half = max(size.layers // 2, 1)
    heads = size.hidden // 64
    config = WhisperConfig(
        vocab_size=size.vocabulary,
        d_model=size.hidden,
        encoder_layers=half,
        decoder_layers=half,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * size.hidden,
        decoder_ffn_dim=4 * size.hidden,
        max_source_positions=2 * size.length,
        max_target_positions=size.length,
        dropout=0.0,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        decoder_start_token_id=1,
    )
    inputs = torch.randn(size.batch, config.num_mel_bins, 4 * size.length), _ids(size)
    module = models.SpeechLM(WhisperForConditionalGeneration(config))
    return Workload(module, inputs, (*inputs, _ids(size)), _itself)


def swin(size: Size) -> Workload:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=size.pixels,
        depths=[2, 2, 6, 2] if size.pixels > 64 else [2, 2],
        num_heads=[3, 6, 12, 24] if size.pixels > 64 else [3, 6],
        window_size=7 if size.pixels > 64 else 4,
        drop_path_rate=0.0,
        num_labels=1000,
    )
    return _images(models.FirstOutput(SwinForImageClassification(config)), size)


def efficientnet(size: Size) -> Workload:
    """EfficientNet-B0, without the noise that training adds."""
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    config = EfficientNetConfig(
        image_size=size.pixels,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
        num_labels=1000,
        dropout_rate=0.0,
        drop_connect_rate=0.0,
    )
    return _images(models.FirstOutput(EfficientNetForImageClassification(config)), size)


def resnet50(size: Size) -> Workload:
    return _images(models.ResNet((3, 4, 6, 3), bottleneck=True, classes=1000), size)


def convnext_tiny(size: Size) -> Workload:
    return _images(models.ConvNeXt((3, 3, 9, 3), (96, 192, 384, 768)), size)


def vit_base(size: Size) -> Workload:
    import timm

    module = timm.create_model("vit_base_patch16_224", img_size=size.pixels, embed_dim=size.hidden, depth=size.layers)
    return _images(module, size)


def clip(size: Size) -> Workload:
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    ends = {"bos_token_id": 0, "eos_token_id": 1}
    text = CLIPTextConfig(vocab_size=size.vocabulary, max_position_embeddings=77, **ends, **_sides(size, 512))
    vision = CLIPVisionConfig(image_size=size.pixels, patch_size=16, **_sides(size, 768))
    module = models.CLIP(CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict())))
    ids = torch.randint(2, size.vocabulary, (size.batch, min(77, size.length)))
    ids[:, -1] = 1
    inputs = ids, torch.randn(size.batch, 3, size.pixels, size.pixels)
    return Workload(module, inputs, inputs, _mean_square)


def _sides(size: Size, most: int) -> dict[str, int]:
    width = min(size.hidden, most)
    heads = width // 64
    return {
        "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": size.layers,
        "num_attention_heads": heads,
    }  # fmt: skip


def decode(size: Size) -> Workload:
    """One token of a decoder whose cache is half full."""
    module = models.Decoder(size.decoder_layers, size.decoder_hidden, size.vocabulary, size.cache)
    inputs = torch.randint(0, size.vocabulary, (1,)), torch.tensor([size.cache // 2])
    return Workload(module, inputs, inputs, _mean_square)


def dlrm(size: Size) -> Workload:
    del size
    dense, sparse = torch.randn(2048, 13), torch.randint(0, 2000, (2048, 8, 4))
    return Workload(models.DLRM(), (dense, sparse), (dense, sparse), _mean_square)


def nested(size: Size) -> Workload:
    del size
    return models.nested()


def pointwise(size: Size) -> Workload:
    columns = 1 << (int(math.log2(size.elements)) // 2)
    x = torch.randn(size.elements // columns, columns)
    return Workload(models.PointwiseChain(columns), (x,), (x,), _mean_square)


def layer_norm(size: Size) -> Workload:
    x, residual = torch.randn(size.rows, size.columns), torch.randn(size.rows, size.columns)
    return Workload(models.LayerNormBlock(size.columns), (x, residual), (x, residual), _mean_square)


def _with_odd_vocabulary(size: Size) -> Size:
    return attrs.evolve(size, vocabulary=size.vocabulary - 7)


def _ids(size: Size) -> Tensor:
    return torch.randint(0, size.vocabulary, (size.batch, size.length))


def _images(module: nn.Module, size: Size) -> Workload:
    images = torch.randn(size.images, 3, size.pixels, size.pixels)
    return Workload(module, (images,), (images,), _mean_square)


MODELS: dict[str, Callable[[Size], Workload]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "opt": opt,
    "qwen3": qwen3,
    "mixtral": mixtral,
    "bart": bart,
    "whisper": whisper,
    "swin": swin,
    "efficientnet": efficientnet,
    "resnet50": resnet50,
    "convnext_tiny": convnext_tiny,
    "vit_base": vit_base,
    "clip": clip,
    "decode": decode,
    "dlrm": dlrm,
    "nested": nested,
    "pointwise": pointwise,
    "layer_norm": layer_norm,
}


INFERENCE_ALONE = frozenset({"decode"})
"""Models that nobody trains as they are called here."""


def build(name: str, size: Size, training: bool, device: str, dtype: torch.dtype) -> Workload:
    """A model with weights rounded to ``dtype``; seeded.  Raises ``KeyError`` for an unknown name."""
    if name not in MODELS:
        raise KeyError(f"no model {name!r}; known: {', '.join(MODELS)}")
    torch.manual_seed(0)
    workload = MODELS[name](size)
    workload.module.train(training)
    return moved(workload, device, dtype)


def moved(workload: Workload, device: str, dtype: torch.dtype) -> Workload:
    """The same module on a device in a dtype, with the inputs."""

    def to(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(v.to(device, dtype if v.is_floating_point() else v.dtype) for v in values)

    return Workload(workload.module.to(device, dtype), to(workload.inputs), to(workload.training_inputs), workload.loss)
