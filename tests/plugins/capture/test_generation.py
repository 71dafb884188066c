"""``generate()`` of transformers with a static cache: eager's tokens, one graph for prefill and one for decoding."""

from __future__ import annotations

import pytest
import torch

import turret
from tests.benchmarks import generation
from tests.benchmarks.architecture_zoo import ARCHITECTURES
from tests.plugins.capture.capture_lab import Observed

pytest.importorskip("transformers")


@pytest.mark.parametrize("name", generation.DECODERS)
@pytest.mark.parametrize(
    ("target", "graphs", "sample"), [("forward", (2, 3), False), ("call", (1, 1), True)], ids=["greedy", "sampled"]
)
def test_tokens_are_eagers(name: str, target: str, graphs: tuple[int, int], sample: bool):
    model = ARCHITECTURES[name].build()
    lengths = (6, 6, 9)
    expected = [generation.generate(model, length, sample) for length in lengths]
    made: list[Observed] = []

    def compile(function):
        made.append(Observed(function))
        return made[0]

    config = generation.capture(model, target, compile)
    for number, (length, tokens) in enumerate(zip(lengths, expected, strict=True)):
        assert torch.equal(generation.generate(model, length, sample, config), tokens)
        assert len(made[0].graphs) == graphs[number > 1]
    assert not made[0].breaks and not made[0].fallbacks


@pytest.mark.parametrize("name", generation.DECODERS)
def test_tokens_of_a_model_in_kernels_are_eagers(name: str):
    model = ARCHITECTURES[name].build()
    expected = generation.generate(model, 6, False)
    options = {"capture": "turret", "on_error": "raise"}
    config = generation.capture(model, "call", lambda f: turret.compile(f, fullgraph=True, options=options))
    assert torch.equal(generation.generate(model, 6, False, config), expected)
