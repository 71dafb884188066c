"""What programs registered of operators of their own: it is part of the keys of what was traced."""

from __future__ import annotations

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
