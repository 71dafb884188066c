"""Blocks that refuse hooks on saved tensors: part of the graph, and refusals are eager's."""

from __future__ import annotations

import torch
from torch.autograd.graph import disable_saved_tensors_hooks, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from tests.plugins.capture.capture_lab import Observed, check, outcome

X = torch.ones(3)


def refused(x):
    with disable_saved_tensors_hooks("no hooks here"):
        y = x.sin() * x
    return y + 1


def test_a_block_is_part_of_the_graph():
    check(refused, X, graphs=1)
    check(refused, X.clone().requires_grad_(), graphs=1)


def test_what_sets_hooks_in_it_is_refused():
    def hooks(x):
        with disable_saved_tensors_hooks("no hooks here"), saved_tensors_hooks(lambda v: v, lambda v: v):
            return x * 2

    def checkpoints(x):
        with disable_saved_tensors_hooks("no hooks here"):
            return checkpoint(torch.sin, x, use_reentrant=False)

    for function in (hooks, checkpoints):
        given = X.clone().requires_grad_()
        kind, error = outcome(Observed(function), (given,), {})
        expected = outcome(function, (given,), {})
        assert (kind, str(error)) == (expected[0], str(expected[1]))
    assert torch._C._autograd._saved_tensors_hooks_get_disabled_error_message() is None


def test_hooks_that_are_set_around_it_are_noticed():
    observed = Observed(refused)
    assert torch.equal(observed(X), refused(X))
    with saved_tensors_hooks(lambda v: v, lambda v: v):
        expected, found = outcome(refused, (X,), {}), outcome(observed, (X,), {})
    assert found[0] == expected[0]
    assert str(found[1]) == str(expected[1])
