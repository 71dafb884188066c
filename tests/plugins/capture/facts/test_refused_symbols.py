"""Operations that take no symbols for sizes and ints are captured with what those are now, for a few values."""

from __future__ import annotations

import importlib

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same

LIBRARY = torch.library.Library("turret_refusing", "FRAGMENT")
LIBRARY.define("twice(Tensor x, SymInt n) -> Tensor")
LIBRARY.impl("twice", lambda x, n: x * 2 + n, "CompositeExplicitAutograd")
TWICE = torch.ops.turret_refusing.twice


@torch.library.register_fake("turret_refusing::twice", lib=LIBRARY)
def _twice(x, n):
    if any(isinstance(number, torch.SymInt) for number in (*x.shape, *x.stride(), n)):
        raise RuntimeError("Cannot call sizes() on tensor with symbolic sizes/strides")  # as kernels for `meta` do
    return torch.empty_like(x)


def of_a_size(x, n):
    return TWICE(x + 1, 3) * x.shape[0]


def of_an_int(x, n):
    return TWICE(x[:2] + n, n)


def of_a_stride(x, n):
    return TWICE(x[:2, :1], 3) + 1


PROGRAMS = {"a size": of_a_size, "an int": of_an_int, "a stride": of_a_stride}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_an_operation_that_takes_no_symbols_breaks_no_graph(name, dynamic):
    program = PROGRAMS[name]
    observed = Observed(program, fullgraph=True, dynamic=dynamic)
    for n in (3, 4, 5, 3):
        x = torch.randn(n, n)
        assert_same(observed(x, n), program(x, n))
    assert len(observed.graphs) == 3  # one for each value


def test_after_a_few_values_the_operation_runs_as_python():
    observed = Observed(of_a_size, dynamic=True)
    for n in range(2, 12):
        x = torch.randn(n, 3)
        assert_same(observed(x, 0), of_a_size(x, 0))
    assert 4 <= len(observed.graphs) < 8
    assert any("symbolic sizes" in text for text in observed.breaks)


def test_a_dimension_that_is_marked_dynamic_is_no_constant():
    x = torch.randn(4, 3)
    importlib.import_module("torch._dynamo").mark_dynamic(x, 0)
    observed = Observed(of_a_size, fullgraph=True)
    with pytest.raises(Exception, match="symbolic sizes"):
        observed(x, 0)
