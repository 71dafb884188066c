"""Torch's thread-local modes under capture: changes are made for real, recorded in the graph, and taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turret.frames.trace_modes import mode_values
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.torch_compat.operators.native_functions import log_api_usage_once

_QUIET = frozenset({torch.clear_autocast_cache, log_api_usage_once})
"""Functions of torch that nothing in a program can see the effect of."""


class TorchState:
    """The modes at the start of a capture and what became of them."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
        self.before = mode_values()
        self.nesting = 0

    def set(self, setter: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a setter now and in the graph."""
        if kwargs:
            raise Unsupported(f"{setter.__name__} with keyword arguments")
        plain = [self.t.constant_of(a) for a in args]
        setter(*plain)
        self.t.recorder.graph.create_node("call_function", setter, tuple(plain), {})
        return Constant(None)

    def nest(self, step: int) -> Value:
        """``autocast_increment_nesting`` and its opposite."""
        self.nesting += step
        change = torch.autocast_increment_nesting if step > 0 else torch.autocast_decrement_nesting
        result = change()
        self.t.recorder.graph.create_node("call_function", change, (), {})
        if self.nesting == 0 and step < 0:
            torch.clear_autocast_cache()
        return Constant(result)

    def changes(self) -> list[tuple[Callable, tuple, tuple, tuple]]:
        """Modes that are not what they were: setter, leading arguments, value before, value now."""
        now = mode_values()
        return [(s, lead, before, now[s, lead]) for (s, lead), before in self.before.items() if now[s, lead] != before]

    def restore(self) -> None:
        """Bring back the modes of the start."""
        for setter, lead, before, _ in self.changes():
            setter(*lead, *before)
        while self.nesting > 0:
            self.nesting -= 1
            torch.autocast_decrement_nesting()
        while self.nesting < 0:
            self.nesting += 1
            torch.autocast_increment_nesting()

    def finish(self, r: Rebuilder) -> None:
        """The graph leaves modes as it found them; the rebuilt code sets those that the frame left changed."""
        for setter, lead, before, now in self.changes():
            self.t.recorder.graph.create_node("call_function", setter, (*lead, *before), {})
            arguments = ", ".join(map(r.constant, (*lead, *now)))
            r.effect(f"{r.constant(setter)}({arguments})")
        nested, change = self.nesting, torch.autocast_decrement_nesting
        for _ in range(abs(nested)):
            opposite: Any = change if nested > 0 else torch.autocast_increment_nesting
            self.t.recorder.graph.create_node("call_function", opposite, (), {})
            r.effect(f"{r.constant(torch.autocast_increment_nesting if nested > 0 else change)}()")
