"""Hooks of modules that compiled code registers and takes away: one capture for all calls."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.linspace(-1, 1, 4)


def doubled(module, args, output):
    return output * 2


def taken_away(net):
    def program(x):
        handle = net.register_forward_hook(doubled)
        inside = handle.id in net._forward_hooks
        y = net(x)
        handle.remove()
        return y, net(x), inside, len(net._forward_hooks)

    return program


def several(net):
    def program(x):
        one = net[0].register_forward_hook(doubled)
        other = net[0].register_forward_hook(lambda module, args, output: output + 1, prepend=True)
        before = net(x)
        one.remove()
        between = net(x)
        other.remove()
        return before, between, net(x), one.id == other.id, one.id != other.id

    return program


def in_a_block(net):
    def program(x):
        with net.register_forward_pre_hook(lambda module, args, kwargs: ((args[0] + 1,), kwargs), with_kwargs=True):
            y = net(x)
        return y * net(x)

    return program


def of_all_layers(net):
    def program(x):
        found, handles = {}, []
        for name, layer in net.named_children():
            handles.append(layer.register_forward_hook(lambda m, i, o, name=name: found.__setitem__(name, o)))
        y = net(x)
        for handle in handles:
            handle.remove()
        return y, found

    return program


@pytest.mark.parametrize("make", [taken_away, several, in_a_block, of_all_layers])
def test_hooks_of_one_call_are_one_graph_for_all_calls(make):
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    program = make(net)
    observed = Observed(program, fullgraph=True)
    for _ in range(3):
        assert_same(observed(X), program(X))
    assert len(observed.units) == 1 and not observed.recompiles


def test_each_handle_has_a_number_of_its_own():
    net = nn.Linear(4, 4)
    observed = Observed(lambda: (net.register_forward_hook(doubled), net.register_forward_pre_hook(print)))
    before, handles = RemovableHandle.next_id, []
    for _ in range(3):
        handles += observed()
    assert [handle.id for handle in handles] == list(range(before, RemovableHandle.next_id))
    assert list(net._forward_hooks) == [handle.id for handle in handles[::2]]
    for handle in handles:
        handle.remove()
    assert not net._forward_hooks and not net._forward_pre_hooks


def test_what_is_computed_of_a_number_is_left_to_python():
    net = nn.Linear(4, 4)

    def program(x):
        handle = net.register_forward_hook(doubled)
        y = net(x)
        handle.remove()
        return y, handle.id + 1 == RemovableHandle.next_id

    observed = Observed(program)
    for _ in range(3):
        assert_same(observed(X), program(X))
    assert "the number of a new hook" in observed.breaks[0]
