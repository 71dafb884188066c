"""Calls whose kernels autograd or eager's own dispatch chooses above the trace, and that are chosen here likewise.

Torch registers decompositions of upsampling and shrinking under its Autograd key.  Where they apply, autograd
differentiates the decomposition: the gradient of a few gathers is a few scatters with colliding indices, many times
slower than the op's own backward, and that of ``x * 0`` is NaN where the op's own is 0.  Decompositions of Turret's
apply below autograd and meet the backward ops themselves.

Some ops take another way on the CPU than on fake tensors before any kernel is called; what can be seen of it is the
layout of the result, or that it is the argument.

Others check the values of their tensors before they call a kernel.  Torch leaves that out where a tensor is fake, so
that a trace would hold calls which eager refuses; here they become assertions, which are checked when the graph runs.
Kernels' own checks are in ``turret.graph.op_traits``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, guard_or_false
from torch.overrides import TorchFunctionMode

from turret.errors import UnsupportedError
from turret.graph.powers import power_with_gradient
from turret.hooks.devices import uses_host_kernels
from turret.plugins.joint.ops.eager_gradients import with_eagers_gradient
from turret.plugins.joint.ops.given_results import with_given_result
from turret.plugins.joint.ops.recurrent import recurrent_layers
from turret.torch_compat.dispatch import DisablePythonDispatcher, innermost_transform
from turret.torch_compat.operators.checks import require
from turret.torch_compat.operators.layouts import suggest_memory_format
from turret.torch_compat.operators.ops import OpOverload

aten = torch.ops.aten

_WHOLE: tuple[str, ...] = ("interpolate", "upsample", "_upsample", "aten::upsample", "aten::_upsample")
_WHOLE_OF_ANY_SIZE: tuple[str, ...] = ("softshrink", "hardshrink", "aten::softshrink", "aten::hardshrink")
_WHOLE_OF_ANY_SIZE += ("multi_margin_loss", "multilabel_margin_loss", "aten::multi_margin", "aten::multilabel_margin")
"""Kernels that refuse dtypes and labels that their decompositions take, or that count other labels."""


def _name(function: Any) -> str:
    if isinstance(function, OpOverload):
        return function._schema.name
    return getattr(function, "__name__", "")


def _symbolic(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(map(_symbolic, values))
    if isinstance(values, torch.Tensor):
        return _symbolic(tuple(values.shape))
    return isinstance(values, torch.SymInt | torch.SymFloat)


class PreferEagerKernels(TorchFunctionMode):
    """Within it, calls take the way that they take in eager.

    Upsampling, shrinking and losses by margins reach autograd's own kernels; dropout, pooling and shuffling return what
    eager's do.

    Symbolic sizes, of tensors or given, need Python's dispatch, and so the decompositions.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        whole = name.startswith(_WHOLE) and not _symbolic([*args, *kwargs.values()])
        whole = whole or name.startswith(_WHOLE_OF_ANY_SIZE)
        if whole or (name in _DROPOUT and _keeps_all(*args[1:], **kwargs)):
            with DisablePythonDispatcher():
                return func(*args, **kwargs)
        made = recurrent_layers(name, args, kwargs)
        if made is not NotImplemented:
            return made
        if name == "lstm" and torch.is_grad_enabled() and not args[0].requires_grad:
            # oneDNN's layer, which torch decomposes to here, has a workspace whose size nobody can tell beforehand.
            args = (args[0].detach().requires_grad_(), *args[1:])
        made = _with_formula(name, func, args, kwargs)
        if made is not NotImplemented:
            return made
        made = _with_value_checks(name, args, kwargs)
        if made is NotImplemented:
            made = func(*args, **kwargs)
        return _laid_out(name, made, args[0] if args else kwargs.get("input"))


