"""``resize_``: of results and inputs, to fewer and more elements, with other views of the memory around it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.joint_harness import assert_same, compiled
from turret.errors import UnsupportedError


def a_slice(y):
    kept = y[:1]
    y.resize_(10)
    y.fill_(3)
    return kept, y


def smaller(y):
    kept = y.view(3, 1)
    y.resize_(2)
    kept.fill_(5)
    return y, kept


def detached(y):
    kept = y.detach()
    y.resize_(5)
    y[3:] = 1
    kept.fill_(5)
    return y, kept


def shape_and_values(y):
    y.add_(1)
    y.resize_(2, 2)
    y[1] = 7
    return y.t(), y * 2


@pytest.mark.parametrize("of_input", [False, True])
@pytest.mark.parametrize("function", [a_slice, detached, shape_and_values])
def test_views_from_before_show_the_memory_that_was_resized(function, of_input):
    assert_same(lambda x: function(x if of_input else x * 2), [torch.arange(3.0)], capture="call", backward=False)


def test_what_is_left_out_of_a_smaller_result_is_still_written_to():
    assert_same(lambda x: smaller(x * 2), [torch.arange(3.0)], capture="call", backward=False)
    with pytest.raises(UnsupportedError, match="fewer elements"):
        compiled(smaller, capture="call")(torch.arange(3.0))


def test_an_input_of_more_elements_grows_in_its_memory():
    def function(x, y):
        x.resize_as_(y)
        x.copy_(y * 2)
        return x

    made = assert_same(function, [torch.arange(3.0), torch.arange(8.0).view(2, 4)], capture="call", calls=1)
    x = torch.arange(3.0)
    assert made(x, torch.ones(2, 4))[0] is x
    assert x.shape == (2, 4) and x.untyped_storage().nbytes() == 32 and torch.equal(x, torch.full((2, 4), 2.0))


STEPS = st.lists(
    st.tuples(st.sampled_from(["resize", "fill", "view", "add"]), st.integers(0, 3), st.integers(1, 9)), max_size=6
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.booleans())
def test_resizes_views_and_writes_in_any_order(steps, of_input):
    def function(x):
        tensors = [x if of_input else x * 2]
        for number, (kind, which, size) in enumerate(steps):
            target = tensors[which % len(tensors)]
            if kind == "resize" and which == 0:
                known = tensors[0].numel()
                tensors[0].resize_(size)
                if size > known:
                    tensors[0][known:] = number
            elif kind == "fill":
                target.fill_(number)
            elif kind == "add":
                target.add_(number)
            else:
                tensors.append(target[: size // 2 + 1])
        return [t * 1 for t in tensors]

    try:
        assert_same(function, [torch.arange(4.0)], capture="call", backward=False, calls=1)
    except UnsupportedError as error:
        assert "resize_" in str(error)
