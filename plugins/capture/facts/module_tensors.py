"""Parameters and buffers of modules: how many there are decides whether a unit is made for other modules, too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from turret.hooks.config import Config

MOST_TENSORS = 64
"""Parameters and buffers of a module that may share units: a unit for several modules fetches them at each call."""

DEPTH = 12
"""Modules within modules that are looked at; they may contain each other."""


def addresses_are_held(config: Config) -> bool:
    """Whether CUDA graphs are recorded, which hold the addresses of parameters."""
    return bool(config.cudagraphs or config.cudagraph_after_calls)


def has_few_tensors(module: nn.Module) -> bool:
    """Whether a module's tensors may be fetched at each call: they are few, and all have their shapes."""
    tensors = list(itertools.islice(_tensors(module, DEPTH), MOST_TENSORS + 1))
    return len(tensors) <= MOST_TENSORS and not any(map(is_lazy, tensors))


def own_tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers that a module itself has, by name."""
    own = vars(module)
    return [(n, p) for part in ("_parameters", "_buffers") for n, p in own.get(part, {}).items() if p is not None]


def children(module: nn.Module, depth: int) -> list[tuple[str, nn.Module]]:
    """Submodules by name; none at depth 0."""
    held = vars(module).get("_modules", {}) if depth else {}
    return [(name, child) for name, child in held.items() if isinstance(child, nn.Module)]


def _tensors(module: nn.Module, depth: int) -> Iterator[torch.Tensor]:
    yield from (tensor for _, tensor in own_tensors(module))
    for _, child in children(module, depth):
        yield from _tensors(child, depth - 1)
