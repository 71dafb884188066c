"""``torch.utils.checkpoint`` as the program's modes hear it."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint

import turret


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_mode_of_the_program_hears_what_the_checkpoint_asks(use_reentrant):
    class Hears(torch.overrides.TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls += 1
            result = func(*args, **(kwargs or {}))
            return result + self.calls if func is torch.sin else result

    def program(x):
        with Hears():
            return torch.sin(torch.utils.checkpoint.checkpoint(lambda v: v * 2, x, use_reentrant=use_reentrant))

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(turret.compile(program)(x), program(x))


def test_a_default_device_breaks_no_checkpoint():
    def program(x):
        with torch.device("cpu"):
            return torch.sin(torch.utils.checkpoint.checkpoint(lambda v: v * 2, x, use_reentrant=False))

    x = torch.randn(3, requires_grad=True)
    torch.testing.assert_close(turret.compile(program, fullgraph=True)(x), program(x))
