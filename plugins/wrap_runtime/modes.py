"""Modes of the caller that compiled code must not see: autocast chose dtypes when the graph was traced."""

from __future__ import annotations

import torch

from turret.hooks.products import BoxedCallable
from turret.torch_compat.dispatch import DisableAutocast
from turret.torch_compat.modes import is_any_autocast_enabled, set_grad_enabled


def without_autocast(function: BoxedCallable) -> BoxedCallable:
    """``function`` with autocast off while it runs."""

    def run(args: list) -> list:
        if not is_any_autocast_enabled():
            return function(args)
        with DisableAutocast():
            return function(args)

    return run


def without_gradients(function: BoxedCallable) -> BoxedCallable:
    """``function`` with recording off while it runs."""

    def run(args: list) -> list:
        if not torch.is_grad_enabled():
            return function(args)
        set_grad_enabled(False)
        try:
            return function(args)
        finally:
            set_grad_enabled(True)

    return run
