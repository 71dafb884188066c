"""Collectives as functions that return tensors, and process groups by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed._functional_collectives
import torch.distributed.distributed_c10d

functional_collectives = torch.distributed._functional_collectives
"""The collectives that graphs hold, in Python; programs call some of them."""
functional_ops = torch.ops._c10d_functional
"""The operators that they call."""
resolve_group_name: Callable[..., str] = functional_collectives._resolve_group_name
"""The name of a group, list of ranks or mesh."""
group_size_by_name: Callable[..., int] = torch.distributed.distributed_c10d._get_group_size_by_name
"""How many ranks a group has.  From 2.13 on names are of a type of their own, a ``str`` to everyone."""
resolve_process_group: Callable[..., Any] = torch.distributed.distributed_c10d._resolve_process_group
"""The group of a name."""
