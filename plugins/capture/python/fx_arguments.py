"""Arguments of nodes of fx, rebuilt leaf by leaf, for capture to follow: torch's own functions are written in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx
from torch.fx.immutable_collections import immutable_dict, immutable_list


def map_aggregate(a: Any, fn: Callable[[Any], Any]) -> Any:
    """``torch.fx.node.map_aggregate``: containers of the same kinds, lists and dicts of which cannot be changed."""
    if isinstance(a, tuple):
        items = [map_aggregate(item, fn) for item in a]
        return a.__class__(*items) if hasattr(a, "_fields") else tuple(items)
    if isinstance(a, list):
        return immutable_list([map_aggregate(item, fn) for item in a])
    if isinstance(a, dict):
        return immutable_dict([(key, map_aggregate(item, fn)) for key, item in a.items()])
    if isinstance(a, slice):
        return slice(map_aggregate(a.start, fn), map_aggregate(a.stop, fn), map_aggregate(a.step, fn))
    return fn(a)


def map_arg(a: Any, fn: Callable[[fx.Node], Any]) -> Any:
    """``torch.fx.node.map_arg``: the same of the nodes among the leaves."""
    if not callable(fn):
        raise AssertionError("torch.fx.map_arg(a, fn): fn must be a callable")
    return map_aggregate(a, lambda leaf: fn(leaf) if isinstance(leaf, fx.Node) else leaf)
