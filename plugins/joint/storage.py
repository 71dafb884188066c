"""Which tensors lie in one storage, and the node that holds the storage's present value.

A functional graph has values, not memory.  Each storage that the program makes has one current value, the node of its
*base*, and a count of the writes so far.  A tensor is the base itself or is reached from it by a chain of
views; when something else was written since its node was made, its node is made anew by replaying that chain.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import fx


@attrs.frozen(eq=False)
class ViewStep:
    """One view in a chain: ``op(base, *args, **kwargs)``."""

    op: Any
    args: tuple
    kwargs: dict[str, Any] = attrs.field(factory=dict)


class Storage:
    """One storage: the node of its current value, the number of writes, and the input it came in with.

    ``base`` is None for memory that several inputs share until somebody writes to it.  ``tensor`` is the
    fake tensor of the base.  ``restrided``: views of it show other memory than making them again would: ``as_strided``
    was called on a view and shows memory outside of it, or a view changed its layout in place.
    """

    __slots__ = ("base", "group", "input", "restrided", "tensor", "version")

    def __init__(self, base: fx.Node | None, tensor: Any = None, input: int | None = None, group: Any = None) -> None:
        self.base, self.tensor, self.input, self.group = base, tensor, input, group
        self.version = 0
        self.restrided = False


class Tracked:
    """What is known of one fake tensor.

    ``node`` is right while ``version`` is the storage's.  ``diverged``: the node's value has other strides than
    the fake tensor (which has eager's).  ``layout_changes``: in-place changes of shape so far.  ``key`` keeps
    ``fakes.layout_key``; False until it is asked for.  ``stale``: what it views changed its layout since, and fake
    tensors would replay the view on the new layout to find its gradient, where eager goes by its strides.
    """

    __slots__ = (
        "chain", "diverged", "key", "layout_changes", "node", "replaced", "stale", "storage", "tensor", "version",
    )  # fmt: skip

    def __init__(
        self, tensor: Any, node: fx.Node, storage: Storage, chain: tuple[ViewStep, ...] = (), diverged: bool = False
    ) -> None:
        self.tensor, self.node, self.storage, self.chain, self.diverged = tensor, node, storage, chain, diverged
        self.version = storage.version
        self.key: Any = False
        self.layout_changes = 0
        self.replaced = self.stale = False


def keep_values(graph: fx.Graph, target: torch.Tensor, alias: Any) -> None:
    """Before ``target`` changes its shape in place: nodes that it is the fake value of get ``alias(target)``, which
    keeps the old one."""
    for node in graph.nodes:
        value = node.meta.get("val")
        if value is target:
            node.meta["val"] = alias(target)
        elif isinstance(value, (tuple, list)) and any(v is target for v in value):
            node.meta["val"] = type(value)(alias(target) if v is target else v for v in value)
