"""Two-layer BERT and GPT-2: equal to eager under every cut, fewer bytes than saving everything, and quick."""

from __future__ import annotations

import time

import pytest
import torch

from tests.plugins.joint_graphs import assert_same, make_context, run_eager, run_partitioned, trace_joint
from turret.graph.op_set import outside_op_set
from turret.plugins import graph_pass, partition
from turret.plugins.decompositions.table import decomposition_table

transformers = pytest.importorskip("transformers")


def build(kind, layers):
    torch.manual_seed(0)
    if kind == "bert":
        config = transformers.BertConfig(
            num_hidden_layers=layers, hidden_size=64, num_attention_heads=2, intermediate_size=256, vocab_size=100
        )
        return transformers.BertForMaskedLM(config).eval()
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=64, n_head=2, vocab_size=100, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def joint_of(kind, layers, monkeypatch):
    from transformers import masking_utils

    monkeypatch.setattr(masking_utils, "is_tracing", lambda *_: True)
    model = build(kind, layers)
    names = [n for n, _ in model.named_parameters()]
    ids = torch.randint(0, 100, (2, 16))
    buffers = dict(model.named_buffers())

    def function(*inputs):
        state = dict(zip([*names, *buffers], inputs[:-1], strict=True))
        result = torch.func.functional_call(model, state, (inputs[-1],), {"labels": inputs[-1]})
        return result.loss, result.logits

    args = [*model.parameters(), *buffers.values(), ids]
    joint = trace_joint(function, args, decomposition_table())
    graph_pass.turret_graph_pass(make_context(), "joint", joint.module)
    return joint, function, args


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_cuts_equal_eager_and_save_less_than_everything(kind, monkeypatch):
    joint, function, args = joint_of(kind, 2, monkeypatch)
    assert not outside_op_set(joint.module)
    tangents = [torch.tensor(1.0), torch.randn(2, 16, 100)]
    want = run_eager(function, args, tangents)
    saved = {}
    for options in ({}, {"partitioner": "save_all"}, {"memory_budget": 0.5}, {"memory_budget": 0.0}):
        partitioned = partition.turret_partition(make_context(partition, **options), joint)
        got = run_partitioned(partitioned, args, tangents)
        assert_same(got[0], want[0], rtol=1e-4, atol=1e-4)
        assert_same(got[1], want[1], rtol=1e-3, atol=1e-4)
        saved[str(options)] = sum(s.bytes for s in partitioned.saved_tensors if s.reason == "activation")
    default, everything, half, least = saved.values()
    assert default < 0.7 * everything and half <= 0.5 * default + least and least < 0.1 * everything


def test_twelve_layers_are_cut_in_half_a_second(monkeypatch):
    joint, _, _ = joint_of("bert", 12, monkeypatch)
    context = make_context(partition)
    times = []
    for _ in range(3):
        start = time.process_time()
        partition.turret_partition(context, joint)
        times.append(time.process_time() - start)
    assert min(times) < 0.5
