"""Views of a result that is written to afterwards: values and gradients go through the write, whatever made the result.

Products of many dimensions end in ``_unsafe_view``, whose result lies in the memory of the product without being a view
of it to autograd: a write to it is no part of the product's history.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import turret

MAKERS = (
    lambda a, x: a @ x,
    lambda a, x: a @ torch.stack([x, x * 2], 1),
    lambda a, x: F.linear(a, torch.stack([x, x + 1, x * 3])),
    lambda a, x: torch.einsum("abc,c->ab", a, x),
    lambda a, x: torch.matmul(a, torch.stack([x, x], 1).expand(3, 5, 2)),
    lambda a, x: a * x,
    lambda a, x: (a * x).reshape(12, 5),
)
VIEWS = (
    lambda v: v[1:],
    lambda v: v.select(1, 0),
    lambda v: v.transpose(0, 1),
    lambda v: v.view(-1),
    lambda v: v.flatten(),
    lambda v: v.detach(),
    lambda v: v,
)
WRITES = (lambda v: v.sin_(), lambda v: v.mul_(2.0), lambda v: v.exp_(), lambda v: v.zero_(), lambda v: v[0].cos_())


@pytest.mark.thorough
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(MAKERS),
    st.lists(st.sampled_from(VIEWS), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(WRITES)), max_size=2),
    st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
)
def test_values_and_gradients_are_those_of_eager(make, views, writes, returned):
    def program(a, x):
        values = [make(a, x)]
        for view in views:
            values.append(view(values[-1]) if values[-1].dim() > 1 else values[-1][1:])
        for number, write in writes:
            write(values[number % len(values)])
        return [values[number % len(values)] for number in returned]

    def run(call):
        torch.manual_seed(0)
        x = torch.randn(5, requires_grad=True)
        try:
            outputs = call(torch.randn(3, 4, 5), x)
            total = sum((o * torch.linspace(1, 2, o.numel()).view(o.shape)).sum() for o in outputs if o.requires_grad)
            gradient = torch.autograd.grad(total, x)[0] if isinstance(total, torch.Tensor) else None
        except RuntimeError as error:  # eager refuses some writes
            return type(error)
        return [o.detach() for o in outputs], [o.requires_grad for o in outputs], gradient

    expected = run(program)
    found = run(turret.compile(program))
    if isinstance(expected, type):
        assert isinstance(found, type)
        return
    torch.testing.assert_close(found[0], expected[0])
    assert found[1] == expected[1]
    torch.testing.assert_close(found[2], expected[2], rtol=1e-4, atol=1e-4)
