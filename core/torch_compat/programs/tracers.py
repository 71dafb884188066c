"""Torch's other tracers: what programs ask of them, for capture to answer, and what they wrap calls in."""

from __future__ import annotations

from typing import Any

import torch
import torch._jit_internal
import torch._utils
import torch.fx._symbolic_trace
import torch.fx.graph_module

is_compiling = torch._utils.is_compiling
"""An older name of ``torch.compiler.is_compiling``."""
is_fx_tracing = torch.fx._symbolic_trace.is_fx_tracing
"""Whether a symbolic trace of ``torch.fx`` is under way."""
is_fx_symbolic_tracing = torch.fx._symbolic_trace.is_fx_symbolic_tracing
"""The same, not by way of a proxy tensor."""
FxCall = torch.fx.graph_module._WrappedCall
"""What stands around the ``forward`` of a graph module, for tracebacks."""
jit_isinstance = torch._jit_internal._isinstance
"""What ``torch.jit.isinstance`` calls."""
unwrap_optional = torch.jit._unwrap_optional
"""An assertion that a value is not None."""
get_tracing_state: Any = torch._C._get_tracing_state
"""The state of ``torch.jit.trace``; None outside of one."""
set_tracing_state: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]
"""Put it aside, and back."""
disable_dynamo = torch._disable_dynamo
"""Hides a method of torch from ``torch.compile``: the code of its wrapper says which are."""
is_checkpoint_valid = torch.autograd._is_checkpoint_valid
"""Whether a reentrant checkpoint may be used in the backward that runs."""
