"""What runs of random functions leave behind."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import _checkpoint_without_reentrant_generator

from tests.fuzz.function_worlds import close_checkpoints
from turret.torch_compat.autograd import top_saved_tensor_hooks


def test_no_checkpoint_of_one_program_reaches_the_next():
    region = _checkpoint_without_reentrant_generator(torch.sin, True)
    next(region)
    assert top_saved_tensor_hooks(False) is not None
    close_checkpoints()
    assert top_saved_tensor_hooks(False) is None
    assert next(region, "closed") == "closed"
