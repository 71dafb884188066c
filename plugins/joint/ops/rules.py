"""The rule of each op: what the tracer does for its calls."""

from __future__ import annotations

from typing import Any

from turret.plugins.joint.ops.indices import with_known_indices
from turret.plugins.joint.ops.input_checks import with_checks
from turret.plugins.joint.ops.scalars import with_numbers_held
from turret.plugins.joint.ops.special import SPECIAL
from turret.plugins.joint.ops.tensor_lists import rule_of_lists
from turret.plugins.joint.tracer import JointTracer, Rule


def rule_of(tracer: JointTracer, func: Any) -> Rule:
    """A rule of the op's own, or that of its kind; in front of it what eager checks."""
    special = SPECIAL.get(func) or rule_of_lists(func)
    if special is not None:
        return with_numbers_held(with_checks(special, func), func)
    return with_known_indices(with_numbers_held(with_checks(tracer.rule_for(func), func), func), func)
