"""Recurrent layers: library kernels where eager has them, and part of the graph where a whole one is asked for."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same


class Classifier(nn.Module):
    """A recurrent layer between pointwise ones."""

    def __init__(self, kind) -> None:
        super().__init__()
        self.layer = kind(8, 8, num_layers=2, batch_first=True)

    def forward(self, x):
        return torch.tanh(self.layer(torch.sin(x))[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_trained_layer_on_the_cpu_is_part_of_the_graph(kind):
    torch.manual_seed(0)
    model = Classifier(kind)
    other = copy.deepcopy(model)
    observed = Observed(model.__call__)
    x = torch.randn(3, 5, 8)
    assert_same(observed(x), other(x))
    assert not observed.breaks
    observed(x).sum().backward()
    other(x).sum().backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_an_lstm_is_part_of_the_graph_for_inference_and_in_whole_graphs():
    model, x = Classifier(nn.LSTM), torch.randn(3, 5, 8)
    with torch.no_grad():
        observed = Observed(model.__call__)
        torch.testing.assert_close(observed(x), model(x))
        assert not observed.breaks
    other = copy.deepcopy(model)
    whole = turret.compile(model, fullgraph=True, options={"cache": False, "on_error": "raise"})
    found, expected = whole(x), other(x)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    expected.sum().backward()
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_a_trained_lstm_breaks_the_graph_where_it_would_be_taken_apart():
    model = Classifier(nn.LSTM).half()
    observed = Observed(model.__call__)
    x = torch.randn(3, 5, 8).half()
    assert_same(observed(x), model(x))
    assert bool(observed.breaks) == torch.backends.mkldnn.is_available()
