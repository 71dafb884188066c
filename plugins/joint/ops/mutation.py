"""Pure variants of ops that write to their arguments, and what it means for them that arguments share memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from turret.errors import UnsupportedError
from turret.graph.fakes.overlap import Overlap, refused_by_eager, sharing
from turret.graph.ops.functional_ops import tensor_arguments

aten = torch.ops.aten


@attrs.frozen(eq=False)
class PureVariant:
    """A pure op that computes what a writing op writes.

    It takes the same arguments (without those in ``dropped``) and returns the new values of the arguments named in
    ``written``, in order.
    """

    op: Any
    written: tuple[str, ...]
    dropped: tuple[str, ...] = ()


def check_result_fits(op: Any, variant: PureVariant, target: Any, value: Any) -> None:
    """Refuse an elementwise write of values whose dtype or shape eager does not write to the tensor.

    Shape functions of some writing ops let them pass.
    """
    if variant.op.namespace != "aten" or torch.Tag.pointwise not in variant.op.tags or variant.written != ("self",):
        return
    if not torch.can_cast(value.dtype, target.dtype):
        raise UnsupportedError(f"eager refuses this call of {op}: values of {value.dtype} written to {target.dtype}")
    found, wanted = tuple(value.shape), tuple(target.shape)
    if len(found) != len(wanted) or any(map(_differ, found, wanted)):
        raise UnsupportedError(f"eager refuses this call of {op}: values of the shape {found} written to {wanted}")


def _differ(one: Any, other: Any) -> bool:
    """Whether two sizes differ; those that depend on data do not as far as is known."""
    if isinstance(one, torch.SymInt) and isinstance(other, torch.SymInt) and one.node.expr == other.node.expr:
        return False
    return not free_unbacked_symbols(one) and not free_unbacked_symbols(other) and bool(one != other)


@attrs.frozen(eq=False)
class TensorArgument:
    """One tensor among the arguments of a call; ``position`` is its place in a list, None outside of lists.

    ``value`` is None where an optional tensor is missing and where a number was given in its place.
    """

    name: str
    position: int | None
    value: Any
    written: bool


def tensors_of_call(op: Any, arguments: dict[str, Any]) -> list[TensorArgument]:
    """The tensors among the arguments of a call, lists flattened."""
    found = []
    for name in tensor_arguments(op):
        value, written = arguments[name], _is_written(op, name)
        listed = enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]
        for position, item in listed:
            found.append(TensorArgument(name, position, item if isinstance(item, torch.Tensor) else None, written))
    return found


@functools.cache
def _is_written(op: Any, name: str) -> bool:
    return any(a.name == name and a.is_write for a in op._schema.arguments)


def call_in_sequence(op: Any, tensors: list[TensorArgument], storage_of: Callable[[Any], Any]) -> str | None:
    """The form (``turret.graph.ops.functional_ops``) for a call that has to see what it writes, as eager's does; None
    where the values from before the call are all that it reads.

    ``UnsupportedError`` where arguments share memory in a way that eager refuses, or that leaves the result to chance.
    """
    storages = [None if t.value is None else storage_of(t.value) for t in tensors]
    pairs = [
        (one, other, how)
        for one, other, how in sharing([t.value for t in tensors], storages)
        if tensors[one].written or tensors[other].written
    ]
    in_sequence = op.namespace != "aten"
    for one, other, how in pairs:
        if not in_sequence and _elementwise(op, tensors[one], tensors[other], how):
            continue
        if how is Overlap.PARTIAL or op in _NEVER_SHARED:
            raise UnsupportedError(f"{op} writes to memory that another of its arguments shares in part")
        in_sequence = True
    if not in_sequence and pure_variant(op) is not None:
        return None
    return _form(tensors, pairs)


def _elementwise(op: Any, one: TensorArgument, other: TensorArgument, how: Overlap) -> bool:
    """Whether what ``one`` and ``other`` share makes no difference to an op of ATen's."""
    if one.position != other.position or (one.written and other.written):
        return False
    if how is Overlap.PARTIAL:
        return not refused_by_eager(one.value, other.value)
    return op not in _NEVER_SHARED


def _form(tensors: list[TensorArgument], pairs: list[tuple[int, int, Overlap]]) -> str:
    first = {number: number for number in range(len(tensors))}
    for one, other, _ in pairs:
        first[other] = min(first[other], first[one])
    groups: dict[int, str] = {}
    written = {first[number] for number, t in enumerate(tensors) if t.written and t.value is not None}
    tokens = []
    for number, t in enumerate(tensors):
        if t.value is None:
            tokens.append("n")
        elif first[number] in written:
            tokens.append(groups.setdefault(first[number], f"w{len(groups)}"))
        else:
            tokens.append("r")
    return "".join(tokens)


_NEVER_SHARED = frozenset(
    (
        aten.masked_scatter_.default,
        aten.index_copy_.default,
        aten.index_add_.default,
        aten.index_reduce_.default,
        aten.index_put_.default,
        aten._index_put_impl_.default,
        aten.put_.default,
        aten.scatter_.src,
        aten.scatter_.reduce,
        aten.scatter_add_.default,
        aten.scatter_reduce_.two,
    )
)
"""Ops that read elements of other arguments than the one that they write, in an order of their own."""


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
def pure_variant(op: Any) -> PureVariant | None:
    """ATen's own pure variant of a writing op; None where there is none (``functional_op`` makes one)."""
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
    return None


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
    pure = getattr(aten, packet, None)
    found = getattr(pure, overload or "default", None)
    if pure is not None and (found is None or not _takes_a_tensor_first(found)):
        # ``pow_.Scalar`` raises a tensor to a number; ``pow.Scalar`` a number to a tensor.  Of ``floor_divide_.Tensor``
        # and ``pow_.Tensor`` the variants have other names.
        found = _overload_of_types(op, pure)
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