def _with_formula(name: str, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A call by a formula of Turret's own; ``NotImplemented`` where torch's serves."""
    made = power_with_gradient(name, args)
    if made is NotImplemented:
        made = with_eagers_gradient(name, args, kwargs)
    return with_given_result(name, func, args, kwargs) if made is NotImplemented else made


def _require_elements(resized: torch.Tensor) -> None:
    """No image is resized to an empty one; where data decide, the graph asks, though nobody reads the result."""
    for extent in resized.shape[2:]:
        if isinstance(extent, torch.SymInt) and free_unbacked_symbols(extent):
            require(extent > 0, lambda: f"an image is resized to {tuple(resized.shape[2:])}")


def _laid_out(name: str, made: Any, source: Any) -> Any:
    """A result, in the layout that eager's kernels give it."""
    if name.startswith(_WHOLE) and isinstance(made, torch.Tensor):
        _require_elements(made)
    if name in _ONE_HOT:
        return made.contiguous()
    lay_out = _ON_CPU.get(name)
    if lay_out is None or not isinstance(made, torch.Tensor) or not uses_host_kernels(made.device):
        return made
    return lay_out(made, source)


_DROPOUT = frozenset(("dropout", "aten::dropout"))


def _keeps_all(p: float = 0.5, training: bool = True, train: bool = True, **kwargs: Any) -> bool:
    """Whether dropout, given these arguments after the first, returns the first itself."""
    return p == 0 or not (training and train)


def _pooled(made: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Where no gradient is recorded, pooling has a kernel without indices, which gives row-major results of floats."""
    if not source.dtype.is_floating_point:
        raise UnsupportedError(f"eager refuses max_pool1d of {source.dtype}")
    return made if source.requires_grad and torch.is_grad_enabled() else made.contiguous()


def _shuffled(made: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return made.contiguous(memory_format=suggest_memory_format(source))


_ONE_HOT = frozenset(("one_hot", "aten::one_hot"))
"""Eager writes to zeros; fake tensors compare with all classes, in the layout of the argument."""

_ON_CPU = {
    "max_pool1d": _pooled,
    "aten::max_pool1d": _pooled,
    "channel_shuffle": _shuffled,
    "native_channel_shuffle": _shuffled,
    "aten::channel_shuffle": _shuffled,
    "aten::native_channel_shuffle": _shuffled,
}


def _one_hot(input: torch.Tensor, num_classes: Any = -1) -> Any:
    """A comparison with all classes; torch's own one checks them since 2.13 alone."""
    if input.dtype is not torch.int64 or guard_or_false(num_classes < 0):
        return NotImplemented
    if guard_or_false(num_classes == 0) and input.numel() == 0:
        raise UnsupportedError("eager refuses one_hot of no elements into no classes")
    aten._assert_async.msg((input >= 0).all(), "one_hot: Class values must be non-negative.")
    aten._assert_async.msg((input < num_classes).all(), "one_hot: Class values must be smaller than num_classes.")
    classes = torch.arange(num_classes, dtype=input.dtype, device=input.device)
    return (input.unsqueeze(-1) == classes).to(torch.int64)


def _quantile(input: torch.Tensor, q: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch's own, which gathers: what is at most one step out of range would be the last element, or the first."""
    if isinstance(q, torch.Tensor) and uses_host_kernels(input.device):
        aten._assert_async.msg(((q >= 0) & (q <= 1)).all(), "quantile() q values must be in the range [0, 1]")
    return NotImplemented


_CHECKED: dict[str, Callable[..., Any]] = {"one_hot": _one_hot, "quantile": _quantile, "nanquantile": _quantile}


def _with_value_checks(name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The result of the named call after its checks; ``NotImplemented`` where torch's own way is to be taken then.

    Under functorch's transforms torch leaves them out for real tensors, too.
    """
    check = _CHECKED.get(name.removeprefix("aten::"))
    if check is None or innermost_transform():
        return NotImplemented
    if "self" in kwargs:
        kwargs = {"input" if k == "self" else k: v for k, v in kwargs.items()}
    return check(*args, **kwargs)
