"""What runs of random functions leave behind."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import _checkpoint_without_reentrant_generator

from tests.fuzz.function_worlds import close_checkpoints
from turret.frames.saved_tensor_hooks import top_hooks


def test_no_checkpoint_of_one_program_reaches_the_next():
    region = _checkpoint_without_reentrant_generator(torch.sin, True)
    next(region)
    assert top_hooks(False) is not None
    close_checkpoints()
    assert top_hooks(False) is None
    assert next(region, "closed") == "closed"
