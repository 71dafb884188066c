"""The modes of the calling thread that a trace of a graph looks at, so that a later trace sees the same ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import attrs
import torch


@attrs.frozen
class AmbientModes:
    """``autocast``: by device type, whether it was on and the dtype it cast to; ``grad_enabled``."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    grad_enabled: bool

    @classmethod
    def now(cls, device_types: Iterable[str]) -> AmbientModes:
        """The modes of this thread."""
        autocast = tuple(
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in sorted(set(device_types))
        )
        return cls(autocast, torch.is_grad_enabled())

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Run as if these were the modes of this thread (autograd calls a backward with gradients off)."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.grad_enabled))
            for kind, enabled, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            yield


def neutral() -> contextlib.AbstractContextManager:
    """No autocast: what comes after the trace computes on functional graphs that hold every cast already."""
    return torch._C._DisableAutocast()
