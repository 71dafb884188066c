"""The state of torch's default generator, read and set in compiled code in its place among the draws."""

from __future__ import annotations

import torch

from turret.graph.ops import random_ops
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor


def _check_place(t: Tracer, name: str) -> None:
    """Graphs inside of the graph may run again, on other sizes, or not at all."""
    if t.recorder.open_regions or t.recorder.tags:
        raise Unsupported(f"torch.{name} in a transformed or checkpointed function")


@registry.function(torch.random.get_rng_state)
def get_rng_state(t: Tracer) -> Value:
    _check_place(t, "get_rng_state")
    return t.recorder.call(random_ops.rng_state, [], {})


@registry.function(torch.random.set_rng_state)
def set_rng_state(t: Tracer, new_state: Value) -> Value:
    """Of anything but a whole state eager says what is wrong."""
    _check_place(t, "set_rng_state")
    state = new_state.realize()
    if not isinstance(state, Tensor) or not _is_whole_state(state.fake):
        raise Unsupported(f"torch.set_rng_state of {state.describe()} that is no state of the generator")
    return t.recorder.call(random_ops.set_rng_state, [state], {})


def _is_whole_state(fake: torch.Tensor) -> bool:
    kind = fake.dtype, fake.device
    whole = kind == (torch.uint8, torch.default_generator.device) and fake.shape == (random_ops.STATE_SIZE,)
    return whole and fake.is_contiguous()


@registry.function(torch.random.manual_seed)
def manual_seed(t: Tracer, seed: Value) -> Value:
    _check_place(t, "manual_seed")
    given = seed.realize()
    if not isinstance(given, Symbolic):
        number = given.constant() if given.is_constant() else None
        if type(number) is not int or not -(2**63) <= number < 2**63:
            raise Unsupported(f"torch.manual_seed of {given.describe()} that is no integer of 64 bits")
        given = Constant(number)
    t.recorder.call(random_ops.manual_seed, [given], {})
    return t.wrap_known(torch.default_generator)


registry.named["torch._compile", "manual_seed"] = manual_seed  # the wrapper that it gets where Dynamo is imported
