"""Draws whole programs: inputs first, then operations by family, then what is returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turret.testing.corpus.builder import Builder, Declined, Features, Spoiled
from turret.testing.corpus.chooser import Chooser, choice, weighted
from turret.testing.corpus.operations import table
from turret.testing.corpus.program import Program


def draw_program(chooser: Chooser, features: Features | None = None) -> Program:
    """Draw one program; raises ``Spoiled`` when the draw leads nowhere (rarely; draw again)."""
    features = features or Features()
    builder = Builder(chooser, features)
    families = table(features, builder.layouts)
    for _ in range(builder.integer(1, max(1, features.max_inputs - 1))):
        builder.new_input(builder.shape(), builder.dtype())
    if features.aliased_inputs and builder.chance(12):
        _attempt(builder.aliasing_input)
    wanted = builder.integer(1, features.max_steps)
    for _ in range(3 * wanted):
        if len(builder.steps) >= wanted:
            break
        operations = weighted(chooser, families)
        operation = choice(chooser, operations)
        inputs, storages, names = len(builder.inputs), len(builder.storages), set(builder.env)
        numbers = len(builder.numbers)
        try:
            operation.draw(builder)
        except Declined:
            del builder.inputs[inputs:], builder.storages[storages:], builder.numbers[numbers:]
            for name in set(builder.env) - names:
                del builder.env[name]
    if not builder.steps:
        raise Spoiled
    return builder.finish()


def _attempt(draw: Callable[[], Any]) -> None:
    try:
        draw()
    except Declined:
        return
