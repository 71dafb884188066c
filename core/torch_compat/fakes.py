"""Tensors without data, on which traces run; they have no public name."""

from __future__ import annotations

import torch._guards
import torch._subclasses.fake_tensor
import torch.nested._internal.nested_int
import torch.nested._internal.nested_tensor
import torch.nested._internal.ops

FakeTensor = torch._subclasses.fake_tensor.FakeTensor
"""What ``meta['val']`` of a node is; its device is in ``fake_device``."""
FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
"""Makes them, and runs ops on them; graphs are captured and traced under one."""
NestedTensor = torch.nested._internal.nested_tensor.NestedTensor
"""Tensors of rows of different lengths (``layout=torch.jagged``), which wrap others."""
get_tensor_symint = torch.nested._internal.nested_tensor.get_tensor_symint
"""The ragged size of the nested tensors that have a tensor for their offsets."""
NestedIntNode = torch.nested._internal.nested_int.NestedIntNode
"""Such a size: a number that only equals itself."""
jagged_torch_function = torch.nested._internal.ops.jagged_torch_function
"""What nested tensors answer for torch's functions."""
SizeSource = torch._guards.Source
"""Where a size comes from, as the shape environment asks it; its ``name`` is a text."""
