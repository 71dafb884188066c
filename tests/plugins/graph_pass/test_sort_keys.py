"""Sorts of indices take keys of few bits, and give eager's results to the bit."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from turret.plugins.decompositions.table import decomposition_table
from turret.plugins.graph_pass import sort_keys

SORTS = (torch.ops.aten.sort.default, torch.ops.aten.sort.stable)


def narrowed(function, *args):
    """A trace of ``function``, rewritten as for a device with kernels of its own, and the dtypes of sorted keys."""
    mode = FakeTensorMode()
    module = make_fx(function, decomposition_table=decomposition_table())(*map(mode.from_tensor, args))
    with mock.patch.object(sort_keys, "uses_host_kernels", lambda device: False):
        changed = sort_keys.run(module)
    module.graph.lint()
    module.recompile()
    keys = [n.args[0].meta["val"].dtype for n in module.graph.nodes if n.target in SORTS]
    assert changed == any(dtype in (torch.uint8, torch.int16) for dtype in keys)
    return module, keys


def assert_equal(module, function, *args):
    got, want = fx.Interpreter(module).run(*args), function(*args)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)


@settings(max_examples=20)
@given(st.integers(1, 300), st.integers(1, 40), st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_indices_of_few_elements_are_sorted_by_few_bits(classes, rows, descending, flat, seed):
    x = torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))

    def routed(x):
        chosen = x.topk(min(2, classes), dim=-1).indices
        keys = chosen.reshape(-1) if flat else chosen.t()
        values, order = torch.sort(keys, stable=True, descending=descending)
        return values, order, values.to(torch.int32)

    module, keys = narrowed(routed, x)
    assert keys == [torch.uint8 if classes <= 256 else torch.int16]
    assert_equal(module, routed, x)


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda x: x.argmax(0), torch.uint8),
        (lambda x: x.argmin(1, keepdim=True).expand(-1, 3), torch.uint8),
        (lambda x: x.argmax().view(1), torch.int16),
        (lambda x: x.max(1).indices[2:].to(torch.int32), torch.uint8),
        (lambda x: x.sort(1).indices.to(torch.int8), torch.int8),
        (lambda x: x.max(1).values.long(), torch.int64),
        (lambda x: x.argmax(1).float().long(), torch.int64),
        (lambda x: x.argmax(1) - 1, torch.int64),
        (lambda x: x.flatten().argsort().to(torch.uint8).long(), torch.int64),
        (lambda x: x.repeat(900, 9).argmax(0), torch.int64),
    ],
    ids=[
        "argmax", "expanded", "all elements", "slice", "already narrow", "values", "floats", "computed", "wrapped",
        "many elements",
    ],
)  # fmt: skip
def test_keys_are_as_narrow_as_what_is_known_of_them(make, dtype):
    x = torch.randn(40, 30)

    def function(x):
        return torch.sort(make(x), stable=True)

    module, keys = narrowed(function, x)
    assert keys[-1] == dtype
    assert_equal(module, function, x)


def test_the_host_sorts_what_it_is_given():
    module = make_fx(lambda x: torch.sort(x.argmax(0)).values)(FakeTensorMode().from_tensor(torch.randn(3, 5)))
    assert not sort_keys.run(module)
