"""Models of transformers are captured in one graph and give what eager gives."""

from __future__ import annotations

import bench_capture
import pytest
import torch
from capture_lab import Observed

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
