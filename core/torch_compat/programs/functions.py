"""Functions with private names that programs, or torch's own layers and optimizers, call by them.

Capture answers for their calls itself, or makes calls of them nodes of a graph.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils.checkpoint
from torch.optim import optimizer

torch_assert = torch._assert
"""An assertion that ``torch.fx`` keeps."""
assert_async = torch._assert_async
"""An assertion on a tensor that is checked when the kernel runs."""
shape_as_tensor = torch._shape_as_tensor
"""The sizes of a tensor as one."""
reshape_from_tensor = torch._reshape_from_tensor
"""A reshape to sizes that a tensor holds."""
safe_softmax = torch._safe_softmax
"""A softmax that is zero where all scores are minus infinity."""
make_subclass = torch.Tensor._make_subclass
"""A tensor of another class in the same memory."""
wrap_triton = torch.library.wrap_triton
"""Says of a Triton kernel that tracers may look into its launch; public, and imported here alone."""
make_wrapper_subclass: Any = torch.Tensor._make_wrapper_subclass
"""A tensor of a class that has no memory of its own."""
CHECKPOINT_SAVES_BY_FUNCTION = hasattr(torch.utils.checkpoint, "_NoopSaveInputs")
"""Whether checkpoints that are not reentrant save their arguments by an ``autograd.Function``, as up to torch 2.11."""
use_grad_for_differentiable = optimizer._use_grad_for_differentiable
"""The decorator of the ``step`` of optimizers."""
group_tensors_unless_compiling = optimizer.Optimizer._group_tensors_by_device_and_dtype
"""What optimizers sort their parameters with, which torch's own compiler skips."""
value_of = optimizer._get_value
"""What an optimizer reads a number of its state with."""
stack_if_compiling = optimizer._stack_if_compiling
"""What it puts numbers together with."""
