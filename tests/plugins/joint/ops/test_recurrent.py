"""Recurrent layers agree with eager's: values, gradients, and the numbers of the dropout between them."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import turret

KINDS = [nn.LSTM, nn.GRU, nn.RNN]


def _compiled(function):
    return turret.compile(function, options={"cache": False, "on_error": "raise", "fallback_random": True})


def _assert_agrees(model, call, x):
    other, y = copy.deepcopy(model), x.detach().clone().requires_grad_(x.requires_grad)
    results = []
    for function, module, given in ((call, model, x), (_compiled(call), other, y)):
        torch.manual_seed(3)
        found = function(module, given)
        sum(t.square().sum() for t in found).backward()
        results.append([*found, *(t.grad for t in (*module.parameters(), given) if t.grad is not None)])
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
    gradients = [p.grad.data_ptr() for p in other.parameters()]
    assert len(set(gradients)) == len(gradients)


def _flat(model, x):
    y, ends = model(x)
    return (getattr(y, "data", y), *(ends if isinstance(ends, tuple) else (ends,)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("layers", "both"), [(2, False), (3, True)])
def test_layers_drop_out_what_eagers_do(kind, layers, both):
    torch.manual_seed(0)
    model = kind(6, 8, num_layers=layers, bidirectional=both, dropout=0.5)
    _assert_agrees(model, _flat, torch.randn(4, 5, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_are_dropped_out_between_layers(kind):
    torch.manual_seed(0)
    model = kind(6, 8, num_layers=2, dropout=0.5)

    def packed(model, x):
        y, ends = model(pack_padded_sequence(x, [4, 3, 1]))
        return (y.data, *(ends if isinstance(ends, tuple) else (ends,)))

    _assert_agrees(model, packed, torch.randn(4, 3, 6))


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_dropped_out_in_evaluation(kind):
    model = kind(6, 8, num_layers=2, dropout=0.5).eval()
    _assert_agrees(model, _flat, torch.randn(4, 5, 6))


@pytest.mark.parametrize(
    ("both", "first", "bias", "train", "learned"), list(itertools.product([False, True], repeat=5))
)
@pytest.mark.thorough
def test_an_lstm_agrees_whatever_its_form(both, first, bias, train, learned):
    torch.manual_seed(0)
    model = nn.LSTM(6, 8, num_layers=2, bidirectional=both, batch_first=first, bias=bias).train(train)
    _assert_agrees(model, _flat, torch.randn(4, 5, 6, requires_grad=learned))


def test_states_before_the_first_step_have_gradients():
    torch.manual_seed(0)
    model = nn.LSTM(6, 8, num_layers=2)
    states = [torch.randn(2, 5, 8, requires_grad=True) for _ in range(2)]
    states += [state.detach().clone().requires_grad_() for state in states]
    x = torch.randn(4, 5, 6)

    def call(model, x, h, c):
        y, _ = model(x, (h, c))
        return y

    call(model, x, *states[:2]).sum().backward()
    _compiled(call)(model, x, *states[2:]).sum().backward()
    for expected, got in zip(states[:2], states[2:], strict=True):
        torch.testing.assert_close(got.grad, expected.grad)


@pytest.mark.parametrize("number", [0, 1])
def test_only_one_of_the_last_states_is_used(number):
    torch.manual_seed(0)
    _assert_agrees(nn.LSTM(6, 8), lambda m, x: (m(x)[1][number],), torch.randn(4, 5, 6, requires_grad=True))


def test_a_projection_and_half_precision_of_autocast_agree():
    torch.manual_seed(0)
    _assert_agrees(nn.LSTM(6, 8, proj_size=3), _flat, torch.randn(4, 5, 6))
    model, x = nn.LSTM(6, 8), torch.randn(4, 5, 6)

    def call(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)[0]

    expected, got = call(model, x), _compiled(call)(model, x)
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected)


def test_a_gradient_of_a_gradient_agrees():
    torch.manual_seed(0)
    model, x = nn.LSTM(6, 8), torch.randn(4, 5, 6, requires_grad=True)

    def gradients(call):
        inputs = [x, *model.parameters()]
        first = torch.autograd.grad(call(x)[0].square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.sin().sum() for g in first), inputs)

    for got, expected in zip(gradients(_compiled(model)), gradients(model), strict=True):
        torch.testing.assert_close(got, expected)
