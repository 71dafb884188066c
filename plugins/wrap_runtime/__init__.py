"""The built-in runtime: executables joined into what user code calls."""

from __future__ import annotations

from collections.abc import Callable

from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import BoxedCallable
from turret.hooks.signature import GraphSignature
from turret.plugins.wrap_runtime.runtime import build_runtime


@hookimpl
def turret_runtime(
    signature: GraphSignature,
    saved_tensors: int,
    saved_sizes: int,
    forward: BoxedCallable,
    backward: Callable[..., BoxedCallable | None],
) -> Callable:
    """An inference callable, or an autograd node, with the epilogue that the signature asks for."""
    return build_runtime(signature, saved_tensors, saved_sizes, forward, backward)
