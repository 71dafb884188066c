"""Operators that neither side answers for: eager raises ``TypeError``, in words that the sides' classes decide."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from turret.plugins.capture.facts.refusals import operator_error
from turret.plugins.capture.values.base import Constant, Value
from turret.plugins.capture.values.functions import Known
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.sequences import List, Tuple
from turret.plugins.capture.values.sets import Set
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.dispatch import disable_current_modes

_PLAIN = (list, tuple, dict, set, frozenset)
_SEQUENCES = (str, bytes, list, tuple)
_READS_NUMBERS = (operator.mul, operator.imul, operator.mod, operator.imod)


def refused_by_both(operation: Callable, left: Value, right: Value) -> TypeError | None:
    """The error of an operator of a plain tensor and something that is no operand of tensors; None where not known."""
    if not isinstance(left, Tensor) and not isinstance(right, Tensor):
        return None
    if operation in _READS_NUMBERS and not {left.type(), right.type()}.isdisjoint(_SEQUENCES):
        return None  # a sequence is repeated, or a text filled in, by what the tensor holds
    with disable_current_modes(), torch.no_grad():
        one, other = _stand_in(left), _stand_in(right)
    return None if one is None or other is None else operator_error(operation, one[0], other[0])


def _stand_in(value: Value) -> tuple[Any] | None:
    """Something of the same class for eager to be asked with."""
    kind = value.type()
    if isinstance(value, Tensor):
        made = torch.zeros((), dtype=value.fake.dtype)
        if kind is torch.nn.Parameter:
            return (torch.nn.Parameter(made, requires_grad=False),)
        return (made,) if kind is torch.Tensor else None
    if isinstance(value, Constant):
        return (value.value,) if isinstance(value.value, (str, bytes, type(...))) else None
    if isinstance(value, (List, Tuple, Dict, Set)):
        return (kind(),) if kind in _PLAIN else None
    return (value.object,) if isinstance(value, Known) and isinstance(value.object, type) else None
