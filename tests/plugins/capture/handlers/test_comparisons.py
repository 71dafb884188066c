"""``torch.equal`` and other questions about tensors: their answers are bools that data decide, in one graph."""

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same

NAN = float("nan")
PAIRS = [([1.0, 2.0, 3.0],) * 2, ([1.0, 2.0, 3.0], [1.0, 2.0, 4.0]), ([0.0, 2.0, NAN],) * 2, ([0.0, -1.0, 2.0],) * 2]


def results_of(call):
    found = []
    for one, other in PAIRS:
        try:
            found.append(call(torch.tensor(one), torch.tensor(other)))
        except Exception as error:
            found.append((type(error), str(error)))
    return found


def equal(x, y):
    return torch.equal(x, y), x.equal(y), torch.equal(input=x, other=y), x.equal(other=y), not torch.equal(x, y)


def equal_to_itself(x, y):
    return torch.equal(x, x), torch.equal(x.nan_to_num().long(), x.nan_to_num().long()), torch.equal(x + 1j, y + 1j)


def equal_by_branch(x, y):
    same = torch.equal(x, y) and torch.equal(y, x)
    if same:
        z = x + y
    else:
        z = x - y
    return z * torch.equal(x, y)


def equal_with_gradients(x, y):
    w = x.clone().requires_grad_()
    return torch.equal(w * 1, w), torch.allclose(w, y)


def of_other_sizes(x, y):
    z = x + 1 if torch.equal(x, y[None]) else x - 1
    return z, torch.equal(x[:1], y), torch.equal(torch.ones(0), torch.ones(0)), torch.equal(x[0] * 0, y[0] * 0)


def close(x, y):
    limits = torch.allclose(x, y, 1.0, 2.0, equal_nan=True), torch.allclose(input=x, other=y, rtol=1e-3)
    return torch.allclose(x, y), x.allclose(y + 1e-9), *limits


def nonzero(x, y):
    return torch.is_nonzero(x[0]), y[1:2].is_nonzero()


def contained(x, y):
    return 1.0 in x, y[0] in x, 7 in y, x in x, True in x, 3 not in y


def asserted(x, y):
    if not x.equal(y):
        raise AssertionError("not the same")
    return x + y


def refused_for_size(x, y):
    return torch.is_nonzero(x)


def refused_for_text(x, y):
    return "a" in x


def refused_for_none(x, y):
    return torch.equal(x, None)


@pytest.mark.parametrize(
    "program",
    [
        equal, equal_to_itself, equal_by_branch, equal_with_gradients, of_other_sizes, close, nonzero, contained,
        asserted, refused_for_size, refused_for_text, refused_for_none,
    ],
)  # fmt: skip
def test_answers_are_those_of_eager_whatever_the_data(program):
    observed = Observed(program, fullgraph=True)
    assert_same(results_of(observed), results_of(program))
    assert len(observed.units) == 1
    assert not observed.fallbacks or program in (asserted, refused_for_size, refused_for_text, refused_for_none)


@pytest.mark.parametrize("program", [equal, close, contained])
def test_where_values_are_not_read_in_graphs_the_graph_ends_there(program):
    observed = Observed(program)
    assert_same(results_of(observed), results_of(program))
    assert observed.breaks


def test_sizes_that_change_are_compared_by_guards():
    def program(x, y):
        return torch.equal(x, y), x + 1

    observed = Observed(program, fullgraph=True, dynamic=True)
    for one, other in ((3, 3), (5, 5), (3, 5), (7, 7), (4, 6)):
        given = torch.ones(one), torch.ones(other)
        assert_same(observed(*given), program(*given))
    assert len(observed.units) == 2
