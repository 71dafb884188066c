"""What an ``autograd.Function`` saves: autograd looks after tensors given to ``save_for_backward``, not after others."""

from __future__ import annotations

import itertools

import pytest
import torch

import turret

SAVED = {"argument": lambda x, y: x, "made": lambda x, y: y, "both": lambda x, y: (x, y)}
RETURNED = {"made": lambda x, y: y, "detached": lambda x, y: y.detach(), "other": lambda x, y: y + 1}
WRITES = {
    "nothing": lambda x, given, out: out * 2,
    "the result": lambda x, given, out: out.mul_(3),
    "the argument": lambda x, given, out: (given.mul_(3), out * 1)[1],
    "before": lambda x, given, out: out + given.sum(),
}


def program_of(saved: str, returned: str, written: str, as_attribute: bool):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * 2
            kept = SAVED[saved](x, y)
            kept = kept if isinstance(kept, tuple) else (kept,)
            if as_attribute:
                ctx.kept = kept
            else:
                ctx.save_for_backward(*kept)
            return RETURNED[returned](x, y)

        @staticmethod
        def backward(ctx, gradient):
            for value in ctx.kept if as_attribute else ctx.saved_tensors:
                gradient = gradient * value
            return gradient

    def program(x):
        given = x.sin()
        return WRITES[written](x, given, Function.apply(given)).sum()

    return program


def outcome(function):
    x = torch.arange(1.0, 4.0).requires_grad_()
    try:
        value = function(x)
        value.backward()
    except RuntimeError as error:
        return type(error)
    return value.detach(), x.grad


@pytest.mark.filterwarnings("ignore::turret.errors.TurretWarning")
@pytest.mark.parametrize("as_attribute", [False, True], ids=["saved", "attribute"])
@pytest.mark.parametrize(("saved", "returned", "written"), list(itertools.product(SAVED, RETURNED, WRITES)))
def test_a_change_of_what_was_saved_is_an_error_where_eager_has_one(saved, returned, written, as_attribute):
    program = program_of(saved, returned, written, as_attribute)
    mine, theirs = outcome(turret.compile(program)), outcome(program)
    if isinstance(theirs, type):
        assert mine is theirs
    else:
        torch.testing.assert_close(mine, theirs)
