"""Where the functions of torch lie that are written in C++, by which they are told from a program's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

from turret.torch_compat.operators.ops import OpOverload

torch_c = torch._C
"""The module of them all; what a guard asks of the thread is asked of it."""
autograd_c = torch._C._autograd
"""Autograd's part of it."""
TensorBase = torch._C.TensorBase
"""The class in C++ that ``torch.Tensor`` derives from: most methods are its own."""
VariableFunctions: Any = torch._C._VariableFunctions
"""Operations on tensors, which are in ``torch`` by the same names."""
nn_c = torch._C._nn
"""The kernels of layers."""
FUNCTION_HOMES: tuple[Any, ...] = (
    VariableFunctions,
    nn_c,
    torch._C._linalg,  # type: ignore[attr-defined]
    torch._C._fft,  # type: ignore[attr-defined]
    torch._C._special,  # type: ignore[attr-defined]
    torch._C._nested,  # type: ignore[attr-defined]
    torch._C._sparse,  # type: ignore[attr-defined]
    torch._VF,
)
"""Modules of operations on tensors, and objects that act as such."""


def binding_of(op: OpOverload) -> Callable[..., Any] | None:
    """The function in C++ that calls just this op, and parses arguments by code that was generated for it.

    None where there is none: a function that chooses among overloads, those beside that write to ``out``, may choose
    another one, and one that makes tensors has other arguments than the op.  ``reduction`` may have a default other
    than the op's (``multi_margin_loss``, 2.13).
    """
    packet = op._overloadpacket
    overloads = (getattr(packet, name) for name in packet.overloads())
    if op.namespace != "aten" or any(o is not op and not _writes_to_out(o) for o in overloads) or _writes_to_out(op):
        return None
    if any(argument.name in ("layout", "reduction") for argument in op._schema.arguments):
        return None
    name = op._schema.name.partition("::")[2]
    found: Callable[..., Any] | None = next((f for home in _BINDINGS if (f := getattr(home, name, None))), None)
    return found


def _writes_to_out(op: OpOverload) -> bool:
    return any(argument.is_out for argument in op._schema.arguments)


_BINDINGS = FUNCTION_HOMES[:-1]
device_constructors = torch.utils._device._device_constructors
"""The functions that a default device is an argument of."""
group_tensors_by_device_and_dtype = torch._C._group_tensors_by_device_and_dtype
"""What optimizers sort their parameters with; it reads none."""
log_api_usage_once = torch._C._log_api_usage_once
"""Counts calls for torch's makers, if at all: nothing in a program sees it."""
pack_padded = torch._pack_padded_sequence
"""Sequences as the elements that are there (since 0.4); its fake says other sizes and dtypes (2.13)."""
pad_packed = torch._pad_packed_sequence
"""Packed sequences padded again (since 0.4); it reads their batch sizes in C++."""
