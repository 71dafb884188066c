"""Pure variants of ops that write to their arguments."""

from __future__ import annotations

import functools
from typing import Any

import attrs
import torch

from turret.errors import UnsupportedError
from turret.functional_ops import functional_op

aten = torch.ops.aten


@attrs.frozen(eq=False)
class PureVariant:
    """A pure op that computes what a writing op writes.

    It takes the same arguments (without those in ``dropped``) and returns ``returned`` results of the writing op's own
    that are not written arguments, then the new values of the arguments named in ``written``, in order.
    """

    op: Any
    written: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    returned: int = 0


_IRREGULAR = {
    "aten::bernoulli_.float": "bernoulli.p",
    "aten::bernoulli_.Tensor": "bernoulli.Tensor",
    "aten::normal_": "normal_functional",
    "aten::squeeze_": "squeeze",
    "aten::__iand__.Tensor": "__and__.Tensor",
    "aten::__iand__.Scalar": "__and__.Scalar",
    "aten::__ior__.Tensor": "__or__.Tensor",
    "aten::__ior__.Scalar": "__or__.Scalar",
    "aten::__ixor__.Tensor": "__xor__.Tensor",
    "aten::__ixor__.Scalar": "__xor__.Scalar",
    "aten::__ilshift__.Tensor": "__lshift__.Tensor",
    "aten::__ilshift__.Scalar": "__lshift__.Scalar",
    "aten::__irshift__.Tensor": "__rshift__.Tensor",
    "aten::__irshift__.Scalar": "__rshift__.Scalar",
    "aten::rrelu_with_noise_": "rrelu_with_noise_functional",
    "aten::_index_put_impl_": "index_put",
}
"""In-place ops whose pure variant is not the same name without the underscore."""


@functools.cache
def pure_variant(op: Any) -> PureVariant:
    """The pure variant of a writing op: ATen's own where there is one, else one made by ``functional_op``."""
    written = tuple(a.name for a in op._schema.arguments if a.is_write)
    in_place = len(written) == 1 and op._schema.arguments[0].is_write
    found = _named(op) if op.namespace == "aten" else None
    if found is not None and in_place:
        dropped = ("unsafe",) if op is aten._index_put_impl_.default else ()
        return PureVariant(found, written, dropped)
    if op.namespace == "aten" and all(a.kwarg_only for a in op._schema.arguments if a.is_write):
        found = _matching_overload(op, written)
        if found is not None:
            return PureVariant(found, written, written)
    if op.namespace == "aten" and written == ("self",):
        found = _named(op)
        if found is not None:
            return PureVariant(found, written)
    kept = sum(1 for r in op._schema.returns if r.alias_info is None or not r.alias_info.is_write)
    return PureVariant(functional_op(op), written, (), kept)


@functools.cache
def view_variant(op: Any) -> Any:
    """The view op that gives what an in-place change of layout (``t_``, ``unsqueeze_``) leaves."""
    found = _overload_of_types(op, getattr(aten, op._schema.name.partition("::")[2][:-1]))
    if found is not None:
        return found
    raise UnsupportedError(f"{op} is not supported in a compiled graph")


def _named(op: Any) -> Any | None:
    """The pure op by its name."""
    full = op._schema.name + (f".{op._overloadname}" if op._overloadname != "default" else "")
    name = _IRREGULAR.get(full)
    if name is None:
        base = op._schema.name.partition("::")[2]
        if not base.endswith("_") or base.endswith("__"):
            return None
        name = f"{base[:-1]}.{op._overloadname}"
    packet, _, overload = name.partition(".")
    found = getattr(getattr(aten, packet, None), overload or "default", None)
    if found is not None and not _takes_a_tensor_first(found):
        # ``pow_.Scalar`` raises a tensor to a number; ``pow.Scalar`` a number to a tensor.
        found = _overload_of_types(op, getattr(aten, packet))
    if found is None or found._schema.is_mutable:
        return None
    return found if len(found._schema.returns) == 1 else None


def _takes_a_tensor_first(op: Any) -> bool:
    return bool(op._schema.arguments) and str(op._schema.arguments[0].type) == "Tensor"


def _overload_of_types(op: Any, packet: Any, without: tuple[str, ...] = ()) -> Any | None:
    """The overload of ``packet`` that writes nothing and takes arguments of the names and types of those of ``op``.

    Arguments named in ``without`` are not among them.
    """
    wanted = [(a.name, str(a.type)) for a in op._schema.arguments if a.name not in without]
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        if not schema.is_mutable and [(a.name, str(a.type)) for a in schema.arguments] == wanted:
            return getattr(packet, overload)
    return None


def _matching_overload(op: Any, written: tuple[str, ...]) -> Any | None:
    """The overload of the same op that returns what an ``out`` variant writes."""
    found = _overload_of_types(op, getattr(aten, op._schema.name.partition("::")[2]), written)
    return found if found is not None and len(found._schema.returns) == len(written) else None
