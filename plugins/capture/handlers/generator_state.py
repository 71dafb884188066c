"""Generators of torch's in compiled code, and the default one's state, in their place among the draws."""

from __future__ import annotations

import torch

from turret.graph.ops import random_ops
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.torch_generators import (
    TorchGenerator,
    check_place,
    checked_seed,
    fresh_seed,
    new_generator,
    outside_generator,
)

registry.wrappers[torch.Generator] = outside_generator


def _default(t: Tracer) -> TorchGenerator:
    found = t.wrap_known(torch.default_generator)
    assert isinstance(found, TorchGenerator)
    return found


@registry.kind(torch.Generator)
def generator(t: Tracer, device: Value | None = None) -> Value:
    return new_generator(t, device)


@registry.function(torch.random.get_rng_state)
def get_rng_state(t: Tracer) -> Value:
    return _default(t).m_get_state(t)


@registry.function(torch.random.set_rng_state)
def set_rng_state(t: Tracer, new_state: Value) -> Value:
    _default(t).m_set_state(t, new_state)
    return Constant(None)


@registry.function(torch.random.manual_seed)
def manual_seed(t: Tracer, seed: Value) -> Value:
    """``torch.manual_seed``, of the generators of all devices."""
    check_place(t, "torch.manual_seed")
    given, default = checked_seed(t, seed), _default(t)
    t.recorder.call(random_ops.manual_seed, [given], {})
    default.note_seed(t, given)
    return default


@registry.function(torch.random.seed)
def seed(t: Tracer) -> Value:
    """``torch.seed``, of the generators of all devices."""
    check_place(t, "torch.seed")
    given, default = fresh_seed(t), _default(t)
    t.recorder.call(random_ops.manual_seed, [given], {})
    default.seed, default.is_seed_known = given, True
    return given


registry.named["torch._compile", "manual_seed"] = manual_seed  # the wrapper that it gets where Dynamo is imported
