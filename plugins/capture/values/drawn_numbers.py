"""Comparisons of drawn numbers that come out the same whatever is drawn: the layers of a model, each left out with a
probability of zero, are decided on so."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from turret.plugins.capture.values.base import COMPARISONS, MIRRORED

if TYPE_CHECKING:
    from turret.plugins.capture.facts.versions import Versions

_UNIFORM = (torch.rand, torch.rand_like)
"""What draws from 0, which may come out, up to 1, which may not."""
_ALWAYS: dict[Any, bool] = {operator.lt: True, operator.le: True, operator.gt: False, operator.ge: False}
"""Comparisons, and what they say of each number that is drawn with one of at least 1."""
_MIRRORED: dict[Any, Any] = {COMPARISONS[symbol]: COMPARISONS[mirrored] for symbol, mirrored in MIRRORED.items()}


def comes_out(node: fx.Node, versions: Versions) -> bool | None:
    """What a comparison of drawn numbers with a constant says of all of them; None where that depends on the draw."""
    if node.op != "call_function" or node.target not in _ALWAYS or len(node.args) != 2:
        return None
    drawn, bound, compare = *node.args, node.target
    if isinstance(bound, fx.Node):
        drawn, bound, compare = bound, drawn, _MIRRORED[compare]
    if isinstance(bound, bool) or not isinstance(bound, int | float):
        return None
    if not _is_uniform(drawn, versions) or versions.of(node.meta["example_value"]):
        return None
    if bound >= 1:
        # A number of a half type is rounded, to 1 as well.
        return _ALWAYS[compare] if bound > 1 or compare in (operator.le, operator.gt) else None
    outside = bound < 0 or (bound == 0 and compare in (operator.lt, operator.ge))
    return not _ALWAYS[compare] if outside else None


def _is_uniform(node: Any, versions: Versions) -> bool:
    """Whether a node's value is what ``torch.rand`` gave."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target not in _UNIFORM:
        return False
    return not versions.of(node.meta["example_value"])
