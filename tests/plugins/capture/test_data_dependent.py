"""With fullgraph, numbers and sizes that come from tensors' values are symbols of the one graph."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from capture_lab import Observed, assert_same, check

from turret.errors import CaptureError


def whole(function, *calls) -> Observed:
    """Capture with fullgraph; every call must give what eager gives, all from one graph."""
    observed = Observed(function, fullgraph=True)
    for args in calls:
        assert_same(observed(*args), function(*args))
    assert len(observed.graphs) == 1
    return observed


def test_item_and_conversions_are_numbers_of_the_graph():
    def f(x):
        return x * x.sum().item(), float(x.max()), int(x[0])

    whole(f, (torch.tensor([1.0, 2.0]),), (torch.tensor([5.0, 3.0]),))


def test_results_whose_size_depends_on_data():
    def f(x):
        count = int((x > 0).sum())
        return torch.nonzero(x) * 2, x[x > 0] + 1, x.masked_select(x > 1), torch.zeros(count)

    whole(f, (torch.tensor([1.0, 0.0, 2.0]),), (torch.tensor([0.0, 0.0, 3.0]),))


def test_an_index_that_depends_on_data():
    whole(lambda x, i: x[i.item()] + 1, (torch.arange(4.0), torch.tensor(1)), (torch.arange(4.0), torch.tensor(-1)))


def test_rounding_of_a_number_that_depends_on_data():
    def f(x):
        return x * min(math.ceil(x.max().item() * 8), 5)

    whole(f, (torch.ones(2),), (torch.ones(2) / 4,))


def test_tolist_gives_numbers_of_the_graph():
    whole(lambda x: [v + 1 for v in x.tolist()], (torch.ones(3),), (torch.zeros(3),))


def test_a_list_of_tensors_without_dimensions_becomes_a_tensor_without_history():
    inputs = torch.ones(3, requires_grad=True), torch.arange(3.0, requires_grad=True)
    whole(lambda x: torch.tensor([x.sum(), x.max()]) * 2, *((x,) for x in inputs))


def test_a_branch_on_such_a_number_is_reported():
    with pytest.raises(CaptureError, match="depends on data"):
        Observed(lambda x: x + 1 if x.sum().item() > 0 else x, fullgraph=True)(torch.ones(2))


def test_without_fullgraph_they_break_the_graph():
    def f(x):
        return x[x > 0] * x.sum().item()

    check(f, torch.tensor([1.0, -2.0, 4.0]), breaks=None)


def defined(text: str):
    """The function ``f`` of a text: pytest rewrites the asserts of this file."""
    scope = {}
    exec(text, scope)
    return scope["f"]


def test_an_assert_on_a_tensor_is_checked_by_the_graph():
    f = defined("def f(x):\n  assert x.sum() > 0, 'must be positive'\n  assert (x < 10).all()\n  return x + 1\n")
    observed = whole(f, (torch.ones(2),), (torch.ones(2) * 2,))
    with pytest.raises(RuntimeError, match="must be positive"):
        observed(-torch.ones(2))
    with pytest.raises(RuntimeError):
        observed(torch.ones(2) * 20)


def test_an_assert_on_a_comparison_of_lists_of_tensors_is_not_left_to_the_graph():
    f = defined("def f(x, y):\n  assert [x] != [y]\n  return x + y\n")
    with pytest.raises(CaptureError):
        Observed(f, fullgraph=True)(torch.ones(1), torch.zeros(1))


def test_a_warning_is_given_after_a_full_graph_on_every_call():
    def f(x):
        warnings.warn("careful", RuntimeWarning, stacklevel=2)
        return x + 1

    observed = Observed(f, fullgraph=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert_same(observed(torch.ones(1)), torch.ones(1) + 1)
    assert [(str(w.message), w.category) for w in caught] == [("careful", RuntimeWarning)] * 2


def test_a_program_that_raises_raises_its_own_exception_in_a_full_graph():
    def helper(items, x):
        return next(items) + x

    def f(x):
        helper((x + n for n in range(3)), x)
        raise ValueError("the end")

    with pytest.raises(ValueError, match="the end"):
        Observed(f, fullgraph=True)(torch.ones(2))
