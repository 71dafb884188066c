"""Putting attributes of modules at dotted names, as ``get_attr`` nodes have them."""

from __future__ import annotations

from typing import Any

import torch


def set_attribute(module: torch.nn.Module, path: str, value: Any) -> None:
    """Put an attribute at a dotted path, with modules on the way where there are none."""
    *parents, last = path.split(".")
    for name in parents:
        if not hasattr(module, name):
            setattr(module, name, torch.nn.Module())
        module = getattr(module, name)
    if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
        module.register_buffer(last, value)
    else:
        setattr(module, last, value)
