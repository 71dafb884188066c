"""The modes of the calling thread that a trace of a graph looks at, so that a later trace sees the same ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import attrs
import torch


@attrs.frozen
class AmbientModes:
    """Autocast, by device type: whether it was on and the dtype it cast to."""

    autocast: tuple[tuple[str, bool, torch.dtype], ...]

    @classmethod
    def now(cls, device_types: Iterable[str]) -> AmbientModes:
        """The modes of this thread."""
        return cls(
            tuple(
                (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
                for kind in sorted(set(device_types))
            )
        )

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Run as if these were the modes of this thread (a backward is compiled in a thread of autograd's)."""
        with contextlib.ExitStack() as stack:
            for kind, enabled, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled))
            yield


def neutral() -> contextlib.AbstractContextManager:
    """No autocast: what comes after the trace computes on functional graphs that hold every cast already."""
    return torch._C._DisableAutocast()
