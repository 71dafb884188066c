"""Nested tensors that compiled code makes of others: torch's own functions, which no graph is to look into."""

from __future__ import annotations

import functools
from typing import Any

import torch

from turret.graph.wrapper_tensors import nested_attention
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Tracer, Value
from turret.plugins.capture.values.wrappers import is_nested
from turret.torch_compat.programs.nested import nested_tensor


def _made(function: Any, t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """One call: inside, it shows itself by a tensor without memory, which is no input of a graph."""
    return t.recorder.call(function, list(args), kwargs)


for _function in (
    nested_tensor.nested_view_from_values_offsets,
    nested_tensor.nested_view_from_values_offsets_lengths,
    nested_tensor.nested_from_padded,
):
    registry.functions[_function] = functools.partial(_made, _function)


@registry.function(torch.nn.functional.scaled_dot_product_attention)
def attention(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """Attention, for which nested tensors answer."""
    nested = any(is_nested(v.realize()) for v in (*args, *kwargs.values()))
    function = nested_attention if nested else torch.nn.functional.scaled_dot_product_attention
    return t.recorder.call(function, list(args), kwargs)
