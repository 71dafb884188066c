"""The dispatcher: what a call passes through before its kernel, and how to take part or stay out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch._dispatch.python
import torch.overrides
import torch.utils._mode_utils
import torch.utils._python_dispatch

TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
"""Sees every op below autograd: tracers are such modes, and there is no public name for their class."""
pop_dispatch_mode = torch.utils._python_dispatch._pop_mode_temporarily
"""A context without the innermost of these modes."""
disable_current_modes = torch.utils._python_dispatch._disable_current_modes
"""A context without any of them, the tracer's own included."""
pop_function_mode = torch.overrides._pop_mode_temporarily
"""A context without the innermost mode of ``__torch_function__``; gives that mode."""
no_dispatch = torch.utils._mode_utils.no_dispatch
"""A context below all modes and tensor subclasses."""
enable_python_dispatcher = torch._dispatch.python.enable_python_dispatcher
"""A context in which kernels in Python are called, those for symbolic sizes among them."""
DisablePythonDispatcher = torch._C._DisablePythonDispatcher
"""A context in which kernels in Python are not called: what a tracer records is what the program calls."""
DisableTorchDispatch = torch._C._DisableTorchDispatch
"""The guard that ``no_dispatch`` holds, for those to whom a context costs too much; it ends when it is deleted."""
DisableAutocast = torch._C._DisableAutocast
"""A context without autocast of any device."""
AutoDispatchBelowAutograd = torch._C._AutoDispatchBelowAutograd
"""A context below autograd, for calls that need none of its records."""
ExcludeDispatchKeyGuard = torch._C._ExcludeDispatchKeyGuard
"""A context below a set of dispatch keys."""
DispatchKey = torch._C.DispatchKey
"""The layers of the dispatcher."""
DispatchKeySet = torch._C.DispatchKeySet
"""Sets of them."""
has_kernel_for = torch._C._dispatch_has_kernel_for_dispatch_key
"""Whether an op, by name, has a kernel at a key."""
registrations_text = torch._C._dispatch_dump
"""Text of the kernels of an op, with the files that registered them."""
parse_dispatch_key = torch._C._parse_dispatch_key
"""The key of a name; raises ``RuntimeError`` for one that this torch has not."""
dispatch_keys_of = torch._C._dispatch_keys
"""The layers that calls with a tensor pass through."""
has_storage = torch._C._has_storage
"""Whether a tensor has memory at all: those that wrap others have none."""
innermost_transform = torch._C._functorch.peek_interpreter_stack
"""The innermost transform of ``torch.func``; None outside of them."""


def runs_in_cudnn(*arguments: Any) -> bool:
    """Whether ATen hands a convolution of these arguments to cuDNN as it is (``torch._C``, since 1.13)."""
    cudnn = getattr(torch._C, "_ConvBackend").Cudnn  # noqa: B009 - the stubs leave it out
    return bool(torch._C._select_conv_backend(*arguments) == cudnn)


@contextlib.contextmanager
def with_autograd() -> Iterator[None]:
    """A context in which calls are recorded for a backward even below autograd, as kernels of ops are run.

    What was given is to be detached first.  (``torch._C``, since 1.13.)
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradFunctionality", "AutogradOther", "ADInplaceOrView"):
        excluded = excluded.remove(getattr(DispatchKey, name))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield
