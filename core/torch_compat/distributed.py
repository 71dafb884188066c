"""``torch.distributed``: buckets of ``DistributedDataParallel``, and what ``DTensor`` remembers of operators."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def active_replica() -> DistributedDataParallel | None:
    """The wrapper whose forward is under way in this process, which it keeps for compilers to ask."""
    wrapper: DistributedDataParallel | None
    wrapper = DistributedDataParallel._get_active_ddp_module()
    return wrapper


def bucket_sizes(wrapper: DistributedDataParallel) -> tuple[int, int]:
    """Bytes of the bucket of gradients that is ready first, and of the others."""
    cap = int(wrapper.bucket_bytes_cap)
    config: Any = getattr(wrapper, "_bucket_config", None)
    if config is not None:  # since torch 2.13
        return int(config.first_bucket_bytes_cap), cap
    first = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
    return min(cap, first) if getattr(wrapper, "bucket_bytes_cap_default", False) else cap, cap


def forget_shardings() -> None:
    """Drop what ``DTensor`` remembers of how operators are spread over processes.

    Placements among that hold masks of the tensors that they were used with, which are fake while a program is traced
    and are let go when the program adds up the parts: one whose trace ended before must not reach eager calls.
    """
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import debug

        debug._clear_sharding_prop_cache()


def shared_store() -> Any:
    """The store of the default process group, which all processes see."""
    return torch.distributed.distributed_c10d._get_default_store()


def group_place(name: str) -> tuple[int, int]:
    """This process's rank in the group of a name, and how many processes it has."""
    resolve: Any = torch.distributed.distributed_c10d._resolve_process_group
    group = resolve(name)
    return group.rank(), group.size()
