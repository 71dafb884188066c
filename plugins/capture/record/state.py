"""Torch's thread-local modes under capture: changes are made for real, recorded in the graph, and taken back."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch

from turret.frames.sources import BoundSource
from turret.frames.trace_modes import ModeChanges, mode_values
from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.plugins.capture.record.fakes import is_recorded_in_part, recorded_in_part
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.torch_compat import settings
from turret.torch_compat.modes import set_grad_enabled
from turret.torch_compat.operators.native_functions import log_api_usage_once

_QUIET = frozenset({log_api_usage_once})
"""Functions of torch that nothing in a program can see the effect of."""


def _are_recorded() -> bool:
    """Whether autograd records gradients now."""
    return torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


@attrs.frozen(eq=False)
class _InferenceBlock:
    """A block of ``torch.inference_mode`` under way: what ends it, the step of the root frame that entered it, and
    whether gradients were on before."""

    mode: torch.inference_mode
    step: int
    gradients: bool


class TorchState:
    """The modes at the start of a capture and what became of them."""

    def __init__(self, t: Tracer) -> None:
        self.t = t
        self.before = mode_values()
        self.nesting = 0
        self.dual_levels: list[Any] = []
        """Blocks under way that have a level of dual tensors."""
        self.recordings: list[tuple[warnings.catch_warnings, list]] = []
        """For each block under way in which the program records warnings, what records those given meanwhile."""
        self.began_in_inference_mode = torch.is_inference_mode_enabled()
        self.records = _are_recorded()
        """Whether gradients are recorded, at the start or somewhere since then."""
        self.inference_blocks: list[_InferenceBlock] = []
        self.switched: list[tuple[Callable, tuple]] = []
        """What was called to switch settings, which alone leads to where they are: torch does not tell of every mix."""
        self.random = torch.random.get_rng_state()
        """How the capture leaves the host's generator: as it was, or moved on by what it called for the program."""

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Within it the program's own random numbers are drawn, not those of the capture."""
        torch.random.set_rng_state(self.random)
        try:
            yield
        finally:
            self.random = torch.random.get_rng_state()

    def set(self, setter: Callable, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Call a setter now and in the graph."""
        if kwargs:
            raise Unsupported(f"{setter.__name__} with keyword arguments")
        plain = [self.t.constant_of(a) for a in args]
        if setter in settings.setters:
            self._note_setting(setter)
        try:
            setter(*plain)
        except (RuntimeError, TypeError, ValueError) as error:
            raise self.t.raised_from(error) from None
        if setter in settings.setters:
            self.switched.append((setter, tuple(plain)))
        if setter is set_grad_enabled and not self.records:
            self._begin_to_record()
        if setter is set_grad_enabled and self.inference_blocks:
            self._set_gradients_of_graph()
        else:
            self.t.recorder.graph.create_node("call_function", setter, tuple(plain), {})
        return Constant(None)

    def _begin_to_record(self) -> None:
        self.records = _are_recorded()
        if self.records and any(is_recorded_in_part(item.real) for item in self.t.recorder.inputs):
            raise recorded_in_part()

    def _note_setting(self, setter: Callable) -> None:
        """A setting is about to be switched: the graph brings back what it is now, which is therefore guarded."""
        if self.t.recorder.open_regions:
            raise Unsupported("a setting of torch's that is switched in a function which is a graph of its own")
        reader = settings.setters[setter]
        if reader is not None:
            with self.at_start():
                found = settings.values(reader)
            if setter in settings.untold and found[settings.untold[setter]] is None:
                raise Unsupported("a precision of float32 that is set where they were set in two ways that differ")
            source = BoundSource(reader.__name__, reader)
            self.t.guards.take("CALL", source, (settings.values, found))

    def nest(self, step: int) -> Value:
        """``autocast_increment_nesting`` and its opposite."""
        self.nesting += step
        change = torch.autocast_increment_nesting if step > 0 else torch.autocast_decrement_nesting
        result = change()
        self.t.recorder.graph.create_node("call_function", change, (), {})
        return Constant(result)

    def clear_autocast_cache(self) -> Value:
        """Forget what autocast made of parameters: a graph that runs call by call would find that of the last call."""
        torch.clear_autocast_cache()
        self.t.recorder.graph.create_node("call_function", torch.clear_autocast_cache, (), {})
        return Constant(None)

    def enter_inference_mode(self, enabled: bool) -> None:
        """Be in inference mode, or out of it, until the block ends; the graph has gradients off, or on."""
        if self.began_in_inference_mode:
            raise Unsupported("a block of torch.inference_mode in code that runs in the mode already")
        block = _InferenceBlock(torch.inference_mode(enabled), self.t.call_stack.step, torch.is_grad_enabled())
        block.mode.__enter__()
        self.inference_blocks.append(block)
        self.t.recorder.versions.inference = True
        self.t.recorder.versions.block_step = self.inference_blocks[0].step
        self._set_gradients_of_graph()

    @contextlib.contextmanager
    def whole_inference_blocks(self) -> Iterator[None]:
        """Within it blocks may begin: those that a graph break leaves open end with it.

        The end of a block brings back the dispatch keys of its beginning, those of the fake tensor mode among them.
        """
        try:
            yield
        finally:
            while self.inference_blocks:
                self.inference_blocks.pop().mode.__exit__(None, None, None)

    def leave_inference_mode(self) -> None:
        """End the innermost block."""
        if not self.inference_blocks:
            raise Unsupported("the end of a block of torch.inference_mode that began elsewhere")
        block = self.inference_blocks.pop()
        block.mode.__exit__(None, None, None)
        if not self.inference_blocks:
            self.t.recorder.versions.block_step = None
        set_grad_enabled(block.gradients)  # as after a setter in the block, which ends with it
        self._set_gradients_of_graph()

    def _set_gradients_of_graph(self) -> None:
        """In inference mode autograd records nothing, whatever the program says of gradients."""
        recorded = _are_recorded()
        self.t.recorder.graph.create_node("call_function", set_grad_enabled, (recorded,), {})

    def changes(self) -> list[tuple[Callable, tuple, tuple, tuple]]:
        """Modes that are not what they were: setter, leading arguments, value before, value now."""
        now = mode_values()
        return [(s, lead, before, now[s, lead]) for (s, lead), before in self.before.items() if now[s, lead] != before]

    def since_start(self) -> ModeChanges | None:
        """What changed of the modes; None for nothing."""
        values = tuple((setter, lead, now) for setter, lead, _, now in self.changes())
        inference = torch.is_inference_mode_enabled() and not self.began_in_inference_mode
        return ModeChanges(inference, values) if values or inference else None

    @contextlib.contextmanager
    def at_start(self) -> Iterator[None]:
        """Within it the modes are those of the start, of which guards speak."""
        changed = self.changes()
        with torch.inference_mode(False) if self.inference_blocks else contextlib.nullcontext():
            for setter, lead, before, _ in changed:
                setter(*lead, *before)
            try:
                yield
            finally:
                for setter, lead, _, now in changed:
                    if setter not in settings.readers:
                        setter(*lead, *now)
                for setter, arguments in self.switched:
                    setter(*arguments)

    def record_warnings(self) -> None:
        """Record the warnings that torch gives of what is called from now on."""
        block = warnings.catch_warnings(record=True)
        self.recordings.append((block, block.__enter__()))
        warnings.simplefilter("always")

    def records_warnings(self) -> bool:
        """Whether they are recorded."""
        return bool(self.recordings)

    def recorded_warnings(self) -> list:
        """What was recorded since the last block began, which ends."""
        block, found = self.recordings.pop()
        block.__exit__(None, None, None)
        return found

    def restore(self) -> None:
        """Bring back the modes of the start, and the host's generator."""
        torch.random.set_rng_state(self.random)
        while self.recordings:
            self.recorded_warnings()
        while self.dual_levels:
            self.dual_levels.pop().ends.close()
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
        if self.dual_levels:
            raise Unsupported("a graph break in a block with dual tensors", step=NOWHERE)
        if self.inference_blocks:
            raise Unsupported("a graph break in a block of torch.inference_mode", step=self.inference_blocks[0].step)
        changes = self.changes()
        for setter, lead, before, _ in changes:
            self.t.recorder.graph.create_node("call_function", setter, (*lead, *before), {})
        calls = [(setter, (*lead, *now)) for setter, lead, _, now in changes if setter not in settings.readers]
        if len(calls) < len(changes):
            calls += self.switched
        for setter, values in calls:
            r.effect(f"{r.constant(setter)}({', '.join(map(r.constant, values))})")
        nested, change = self.nesting, torch.autocast_decrement_nesting
        for _ in range(abs(nested)):
            opposite: Any = change if nested > 0 else torch.autocast_increment_nesting
            self.t.recorder.graph.create_node("call_function", opposite, (), {})
            r.effect(f"{r.constant(torch.autocast_increment_nesting if nested > 0 else change)}()")
