"""A graph that writes to an input is used only where inputs share memory as when it was compiled."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from turret.hooks.signature import GraphSignature, InputInfo, Layout, Mutation, SyntheticBase
from turret.plan.aliasing import sharing_check

WRITTEN, READ = InputInfo(mutation=Mutation.DATA), InputInfo()


def check_of(*infos, examples, bases=(), static=frozenset()):
    return sharing_check(GraphSignature(infos, (), bases=bases), examples, static)


def test_nothing_is_checked_where_nothing_is_written_or_all_memory_is_static():
    x, y = torch.ones(3), torch.ones(3)
    assert check_of(READ, READ, examples=(x, y)) is None
    assert check_of(WRITTEN, READ, examples=(x, y), static=frozenset((0, 1))) is None
    assert check_of(WRITTEN, InputInfo(), examples=(x, 3)) is None


@pytest.mark.parametrize("static", [frozenset(), frozenset((0,))])
def test_an_overlap_with_what_is_written_is_found(static):
    memory = torch.ones(10)
    check = check_of(WRITTEN, READ, READ, examples=(torch.ones(4),) * 3, static=static)
    assert check((memory[:4], memory[4:8], memory[5:9]))
    assert not check((memory[:4], memory[3:7], torch.ones(4)))
    assert not check((memory[2:6], torch.ones(4), memory[:4]))


def test_members_of_a_common_memory_have_to_lie_as_they_did():
    memory = torch.ones(10)
    base = SyntheticBase((0, 1), (Layout((4,), (1,), 0), Layout((4,), (1,), 2)), 6)
    check = check_of(WRITTEN, WRITTEN, READ, WRITTEN, examples=(memory[:4], memory[2:6], memory), bases=(base,))
    assert check((memory[:4], memory[2:6], torch.ones(3)))
    assert not check((memory[:4], memory[3:7], torch.ones(3)))
    assert not check((memory[:4], torch.ones(4), torch.ones(3)))
    assert not check((memory[:4], memory[2:6], memory[5:]))


def test_members_of_a_differentiable_memory_have_to_be_views_of_one_tensor():
    base = SyntheticBase((0, 1), (Layout((4,), (1,), 0), Layout((4,), (1,), 2)), 6, joined=True)
    leaf = torch.ones(6, requires_grad=True)
    memory = leaf * 1
    check = check_of(WRITTEN, WRITTEN, WRITTEN, examples=(memory[:4], memory[2:6]), bases=(base,))
    assert check((memory[:4], memory[2:6]))
    assert not check((memory[:4], memory.detach()[2:6]))


def test_compiled_code_does_as_eager_for_every_way_of_sharing():
    def function(x, y):
        x.add_(1)
        return y * 2

    ran = []

    class Watch:
        @turret.hookimpl
        def turret_event(self, event):
            if event.kind == "fallback":
                ran.append(event)

    compiled = turret.compile(function, options={"on_error": "raise"}, plugins=[Watch()])
    for make in (
        lambda: (torch.ones(4), torch.ones(4)),
        lambda: (lambda m: (m[:4], m[2:6]))(torch.arange(8.0)),
        lambda: (lambda m: (m[1:5], m[2:6]))(torch.arange(8.0)),
        lambda: (lambda m: (m[4:], m[:4]))(torch.arange(8.0)),
    ):
        expected_inputs, inputs = make(), make()
        torch.testing.assert_close(compiled(*inputs), function(*expected_inputs))
        torch.testing.assert_close(inputs, expected_inputs)
    assert len(ran) == 1, "the fallback is reported once"


def run_alike(function, make, sizes, **options):
    """Results and inputs of each call as in eager's."""
    compiled = turret.compile(function, dynamic=True, options={"cache": False} | options)
    for size in sizes:
        expected_inputs, inputs = make(size), make(size)
        torch.testing.assert_close(compiled(*inputs), function(*expected_inputs))
        torch.testing.assert_close(inputs, expected_inputs)


@pytest.mark.parametrize(
    "views",
    [
        lambda m, n: (m[0].unsqueeze(0), m[0].unsqueeze(0)),
        lambda m, n: (m.view(-1)[1:], m.view(-1)[1:]),
        lambda m, n: (m, m[:, 1]),
        lambda m, n: (m.view(-1)[: n // 2], m.view(-1)[n // 2 : n]),
        lambda m, n: (m, m.t()),
        lambda m, n: (m.view(-1)[::2], m.view(-1)[1::2]),
        lambda m, n: (m, m[n - 3 :]),
        lambda m, n: (m[:-1], m[1:] if n % 3 else m[:-1]),
        lambda m, n: (m, m if n % 2 else m.clone()),
    ],
)
def test_memory_that_inputs_share_may_have_any_size(views):
    def function(x, y):
        y.mul_(3)
        total = x.sum()
        x.add_(1)
        return x * 2, y + total

    def make(n):
        memory = torch.arange(n * (n + 1.0)).view(n, n + 1)
        return views(memory / 64, n)

    run_alike(function, make, (10, 12, 7, 9), on_error="raise")


def test_gradients_flow_where_dynamic_memory_is_shared():
    def function(x, y, w):
        y.mul_(3)
        return (x[:4] * w).sin()

    compiled = turret.compile(function, dynamic=True, options={"on_error": "raise", "cache": False})
    for n in (10, 12, 7):
        found = []
        for call in (function, compiled):
            memory, w = torch.arange(float(n)), torch.ones(4, requires_grad=True)
            call(memory, memory[n - 4 :], w).sum().backward()
            leaf = torch.arange(float(n), requires_grad=True)
            whole = leaf * 1
            call(whole, whole[1:-1], w).sum().backward()
            found.append((w.grad, leaf.grad, memory))
        torch.testing.assert_close(found[1], found[0])


LAYOUTS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.sampled_from([1, 2]), st.booleans()), min_size=2, max_size=3
)


@settings(max_examples=8, deadline=None)
@given(LAYOUTS, LAYOUTS)
def test_views_of_one_memory_of_any_size_change_as_in_eager(first, second):
    """The second way of sharing comes after the first was compiled."""

    def function(*views):
        for number, view in enumerate(views):
            if number % 2 == 0:
                view.mul_(number + 2)
        return [view.flatten()[:3] + 1 for view in views]

    def make(n):
        memory = torch.arange(float(4 * n))
        cut = [
            (memory[start : 4 * n - end : step], square) for start, end, step, square in (first if n < 8 else second)
        ]
        return [v[: len(v) // 2 * 2].view(-1, 2) if square and v.is_contiguous() else v for v, square in cut]

    if len(first) == len(second):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run_alike(function, make, (5, 6, 9, 11))
