"""Turret's errors in place of torch._dynamo's wrappers of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit, Unsupported, UserError

from turret.errors import CaptureError, TurretError


def with_own_errors(captured: Callable, fullgraph: bool) -> Callable:
    """``captured``, raising a stage's error as it is and, with ``fullgraph``, ``CaptureError`` at a graph break."""

    @functools.wraps(captured, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return captured(*args, **kwargs)
        except BackendCompilerFailed as error:
            inner = error.inner_exception
            if isinstance(inner, TurretError):
                raise inner from inner.__cause__
            raise
        except (Unsupported, UserError, FailOnRecompileLimitHit) as error:
            if not fullgraph:
                raise
            raise CaptureError(f"the program cannot be captured as one graph: {error}") from error

    # What torch._dynamo traces where one compiled callable calls another, and compiles where one is compiled again.
    marks = {
        "_torchdynamo_inline": captured,
        "_torchdynamo_orig_callable": captured,
        "_torchdynamo_wrapper_id": id(call),
    }
    vars(call).update(marks)
    return call
