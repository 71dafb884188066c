"""All handlers, loaded: what the interpreter answers for instead of following it is in the registry then."""

import torch

from turret.plugins.capture.autograd import backward, hooks, tensor_data
from turret.plugins.capture.handlers import (
    attention,
    autograd,
    builtins,
    checkpoint,
    constructors,
    control,
    copy,
    devices,
    forward_gradients,
    func,
    inference_mode,
    itertools,
    made_classes,
    namespaces,
    nested,
    numbers,
    numpy,
    optim,
    overrides,
    random,
    recurrent,
    saved_tensors,
    signals,
    single_dispatch,
    standard_library,
    torch_api,
    user_kernels,
    warnings,
    weak_references,
)
from turret.plugins.capture.interpreter import opcodes, opcodes_control
from turret.plugins.capture.registry import registry

if torch.distributed.is_available():
    from turret.plugins.capture.handlers import collectives, distributed, process_groups  # noqa: F401

__all__ = [
    "attention",
    "autograd",
    "backward",
    "builtins",
    "checkpoint",
    "constructors",
    "control",
    "copy",
    "devices",
    "forward_gradients",
    "func",
    "hooks",
    "inference_mode",
    "itertools",
    "made_classes",
    "namespaces",
    "nested",
    "numbers",
    "numpy",
    "opcodes",
    "opcodes_control",
    "optim",
    "overrides",
    "random",
    "recurrent",
    "registry",
    "saved_tensors",
    "signals",
    "single_dispatch",
    "standard_library",
    "tensor_data",
    "torch_api",
    "user_kernels",
    "warnings",
    "weak_references",
]
