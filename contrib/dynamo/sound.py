"""Settings of torch._dynamo under which its graphs are right in every later call that their guards admit."""

from __future__ import annotations

from typing import Any

import torch._dynamo.config

_SETTINGS = {
    # A hook added to a module or removed from it later on is seen.
    "skip_nnmodule_hook_guards": False,
    # A float that changes is a constant of a graph each; as an input it would be a tensor with an item() of its own.
    "specialize_float": True,
}


class SoundCapture:
    """Captures a frame as ``convert`` does, under the settings above.

    It is called when no compiled code fits a call, so later calls do not pay for the settings.  torch._dynamo
    looks through the two attributes to tell whose code is whose.
    """

    def __init__(self, convert: Any, backend: Any) -> None:
        self.convert, self.backend = convert, backend
        self._torchdynamo_orig_backend = self._torchdynamo_orig_callable = convert

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        # Code of other backends must not use up this one's limit of recompiles, which torch._dynamo counts by function.
        entries = torch._C._dynamo.eval_frame._debug_get_cache_entry_list(frame.f_code)
        others = sum(entry.backend != self.backend for entry in entries)
        limit = torch._dynamo.config.recompile_limit + others
        with torch._dynamo.config.patch({**_SETTINGS, "recompile_limit": limit}):
            return self.convert(frame, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.convert, name)
