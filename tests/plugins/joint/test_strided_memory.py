"""``as_strided`` of what a graph made: it shows the storage, whatever view it is called on."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import outcome
from turret.errors import StageError, TurretWarning

BASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row-major": lambda x: x * 2,
    "transposed": lambda x: x.t() * 2,
    "flipped": lambda x: x.t().flip(0),
    "reduced": lambda x: x.cumsum(0).t(),
    "spread": lambda x: x[:1].expand(4, 6) + x[:1],
    "filled": lambda x: x.new_empty_strided((6, 4), (1, 6)).copy_(x.t()),
    "channels_last": lambda x: x.reshape(2, 2, 2, 3).contiguous(memory_format=torch.channels_last)[0].flatten(1) * 1,
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": torch.Tensor.t,
    "every second": lambda v: v[::2],
    "rest": lambda v: v[1:],
    "last columns": lambda v: v[:, 1:],
    "contiguous": torch.Tensor.contiguous,
    "detach": torch.Tensor.detach,
}
LAYOUTS = [((8,), (1,)), ((3,), (2,)), ((2, 3), (3, 1)), ((2, 2), (1, 4)), ((2, 3), (1, 1)), ((), ())]


def results(function: Callable, dynamic: bool | None, compiled: bool, requires_grad: bool) -> Any:
    x = (torch.arange(24.0).reshape(4, 6) - 7).requires_grad_(requires_grad)
    if compiled:
        function = turret.compile(function, backend="aot_eager", dynamic=dynamic, options={"cache": False})
    try:
        found = function(x * 1)
        if found[0].requires_grad:
            sum((r * torch.arange(r.numel()).reshape(r.shape)).sum() for r in found if r.requires_grad).backward()
    except RuntimeError as error:
        return type(error)
    return [(r.tolist(), r.shape, r.stride(), r.requires_grad) for r in found], x.grad


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    base=st.sampled_from(sorted(BASES)),
    views=st.lists(st.sampled_from(sorted(VIEWS)), max_size=3),
    layout=st.sampled_from(LAYOUTS),
    offset=st.sampled_from([None, 0, 1, 5]),
    end=st.sampled_from(["read", "write", "write to the view", "write to the base", "scatter"]),
    dynamic=st.sampled_from([None, True]),
    requires_grad=st.booleans(),
)
def test_it_shows_the_memory_that_eager_shows(base, views, layout, offset, end, dynamic, requires_grad):
    def function(x):
        y = BASES[base](x)
        v = y
        for name in views:
            v = VIEWS[name](v)
        if end == "scatter":
            return v.as_strided_scatter(-torch.ones(layout[0]), *layout, offset) * 1, y * 3
        r = v.as_strided(*layout, offset)
        if end != "read":
            {"write": r, "write to the view": v, "write to the base": y}[end].mul_(-3)
        return r * 1, v * 2, y * 3

    expected = results(function, dynamic, False, requires_grad)
    found = results(function, dynamic, True, requires_grad)
    if isinstance(expected, type):
        assert found is expected
    else:
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1], expected[1])


@pytest.mark.parametrize("view", [lambda y: y[1:], lambda y: y[::2].t()])
def test_what_lies_outside_of_the_view_gets_no_gradient_through_it(view):
    def function(x):
        v = view(x * 2)
        return v.as_strided((8,), (1,), 0), v

    grads = []
    for run in (function, turret.compile(function, options={"cache": False, "on_error": "raise"})):
        x = torch.arange(24.0).reshape(4, 6).requires_grad_()
        sum(r.sum() for r in run(x)).backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_a_write_with_gradients_through_memory_outside_of_a_view_is_refused():
    def function(x):
        r = (x * 2)[1:].as_strided((3,), (1,), 0)
        r.mul_(3)
        return r + 1

    with pytest.raises(StageError, match="as_strided of a view"):
        strict = turret.compile(function, fullgraph=True, options={"cache": False, "on_error": "raise"})
        strict(torch.randn(4, 6, requires_grad=True))


def test_a_scatter_outside_of_memory_is_an_error():
    def function(x):
        return (x[0] * 2).as_strided_scatter(torch.ones(12), (12,), (1,))

    with pytest.raises(RuntimeError, match="out of bounds"):
        turret.compile(function, options={"cache": False})(torch.randn(4, 6))


def test_the_storage_of_a_part_of_a_result_is_eager_s():
    def function(x):
        v = (x * 2).t()[..., 1:]
        v.add_(1)
        return torch.empty(0).set_(v.untyped_storage(), 0, (24,))

    x = torch.randn(4, 6)
    torch.testing.assert_close(turret.compile(function, options={"cache": False})(x), function(x), rtol=0, atol=0)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("steps", [(1, 1), (2, 1), (0, 1)], ids=str)
def test_a_scatter_into_what_overlaps_itself_is_eager_s(steps, dynamic):
    def function(x):
        rows = x.shape[0] // 2
        v = torch.trunc(x).as_strided((rows, 2), steps)
        return v.slice_scatter(x.view(-1, 1)[:rows], 1, 1, 2) * 1, v.select_scatter(x[:rows], 1, 0) + 1

    compiled = turret.compile(function, dynamic=dynamic, options={"cache": False})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TurretWarning)
        for x in (torch.arange(18.0) / 3, torch.arange(12.0) / 2):
            torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:Turret")
@pytest.mark.parametrize("size", [0, 4, 9, 10, 11, -1])
@pytest.mark.parametrize(
    "view",
    [
        lambda x, n: x.as_strided((n,), (1,)),
        lambda x, n: x.as_strided((n, 2), (1, 1)),
        lambda x, n: x.as_strided((2,), (1,), n),
        lambda x, n: x.as_strided((2, 2), (n, 1)),
        lambda x, n: x[1:].as_strided((n,), (1,)),
    ],
)
def test_what_lies_outside_of_memory_by_a_size_of_data_is_refused_although_nobody_reads_it(view, size):
    def program(x, n):
        view(x, n.item())
        return x + 1

    given = torch.arange(10.0), torch.tensor(size)
    how, found = outcome(turret.compile(program, fullgraph=True), given, {})
    expected_how, expected = outcome(program, given, {})
    assert how == expected_how
    assert torch.equal(found, expected) if how == "returned" else type(found) is type(expected)
