"""``__torch_function__``: who is asked about calls of torch's functions, as capture answers in its place."""

from __future__ import annotations

from typing import Any

import torch

DisableTorchFunction: Any = torch._C.DisableTorchFunction
"""A context in which nobody is asked."""
DisableTorchFunctionSubclass: Any = torch._C.DisableTorchFunctionSubclass
"""A context in which modes alone are."""
TorchFunctionState = torch._C._TorchFunctionState  # type: ignore[attr-defined]
"""The three of them: all, modes alone, nobody."""
function_override_state = torch._C._get_torch_function_state  # type: ignore[attr-defined]
"""Which of them holds in this thread."""
set_function_override_state = torch._C._set_torch_function_state  # type: ignore[attr-defined]
"""Make another one hold: there is no context that brings back ``ENABLED`` inside of the others."""
torch_function_enabled = torch._C._is_torch_function_enabled
"""Whether all are asked."""
torch_function_all_disabled = torch._C._is_torch_function_all_disabled
"""Whether nobody is."""
has_torch_function = torch._C._has_torch_function
"""Whether somebody is to be asked about some arguments: functions of torch in Python begin with it."""
has_torch_function_unary = torch._C._has_torch_function_unary
"""The same of one argument."""
has_torch_function_variadic = torch._C._has_torch_function_variadic
"""The same of several."""
disabled_torch_function = torch._C._disabled_torch_function_impl
"""What classes have as ``__torch_function__`` that are not asked."""
disabled_torch_dispatch = torch._C._disabled_torch_dispatch_impl
"""What they have as ``__torch_dispatch__``."""
push_onto_function_modes = torch._C._push_on_torch_function_stack
"""Put a mode above those of the thread: rebuilt code leaves the modes that the program entered."""
pop_off_function_modes = torch._C._pop_torch_function_stack
"""Take the innermost one off."""
