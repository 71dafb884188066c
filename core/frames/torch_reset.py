"""``torch.compiler.reset`` and ``torch._dynamo.reset`` forget what Turret captured, too.

Resetting drops the callbacks that are registered with torch's compiler.  One that Turret registers says so when it is
dropped; where that part of torch is not loaded yet, it is registered as soon as it is.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import types
import weakref
from typing import Any

from turret.frames import frame_hook

_CALLBACKS = "torch._dynamo.callback"


class _Registered:
    """A callback that does nothing, but for what its end does."""

    def __call__(self, *args: Any) -> None:
        """A compilation of torch's own starts."""


_registered: weakref.ref[_Registered] | None = None


def watch() -> None:
    """See to it that a reset of torch's compiler is heard of."""
    module = sys.modules.get(_CALLBACKS)
    if module is not None:
        _register(module)
    else:
        _waiting()


@functools.cache
def _waiting() -> None:
    sys.meta_path.insert(0, _Finder())


def _register(module: types.ModuleType) -> None:
    global _registered
    handler = getattr(module, "callback_handler", None)
    if handler is None or (_registered is not None and _registered() is not None):
        return
    callback = _Registered()
    handler.register_start_callback(callback)
    _registered = weakref.ref(callback)
    weakref.finalize(callback, frame_hook.forget_captures).atexit = False


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module of torch's callbacks where Python would, and registers as soon as it has run."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """The module's specification, of that one module."""
        if name != _CALLBACKS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                _register(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
