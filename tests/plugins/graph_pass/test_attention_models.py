"""Attention as transformers writes it out, in models of its own: one call a layer, and results as eager's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import turret
from tests.plugins.graph_pass.test_attention import Calls

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.thorough

LENGTH = 72
HOW = {"attn_implementation": "eager"}


@pytest.fixture(autouse=True)
def forget_what_was_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **HOW,
    ))  # fmt: skip


def gpt2() -> Any:
    return transformers.GPT2Model(transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=2, vocab_size=100, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=1, use_cache=False, **HOW,
    ))  # fmt: skip


def llama() -> Any:
    return transformers.LlamaModel(transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        vocab_size=100, use_cache=False, **HOW,
    ))  # fmt: skip


def t5() -> Any:
    return transformers.T5EncoderModel(transformers.T5Config(
        d_model=64, d_kv=16, num_layers=2, num_heads=4, d_ff=64, vocab_size=100, dropout_rate=0.0, **HOW,
    ))  # fmt: skip


def bart() -> Any:
    return transformers.BartModel(transformers.BartConfig(
        d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=64, decoder_ffn_dim=64, vocab_size=100, dropout=0.0, use_cache=False, **HOW,
    ))  # fmt: skip


WITHOUT_MASK = {bert: ["plain"] * 2, gpt2: ["causal"] * 2, llama: ["causal"] * 2, t5: ["masked"] * 2}
WITHOUT_MASK |= {bart: ["plain", "causal", "plain"]}
WITH_MASK = {bert: ["masked"] * 2, gpt2: ["masked"] * 2, llama: ["masked"] * 2, t5: ["masked"] * 2}
WITH_MASK |= {bart: ["masked", "causal", "masked"]}  # the decoder's tokens have no padding


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("build", [bert, gpt2, llama, t5, bart], ids=lambda f: f.__name__)
def test_inference(build: Callable[[], Any], padded: bool) -> None:
    torch.manual_seed(0)
    model, calls = build().eval(), Calls()
    given = {"input_ids": torch.randint(2, 100, (2, LENGTH))}
    if padded:
        given["attention_mask"] = torch.ones(2, LENGTH, dtype=torch.int64)
        given["attention_mask"][1, :30] = 0
    with torch.no_grad():
        want = model(**given).last_hidden_state
        made = turret.compile(model, plugins=[calls], options={"on_error": "raise", "cache": False})
        torch.testing.assert_close(made(**given).last_hidden_state, want, rtol=1e-4, atol=1e-4)
    assert calls.kinds == (WITH_MASK if padded else WITHOUT_MASK)[build]


@pytest.mark.parametrize("build", [bert, gpt2, llama], ids=lambda f: f.__name__)
def test_training(build: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, calls = build().train(), Calls()
    given = {"input_ids": torch.randint(2, 100, (2, LENGTH))}
    made = turret.compile(model, plugins=[calls], options={"on_error": "raise", "cache": False})
    parameters = [p for n, p in model.named_parameters() if "pooler" not in n]
    found = [
        torch.autograd.grad(called(**given).last_hidden_state.square().mean(), parameters) for called in (model, made)
    ]
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)
    assert calls.kinds[: len(WITHOUT_MASK[build])] == WITHOUT_MASK[build]  # traced again for fewer gradients
