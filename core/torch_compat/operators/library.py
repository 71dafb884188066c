"""What programs registered of operators of their own: it is part of the keys of what was traced."""

from __future__ import annotations

from typing import Any

import torch._library.custom_ops
import torch._library.simple_registry
import torch.library

custom_ops = torch._library.custom_ops.OPDEFS
"""The definitions that ``torch.library.custom_op`` made, by name."""
CustomOpDef = torch._library.custom_ops.CustomOpDef
"""Their class."""
fake_registry = torch._library.simple_registry.singleton
"""Fake implementations and rules of tensor subclasses."""
python_kernels = torch.library._impls
"""Kernels that were registered from Python, as ``namespace/op/key``."""


def code_of_triton_op(op: Any) -> Any:
    """The function of a ``torch.library.triton_op``, which tracers may look into; None for any other custom op."""
    return op._abstract_fn if op._qualname in torch._library.triton.triton_ops_to_kernels else None
