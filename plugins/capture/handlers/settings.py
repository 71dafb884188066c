"""Torch's settings of the whole process, switched in compiled code: for real while capturing, and by the graph."""

from __future__ import annotations

import functools

from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.torch_compat import settings


def _set_determinism(setter: settings.Setter, t: Tracer, mode: Value, *, warn_only: Value | None = None) -> Value:
    return t.state.set(setter, [mode, warn_only or Constant(False)], {})


for _function, _setter in settings.by_name.items():
    registry.functions[_function] = functools.partial(_set_determinism, _setter)
