"""Builtin functions and classes: one short handler each, by the object that the program calls."""

from turret.plugins.capture.handlers.builtins import (
    attributes,
    calls,
    classes,
    containers,
    iteration,
    mathematics,
    numbers,
    operators,
    polyfilled,
    texts,
)

__all__ = [
    "attributes",
    "calls",
    "classes",
    "containers",
    "iteration",
    "mathematics",
    "numbers",
    "operators",
    "polyfilled",
    "texts",
]
