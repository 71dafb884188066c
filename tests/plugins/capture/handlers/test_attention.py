"""``flex_attention`` is part of the graph, with the values of eager's and the gradients of attention written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import turret
from tests.plugins.capture.capture_lab import Observed

OPTIONS = {"cache": False, "on_error": "raise"}


@pytest.fixture(autouse=True)
def with_gradients(monkeypatch):
    """Torch takes it on GPUs alone; eager's own form, which is the reference, must not compile itself."""
    monkeypatch.setattr(flex, "_validate_device", lambda *args: None)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def inputs(heads=2, served=2, batch=2):
    """Of lengths 8 and 8; the query as a transposed projection is."""
    torch.manual_seed(0)
    query = torch.randn(batch, 8, heads, 4).transpose(1, 2)
    return [v.requires_grad_() for v in (query, torch.randn(batch, served, 8, 4), torch.randn(batch, served, 8, 4))]


def causal(batch, head, row, column):
    return row >= column


def with_distance(score, batch, head, row, column):
    return score + (column - row) / (head + 1)


CAUSAL = flex.create_block_mask(causal, None, None, 8, 8, device="cpu", BLOCK_SIZE=4)


def made_inside(query, key, value):
    mask = flex.create_block_mask(causal, None, None, 8, 8, device="cpu", BLOCK_SIZE=4)
    return flex.flex_attention(query, key, value, with_distance, mask)


def with_sums(query, key, value):
    return flex.flex_attention(query, key, value, return_aux=flex.AuxRequest(lse=True))


@pytest.mark.parametrize(
    "program",
    [
        lambda q, k, v: flex.flex_attention(q, k, v, with_distance, CAUSAL, scale=0.3),
        lambda q, k, v: flex.flex_attention(q, k, v, block_mask=CAUSAL, enable_gqa=True),
        made_inside,
        with_sums,
    ],
    ids=["score and mask", "grouped", "mask made inside", "sums"],
)
def test_values_gradients_and_strides_are_eagers(program, request):
    grouped = request.node.callspec.id == "grouped"
    found_inputs, expected_inputs = (inputs(4 if grouped else 2) for _ in range(2))
    found = turret.compile(program, fullgraph=True, options=OPTIONS)(*found_inputs)
    expected = program(*expected_inputs)
    torch.testing.assert_close(found, expected)
    first, reference = (v[0] if isinstance(v, tuple) else v for v in (found, expected))
    assert first.stride() == reference.stride()
    for result in (first, reference):
        result.square().sum().backward()
    for one, other in zip(found_inputs, expected_inputs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_tensors_that_score_and_mask_close_over_are_indexed_and_get_gradients():
    query, key, value = inputs()
    slopes, document = torch.tensor([0.3, -0.2], requires_grad=True), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    table = torch.randn(2, 8, requires_grad=True)

    def program(slopes, table):
        def score(score, batch, head, row, column):
            return score * slopes[head] + table[batch, column]

        def same_document(batch, head, row, column):
            return document[row] == document[column]

        mask = flex.create_block_mask(same_document, None, None, 8, 8, device="cpu", BLOCK_SIZE=4)
        return flex.flex_attention(query, key, value, score, mask)

    def written_out(slopes, table):
        scores = query @ key.transpose(-2, -1) / math.sqrt(4) * slopes[None, :, None, None] + table[:, None, None, :]
        allowed = document[:, None] == document[None, :]
        return torch.softmax(scores.masked_fill(~allowed, -math.inf), -1) @ value

    gradients = []
    for function in (turret.compile(program, fullgraph=True, options=OPTIONS), written_out):
        result = function(slopes, table)
        gradients.append((result, *torch.autograd.grad(result.square().sum(), (slopes, table))))
    torch.testing.assert_close(*gradients)


def test_rows_that_see_nothing_are_zeros():
    query, key, value = inputs()
    mask = flex.create_block_mask(lambda b, h, row, column: row > 99, None, None, 8, 8, device="cpu", BLOCK_SIZE=4)
    found = Observed(flex.flex_attention, fullgraph=True)(query, key, value, block_mask=mask)
    found.sum().backward()
    assert not found.any() and not query.grad.any()


def test_autocast_lowers_the_precision_as_eagers_does():
    query, key, value = inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Observed(flex.flex_attention, fullgraph=True)(query, key, value)
        expected = flex.flex_attention(query, key, value)
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)
