"""Architectures of transformers in small: configurations of random weights, and inputs for a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch

VOCABULARY = 99


@attrs.frozen
class Sizes:
    """Rows, tokens a row, samples of sound a row."""

    batch: int = 2
    length: int = 16
    samples: int = 1024


SIZES, OTHER_SIZES = Sizes(), Sizes(batch=3, length=24, samples=1280)


def text(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Tokens, the second row padded."""
    mask = torch.ones(sizes.batch, sizes.length, dtype=torch.long)
    mask[1, -4:] = 0
    return {"input_ids": torch.randint(3, VOCABULARY, (sizes.batch, sizes.length)), "attention_mask": mask}


def tokens(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Tokens alone."""
    return {"input_ids": torch.randint(3, VOCABULARY, (sizes.batch, sizes.length))}


def two_texts(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    """What an encoder reads and what a decoder has written so far."""
    return text(config, sizes) | {"decoder_input_ids": torch.randint(3, VOCABULARY, (sizes.batch, 8))}


def image(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Images of the configuration's size, else 32 x 32."""
    size = getattr(config, "image_size", 32)
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    return {"pixel_values": torch.randn(sizes.batch, getattr(config, "num_channels", 3), height, width)}


def wave(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    """A second or so of sound."""
    return {"input_values": torch.randn(sizes.batch, sizes.samples)}


def spectrum(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Mel features for Whisper, and what it has written so far."""
    frames = 2 * config.max_source_positions
    features = torch.randn(sizes.batch, config.num_mel_bins, frames)
    return {"input_features": features, "decoder_input_ids": torch.randint(3, VOCABULARY, (sizes.batch, 8))}


def patches(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Mel features for the audio spectrogram transformer."""
    return {"input_values": torch.randn(sizes.batch, config.max_length, config.num_mel_bins)}


def text_and_image(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    """One text and one image a row."""
    return text(config, sizes) | image(config.vision_config, sizes)


def series(config: Any, sizes: Sizes) -> dict[str, torch.Tensor]:
    """Past values of several channels."""
    return {"past_values": torch.randn(sizes.batch, config.context_length, config.num_input_channels)}


@attrs.frozen
class Architecture:
    """One model class of transformers with a configuration in small.

    ``config`` are keyword arguments of ``model``'s configuration class; ``inputs`` makes those of a call.
    """

    kind: str
    model: str
    inputs: Callable[[Any, Sizes], dict[str, torch.Tensor]] = text
    config: dict[str, Any] = attrs.field(factory=dict)

    def build(self, attention: str | None = None) -> torch.nn.Module:
        """The model for inference, with the same random weights each time.

        Raises ``AttributeError`` where this version of transformers has no such model.
        """
        import transformers

        cls = getattr(transformers, self.model)
        torch.manual_seed(0)
        config = cls.config_class(**self.config)
        if attention is not None:
            config._attn_implementation = attention
        return cls(config).eval()


_ENCODER = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
_DECODER = _ENCODER | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_PAIR = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
_T5 = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_SOUND = {
    "vocab_size": 32, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "conv_dim": (32, 32, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3), "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0,
}  # fmt: skip
_TOWERS = {
    "text_config": _ENCODER | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}, "vision_config": _VISION,
}  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {
    # Encoders.
    "bert": Architecture("encoder", "BertModel", config=_ENCODER),
    "bert-mlm": Architecture("encoder", "BertForMaskedLM", config=_ENCODER),
    "roberta": Architecture("encoder", "RobertaModel", config=_ENCODER | {"pad_token_id": 1}),
    "xlm-roberta": Architecture("encoder", "XLMRobertaModel", config=_ENCODER | {"pad_token_id": 1}),
    "distilbert": Architecture(
        "encoder", "DistilBertModel", config={"vocab_size": VOCABULARY, "dim": 32, "n_layers": 2, "n_heads": 4,
        "hidden_dim": 64, "max_position_embeddings": 64},
    ),
    "albert": Architecture("encoder", "AlbertModel", config=_ENCODER | {"embedding_size": 16}),
    "electra": Architecture("encoder", "ElectraModel", config=_ENCODER | {"embedding_size": 16}),
    "deberta-v2": Architecture(
        "encoder", "DebertaV2Model", config=_ENCODER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8, "max_relative_positions": 16},
    ),
    "mpnet": Architecture("encoder", "MPNetModel", config=_ENCODER),
    "longformer": Architecture("encoder", "LongformerModel", config=_ENCODER | {"attention_window": 8}),
    "modernbert": Architecture("encoder", "ModernBertModel", config=_ENCODER | {"pad_token_id": 0}),
    "xlnet": Architecture(
        "encoder", "XLNetModel", config={"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4,
        "d_inner": 64},
    ),
    "funnel": Architecture(
        "encoder", "FunnelModel", config={"vocab_size": VOCABULARY, "d_model": 32, "n_head": 4, "d_head": 8,
        "d_inner": 64, "block_sizes": [1, 1], "num_decoder_layers": 1},
    ),
    "fnet": Architecture("encoder", "FNetModel", tokens, config={k: v for k, v in _ENCODER.items()
        if k != "num_attention_heads"}),
    "squeezebert": Architecture("encoder", "SqueezeBertModel", config=_ENCODER | {"embedding_size": 32}),
    # Decoders.
    "gpt2": Architecture(
        "decoder", "GPT2LMHeadModel", config={"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "gpt-neo": Architecture(
        "decoder", "GPTNeoForCausalLM", config={"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2,
        "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8,
        "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "gptj": Architecture(
        "decoder", "GPTJForCausalLM", config={"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "n_positions": 64, "rotary_dim": 4, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "gpt-neox": Architecture("decoder", "GPTNeoXForCausalLM", config=_ENCODER),
    "opt": Architecture(
        "decoder", "OPTForCausalLM", config={"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "ffn_dim": 64, "max_position_embeddings": 64, "word_embed_proj_dim": 32},
    ),
    "bloom": Architecture(
        "decoder", "BloomForCausalLM", config={"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2,
        "n_head": 4},
    ),
    "llama": Architecture("decoder", "LlamaForCausalLM", config=_DECODER),
    "mistral": Architecture("decoder", "MistralForCausalLM", config=_DECODER | {"sliding_window": 8}),
    "qwen2": Architecture("decoder", "Qwen2ForCausalLM", config=_DECODER),
    "qwen3": Architecture("decoder", "Qwen3ForCausalLM", config=_DECODER | {"head_dim": 8}),
    "gemma": Architecture("decoder", "GemmaForCausalLM", config=_DECODER | {"head_dim": 8}),
    "gemma2": Architecture("decoder", "Gemma2ForCausalLM", config=_DECODER | {"head_dim": 8, "sliding_window": 8}),
    "gemma3": Architecture(
        "decoder", "Gemma3ForCausalLM", config=_DECODER | {"head_dim": 8, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi": Architecture("decoder", "PhiForCausalLM", config=_DECODER),
    "phi3": Architecture("decoder", "Phi3ForCausalLM", config=_DECODER | {"original_max_position_embeddings": 64}),
    "falcon": Architecture("decoder", "FalconForCausalLM", config=_ENCODER | {"bos_token_id": 1, "eos_token_id": 2}),
    "stablelm": Architecture("decoder", "StableLmForCausalLM", config=_DECODER),
    "olmo": Architecture("decoder", "OlmoForCausalLM", config=_DECODER),
    "olmo2": Architecture("decoder", "Olmo2ForCausalLM", config=_DECODER),
    "starcoder2": Architecture("decoder", "Starcoder2ForCausalLM", config=_DECODER),
    "granite": Architecture("decoder", "GraniteForCausalLM", config=_DECODER),
    "cohere": Architecture("decoder", "CohereForCausalLM", config=_DECODER),
    "smollm3": Architecture("decoder", "SmolLM3ForCausalLM", config=_DECODER),
    "mpt": Architecture(
        "decoder", "MptForCausalLM", config={"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4,
        "max_seq_len": 64, "expansion_ratio": 2},
    ),
    "codegen": Architecture(
        "decoder", "CodeGenForCausalLM", config={"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4,
        "n_positions": 64, "rotary_dim": 4, "bos_token_id": 1, "eos_token_id": 2},
    ),
    # Mixtures of experts.
    "mixtral": Architecture(
        "experts", "MixtralForCausalLM", config=_DECODER | {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen2-moe": Architecture(
        "experts", "Qwen2MoeForCausalLM", config=_DECODER | _EXPERTS | {"shared_expert_intermediate_size": 32},
    ),
    "qwen3-moe": Architecture("experts", "Qwen3MoeForCausalLM", config=_DECODER | _EXPERTS | {"head_dim": 8}),
    "olmoe": Architecture("experts", "OlmoeForCausalLM", config=_DECODER | {"num_experts": 4,
        "num_experts_per_tok": 2}),
    "dbrx": Architecture(
        "experts", "DbrxForCausalLM", config={"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4,
        "max_seq_len": 64, "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32}},
    ),
    "gpt-oss": Architecture(
        "experts", "GptOssForCausalLM", config=_DECODER | {"head_dim": 8, "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "deepseek-v3": Architecture(
        "experts", "DeepseekV3ForCausalLM", config=_DECODER | {"num_key_value_heads": 4, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_group": 2,
        "topk_group": 1},
    ),
    # Encoders with decoders.
    "t5": Architecture("encoder-decoder", "T5ForConditionalGeneration", two_texts, _T5),
    "mt5": Architecture("encoder-decoder", "MT5ForConditionalGeneration", two_texts, _T5),
    "bart": Architecture("encoder-decoder", "BartForConditionalGeneration", two_texts, _PAIR),
    "mbart": Architecture("encoder-decoder", "MBartForConditionalGeneration", two_texts, _PAIR),
    "pegasus": Architecture("encoder-decoder", "PegasusForConditionalGeneration", two_texts, _PAIR),
    "marian": Architecture("encoder-decoder", "MarianMTModel", two_texts, _PAIR),
    "m2m100": Architecture("encoder-decoder", "M2M100ForConditionalGeneration", two_texts, _PAIR),
    "prophetnet": Architecture(
        "encoder-decoder", "ProphetNetModel", two_texts, {"vocab_size": VOCABULARY, "hidden_size": 32,
        "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
        "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "led": Architecture(
        "encoder-decoder", "LEDForConditionalGeneration", two_texts, _PAIR | {"attention_window": 8,
        "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
    ),
    # Vision.
    "vit": Architecture("vision", "ViTModel", image, _VISION),
    "deit": Architecture("vision", "DeiTModel", image, _VISION),
    "beit": Architecture("vision", "BeitModel", image, _VISION | {"use_relative_position_bias": True,
        "out_indices": [1]}),
    "swin": Architecture(
        "vision", "SwinModel", image, {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2],
        "num_heads": [2, 4], "window_size": 4},
    ),
    "swinv2": Architecture(
        "vision", "Swinv2Model", image, {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2],
        "num_heads": [2, 4], "window_size": 4},
    ),
    "convnext": Architecture("vision", "ConvNextModel", image, {"hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 2, 1], "image_size": 64}),
    "segformer": Architecture(
        "vision", "SegformerForSemanticSegmentation", image, {"image_size": 64, "hidden_sizes": [16, 16, 32, 32],
        "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16},
    ),
    "dinov2": Architecture("vision", "Dinov2Model", image, _VISION),
    "resnet": Architecture("vision", "ResNetModel", image, {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1]}),
    "mobilevit": Architecture("vision", "MobileViTModel", image, {"image_size": 64, "patch_size": 2,
        "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32]}),
    "pvt-v2": Architecture("vision", "PvtV2Model", image, {"image_size": 64, "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]}),
    "yolos": Architecture("vision", "YolosModel", image, _VISION | {"image_size": [32, 32],
        "num_detection_tokens": 4}),
    "levit": Architecture("vision", "LevitModel", image, {"image_size": 64, "hidden_sizes": [16, 24, 32],
        "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}),
    # Text and images.
    "clip": Architecture("text-image", "CLIPModel", text_and_image, _TOWERS | {"projection_dim": 16}),
    "siglip": Architecture("text-image", "SiglipModel", text_and_image, _TOWERS),
    "blip": Architecture("text-image", "BlipModel", text_and_image, _TOWERS | {"projection_dim": 16}),
    "vilt": Architecture("text-image", "ViltModel", lambda config, sizes: text(config, sizes) | image(config, sizes),
        _ENCODER | {"image_size": 32, "patch_size": 8}),
    # Sound.
    "wav2vec2": Architecture("audio", "Wav2Vec2Model", wave, _SOUND),
    "hubert": Architecture("audio", "HubertModel", wave, _SOUND),
    "wavlm": Architecture("audio", "WavLMModel", wave, _SOUND),
    "whisper": Architecture(
        "audio", "WhisperForConditionalGeneration", spectrum, {k: v for k, v in _PAIR.items()
        if k != "max_position_embeddings"} | {"num_mel_bins": 8, "max_source_positions": 16,
        "max_target_positions": 32, "suppress_tokens": None, "begin_suppress_tokens": None},
    ),
    "ast": Architecture("audio", "ASTModel", patches, {k: v for k, v in _VISION.items() if k != "image_size"}
        | {"patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": 16, "num_mel_bins": 16}),
    # State spaces and recurrence.
    "mamba": Architecture(
        "state-space", "MambaForCausalLM", tokens, {"vocab_size": VOCABULARY, "hidden_size": 32,
        "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "mamba2": Architecture(
        "state-space", "Mamba2ForCausalLM", tokens, {"vocab_size": VOCABULARY, "hidden_size": 32,
        "num_hidden_layers": 2, "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "falcon-mamba": Architecture(
        "state-space", "FalconMambaForCausalLM", tokens, {"vocab_size": VOCABULARY, "hidden_size": 32,
        "num_hidden_layers": 2, "state_size": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "rwkv": Architecture(
        "state-space", "RwkvForCausalLM", tokens, {"vocab_size": VOCABULARY, "hidden_size": 32,
        "num_hidden_layers": 2, "attention_hidden_size": 32, "context_length": 64},
    ),
    "xlstm": Architecture(
        "state-space", "xLSTMForCausalLM", tokens, {"vocab_size": VOCABULARY, "hidden_size": 32,
        "num_hidden_layers": 2, "num_heads": 2, "chunk_size": 8, "use_cache": False},
    ),
    "recurrent-gemma": Architecture(
        "state-space", "RecurrentGemmaForCausalLM", tokens, _DECODER | {"lru_width": 32,
        "attention_window_size": 8, "block_types": ["recurrent", "attention"]},
    ),
    "jamba": Architecture(
        "state-space", "JambaForCausalLM", text, _DECODER | {"mamba_d_state": 4, "mamba_dt_rank": 4,
        "use_mamba_kernels": False, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
        "expert_layer_offset": 1, "num_experts": 4},
    ),
    # Time series.
    "patchtst": Architecture("series", "PatchTSTModel", series, {"num_input_channels": 2, "context_length": 16,
        "patch_length": 4, "patch_stride": 4, "num_hidden_layers": 2, "d_model": 16, "num_attention_heads": 2,
        "ffn_dim": 32}),
}  # fmt: skip
"""Of each family one or more; names are keys of the command line."""
