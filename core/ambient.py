"""The modes of the calling thread that a trace of a graph looks at, so that a later trace sees the same ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import attrs
import torch

AUTOCAST_DEVICES = tuple(
    kind
    for kind in ("cpu", "cuda", "mtia", "maia", "xpu", "ipu", "hpu", "xla", "privateuseone", "mps")
    if torch.amp.autocast_mode.is_autocast_available(kind)
)
"""Device types that have an autocast; asking torch about another one is an error.

A program may switch any of them on and ask for it, whatever device its tensors are on.
"""


def autocast_state() -> tuple[bool | torch.dtype, ...]:
    """For every device type whether autocast is on in this thread, and the dtype it casts to, in one row."""
    return tuple(
        value
        for kind in AUTOCAST_DEVICES
        for value in (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
    )


def set_autocast_state(state: tuple[bool | torch.dtype, ...]) -> None:
    """Make ``autocast_state()`` what it was."""
    for number, kind in enumerate(AUTOCAST_DEVICES):
        torch.set_autocast_enabled(kind, state[2 * number])
        torch.set_autocast_dtype(kind, state[2 * number + 1])


@attrs.frozen
class AmbientModes:
    """Autocast of all devices, as ``autocast_state`` gives it, and whether gradients are on."""

    autocast: tuple[bool | torch.dtype, ...]
    grad_enabled: bool

    @classmethod
    def now(cls) -> AmbientModes:
        """The modes of this thread."""
        return cls(autocast_state(), torch.is_grad_enabled())

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Run as if these were the modes of this thread (autograd calls a backward with gradients off)."""
        outer = autocast_state()
        with torch.set_grad_enabled(self.grad_enabled):
            set_autocast_state(self.autocast)
            try:
                yield
            finally:
                set_autocast_state(outer)


@contextlib.contextmanager
def autograd_by_itself() -> Iterator[None]:
    """Within it autograd records and runs on its own, as a trace needs it to.

    It calls no hooks on saved tensors, which are for what the program computes, and hands no backward to
    ``torch._dynamo.compiled_autograd``.
    """
    tracing = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    compiler = torch._C._dynamo.compiled_autograd.set_autograd_compiler(None, False)
    try:
        yield
    finally:
        torch._C._dynamo.compiled_autograd.set_autograd_compiler(*compiler)
        torch._C._autograd._saved_tensors_hooks_set_tracing(tracing)


def neutral() -> contextlib.AbstractContextManager:
    """No autocast: what comes after the trace computes on functional graphs that hold every cast already."""
    return torch._C._DisableAutocast()
