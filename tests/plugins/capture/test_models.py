"""Models of transformers are captured in one graph and give what eager gives."""

from __future__ import annotations

import pytest
import torch

from tests.benchmarks import architectures, bench_capture
from tests.benchmarks.architecture_zoo import ARCHITECTURES, OTHER_SIZES, SIZES
from tests.benchmarks.crawled_modules import same
from tests.plugins.capture.capture_lab import Observed

pytest.importorskip("transformers")


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", bench_capture.MODELS)
def test_a_language_model_is_one_graph(name, attention):
    model = bench_capture.build(name, attention, layers=2)
    tokens = torch.randint(0, 100, (2, 16), generator=torch.Generator().manual_seed(0))
    observed = Observed(model.__call__, fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(observed(tokens)[0], model(tokens)[0])
    assert len(observed.graphs) == 1 and not observed.breaks and not observed.fallbacks


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_padding_mask_leaves_one_graph(name):
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    inputs = architecture.inputs(model.config, SIZES)
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, -3:] = 0
    observed = Observed(model.__call__)
    with torch.no_grad():
        for _ in range(2):
            same(observed(**inputs | {"attention_mask": mask}), model(**inputs | {"attention_mask": mask}), "")
    assert len(observed.graphs) == 1 and not observed.breaks


CHOSEN = ("deberta-v2", "gemma3", "bloom", "mixtral", "t5", "swin", "clip", "wav2vec2", "recurrent-gemma")
"""One or two of each kind; ``tests/benchmarks/architectures.py`` has them all."""


@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.thorough
def test_an_architecture_is_one_graph_for_each_kind_of_sizes(name):
    architecture = ARCHITECTURES[name]
    model = architecture.build()
    observed = Observed(model.__call__, fullgraph=True)
    for sizes in (SIZES, SIZES, OTHER_SIZES):
        inputs = architecture.inputs(model.config, sizes)
        with torch.no_grad():
            same(observed(**inputs), model(**inputs), "")
    assert len(observed.graphs) <= 2 and not observed.breaks and not observed.fallbacks


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "vit", "mamba2"])
@pytest.mark.thorough
def test_gradients_of_an_architecture(name):
    architecture = ARCHITECTURES[name]
    model = architecture.build().train()
    inputs = architecture.inputs(model.config, SIZES)
    observed = Observed(model.__call__, fullgraph=True)
    expected = architectures.observe(model, inputs, model, training=True)
    for _ in range(2):
        same(architectures.observe(observed, inputs, model, training=True), expected, "")
    assert len(observed.graphs) == 1
