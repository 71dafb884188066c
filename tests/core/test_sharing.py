"""A graph that writes to an input is used only where inputs share memory as when it was compiled."""

from __future__ import annotations

import pytest
import torch

import turret
from turret.sharing import sharing_check
from turret.signature import GraphSignature, InputInfo, Layout, Mutation, SyntheticBase

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
