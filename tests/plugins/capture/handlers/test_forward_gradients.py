"""Blocks with dual tensors are part of the graph: primals, tangents, and gradients of these are eager's."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same
from turret.errors import CaptureError

X, TANGENT = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 0.5, -2.0])
WEIGHT = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)

FUNCTIONS = {
    "pointwise": lambda x: x.sin() * x,
    "reduction": lambda x: torch.nn.functional.layer_norm(x, (3,)).softmax(0),
    "view": lambda x: x.expand(2, 3).t()[1],
    "weights": lambda x: x * WEIGHT,
    "in place": lambda x: x.clone().mul_(x).add_(1),
    "no tangent": lambda x: x.detach() + 1,
    "sizes": lambda x: x * x.shape[0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_tangents_are_eagers(name):
    function = FUNCTIONS[name]

    def program(x, tangent):
        before = x * 2
        with forward_ad.dual_level():
            result = function(forward_ad.make_dual(before, tangent))
            found = forward_ad.unpack_dual(result)
            more = before + 1
        return found.primal, found.tangent, result * 2, more

    observed = Observed(program, fullgraph=True)
    expected = program(X, TANGENT)
    for _ in range(2):
        assert_same(observed(X, TANGENT), expected)
    assert len(observed.graphs) == 1
    compiled = turret.compile(program, fullgraph=True, options={"cache": False})
    found = compiled(X, TANGENT)
    torch.testing.assert_close(found, expected)
    if expected[0].requires_grad:
        gradients = [torch.autograd.grad((r[0] + r[1]).sum(), WEIGHT)[0] for r in (found, expected)]
        torch.testing.assert_close(*gradients)


def test_what_was_made_before_the_block_is_changed_in_it():
    def program(x, tangent):
        total = x.clone()
        tangents = []
        for _ in range(2):
            with forward_ad.dual_level() as level:
                total.mul_(forward_ad.make_dual(x, tangent))
                tangents.append(forward_ad.unpack_dual(total).tangent)
        return total, tangents, level

    observed = Observed(program, fullgraph=True)
    assert_same(observed(X, TANGENT), program(X, TANGENT))


def test_a_break_in_a_block_leaves_it_to_python_and_no_level_behind():
    def program(x, tangent):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent).sin()
            print("", end="")
            return forward_ad.unpack_dual(dual).tangent

    observed = Observed(program)
    for _ in range(2):
        assert_same(observed(X, TANGENT), program(X, TANGENT))
    with pytest.raises(CaptureError):
        Observed(program, fullgraph=True)(X, TANGENT)
    assert torch.autograd.forward_ad._current_level == -1


def test_inside_another_level_torch_refuses():
    def program(x, tangent):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, tangent).sin()).tangent

    observed = Observed(program)
    observed(X, TANGENT)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="Nested forward mode"):
        observed(X, TANGENT)
    assert torch.autograd.forward_ad._current_level == -1


def test_forward_gradients_turned_off_and_on_where_there_are_no_dual_tensors():
    def program(x):
        with forward_ad._set_fwd_grad_enabled(False):
            y, inside = x.sin(), torch._C._is_fwd_grad_enabled()
        torch._C._set_fwd_grad_enabled(False)
        return y, inside, torch._C._is_fwd_grad_enabled()

    observed = Observed(program, fullgraph=True)
    for call in (program, observed, observed):
        try:
            assert_same(call(X), (X.sin(), False, False))
            assert not torch._C._is_fwd_grad_enabled()
        finally:
            torch._C._set_fwd_grad_enabled(True)


def test_a_level_of_dual_tensors_where_forward_gradients_are_off_is_eagers():
    def program(x, tangent):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(forward_ad.make_dual(x, tangent).sin()).tangent

    observed = Observed(program)
    for enabled in (True, False, True):
        with forward_ad._set_fwd_grad_enabled(enabled):
            assert_same(observed(X, TANGENT), program(X, TANGENT))
