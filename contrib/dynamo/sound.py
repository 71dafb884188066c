"""Settings of torch._dynamo under which its graphs are right in every later call that their guards admit."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch._dynamo.config

_SETTINGS = {
    # A hook added to a module or removed from it later on is seen.
    "skip_nnmodule_hook_guards": False,
    # A float that changes is a constant of a graph each; as an input it would be a tensor with an item() of its own.
    "specialize_float": True,
}


_capturing = threading.local()
"""Holds ``depth``: how many captures this thread is inside of."""


@functools.cache
def _keep_shapes_current() -> None:
    """Have captures of this module's see the shape that a tensor has after ``unsqueeze_``, ``t_`` and the like.

    torch._dynamo keeps the sizes of each tensor that it follows, and after an in-place op takes them anew only if it
    has a further tensor among its arguments.  Captures for other backends are left as they are.
    """
    from torch._dynamo.variables import TensorVariable

    known = getattr(TensorVariable, "_sync_if_inplace_mutation", None)
    if known is not None:
        TensorVariable._sync_if_inplace_mutation = _always_here(known)  # type: ignore[method-assign]


def _always_here(known: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(known)
    def sync(self: Any, tx: Any, version_before: int | None, has_tensor_arg: bool) -> None:
        known(self, tx, version_before, has_tensor_arg or getattr(_capturing, "depth", 0) > 0)

    return sync


class SoundCapture:
    """Captures a frame as ``convert`` does, under the settings above and those given.

    It is called when no compiled code fits a call, so later calls do not pay for the settings.  torch._dynamo
    looks through the two attributes to tell whose code is whose.
    """

    def __init__(self, convert: Any, backend: Any, settings: dict[str, Any] | None = None) -> None:
        self.convert, self.backend, self.settings = convert, backend, {**_SETTINGS, **(settings or {})}
        self._torchdynamo_orig_backend = self._torchdynamo_orig_callable = convert

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        # Code of other backends must not use up this one's limit of recompiles, which torch._dynamo counts by function.
        entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(frame.f_code)
        others = sum(entry.backend != self.backend for entry in entries)
        limit = torch._dynamo.config.recompile_limit + others
        _keep_shapes_current()
        _capturing.depth = getattr(_capturing, "depth", 0) + 1
        try:
            with torch._dynamo.config.patch({**self.settings, "recompile_limit": limit}):
                return self.convert(frame, *args, **kwargs)
        finally:
            _capturing.depth -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.convert, name)
