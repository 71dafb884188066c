"""Checkpoint tags that a user's program leaves on nodes (``torch.utils.checkpoint`` policies)."""

from __future__ import annotations

import enum
from typing import Any

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

RECOMPUTED = "_recomputed"
"""In the names of calls that are made again for a backward in the same graph: they come after what it begins with."""


class Checkpoint(enum.Enum):
    """What a tag asks of one node."""

    NONE = "none"
    MUST_SAVE = "must_save"
    PREFER_SAVE = "prefer_save"
    MUST_RECOMPUTE = "must_recompute"
    PREFER_RECOMPUTE = "prefer_recompute"


_BY_NAME = {policy.name: policy for policy in Checkpoint} | {
    "MUST_CPU_OFFLOAD": Checkpoint.MUST_SAVE,
    "PREFER_CPU_OFFLOAD": Checkpoint.PREFER_SAVE,
}


def checkpoint_of(node: fx.Node) -> Checkpoint:
    """The tag in ``meta["recompute"]``: a ``CheckpointPolicy``, its number, or True for "recompute this"."""
    tag: Any = node.meta.get("recompute")
    if tag is None or tag is False:
        return Checkpoint.NONE
    if tag is True:
        return Checkpoint.MUST_RECOMPUTE
    policy = tag if isinstance(tag, CheckpointPolicy) else CheckpointPolicy(tag)
    return _BY_NAME[policy.name]


def is_interior(node: fx.Node, backward: set[fx.Node]) -> bool:
    """Whether a tagged node is read, in the forward, only by its own checkpointed region: it must not be saved.

    A value that leaves its region is the input of what follows; saving it keeps the regions apart.
    """
    region = node.meta.get("ac_graph_id")
    recompute = (Checkpoint.MUST_RECOMPUTE, Checkpoint.PREFER_RECOMPUTE)
    return all(
        user in backward
        or (user.op != "output" and checkpoint_of(user) in recompute and user.meta.get("ac_graph_id") == region)
        for user in node.users
    )
