"""States of generators are where a gradient of attention looks for them, whether its forward was recorded or not."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from turret.hooks.devices import HOST
from turret.plan import Call, Plan, Slot, SlotRef
from turret.plugins.cudagraphs.plans.generator_states import GeneratorStates

HEADS = ("grad", "query", "key", "value")


def gradient_plan(dropout: float) -> Plan:
    """The gradient of memory-efficient attention; inputs 6 and 7 are its states."""
    slots = [
        Slot(name, (2, 4, 8, 16), (512, 128, 16, 1), "float32", "cuda", "input", n) for n, name in enumerate(HEADS)
    ]
    slots += [Slot("out", (2, 4, 8, 16), (512, 128, 16, 1), "float32", "cuda", "input", 4)]
    slots += [Slot("logsumexp", (2, 4, 32), (128, 32, 1), "float32", "cuda", "input", 5)]
    slots += [Slot(name, (), (), "int64", "cuda", "input", 6 + n) for n, name in enumerate(("seed", "offset"))]
    slots += [attrs.evolve(slots[0], name=f"d{name}", storage="call", number=0) for name in HEADS[1:]]
    grad, query, key, value, out, logsumexp, seed, offset = map(SlotRef, range(8))
    args = (grad, query, key, value, None, out, logsumexp, seed, offset, dropout, [True, True, True, False])
    op = "aten::_scaled_dot_product_efficient_attention_backward.default"
    call = Call(op, args, {}, (8, 9, 10, None), sequence=True)
    return Plan("gradient", "cuda", tuple(slots), tuple(range(8)), (call,), tuple(map(SlotRef, (8, 9, 10))))


@attrs.define
class Somewhere:
    """A tensor that says where it is."""

    place: torch.device = attrs.field(factory=lambda: torch.device("cuda", 0))

    def to(self, device: torch.device) -> Somewhere:
        return Somewhere(device)


def test_they_are_read_with_dropout_alone() -> None:
    assert GeneratorStates.of(gradient_plan(0.1)) == GeneratorStates(read=frozenset({6, 7}))
    assert GeneratorStates.of(gradient_plan(0.0)) == GeneratorStates(unread=frozenset({6, 7}))
    both = attrs.evolve(gradient_plan(0.1), steps=gradient_plan(0.1).steps + gradient_plan(0.0).steps)
    assert GeneratorStates.of(both) == GeneratorStates(read=frozenset({6, 7}))


@pytest.mark.parametrize("recording", [False, True])
def test_what_runs_without_a_recording_finds_them_on_the_host(recording: bool) -> None:
    seen: list[Any] = []

    def function(args: list) -> list:
        seen.extend(args)
        return []

    function.plan = "its plan"
    run = GeneratorStates(read=frozenset({1})).on_host(function, lambda: recording)
    run([Somewhere(), Somewhere(), 3])
    assert seen[0] == Somewhere() and seen[2] == 3 and run.plan == "its plan"
    assert seen[1] == (Somewhere() if recording else Somewhere(HOST))
    assert GeneratorStates(unread=frozenset({1})).on_host(function, lambda: recording) is function
