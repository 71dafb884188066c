"""All handlers of functions and classes, loaded: what the interpreter answers for instead of following it."""

import torch

from turret.plugins.capture.handlers import (
    autograd,
    checkpoint,
    control,
    copy,
    devices,
    func,
    itertools,
    numbers,
    numpy,
    optim,
    recurrent,
    saved_tensors,
    torch_api,
    warnings,
)
from turret.plugins.capture.handlers.builtins import CLASSES, FUNCTIONS, NAMED

if torch.distributed.is_available():
    from turret.plugins.capture.handlers import collectives  # noqa: F401

__all__ = [
    "CLASSES",
    "FUNCTIONS",
    "NAMED",
    "autograd",
    "checkpoint",
    "control",
    "copy",
    "devices",
    "func",
    "itertools",
    "numbers",
    "numpy",
    "optim",
    "recurrent",
    "saved_tensors",
    "torch_api",
    "warnings",
]
