"""``torch.autograd.graph.disable_saved_tensors_hooks``: a block in which hooks on saved tensors are refused.

A graph uses none of its own; what would set some in such a block runs as Python, which then raises.
"""

from __future__ import annotations

import contextlib
from typing import Any

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
        step: Any = {"__enter__": _enter, "__exit__": _leave, "__call__": _decorate}.get(name)
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


def _decorate(t: Tracer, function: Value) -> Value:
    """The block around each call of a function, as a decorator."""

    def call(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        _enter(t)
        try:
            return t.call(function, list(args), kwargs)
        finally:
            _leave(t)

    return Handler("a function under disable_saved_tensors_hooks", call)


@registry.function(disable_saved_tensors_hooks)
def disable(t: Tracer, error_message: Value) -> Value:
    t.constant_of(error_message)
    return HooksRefused(contextlib._GeneratorContextManager)


_recreate: Any = contextlib._GeneratorContextManager._recreate_cm


@registry.function(_recreate)
def recreate(t: Tracer, manager: Value) -> Value:
    """The block of a call of a function that it decorates; of any other generator's, what Python makes."""
    made_of = manager.realize().get_attr(t, "func").realize()
    if made_of.is_constant() and made_of.constant() is getattr(disable_saved_tensors_hooks, "__wrapped__", None):
        return disable(t, *manager.realize().get_attr(t, "args").realize().unpack(t))
    return t.follow(t.wrap_known(_recreate), [manager], {})
