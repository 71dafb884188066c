"""Tensors that are spread over processes (``DTensor``): their meshes, placements and gradients.

``torch.distributed.tensor`` is loaded by programs that use it, and not here.
"""

from __future__ import annotations

import sys
from typing import Any

import attrs
import torch


def is_distributed(kind: type) -> bool:
    """Whether a class is that of tensors that are spread over processes."""
    loaded = sys.modules.get("torch.distributed.tensor")
    return loaded is not None and issubclass(kind, loaded.DTensor)


def is_mesh(value: Any) -> bool:
    """Whether something is a mesh of processes."""
    return torch.distributed.is_available() and isinstance(value, torch.distributed.device_mesh.DeviceMesh)


@attrs.frozen(eq=False)
class Mesh:
    """A ``DeviceMesh``, equal to those of the same processes that talk in the same groups."""

    mesh: Any

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Mesh):
            return False
        return self.mesh is other.mesh or (self.mesh == other.mesh and self.groups == other.groups)

    def __hash__(self) -> int:
        return hash(self.mesh)

    @property
    def groups(self) -> list[str]:
        """Names of the groups, one a dimension."""
        return [group.group_name for group in self.mesh.get_all_groups()]


_PLAIN = ("Shard", "_StridedShard", "Replicate", "Partial")


@attrs.frozen
class Spread:
    """Over which mesh of processes a tensor is spread, and how: one placement a dimension of the mesh."""

    mesh: Mesh
    placements: tuple[Any, ...]

    @classmethod
    def of(cls, value: Any) -> Spread | None:
        """That of a tensor; None for one that is not spread."""
        return cls(Mesh(value.device_mesh), tuple(value.placements)) if is_distributed(type(value)) else None

    @property
    def is_plain(self) -> bool:
        """Whether its placements are what they say and no more; that of a sharded embedding holds a mask."""
        return all(type(p).__name__ in _PLAIN for p in self.placements)

    @property
    def of_gradients(self) -> tuple[Any, ...]:
        """Placements of gradients: those of the tensor, but that a pending sum has a gradient that is whole everywhere.

        These are the ones that ``DTensor.from_local`` and ``to_local`` promise.
        """
        from torch.distributed.tensor import Replicate

        return tuple(Replicate() if p.is_partial() else p for p in self.placements)

    def place_gradient(self, gradient: Any) -> Any:
        """A gradient brought to the placements of gradients."""
        if tuple(gradient.placements) == self.of_gradients:
            return gradient
        return gradient.redistribute(placements=self.of_gradients)

    def gradient(self, local: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> Any:
        """A gradient, of the whole tensor's size and stride (in elements), of this process's part of it."""
        from torch.distributed.tensor import DTensor

        whole = torch.Size(size)
        return DTensor.from_local(local, self.mesh.mesh, self.of_gradients, shape=whole, stride=stride, run_check=False)


def is_in_flight(kind: type) -> bool:
    """Whether a class is that of results of collectives that nobody has waited for yet."""
    loaded = sys.modules.get("torch.distributed._functional_collectives")
    return loaded is not None and issubclass(kind, loaded.AsyncCollectiveTensor)
