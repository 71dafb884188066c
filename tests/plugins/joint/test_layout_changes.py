"""Layouts that change in place (``unsqueeze_``, ``t_`` and the like) of what is written to, before or after.

Autograd goes through views of fake tensors by making them again; of a change in place it knows nothing there.
"""

from __future__ import annotations

import pytest
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
    "flat": lambda v: v.view(-1) if v.is_contiguous() else v,
    "diagonal": lambda v: v.diagonal() if v.dim() == 2 else v,
}
USES = {
    "sin": lambda v: v.sin(),
    "cat": lambda v: torch.cat((v, v)) if v.dim() else v * 2,
}
WRITES = {
    "mul_": lambda v: v.mul_(2.0),
    "sin_": lambda v: v.sin_(),
    "of a part": lambda v: v[..., 1:].mul_(3.0) if v.dim() else v.mul_(3.0),
    "of columns": lambda v: v[:, 1:].mul_(3.0) if v.dim() > 1 else v.mul_(3.0),
    "copy_": lambda v: v.copy_(v.detach() + 1),
}
STEPS = CHANGES | VIEWS | WRITES | USES


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 3)), min_size=2, max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
    st.booleans(),
    st.sampled_from([None, True]),
)
@example([("select", 0), ("unsqueeze_", 1), ("of columns", 1)], [0], False, None)
@example([("part", 0), ("t_", 1), ("slice", 1), ("mul_", 2)], [0, 1], False, None)
@example([("flat", 0), ("transpose_", 0), ("sin", 1)], [0, 1, 2], False, None)
@example([("sin", 0), ("transpose_", 0)], [0, 1], False, None)  # the sine has saved what changes
@example([("squeeze_", 0), ("sin", 0)], [0, 1], True, True)  # torch's kernel crashed
def test_values_and_gradients_are_those_of_eager(steps, returned, of_input, dynamic):
    def program(x):
        values = [x if of_input else x * 1]
        for name, number in steps:
            value = STEPS[name](values[number % len(values)])
            if name in VIEWS or name in USES:
                values.append(value)
        return [values[number % len(values)] for number in returned]

    def run(call):
        leaf = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
        x = leaf.clone()
        try:
            outputs = call(x)
            total = sum((o * torch.linspace(1, 2, o.numel()).view(o.shape)).sum() for o in (*outputs, x))
            gradient = torch.autograd.grad(total, leaf)[0]
        except (RuntimeError, IndexError) as error:  # eager refuses some writes and views
            return type(error)
        return [o.detach() for o in (*outputs, x)], gradient

    expected = run(program)
    is_whole = not of_input and not isinstance(expected, type)
    options = {"on_error": "raise" if is_whole else "fallback", "cache": False}
    got = run(turret.compile(program, fullgraph=is_whole, dynamic=dynamic, options=options))
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


def test_a_change_without_gradients_of_what_has_views_leaves_no_gradient_as_in_eager():
    def program(x):
        base = x * 1
        view = base[:, 1:]
        with torch.no_grad():
            base.transpose_(0, 1)
        return view * 2, base * 3

    x = torch.randn(3, 4, requires_grad=True)
    expected, found = program(x), turret.compile(program, options={"cache": False})(x)
    torch.testing.assert_close(found, expected)
    for results in (expected, found):
        with pytest.raises(RuntimeError, match="invalid gradient"):
            torch.autograd.grad([r.sum() for r in results], x)


@pytest.mark.parametrize("computed", [False, True])
def test_a_view_that_is_laid_out_from_the_start_of_its_memory_is_so_for_every_input(computed):
    def program(x):
        view = (x * 1)[1:] if computed else x[1:]
        view.as_strided_((2,), (1,), 0)
        return view * 2

    compiled = turret.compile(program, options={"on_error": "raise", "cache": False})
    whole = torch.arange(12.0, requires_grad=True)
    for start in (0, 3, 5):
        results = [function((whole * 1)[start : start + 4]) for function in (program, compiled)]
        torch.testing.assert_close(results[1], results[0])
        torch.testing.assert_close(*(torch.autograd.grad(r.sum(), whole)[0] for r in results))
