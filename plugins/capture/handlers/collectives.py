"""Collectives of ``torch.distributed`` as calls in the graph.

What eager code calls is followed here in Python of our own: the functional forms
(``torch.distributed._functional_collectives``) and those of ``torch.distributed`` that write to a tensor become a call
of an op of ``_c10d_functional`` and a wait for it.  A group is an object that guards are taken on; the graph holds its
name.  With ``async_op=True`` the graph breaks: the handle that eager gives back is for plain Python to wait on.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import distributed as dist

from turret.frames.sources import BoundSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.handlers.builtins.polyfilled import polyfilled
from turret.plugins.capture.handlers.process_groups import group_name, plain_group
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.programs.collectives import (
    functional_collectives,
    functional_ops,
    group_size_by_name,
    resolve_process_group,
)


def group_size(name: str) -> int:
    return group_size_by_name(name)


def op_name(op: Any) -> str:
    """``"sum"`` of ``"SUM"`` and of ``ReduceOp.SUM``."""
    return op.lower() if isinstance(op, str) else functional_collectives.REDUCE_OP_TO_STR[op]


def without_gradient(tensor: Any) -> Any:
    """The tensor; eager's autograd does not see these writes, and that of the functional forms would."""
    return tensor


def refuse_async() -> None:
    """Reached where ``async_op=True``."""


@registry.function(group_name)
def _group_name(t: Tracer, group: Value, tag: Value) -> Value:
    """The name, assumed to stay that of a group of this size in which this process has this rank."""
    name = group_name(plain_group(t, group.realize()), t.constant_of(tag))
    state = functools.partial(_state, name)
    t.guards.take("CALL", BoundSource("torch.distributed", dist), (state, state(dist)))
    return Constant(name)


def _state(name: str, module: Any) -> tuple[int, int, bool]:
    group = resolve_process_group(name)
    return group.size(), group.rank(), group is module.group.WORLD


@registry.function(group_size)
def _group_size(t: Tracer, name: Value) -> Value:
    return Constant(group_size(t.constant_of(name)))


@registry.function(op_name)
def _op_name(t: Tracer, op: Value) -> Value:
    return Constant(op_name(t.constant_of(op)))


@registry.function(without_gradient)
def _without_gradient(t: Tracer, tensor: Value) -> Value:
    found = tensor.realize()
    if isinstance(found, Tensor) and found.fake.requires_grad and torch.is_grad_enabled():
        raise Unsupported("a collective that writes to a tensor which requires a gradient")
    return found


@registry.function(refuse_async)
def _refuse_async(t: Tracer) -> Value:
    raise Unsupported("a collective with async_op=True", "leave async_op out: the graph orders the calls itself")


# ---------------------------------------------------------------- functional forms


def wait_tensor(tensor: Any) -> Any:
    return functional_ops.wait_tensor.default(tensor)


def broadcast(self: Any, src: int, group: Any, tag: str = "") -> Any:
    return wait_tensor(functional_ops.broadcast.default(self, src, group_name(group, tag)))


def all_reduce(self: Any, reduceOp: Any, group: Any, tag: str = "") -> Any:
    return wait_tensor(functional_ops.all_reduce.default(self, op_name(reduceOp), group_name(group, tag)))


def all_gather_tensor(self: Any, gather_dim: int, group: Any, tag: str = "") -> Any:
    name = group_name(group, tag)
    count = group_size(name)
    made = wait_tensor(functional_ops.all_gather_into_tensor.default(self.contiguous(), count, name))
    return made if gather_dim == 0 else torch.cat(torch.chunk(made, count, dim=0), dim=gather_dim)


def reduce_scatter_tensor(self: Any, reduceOp: Any, scatter_dim: int, group: Any, tag: str = "") -> Any:
    name = group_name(group, tag)
    count = group_size(name)
    if scatter_dim != 0:
        self = torch.cat(torch.chunk(self, count, dim=scatter_dim))
    return wait_tensor(functional_ops.reduce_scatter_tensor.default(self, op_name(reduceOp), count, name))


