"""Torch's modes of a thread, on which guards are taken and which traces set."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.utils._device

set_grad_enabled = torch._C._set_grad_enabled
"""Turn gradients on or off: the public one is an object that remembers what was before."""
set_forward_gradients: Callable[[bool], None] = torch._C._set_fwd_grad_enabled
"""Turn forward-mode gradients on or off."""
forward_gradients_enabled: Callable[[], bool] = torch._C._is_fwd_grad_enabled
"""Whether they are on."""
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
"""Whether autocast is on, for whatever device."""
is_tracing = torch._C._is_tracing
"""Whether ``torch.jit.trace`` looks at calls."""
dispatch_mode_count = torch._C._len_torch_dispatch_stack
"""How many modes see ops below autograd."""
function_mode_count = torch._C._len_torch_function_stack
"""How many modes see calls of torch's functions."""
function_mode_at = torch._C._get_function_stack_at
"""One of them, the outermost being 0."""
functorch_level = torch._C._functorch.maybe_current_level
"""The level of the innermost transform of ``torch.func``; None outside of them."""
functorch_is_active = torch._C._are_functorch_transforms_active
"""Whether there is one."""
flash_attention_enabled = torch._C._get_flash_sdp_enabled
"""Whether attention may run by this kernel."""
memory_efficient_attention_enabled = torch._C._get_mem_efficient_sdp_enabled
"""And by this one."""
math_attention_enabled = torch._C._get_math_sdp_enabled
"""And by this one."""
cudnn_attention_enabled = torch._C._get_cudnn_sdp_enabled
"""And by this one."""
DeviceContext = torch.utils._device.DeviceContext
"""The mode that a default device is."""
peek_redispatch: Callable[[], bool] | None = getattr(torch._C, "_peek_should_skip_torch_function", None)
"""Whether the next function of torch is to ask nobody (``torch.overrides.redispatch_function``); since torch 2.13."""
set_attention_enabled: dict[str, Callable[[bool], None]] = {
    name: getattr(torch._C, f"_set_sdp_use_{name}")
    for name in ("flash", "mem_efficient", "math", "cudnn", "overrideable")
}
"""For each kernel of scaled_dot_product_attention what allows or forbids it."""
set_attention_order: Callable[[list[int]], None] = torch._C._set_sdp_priority_order
"""Say in which order kernels of attention are asked whether they can do a call."""
attention_enabled: dict[str, Callable[[], bool]] = {
    name: getattr(torch._C, f"_get_{name}_sdp_enabled") for name in set_attention_enabled
}
"""And what says whether it is allowed."""


_get_attention_order: Callable[[], list[int]] = torch._C._get_sdp_priority_order
"""And that order, which may not have been made up."""
_ORDER_AT_IMPORT = _get_attention_order()
"""What it is as long as neither torch nor the program has said otherwise."""


def attention_order() -> list[int]:
    """In which order kernels of attention are asked, as numbers of ``SDPBackend``.

    For GPUs torch makes that up at its first call of attention.  It is made to here, or else the call of a program
    would seem to have changed the order, to be taken back behind it.
    """
    if torch.cuda.is_initialized():
        _settle_attention_order()
    return _get_attention_order()


@functools.cache
def _settle_attention_order() -> None:
    before = _get_attention_order()
    probe = torch.empty(1, 1, 1, 8, dtype=torch.float16, device=torch.cuda.current_device())
    torch._fused_sdp_choice(probe, probe, probe)
    if before != _ORDER_AT_IMPORT:
        set_attention_order(before)  # the program's own


def fills_uninitialized_memory() -> bool:
    """Whether deterministic algorithms also fill what is not initialised; no stub knows this property of the module."""
    return bool(getattr(torch.utils.deterministic, "fill_uninitialized_memory"))  # noqa: B009


def default_device() -> torch.device | None:
    """The device that ``torch.set_default_device`` was given in this thread; None without one."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device
