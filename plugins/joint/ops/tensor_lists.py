"""Ops on lists of tensors (``_foreach_*``, ``_fused_adam_`` and its kin): traced as calls for each tensor in turn.

Eager has such ops to spare launches.  Taken apart, what they compute is fused with what is around it and gathered into
few kernels by the schedule, like all else.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from turret.graph.fakes.overlap import Overlap, sharing
from turret.graph.ops.functional_ops import bound_arguments
from turret.plugins.joint.ops.mutation import tensors_of_call
from turret.plugins.joint.tracer import JointTracer, Rule
from turret.torch_compat.operators.ops import OpOverloadPacket

aten = torch.ops.aten

_PREFIX = "aten::_foreach_"
_NAMES = """
    abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min clone copy_ cos cosh div erf erfc exp expm1 floor
    frac lerp lgamma log log10 log1p log2 max maximum minimum mul neg norm pow reciprocal round rsqrt sigmoid sign sin
    sinh sqrt sub tan tanh trunc zero_
"""
_BASES = frozenset(_NAMES.split())
_OF_SCALARS = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""What eager calls for a list of tensors and a number."""
_SCALED = ("addcdiv", "addcmul")
"""Ops that take their number by name; from a tensor of numbers eager reads these one by one."""


def rule_of_lists(func: Any) -> Rule | None:
    """The rule of an op on lists of tensors; None for others, and for those that stay whole."""
    name = func._schema.name if func.namespace == "aten" else ""
    if name.startswith(_PREFIX):
        return None if _for_one(func) is None else _each
    return _fused if name in _STEPS else None


@functools.cache
def _for_one(func: Any) -> Callable[..., Any] | None:
    """The call for the tensors at one place of the lists."""
    name, overload = func._schema.name.removeprefix(_PREFIX), func._overloadname
    base = name.removesuffix("_")
    if base not in _BASES and name not in _BASES:
        return None
    if base in _SCALED:
        return None if overload == "Tensor" else functools.partial(_scaled, getattr(aten, name))
    if base == "norm":
        return _norm
    if base in _OF_SCALARS and overload != "List":
        name = name.replace(base, _OF_SCALARS[base])
    if name in ("maximum_", "minimum_"):
        name = f"{_OF_SCALARS[base]}_"
    found = getattr(aten, name, None)
    return found if isinstance(found, OpOverloadPacket) else None


def _scaled(op: Any, x: torch.Tensor, one: torch.Tensor, other: torch.Tensor, value: Any = 1) -> torch.Tensor:
    return op(x, one, other, value=value)


def _norm(x: torch.Tensor, ord: Any = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    return aten.linalg_vector_norm.default(x, ord, None, False, dtype=dtype)


def _each(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """The call for each place of the lists; what is no list is the same for all."""
    call = _for_one(func)
    assert call is not None  # else this is not its rule
    if _overlaps(tracer, func, args, kwargs):
        return tracer.ordinary(func, args, kwargs)
    first = next(v for v in itertools.chain(args, kwargs.values()) if isinstance(v, (list, tuple)))
    with tracer:
        found = [
            call(*(_at(v, n) for v in args), **{name: _at(v, n) for name, v in kwargs.items()})
            for n in range(len(first))
        ]
    return found if func._schema.returns else None


def _overlaps(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether memory that is written to is that of two tensors in part, so that it shows in which order."""
    if not func._schema.is_mutable:
        return False
    tensors = tensors_of_call(func, bound_arguments(func, args, kwargs))
    storages = [None if t.value is None else tracer.tracked(t.value).storage for t in tensors]
    return any(
        how is Overlap.PARTIAL and (tensors[one].written or tensors[other].written)
        for one, other, how in sharing([t.value for t in tensors], storages)
    )


def _at(value: Any, position: int) -> Any:
    return value[position] if isinstance(value, (list, tuple)) else value


def _fused(tracer: JointTracer, func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """A step of a fused optimizer; one that a scaler of gradients may leave out stays whole."""
    options = dict(kwargs)
    scaled = [options.pop(name, None) is not None for name in ("grad_scale", "found_inf")]
    if any(scaled) or _overlaps(tracer, func, args, kwargs):
        return tracer.ordinary(func, args, kwargs)
    step = _STEPS[func._schema.name]
    with tracer:
        for tensors in itertools.zip_longest(*args):
            step(tensors, **options)
    return None


def _direction(parameter: torch.Tensor, gradient: torch.Tensor, maximize: bool, weight_decay: float) -> torch.Tensor:
    if maximize:
        gradient = -gradient
    return gradient.add(parameter, alpha=weight_decay) if weight_decay != 0 else gradient


def _beside(number: Any, tensor: torch.Tensor) -> Any:
    """A number in a tensor, in a dtype that does not widen what it is computed with."""
    if not isinstance(number, torch.Tensor):
        return number
    return number.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32)


def _adam(
    tensors: Sequence[Any],
    *,
    lr: Any,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    decoupled: bool,
) -> None:
    parameter, gradient, average, square, largest, count = tensors
    count = count.double()
    gradient = _direction(parameter, gradient, maximize, 0 if decoupled else weight_decay)
    if decoupled and weight_decay != 0:
        parameter.mul_(_beside(1 - lr * weight_decay, parameter))
    average.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    if amsgrad:
        largest.copy_(torch.maximum(largest, square))
    rate = _beside(lr / (1 - aten.pow.Scalar(beta1, count)), parameter)
    scale = _beside((1 - aten.pow.Scalar(beta2, count)).sqrt(), parameter)
    root = (largest if amsgrad else square).sqrt()
    parameter.sub_(average / (root / scale + eps) * rate)


def _sgd(
    tensors: Sequence[Any],
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
) -> None:
    parameter, gradient, velocity = tensors
    gradient = _direction(parameter, gradient, maximize, weight_decay)
    if momentum != 0:
        if is_first_step:
            velocity.copy_(gradient)
        else:
            velocity.mul_(momentum).add_(gradient, alpha=1 - dampening)
        gradient = gradient.add(velocity, alpha=momentum) if nesterov else velocity
    parameter.sub_(gradient * _beside(lr, parameter))


def _adagrad(
    tensors: Sequence[Any], *, lr: Any, lr_decay: float, weight_decay: float, eps: float, maximize: bool
) -> None:
    parameter, gradient, total, count = tensors
    gradient = _direction(parameter, gradient, maximize, weight_decay)
    rate = _beside(lr / ((count.double() - 1) * lr_decay + 1), parameter)
    total.addcmul_(gradient, gradient)
    parameter.sub_(gradient / (total.sqrt() + eps) * rate)


_STEPS: dict[str, Callable[..., None]] = {
    "aten::_fused_adam_": functools.partial(_adam, decoupled=False),
    "aten::_fused_adamw_": functools.partial(_adam, decoupled=True),
    "aten::_fused_sgd_": _sgd,
    "aten::_fused_adagrad_": _adagrad,
}
"""What a step does to one parameter, by the op's name."""
