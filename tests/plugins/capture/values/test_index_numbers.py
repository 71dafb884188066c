"""Numbers that tensors without dimensions hold, as indices and bounds of slices: one graph, and eager's views."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same

SHAPE = (4, 5, 3)
X = torch.arange(60.0).view(SHAPE)
BOUNDS = st.sampled_from(["n", "n + 1", "m", "1", "-1", "None"])
PARTS = st.one_of(
    st.sampled_from(["n", "m", "n - 1", "0", "-2", ":"]),
    st.builds(lambda start, stop: f"{start}:{stop}".replace("None", ""), BOUNDS, BOUNDS),
)
KEYS = st.tuples(
    st.lists(PARTS, min_size=1, max_size=3), st.sampled_from([None, "...", "None"]), st.integers(0, 2)
).map(lambda drawn: ", ".join([*drawn[0][: drawn[2]], *([drawn[1]] if drawn[1] else []), *drawn[0][drawn[2] :]]))
NUMBERS = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 2)), min_size=1, max_size=3)
DTYPES = st.sampled_from([torch.int64, torch.int32, torch.int8])


def program(key, written):
    """Source of a function that takes ``x[key]``, or writes there."""
    lines = [f"y[{key}] = -1.0", f"y[{key}] += n"] if written else [f"z = y[{key}]", "z.mul_(2)"]
    body = "\n    ".join(["y = x + 0", *lines, "return y" if written else "return y, z"])
    scope = {}
    exec(f"def program(x, n, m):\n    {body}", scope)
    return scope["program"]


@given(KEYS, st.booleans(), NUMBERS, DTYPES)
@settings(max_examples=40, deadline=None)
def test_elements_and_slices_are_those_that_the_tensors_say(key, written, numbers, dtype):
    function = program(key, written)
    observed = Observed(function, fullgraph=True)
    for n, m in numbers:
        held = torch.tensor(n, dtype=dtype), torch.tensor(m, dtype=dtype)
        assert_same(observed(X, *held), function(X, *held))


@pytest.mark.parametrize("key", ["n:n", "n:n + 1", "n, n:n", "0, n:, m:", "..., n:"])
def test_what_is_read_from_a_slice_is_written_back_to_it(key):
    function = program(key, written=True)
    compiled = turret.compile(function, fullgraph=True, options={"cache": False, "on_error": "raise"})
    for n, m in ((1, 2), (0, 1), (3, 0)):
        held = torch.tensor(n), torch.tensor(m)
        assert_same(compiled(X, *held), function(X, *held))


def test_an_element_that_is_not_there_is_an_error():
    observed = Observed(lambda x, n: x[n] + 1, fullgraph=True)
    assert_same(observed(X, torch.tensor(3)), X[3] + 1)
    with pytest.raises(IndexError):
        observed(X, torch.tensor(4))


def test_masks_and_bytes_are_no_numbers():
    def masked(x, n):
        return x[n > 0], x[n.bool(), 0], x[n.to(torch.uint8)]

    observed = Observed(masked)
    for n in (0, 1):
        assert_same(observed(X, torch.tensor(n)), masked(X, torch.tensor(n)))
