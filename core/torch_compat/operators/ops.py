"""Operators as objects: torch hands them to every pass, and has no public name for their classes."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch._ops

linear = torch._C._nn.linear
"""``torch.nn.functional.linear``, whatever a program has put in its place."""
flash_attention = torch._scaled_dot_product_flash_attention
"""The function of that op, without scales of quantized operands."""
OpOverload = torch._ops.OpOverload
"""One overload of an operator, as targets of nodes are: its schema, tags and kernels."""
OpOverloadPacket = torch._ops.OpOverloadPacket
"""All overloads of an operator under one name, as a program may call them."""
HigherOrderOperator = torch._ops.HigherOrderOperator
"""An operator that takes graphs: control flow, checkpoints."""
neg_view = torch._neg_view
"""A view with the sign turned, as ``z.conj().imag`` is; only the private function makes one of a real tensor."""
copy_each = torch._foreach_copy_
"""Copies between two lists of tensors, in one call."""
OpNamespace = torch._ops._OpNamespace
"""What ``torch.ops.<name>`` gives, to tell it from other attributes of ``torch.ops``."""


def load_prims() -> None:
    """Define the ops of ``torch.ops.prims``, which torch itself loads when it first traces."""
    import torch._prims  # noqa: F401


@functools.cache
def fake_functions_of_operators() -> dict[Any, Any]:
    """What ``FakeTensorMode`` itself asks for fake results of higher-order operators; others have handlers for it."""
    from torch._higher_order_ops import utils

    return getattr(utils, "registered_hop_fake_fns", {})
