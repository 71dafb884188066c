"""``torch.autograd.graph.disable_saved_tensors_hooks``: a block in which hooks on saved tensors are refused.

A graph uses none of its own; what would set some in such a block runs as Python, which then raises.
"""

from __future__ import annotations

import contextlib

from torch.autograd.graph import disable_saved_tensors_hooks

from turret.frames.sources import BoundSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.functions import Handler
from turret.plugins.capture.values.objects import Instance
from turret.torch_compat.autograd import top_saved_tensor_hooks
from turret.torch_compat.operators.native_functions import autograd_c


class HooksRefused(Instance):
    """The block; nothing else is known of it."""

    def special(self, t: Tracer, name: str) -> Value | None:
        """The methods that ``with`` calls."""
        step = {"__enter__": _enter, "__exit__": _leave}.get(name)
        if step is None:
            raise Unsupported(f"{name} of torch.autograd.graph.disable_saved_tensors_hooks")
        return Handler(f"disable_saved_tensors_hooks.{name}", step)

    def rebuild(self, r: Rebuilder) -> str:
        raise Unsupported("a block under torch.autograd.graph.disable_saved_tensors_hooks that leaves the graph")


def _enter(t: Tracer) -> Value:
    if top_saved_tensor_hooks(True) is not None:  # those of the program, which capturing keeps off
        raise Unsupported("disable_saved_tensors_hooks where there are such hooks")
    t.guards.take("CALL", BoundSource("autograd", autograd_c), (lookups.has_saved_tensor_hooks, False))
    t.hooks_refused += 1
    return Constant(None)


def _leave(t: Tracer, *exception: Value) -> Value:
    t.hooks_refused -= 1
    return Constant(False)


@registry.function(disable_saved_tensors_hooks)
def disable(t: Tracer, error_message: Value) -> Value:
    t.constant_of(error_message)
    return HooksRefused(contextlib._GeneratorContextManager)
