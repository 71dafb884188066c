"""Layouts that change in place (``unsqueeze_``, ``t_`` and the like) of what is written to, before or after.

Autograd goes through views of fake tensors by making them again; of a change in place it knows nothing there.
"""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import turret

CHANGES = {
    "unsqueeze_": lambda v: v.unsqueeze_(0),
    "unsqueeze_ at the end": lambda v: v.unsqueeze_(-1),
    "t_": lambda v: v.t_() if v.dim() < 3 else v,
    "transpose_": lambda v: v.transpose_(0, -1) if v.dim() else v,
    "swapaxes_": lambda v: v.swapaxes_(0, -1) if v.dim() else v,
    "squeeze_": lambda v: v.squeeze_(),
}
VIEWS = {
    "select": lambda v: v[0] if v.dim() > 1 else v,
    "slice": lambda v: v[..., 1:],
    "transpose": lambda v: v.transpose(0, -1) if v.dim() else v,
    "part": lambda v: v.split(1)[0] if v.dim() and v.shape[0] else v,
}
WRITES = {
    "mul_": lambda v: v.mul_(2.0),
    "sin_": lambda v: v.sin_(),
    "of a part": lambda v: v[..., 1:].mul_(3.0) if v.dim() else v.mul_(3.0),
    "of columns": lambda v: v[:, 1:].mul_(3.0) if v.dim() > 1 else v.mul_(3.0),
    "copy_": lambda v: v.copy_(v.detach() + 1),
}
STEPS = CHANGES | VIEWS | WRITES


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 3)), min_size=2, max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
    st.booleans(),
)
@example([("select", 0), ("unsqueeze_", 1), ("of columns", 1)], [0], False)
@example([("part", 0), ("t_", 1), ("slice", 1), ("mul_", 2)], [0, 1], False)
def test_values_and_gradients_are_those_of_eager(steps, returned, of_input):
    def program(x):
        values = [x if of_input else x * 1]
        for name, number in steps:
            value = STEPS[name](values[number % len(values)])
            if name in VIEWS:
                values.append(value)
        return [values[number % len(values)] for number in returned]

    def run(call):
        leaf = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        x = leaf.clone()
        try:
            outputs = call(x)
            total = sum((o * torch.linspace(1, 2, o.numel()).view(o.shape)).sum() for o in (*outputs, x))
            gradient = torch.autograd.grad(total, leaf)[0]
        except RuntimeError as error:  # eager refuses some writes
            return type(error)
        return [o.detach() for o in (*outputs, x)], gradient

    expected, got = run(program), run(turret.compile(program))
    assert type(expected) is type(got), (expected, got)
    if isinstance(expected, type):
        assert expected is got
        return
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_view_that_changes_its_layout_in_place_is_compiled():
    def program(x):
        view = (x * 1)[0]
        view.unsqueeze_(0)
        view[:, 1:].mul_(2)
        return view

    x = torch.randn(2, 2, 4, requires_grad=True)
    found = turret.compile(program, options={"on_error": "raise"}, fullgraph=True)(x)
    torch.testing.assert_close(found, program(x))
    torch.testing.assert_close(*(torch.autograd.grad(f.sum(), x)[0] for f in (found, program(x))))