def all_to_all_single(self: Any, output_split_sizes: Any, input_split_sizes: Any, group: Any, tag: str = "") -> Any:
    name = group_name(group, tag)
    sent = _equal_parts(self, name) if input_split_sizes is None else input_split_sizes
    received = _equal_parts(self, name) if output_split_sizes is None else output_split_sizes
    return wait_tensor(functional_ops.all_to_all_single.default(self, received, sent, name))


def _equal_parts(tensor: Any, name: str) -> list:
    count = group_size(name)
    return [tensor.shape[0] // count] * count


# ---------------------------------------------------------------- forms that write to a tensor


def all_reduce_(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> None:
    if async_op:
        refuse_async()
    tensor.copy_(all_reduce(without_gradient(tensor), op, group))


def broadcast_(tensor: Any, src: int, group: Any = None, async_op: bool = False) -> None:
    if async_op:
        refuse_async()
    tensor.copy_(broadcast(without_gradient(tensor), rank_in(group, src), group))


def rank_in(group: Any, rank: int) -> int:
    """The rank within a group of a process; the functional forms count so."""
    return rank if group is None else dist.get_group_rank(group, rank)


def all_gather_(tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> None:
    if async_op:
        refuse_async()
    gathered = all_gather_tensor(without_gradient(tensor).unsqueeze(0), 0, group)
    for n, output in enumerate(tensor_list):
        output.copy_(gathered[n])


def reduce_scatter_(
    output: Any, input_list: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> None:
    if async_op:
        refuse_async()
    given = torch.stack([without_gradient(part) for part in input_list])
    output.copy_(reduce_scatter_tensor(given, op, 0, group)[0])


def all_to_all_(output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False) -> None:
    if async_op:
        refuse_async()
    sent, received = [t.numel() for t in input_tensor_list], [t.numel() for t in output_tensor_list]
    flat = torch.cat([without_gradient(t).reshape(-1) for t in input_tensor_list])
    parts = all_to_all_single(flat, received, sent, group).split(received)
    for output, part in zip(output_tensor_list, parts, strict=True):
        output.copy_(part.view(output.shape))


def all_gather_into_tensor_(output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> None:
    if async_op:
        refuse_async()
    output_tensor.copy_(all_gather_tensor(without_gradient(input_tensor), 0, group).view(output_tensor.shape))


def reduce_scatter_tensor_(
    output: Any, input: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> None:
    if async_op:
        refuse_async()
    output.copy_(reduce_scatter_tensor(without_gradient(input), op, 0, group).view(output.shape))


def all_to_all_single_(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> None:
    if async_op:
        refuse_async()
    output.copy_(all_to_all_single(without_gradient(input), output_split_sizes, input_split_sizes, group))


for _theirs, _own in (
    (functional_collectives.wait_tensor, wait_tensor),
    (functional_collectives.broadcast, broadcast),
    (functional_collectives.all_reduce, all_reduce),
    (functional_collectives.all_gather_tensor, all_gather_tensor),
    (functional_collectives.reduce_scatter_tensor, reduce_scatter_tensor),
    (functional_collectives.all_to_all_single, all_to_all_single),
    (dist.all_reduce, all_reduce_),
    (dist.broadcast, broadcast_),
    (dist.all_gather_into_tensor, all_gather_into_tensor_),
    (dist.reduce_scatter_tensor, reduce_scatter_tensor_),
    (dist.all_to_all_single, all_to_all_single_),
    (dist.all_gather, all_gather_),
    (dist.reduce_scatter, reduce_scatter_),
    (dist.all_to_all, all_to_all_),
    (getattr(dist, "all_gather_single", None), all_gather_into_tensor_),  # from 2.13 on, as the next one
    (getattr(dist, "reduce_scatter_single", None), reduce_scatter_tensor_),
):
    if _theirs is not None:
        polyfilled(_theirs, _own)
