"""Strides that follow from no size: a step of generation is handed parts of tensors of many lengths."""

from __future__ import annotations

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same


def test_steps_over_parts_of_tensors_of_other_lengths_share_a_capture():
    weight = torch.randn(8, 8)
    observed = Observed(lambda x: torch.relu(x @ weight))
    for length in (3, 5, 4, 7, 9, 6):
        part = torch.randn(1, length, 8)[:, -1:]
        assert_same(observed(part), torch.relu(part @ weight))
    assert len(observed.graphs) == 2


@pytest.mark.parametrize("training", [False, True])
def test_compiled_code_reads_any_stride(training):
    def function(x):
        y = x.sin() * 2 + x.transpose(0, 1).reshape(x.shape)
        return y, y.sum(1), x[1:]

    compiled = turret.compile(function, options={"on_error": "raise"})
    for width in (6, 9, 7, 16, 5, 33):
        base = torch.randn(5, width, requires_grad=training)
        mine, plain = base[:, :5], base.detach().clone().requires_grad_(training)[:, :5]
        found, expected = compiled(mine), function(plain)
        for a, b in zip(found, expected, strict=True):
            assert_same(a, b)
            assert a.stride() == b.stride()
        if training:
            found[1].sum().backward()
            assert base.grad is not None
            with torch.no_grad():
                again = base.detach().clone().requires_grad_()
            function(again[:, :5])[1].sum().backward()
            assert_same(base.grad, again.grad)


def test_strides_that_the_program_reads_are_those_of_the_call():
    observed = Observed(lambda x: (x + 1, x.stride(), x.is_contiguous()))
    for width in (4, 6, 9, 4, 5, 12):
        part = torch.randn(4, width)[:, :4]
        found = observed(part)
        assert_same(found, (part + 1, part.stride(), part.is_contiguous()))


def test_contiguous_tensors_stay_so():
    observed = Observed(lambda x: x.view(-1) * 2)
    for shape in ((2, 3), (4, 5), (6, 7), (3, 2)):
        x = torch.randn(shape)
        assert_same(observed(x), x.view(-1) * 2)
    assert len(observed.graphs) == 2


def test_programs_that_want_nothing_dynamic_get_a_capture_for_each_stride():
    observed = Observed(lambda x: x + 1, dynamic=False)
    for width in (5, 6, 7):
        part = torch.randn(4, width)[:, :4]
        assert_same(observed(part), part + 1)
    assert len(observed.graphs) == 3
