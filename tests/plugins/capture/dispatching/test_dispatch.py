"""What is asked of dispatch where a call cannot be compiled: errors stay errors on every call."""

from __future__ import annotations

import contextlib
import importlib
import io
import operator

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed
from turret.errors import CaptureError

X = torch.ones(3)


def broken(x):
    x = x + 1
    print(end="")
    return x * 2


def test_a_function_that_is_no_whole_graph_is_an_error_at_each_call():
    observed = Observed(broken, fullgraph=True)
    for _ in range(3):
        with pytest.raises(CaptureError, match="cannot be captured as one graph"):
            observed(X)


def test_a_whole_graph_is_not_run_eagerly_at_the_limit_of_recompiles():
    compiled = turret.compile(
        lambda x, name: x * len(name), fullgraph=True, options={"recompile_limit": 2, "cache": False}
    )
    compiled(X, "a")
    compiled(X, "bb")
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"compiled 2 times \(recompile_limit\)"):
            compiled(X, "ccc")
    assert torch.equal(compiled(X, "bb"), X * 2)


def test_graph_breaks_are_errors_where_torchs_setting_says_so():
    torchs = importlib.import_module("torch._dynamo")
    if not hasattr(torchs, "error_on_graph_break"):
        pytest.skip("this torch has no such setting")
    observed = Observed(broken)
    with torchs.error_on_graph_break(True):
        for _ in range(2):
            with pytest.raises(CaptureError, match="cannot be captured"):
                observed(X)
        assert torch.equal(Observed(lambda x: x + 1)(X), X + 1)
    assert torch.equal(observed(X), broken(X))
    assert len(observed.breaks) == 1


def _between_graphs(helper):
    """A program in which a helper's frame is reached behind a graph break."""

    def reach(x, way):
        with contextlib.closing(io.StringIO()):
            return helper(x, way)

    def program(x, way):
        try:
            return reach(x, way)
        except ValueError:
            return x

    return program


def _raises_at_first(x, way):
    print(end="")
    if way:
        raise ValueError("at first")
    return x * 3 + 1


def _computes_nothing_at_first(x, way):
    if way:
        return x
    return x * 3 + 1


@pytest.mark.parametrize("helper", [_raises_at_first, _computes_nothing_at_first])
def test_a_helper_of_which_the_first_call_leaves_nothing_to_compile_is_compiled_at_a_later_one(helper):
    program = _between_graphs(helper)
    observed = Observed(program)
    for way in (True, True):
        assert torch.equal(observed(torch.ones(2), way), program(torch.ones(2), way))
    before = len(observed.graphs)
    for way in (False, False, True):
        assert torch.equal(observed(torch.ones(2), way), program(torch.ones(2), way))
    called = [n.target for g in observed.graphs[before:] for n in g.module.graph.nodes]
    assert operator.mul in called and operator.add in called
