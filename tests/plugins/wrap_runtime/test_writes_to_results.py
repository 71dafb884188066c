"""Results that are views, written to by the caller: what is refused, recorded and seen by others is as in eager."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret

SOURCES = {
    "input": lambda x: x,
    "result": lambda x: x * 2,
    "view of input": lambda x: x.t(),
    "detached input": lambda x: x.detach(),
    "detached result": lambda x: (x * 2).detach(),
}
VIEWS = {
    "unbind": lambda b: b.unbind(0),
    "split": lambda b: b.split(1),
    "chunk": lambda b: b.chunk(2, 1),
    "slices": lambda b: (b[:1], b[1:]),
    "views of pieces": lambda b: [v.view(-1) for v in b.unbind(0)],
    "pieces of transposed": lambda b: b.t().split([1, 1]),
    "detached": lambda b: (b.detach(), b.detach()),
    "detached pieces": lambda b: [v.detach() for v in b.unbind(0)],
    "pieces of detached": lambda b: b.detach().unbind(0),
    "data": lambda b: (b.data, b.data[0]),
}
WRITES = {
    "add": lambda v, w: v.add_(1),
    "times": lambda v, w: v.mul_(w),
    "item": lambda v, w: v.__setitem__(0, 5.0),
    "layout": lambda v, w: v.unsqueeze_(0),
    "data": lambda v, w: v.data.add_(1),
}
MODES = {"plain": contextlib.nullcontext, "no_grad": torch.no_grad}


def outcome(function, x, w, write, mode, last):
    """What a caller sees who writes to a result: the text of an error, or values, history and gradients."""
    leaves = [v.detach().clone().requires_grad_(v.requires_grad) for v in (x, w)]
    given = leaves[0] * 1
    try:
        shown = [*function(given, leaves[1]), given]
        with MODES[mode]():
            WRITES[write](shown[-2 if last else 0], leaves[1])
        roots = [v.sin().sum() for v in shown if v.requires_grad]
        wanted = [v for v in leaves if v.requires_grad]
        gradients = torch.autograd.grad(roots, wanted, allow_unused=True) if roots and wanted else ()
    except RuntimeError as error:
        return re.sub(r"Output \d of \w+", "", str(error)), ()
    facts = [(v.requires_grad, v.is_leaf, v.stride(), v.storage_offset()) for v in shown]
    return facts, [None if v is None else v.detach() for v in (*shown, *gradients)]


def assert_same(source, view, view_mode, write, write_mode, shown, last, x, w):
    if view_mode == "no_grad":

        def function(x, w):
            base = SOURCES[source](x)
            with torch.no_grad():
                views = VIEWS[view](base)
            return (*views, base) if shown else views

    else:

        def function(x, w):
            base = SOURCES[source](x)
            views = VIEWS[view](base)
            return (*views, base) if shown else views

    compiled = turret.compile(function, backend="aot_eager")
    for _ in range(2):
        expected = outcome(function, x, w, write, write_mode, last)
        got = outcome(compiled, x, w, write, write_mode, last)
        assert got[0] == expected[0]
        torch.testing.assert_close(got[1], expected[1])


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(SOURCES)),
    st.sampled_from(sorted(VIEWS)),
    st.sampled_from(sorted(MODES)),
    st.sampled_from(sorted(WRITES)),
    st.sampled_from(sorted(MODES)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_writes_to_views_among_results_are_refused_and_recorded_as_in_eager(
    source, view, view_mode, write, write_mode, shown, last, x_needs, w_needs
):
    x, w = torch.randn(2, 2, requires_grad=x_needs), torch.randn((), requires_grad=w_needs)
    assert_same(source, view, view_mode, write, write_mode, shown, last, x, w)


@pytest.mark.parametrize("source", ["input", "result"])
@pytest.mark.parametrize("view", ["unbind", "split", "views of pieces", "pieces of transposed"])
def test_what_several_views_are_made_by_lets_none_of_them_be_written_to(source, view):
    x = torch.randn(2, 2, requires_grad=True)
    made = turret.compile(lambda x: VIEWS[view](SOURCES[source](x))[0], backend="aot_eager")(x * 1)
    with pytest.raises(RuntimeError, match="output of a function that returns multiple views"):
        made.add_(1)
    with torch.no_grad():
        made.add_(1)


def test_a_write_inside_the_program_to_one_of_several_views_is_refused():
    def program(x):
        piece = (x * 2).unbind(0)[0]
        piece.add_(1)
        return piece * 2

    with pytest.raises(RuntimeError, match="output of a function that returns multiple views"):
        turret.compile(program)(torch.randn(2, 2, requires_grad=True))
    x = torch.randn(2, 2)
    torch.testing.assert_close(turret.compile(program)(x), program(x))


def test_views_of_a_detached_alias_share_its_history_and_not_that_of_what_it_aliases():
    def program(x):
        alias = x.detach()
        return alias[0], alias[1], alias

    for hidden in (False, True):
        compiled = turret.compile(lambda x: program(x)[: 2 if hidden else 3])  # noqa: B023
        x, w = torch.randn(2, 2), torch.randn((), requires_grad=True)
        results = compiled(x)
        results[0].mul_(w)
        assert all(v.requires_grad for v in results) and not x.requires_grad


def test_the_base_of_views_among_the_results_is_no_view():
    def program(x):
        base = x * 2
        return base[0], base, x.detach()

    for needs in (False, True):
        view, base, detached = turret.compile(program)(torch.randn(2, 2, requires_grad=needs))
        assert view._base is base and not base._is_view() and not detached._is_view()
        base.detach_(), detached.detach_()
