"""Fresh fake inputs for a run of the captured module, and the groups of inputs that share memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch

from turret.errors import UnsupportedError


@attrs.frozen(eq=False)
class AliasGroup:
    """Inputs (by position) that lie in one storage."""

    members: tuple[int, ...]


def alias_groups(values: Sequence[Any]) -> tuple[AliasGroup, ...]:
    """Groups of two or more inputs whose storages are the same."""
    found: dict[int, list[int]] = {}
    for number, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            found.setdefault(value.untyped_storage()._cdata, []).append(number)
    return tuple(AliasGroup(tuple(members)) for members in found.values() if len(members) > 1)


def storage_length(value: torch.Tensor) -> Any:
    """Elements from the start of a tensor's storage to the end of its last element."""
    length = value.storage_offset() + 1
    for extent, stride in zip(value.shape, value.stride(), strict=True):
        length = length + (extent - 1) * stride
    return length


def fresh(values: Sequence[Any], *, gradients: bool) -> list[Any]:
    """Fake inputs like ``values`` with memory of their own, sharing memory just where ``values`` do.

    With ``gradients``, those that require one are non-leaf where the originals are not leaves, so that in-place
    operations on them are allowed or refused as in eager.  Call under the fake mode.
    """
    groups = {m: group for group in alias_groups(values) for m in group.members}
    bases: dict[int, torch.Tensor] = {}
    result: list[Any] = []
    for number, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            result.append(value)
            continue
        if value.layout != torch.strided:
            raise UnsupportedError(f"input {number} has layout {value.layout}; compiled graphs take strided tensors")
        group = groups.get(number)
        if group is None:
            made = _alone(value)
        else:
            key = group.members[0]
            if key not in bases:
                length = max(storage_length(values[m]) for m in group.members)
                bases[key] = torch.empty(length, dtype=value.dtype, device=value.device)
            if bases[key].dtype != value.dtype:
                raise UnsupportedError(f"inputs {group.members} share memory as different dtypes")
            made = bases[key].as_strided(value.shape, value.stride(), value.storage_offset())
        if gradients and value.requires_grad:
            made = made.detach().requires_grad_() if value.is_leaf else _non_leaf(made)
        result.append(made)
    return result


def _alone(value: torch.Tensor) -> torch.Tensor:
    if isinstance(value.storage_offset(), int) and value.storage_offset() == 0:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    else:
        base = torch.empty(storage_length(value), dtype=value.dtype, device=value.device)
        made = base.as_strided(value.shape, value.stride(), value.storage_offset())
    if value.is_conj():
        made = made.conj()
    return made


def _non_leaf(value: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        return _Identity.apply(value.detach().requires_grad_())


class _Identity(torch.autograd.Function):
    """Gives its input a ``grad_fn`` without changing its layout (a clone could)."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient
