"""Graphs inside ``DistributedDataParallel``: their gradients are sent to other processes a bucket at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from turret.frames.sources import BoundSource
from turret.hooks.products import GradientBuckets
from turret.plugins.capture.python import lookups

if TYPE_CHECKING:
    from turret.plugins.capture.record.graph import GraphInput
    from turret.plugins.capture.values.base import Tracer


def gradient_buckets(t: Tracer, inputs: Sequence[GraphInput]) -> GradientBuckets | None:
    """The buckets of the wrapper whose forward is under way, as far as gradients of these inputs are in them.

    A graph with parameters is guarded to be called inside a wrapper, or outside of one, as it was captured.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    trained = {id(item.real): n for n, item in enumerate(inputs) if _is_trained(item)}
    if not trained:
        return None
    from torch.nn.parallel import DistributedDataParallel

    from turret.torch_compat.distributed import active_replica

    sizes = lookups.bucket_sizes(DistributedDataParallel)
    t.guards.take(
        "CALL", BoundSource("DistributedDataParallel", DistributedDataParallel), (lookups.bucket_sizes, sizes)
    )
    wrapper = active_replica()
    if sizes is None or wrapper is None:
        return None
    found = frozenset(trained[id(p)] for p in wrapper.parameters() if id(p) in trained)
    return GradientBuckets(found, *sizes) if found else None


def _is_trained(item: GraphInput) -> bool:
    return isinstance(item.real, torch.nn.Parameter) and item.real.requires_grad
