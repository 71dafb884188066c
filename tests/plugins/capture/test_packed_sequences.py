"""Packed sequences, whose sizes are data: packed, computed on by recurrent layers, and padded again in one graph."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same


class Tagger(nn.Module):
    def __init__(self, kind, *, in_order: bool = True, total: int | None = None, **how) -> None:
        super().__init__()
        self.layer = kind(3, 4, batch_first=True, **how)
        self.in_order, self.total = in_order, total

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=self.in_order)
        found, states = self.layer(packed)
        return *pad_packed_sequence(found, True, padding_value=-2.0, total_length=self.total), states


def assert_gradients(call, model, args):
    """The results and gradients of a compiled call are those of a copy of the model."""
    other, x = copy.deepcopy(model), args[0]
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.manual_seed(1)
    found = call(mine, *args[1:])
    torch.manual_seed(1)
    expected = other(theirs, *args[1:])
    assert_same(found, expected)
    assert found[0].stride() == expected[0].stride()
    model.zero_grad()
    for made in (found, expected):
        (made[0].square().sum() + sum(s.sum() for s in (made[2] if type(made[2]) is tuple else (made[2],)))).backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    for one, another in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, another.grad)


KINDS = {
    "lstm": (nn.LSTM, {}), "gru": (nn.GRU, {}), "rnn": (nn.RNN, {"nonlinearity": "relu"}),
    "both": (nn.GRU, {"bidirectional": True}), "two": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "projected": (nn.LSTM, {"proj_size": 2}), "dropout": (nn.LSTM, {"num_layers": 3, "dropout": 0.5}),
    "no bias": (nn.RNN, {"bias": False}),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_sequences_of_known_lengths_are_part_of_any_graph(name):
    kind, how = KINDS[name]
    model = Tagger(kind, **how)
    observed = Observed(model.__call__)
    assert_gradients(observed, model, (torch.randn(3, 5, 3), [5, 3, 2]))
    assert not observed.breaks
    assert len(observed.graphs) == 1


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_sequences_of_lengths_that_data_give_are_part_of_a_whole_graph(name, in_order):
    kind, how = KINDS[name]
    model = Tagger(kind, in_order=in_order, total=6, **how)
    backend = "eager" if "dropout" in how else "turret"  # generated kernels draw other numbers than eager
    options = {"cache": False, "on_error": "raise"}
    compiled = turret.compile(model, fullgraph=True, backend=backend, options=options)
    for lengths in ([5, 3, 2], [4, 4, 1], [1, 1, 1]):
        given = lengths if in_order else lengths[1:] + lengths[:1]
        assert_gradients(compiled, model, (torch.randn(3, 5, 3), torch.tensor(given)))


def test_lists_of_lengths_that_change_are_soon_one_whole_graph():
    model = Tagger(nn.LSTM, in_order=False)
    observed = Observed(model.__call__, fullgraph=True)
    for lengths in ([5, 3, 2], [4, 5, 3], [3, 2, 4], [2, 4, 5]):
        assert_gradients(observed, model, (torch.randn(3, 5, 3), lengths))
    captured = len(observed.graphs)
    for lengths in ([2, 3, 4], [5, 5, 5], [3, 4, 2]):
        assert_gradients(observed, model, (torch.randn(3, 5, 3), lengths))
    assert len(observed.graphs) == captured


@pytest.mark.parametrize("total", [None, 6])
def test_sequences_of_lengths_that_data_give_are_part_of_any_graph(total):
    model = Tagger(nn.LSTM, in_order=False, total=total)
    observed = Observed(model.__call__)
    for lengths in ([2, 5, 3], [1, 2, 4], [3, 4, 1, 1], [1, 5, 2, 2, 3], [4, 1, 1]):
        assert_gradients(observed, model, (torch.randn(len(lengths), 5, 3), torch.tensor(lengths)))
    assert not observed.breaks
    assert len(observed.graphs) == 2, "a batch that changes is a symbol"


def test_of_other_numbers_of_data_the_graph_breaks_as_without_sequences():
    def program(x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        y = packed.data * x.sum().item()
        return y + 1, packed.batch_sizes[0].item(), packed.batch_sizes[1].item()

    x, lengths = torch.randn(3, 5, 3), torch.tensor([5, 3, 2])
    observed = Observed(program)
    assert_same(observed(x, lengths), program(x, lengths))
    assert observed.breaks
    assert all("Tensor.item reads" in reason for reason in observed.breaks)


def test_a_first_batch_size_that_the_program_changes_is_read_anew():
    def program(x, lengths):
        sizes = pack_padded_sequence(x, lengths, batch_first=True).batch_sizes
        first = sizes[0]
        before = first.item()
        sizes[0] = 7
        return before, first.item(), int(sizes[0])

    x, lengths = torch.randn(3, 5, 3), torch.tensor([5, 3, 2])
    assert program(x, lengths) == (3, 7, 7)
    for fullgraph in (False, True):
        assert Observed(program, fullgraph=fullgraph)(x, lengths) == (3, 7, 7)


def test_a_packed_sequence_that_is_given_or_returned_is_eagers():
    layer = nn.GRU(3, 4)
    packed = pack_padded_sequence(torch.randn(5, 3, 3), [5, 3, 2])
    for fullgraph in (False, True):
        found, state = Observed(layer.__call__, fullgraph=fullgraph)(packed, torch.ones(1, 3, 4))
        expected, last = layer(packed, torch.ones(1, 3, 4))
        assert type(found) is PackedSequence
        assert_same((*found, state), (*expected, last))


def test_states_of_another_batch_than_the_sequences_raise_eagers_error():
    layer = nn.GRU(3, 4)
    packed = pack_padded_sequence(torch.randn(5, 3, 3), [5, 3, 2])
    for fullgraph in (False, True):
        with pytest.raises(RuntimeError, match=r"Expected hidden size \(1, 3, 4\), got \[1, 2, 4\]"):
            Observed(layer.__call__, fullgraph=fullgraph)(packed, torch.ones(1, 2, 4))


@pytest.mark.parametrize("lengths", [[2, 5, 3], [5, 3, 0], [5, 3]])
def test_lengths_that_eager_refuses_are_refused(lengths):
    def program(x, lengths):
        return pack_padded_sequence(x, lengths, batch_first=True).data * 2

    x = torch.randn(3, 5, 3)
    with pytest.raises(RuntimeError) as expected:
        program(x, lengths)
    for given, fullgraph in ((lengths, False), (torch.tensor(lengths), True), (torch.tensor(lengths), False)):
        with pytest.raises(RuntimeError) as found:
            Observed(program, fullgraph=fullgraph)(x, given)
        assert str(found.value) == str(expected.value)


def test_a_list_of_sequences_is_packed_and_unpacked():
    def program(*sequences):
        packed = pack_sequence(sequences, enforce_sorted=False)
        return packed, pad_packed_sequence(packed, padding_value=1.0), packed.data.shape[0]

    rows = [torch.randint(9, (n, 2)) for n in (2, 4, 1)]
    observed = Observed(program, fullgraph=True)
    assert_same(observed(*rows), program(*rows))


def test_sizes_may_be_held_by_tensors():
    def program(x, n):
        return torch.zeros(2, n[0]), torch.ones((n[1], 2)), x.expand(n[0], -1), x.new_full((n[0],), 3)

    args = torch.ones(1, 2), torch.tensor([3, 4])
    assert_same(Observed(program, fullgraph=True)(*args), program(*args))
    assert_same(Observed(program)(*args), program(*args))
