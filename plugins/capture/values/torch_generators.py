"""``torch.Generator`` of the CPU: the tensor of its state, which each draw replaces.

A draw from one takes the default generator, set to that state, and sets it back: both are the same engine.  So graphs
need no generators among their inputs, and draws keep their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from turret.frames.sources import BoundSource, CallSource, Source
from turret.graph.ops import random_ops
from turret.hooks.devices import HOST
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.fakes import unset_fake_temporarily

_FIRST_SEED = torch.Generator().initial_seed()
"""The seed of a generator that nobody has seeded."""


def check_place(t: Tracer, name: str) -> None:
    """Graphs inside of the graph may run again, on other sizes, or not at all."""
    if t.recorder.open_regions or t.recorder.tags:
        raise Unsupported(f"{name} in a transformed or checkpointed function")


class TorchGenerator(Value):
    """A generator; one that existed before is given its state once the graph has run.

    The default generator is what all draws of the graph are made from, so its state is never held here.
    """

    def __init__(self, object: torch.Generator | None, source: Source | None, state: Value | None = None) -> None:
        self.object, self.source = object, source
        self.held = state
        self.seed: Value | None = None
        """The seed, where the frame has given one."""
        self.is_seed_known = True
        """Whether it is that, or else the one that the generator had before."""
        self.is_default = object is torch.default_generator

    def type(self) -> type:
        return torch.Generator

    def truth(self, t: Tracer) -> bool:
        return True

    def key(self, t: Tracer) -> Any:
        return self

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "device":
            return Constant(HOST if self.object is None else self.object.device)
        return super().get_attr(t, name)

    # The state.

    def state(self, t: Tracer) -> Value:
        """The state as a tensor of the graph's, which nobody may write to."""
        check_place(t, "a generator")
        if self.is_default:
            return t.recorder.call(random_ops.rng_state, [], {})
        if self.held is None:
            assert self.object is not None and self.source is not None
            if self.object.device.type != HOST.type:
                raise Unsupported(f"a generator of {self.object.device}")
            with unset_fake_temporarily(), t.state.at_start():  # as the graph's inputs are found
                found = self.object.get_state()
            self.held = t.wrap(found, CallSource(self.source, torch.Generator.get_state))
        return self.held

    def move_to(self, t: Tracer, state: Value) -> None:
        """Have a state from here on."""
        if self.is_default:
            t.recorder.call(random_ops.set_rng_state, [state], {})
            return
        t.effects.note(self)
        t.effects.count += self.source is None
        self.held = state

    def draw(self, t: Tracer, record: Callable[[], Value]) -> Value:
        """What ``record`` records of a call that draws: from this generator."""
        if self.is_default:
            return record()
        state = self.state(t)
        outer = t.recorder.call(random_ops.rng_state, [], {})
        t.recorder.call(random_ops.set_rng_state, [state], {})
        try:
            result = record()
        except Raised as error:
            raise Unsupported("a draw from a generator that raises") from error
        if not isinstance(result, Tensor) or result.fake.device.type != HOST.type:
            raise Unsupported(f"{result.describe()} drawn from a generator of the CPU")
        self.move_to(t, t.recorder.call(random_ops.rng_state, [], {}))
        t.recorder.call(random_ops.set_rng_state, [outer], {})
        return result

    # Methods.

    def m_get_state(self, t: Tracer) -> Value:
        state = self.state(t)
        return state if self.is_default else t.recorder.call_method("clone", [state], {})

    def m_set_state(self, t: Tracer, new_state: Value) -> Value:
        """Of anything but a whole state eager says what is wrong."""
        self.state(t)
        given = new_state.realize()
        if not isinstance(given, Tensor) or not _is_whole_state(given.fake):
            raise Unsupported(f"the state of a generator set to {given.describe()}, which is none")
        self.move_to(t, t.recorder.call_method("clone", [given], {}))
        self.is_seed_known = False
        return self

    def m_clone_state(self, t: Tracer) -> Value:
        made = TorchGenerator(None, None, self.m_get_state(t))
        made.seed, made.is_seed_known = Constant(None), False
        return made

    def m_manual_seed(self, t: Tracer, seed: Value) -> Value:
        self.state(t)
        given = checked_seed(t, seed)
        self.move_to(t, t.recorder.call(random_ops.seeded_state, [given], {}))
        self.note_seed(t, given)
        return self

    def m_seed(self, t: Tracer) -> Value:
        self.state(t)
        given = fresh_seed(t)
        self.move_to(t, t.recorder.call(random_ops.seeded_state, [given], {}))
        self.seed, self.is_seed_known = given, True
        return given

    def note_seed(self, t: Tracer, seed: Value) -> None:
        """Remember what the program will be told: seeds below zero wrap around."""
        self.is_seed_known = t.truth(t.compare(">=", seed, Constant(0)))
        self.seed = seed

    def m_initial_seed(self, t: Tracer) -> Value:
        if not self.is_seed_known:
            raise Unsupported("the seed of a generator whose state was set")
        if self.seed is not None:
            return self.seed
        assert self.object is not None and self.source is not None
        return t.wrap(self.object.initial_seed(), CallSource(self.source, torch.Generator.initial_seed))

    # Rebuilding.

    def rebuild(self, r: Rebuilder) -> str:
        if self.source is not None:
            return r.source(self.source)
        assert self.held is not None
        return r.assign(f"{r.constant(lookups.generator_of)}({r.load(self.held)})")

    def replay(self, r: Rebuilder) -> None:
        assert self.source is not None and self.held is not None
        r.effect(f"{r.source(self.source)}.set_state({r.load(self.held)})")


def fresh_seed(t: Tracer) -> Value:
    """A seed that nobody knows before the graph runs."""
    given = t.recorder.call(random_ops.fresh_seed, [], {}).call_method(t, "item", [], {})
    t.recorder.call(torch.ops.aten.sym_constrain_range.default, [given], {"min": Constant(0)})
    return given


def checked_seed(t: Tracer, seed: Value) -> Value:
    """An int of 64 bits, or a symbol; of anything else eager says what is wrong."""
    given = seed.realize()
    if isinstance(given, Symbolic) and given.type() is int:
        return given
    number = given.constant() if given.is_constant() else None
    if type(number) is not int or not -(2**63) <= number < 2**63:
        raise Unsupported(f"a generator seeded by {given.describe()}, which is no integer of 64 bits")
    return Constant(number)


def _is_whole_state(fake: torch.Tensor) -> bool:
    kind = fake.dtype, fake.device
    whole = kind == (torch.uint8, torch.default_generator.device) and fake.shape == (random_ops.STATE_SIZE,)
    return whole and fake.is_contiguous()


def new_generator(t: Tracer, device: Value | None) -> Value:
    """``torch.Generator(device)``."""
    if device is not None and torch.device(t.constant_of(device)).type != HOST.type:
        raise Unsupported("a generator of another device than the CPU made in compiled code")
    check_place(t, "a generator")
    seed = Constant(_FIRST_SEED)
    made = TorchGenerator(None, None, t.recorder.call(random_ops.seeded_state, [seed], {}))
    made.seed = seed
    return made


def outside_generator(t: Tracer, object: torch.Generator, source: Source) -> Value:
    """The value of a generator that existed before."""
    if not isinstance(source, BoundSource):
        t.guards.take("TYPE", source, torch.Generator)
        t.guards.take("CALL", source, (lookups.device_of_generator, object.device))
        t.guards.take("CALL", source, (lookups.is_default_generator, object is torch.default_generator))
    return TorchGenerator(object, source)
