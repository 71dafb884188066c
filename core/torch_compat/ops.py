"""Operators as objects: torch hands them to every pass, and has no public name for their classes."""

from __future__ import annotations

import torch
import torch._ops

linear = torch._C._nn.linear
"""``torch.nn.functional.linear``, whatever a program has put in its place."""
OpOverload = torch._ops.OpOverload
"""One overload of an operator, as targets of nodes are: its schema, tags and kernels."""
OpOverloadPacket = torch._ops.OpOverloadPacket
"""All overloads of an operator under one name, as a program may call them."""
HigherOrderOperator = torch._ops.HigherOrderOperator
"""An operator that takes graphs: control flow, checkpoints."""
OpNamespace = torch._ops._OpNamespace
"""What ``torch.ops.<name>`` gives, to tell it from other attributes of ``torch.ops``."""
