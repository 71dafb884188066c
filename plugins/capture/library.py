"""All handlers of functions and classes, loaded: what the interpreter answers for instead of following it."""

import torch

from turret.plugins.capture import (
    handlers_autograd,
    handlers_checkpoint,
    handlers_control,
    handlers_copy,
    handlers_devices,
    handlers_func,
    handlers_numbers,
    handlers_numpy,
    handlers_optim,
    handlers_recurrent,
    handlers_torch,
    handlers_warnings,
)
from turret.plugins.capture.handlers import CLASSES, FUNCTIONS, NAMED

if torch.distributed.is_available():
    from turret.plugins.capture import collectives  # noqa: F401

__all__ = [
    "CLASSES",
    "FUNCTIONS",
    "NAMED",
    "handlers_autograd",
    "handlers_checkpoint",
    "handlers_control",
    "handlers_copy",
    "handlers_devices",
    "handlers_func",
    "handlers_numbers",
    "handlers_numpy",
    "handlers_optim",
    "handlers_recurrent",
    "handlers_torch",
    "handlers_warnings",
]
