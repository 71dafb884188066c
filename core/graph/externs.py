"""Facts about ops that run as extern calls, taken from their schemas."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from turret.graph.op_traits import is_collective
from turret.graph.ops import define_own_ops
from turret.graph.ops.control_flow import CONTROL_FLOW
from turret.graph.ops.functional_ops import is_functional_op, restore_functional_op
from turret.hooks.registration.covered_ops import cover
from turret.torch_compat.operators.native_functions import binding_of
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload, flash_attention


def out_variant(op: Any) -> Any | None:
    """The overload of ``op`` that writes its one tensor result to ``out`` without a copy, or None."""
    planned = _PLANNED.get(op)
    return resolve_op(f"{_OWN_PLANNED}.out") if planned is None and _is_own_planned(op) else planned


_OWN_PLANNED = "turret::attention_parts"
"""An op of Turret's own that code generators write themselves, into the buffer."""


def _is_own_planned(op: Any) -> bool:
    return not isinstance(op, HigherOrderOperator) and op_name(op) == f"{_OWN_PLANNED}.default"


_PLANNED = {
    torch.ops.aten.mm.default: torch.ops.aten.mm.out,
    torch.ops.aten.addmm.default: torch.ops.aten.addmm.out,
    torch.ops.aten.bmm.default: torch.ops.aten.bmm.out,
    torch.ops.aten.baddbmm.default: torch.ops.aten.baddbmm.out,
    torch.ops.aten.mv.default: torch.ops.aten.mv.out,
    torch.ops.aten.addmv.default: torch.ops.aten.addmv.out,
    torch.ops.aten.dot.default: torch.ops.aten.dot.out,
}
"""Ops whose ``out`` variant writes straight to the buffer, whatever its strides (most others allocate a
result of their own and copy it, which gains nothing)."""


def recorded_variant(op: Any) -> str | None:
    """The name of the overload by which a recording has ``op`` write its one tensor result to memory it is given.

    It may cost the host more than the op itself, which a recording pays once.
    """
    planned = out_variant(op)
    return _RECORDED.get(op) if planned is None else op_name(planned)


_RECORDED = {torch.ops.aten.convolution.default: "turret::convolution.out"}


def unset_results(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[int]:
    """Positions of results that a call leaves as its memory was, and that nobody looks at: any memory will do.

    Attention without dropout gives states of generators that its gradient does not read.
    """
    if op not in _ATTENTION or drops_out(op, args, kwargs):
        return frozenset()
    return frozenset(n for n, result in enumerate(op._schema.returns) if result.name in _GENERATOR_STATES)


def drops_out(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of attention, or of its gradient, has dropout."""
    given = dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)) | dict(kwargs)
    return bool(given.get("dropout_p", 0.0) != 0.0)


def generator_states(op: Any) -> tuple[int, ...]:
    """Positions of arguments that are states of generators, which attention gave for its gradient.

    They lie on the host, or on the device where a graph capture was under way as they were made; a gradient looks for
    them in the same way, and does not look at them without dropout.
    """
    if op not in _GRADIENTS_OF_ATTENTION:
        return ()
    return tuple(n for n, argument in enumerate(op._schema.arguments) if argument.name in _GENERATOR_STATES)


_ATTENTION = frozenset(
    (
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    )
)
_GRADIENTS_OF_ATTENTION = frozenset(
    (
        torch.ops.aten._scaled_dot_product_flash_attention_backward.default,
        torch.ops.aten._scaled_dot_product_efficient_attention_backward.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default,
    )
)
_GENERATOR_STATES = ("philox_seed", "philox_offset", "rng_state", "unused")


@functools.cache
def may_return_alias(op: Any) -> bool:
    """True where a result may share memory with an argument: by the schema, or for some strides alone.

    A collective counts: what it is given must lie where it is until somebody has waited for its result, which is the
    memory that a wait for it returns.
    """
    if isinstance(op, HigherOrderOperator):
        return False  # branches copy what they would hand through
    return any(r.alias_info is not None for r in op._schema.returns) or op in _SOMETIMES_ALIAS or is_collective(op)


_SOMETIMES_ALIAS = frozenset(
    (
        torch.ops.aten.reshape.default,
        torch.ops.aten.contiguous.default,
        torch.ops.aten.to.dtype,
        torch.ops.aten.to.device,
        torch.ops.aten._to_copy.default,
    )
)


_TRUSTED = ("aten::", "prims::", "rngprims::", "turret::", "mkldnn::_linear_pointwise.")


def is_trusted(name: str) -> bool:
    """Whether an op's fake implementation is torch's or Turret's own, and taken to be true."""
    return name.startswith(_TRUSTED) and not is_functional_op(name)


def has_true_fake(name: str) -> bool:
    """Whether an op's fake implementation is taken to be true: torch's, Turret's, or one that a plugin answers for."""
    return is_trusted(name) or bool(cover(name.partition("::")[0]))


def op_name(op: Any) -> str:
    """``namespace::name.overload``, the name under which ``resolve_op`` finds the op again."""
    if isinstance(op, HigherOrderOperator):
        return f"higher_order::{op._name}.graph"
    return f"{op._schema.name}.{op._overloadname}"


def resolve_op(name: str) -> Any:
    """The ``OpOverload`` of a name written by ``op_name``; raises AttributeError where it is not registered.

    For a higher-order op, a ``ControlFlow`` in its place.  A program may register an op of its own anew.
    """
    return _resolve_once(name) if is_trusted(name) else _resolve(name)


def _resolve(name: str) -> Any:
    if name in CONTROL_FLOW:
        return CONTROL_FLOW[name]
    made = restore_functional_op(name)
    if made is not None:
        return made
    qualified, _, overload = name.rpartition(".")
    namespace, _, packet = qualified.partition("::")
    if namespace == "turret":
        define_own_ops()
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


_resolve_once = functools.cache(_resolve)


def fast_callable(name: str) -> Any:
    """The quickest callable for an op: torch's own binding where it takes the same arguments, else the op itself.

    torch's bindings parse arguments in generated C++ (1.0 us for a tiny ``mm``, against 1.7 us through the
    schema; torch 2.13, measured side by side).
    """
    if name in _BINDINGS:
        return _BINDINGS[name]
    op = resolve_op(name)
    return (binding_of(op) if isinstance(op, OpOverload) else None) or op._op


_BINDINGS = {
    "aten::mm.out": torch.mm,
    "aten::bmm.out": torch.bmm,
    "aten::addmm.out": torch.addmm,
    "aten::baddbmm.out": torch.baddbmm,
    "aten::mv.out": torch.mv,
    "aten::addmv.out": torch.addmv,
    "aten::dot.out": torch.dot,
    "aten::mm.default": torch.mm,
    "aten::bmm.default": torch.bmm,
    "aten::addmm.default": torch.addmm,
    # Its other overload takes scales of quantized operands as well.
    "aten::_scaled_dot_product_flash_attention.default": flash_attention,
}
