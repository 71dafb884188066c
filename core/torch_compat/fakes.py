"""Tensors without data, on which traces run; they have no public name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch._guards
import torch._subclasses.fake_tensor
import torch._subclasses.meta_utils
import torch.nested._internal.nested_int
import torch.nested._internal.nested_tensor
import torch.nested._internal.ops

FakeTensor = torch._subclasses.fake_tensor.FakeTensor
"""What ``meta['val']`` of a node is; its device is in ``fake_device``."""
FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
"""Makes them, and runs ops on them; graphs are captured and traced under one."""
DynamicOutputShapeException = torch._subclasses.fake_tensor.DynamicOutputShapeException
"""Raised where only the data says how large a result is."""
unset_fake_temporarily = torch._subclasses.fake_tensor.unset_fake_temporarily
"""A context in which real tensors are computed with while a trace is under way."""
MetaTensorDescriber = torch._subclasses.meta_utils.MetaTensorDescriber
"""Tells a mode what a real tensor is like before it makes the fake one."""
is_functional_tensor = torch._is_functional_tensor
"""Whether a tensor is a wrapper of functionalization."""
is_functorch_wrapper = torch._C._functorch.is_functorch_wrapped_tensor
"""Whether it is one of a transform of ``torch.func``."""
Source = torch._guards.Source
"""Tells a shape environment where a size is from: an abstract class, of which only the name is asked for."""
NestedTensor = torch.nested._internal.nested_tensor.NestedTensor
"""Tensors of rows of different lengths (``layout=torch.jagged``), which wrap others."""
get_tensor_symint = torch.nested._internal.nested_tensor.get_tensor_symint
"""The ragged size of the nested tensors that have a tensor for their offsets."""
NestedIntNode = torch.nested._internal.nested_int.NestedIntNode
"""Such a size: a number that only equals itself."""
jagged_torch_function: Callable[..., Any] = torch.nested._internal.ops.jagged_torch_function
"""What nested tensors answer for torch's functions."""

make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
"""A tensor of a class that wraps others: of a shape, a dtype and a device, without memory of its own."""


def lazily_traced_sizes() -> AbstractContextManager[Any]:
    """A context in which ``make_fx`` records arithmetic on sizes where something uses it alone."""
    tracer = sys.modules.get("torch.fx.experimental.proxy_tensor")  # where it was never imported, nothing is traced
    return nullcontext() if tracer is None else tracer.maybe_enable_thunkify()
