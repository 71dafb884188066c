"""Decisions on floats that change: computed as Python does, and assumed by a guard on the inputs."""

from __future__ import annotations

import math
from typing import Any

from torch import fx

from turret.frames.sources import OPERATORS, Source
from turret.plugins.capture.errors import DecidedByData, FloatNeeded, Unsupported
from turret.plugins.capture.values.base import Tracer


def decide(t: Tracer, condition: fx.Node) -> bool:
    """Whether a condition of the graph on changing floats holds in this call; assumed to be so in others.

    It is computed as Python computes it, and not from the symbol's expression, which is rearranged.  Raises
    ``Unsupported`` where other unbacked symbols are part of it.
    """
    used: dict[Source, float] = {}
    try:
        text = _text(t, condition, used)
    except Unsupported as error:
        if t.policy.changing and not (t.policy.whole and isinstance(error, DecidedByData)):
            raise FloatNeeded(error.reason) from None
        raise
    held = bool(eval(text.format(*used.values()), {"inf": math.inf, "nan": math.nan}))
    first, *others = used
    t.guards.take("SIZES", first, text if held else f"not ({text})", tuple(others))
    return held


def _text(t: Tracer, node: Any, used: dict[Source, float]) -> str:
    """A node's value as an expression of Python with placeholders for sources; ``used``: these, with their values."""
    if not isinstance(node, fx.Node):
        if type(node) in (int, float, bool) and math.isfinite(node):
            return repr(node)
        raise Unsupported(f"a branch on a number that depends on {node!r}")
    changing = t.recorder.floats.get(node)
    if changing is not None:
        used.setdefault(changing.source, changing.value)
        return f"{{{list(used).index(changing.source)}}}"
    form = OPERATORS.get(node.target) if node.op == "call_function" and not node.kwargs else None
    if form is None:
        raise DecidedByData("a branch on an unbacked symbol: its value depends on data")
    return form.format(*(_text(t, a, used) for a in node.args)).join("()")
