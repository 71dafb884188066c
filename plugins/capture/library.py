"""All handlers of functions and classes, loaded: what the interpreter answers for instead of following it."""

from turret.plugins.capture import (
    handlers_autograd,
    handlers_checkpoint,
    handlers_control,
    handlers_copy,
    handlers_func,
    handlers_numpy,
    handlers_torch,
)
from turret.plugins.capture.handlers import CLASSES, FUNCTIONS

__all__ = [
    "CLASSES",
    "FUNCTIONS",
    "handlers_autograd",
    "handlers_checkpoint",
    "handlers_control",
    "handlers_copy",
    "handlers_func",
    "handlers_numpy",
    "handlers_torch",
]
