"""``flex_attention``: computed from its scores, with the program's ``score_mod`` and mask as parts of the graph."""

from __future__ import annotations

import contextlib

import torch

from turret.plugins.capture.python import polyfills
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value


@registry.function(torch.ops.higher_order.flex_attention)
def flex_attention(
    t: Tracer,
    query: Value,
    key: Value,
    value: Value,
    score_mod: Value,
    block_mask: Value,
    scale: Value,
    kernel_options: Value,
    score_mod_other_buffers: Value | None = None,
    mask_mod_other_buffers: Value | None = None,
) -> Value:
    """The operator: results, the logarithms (to base 2) of the sums of exponentials, and the largest scores.

    ``kernel_options`` choose among kernels that Turret does not have; blocks of a mask only say what need not be
    computed, so that its function alone decides.
    """
    mask_mod = block_mask.realize().unpack(t)[-1]
    empty = t.new_tuple([])
    buffers = [score_mod_other_buffers or empty, mask_mod_other_buffers or empty]
    attention = t.wrap_known(polyfills.attention_of_scores)
    return t.call(attention, [query, key, value, score_mod, mask_mod, scale, *buffers], {})


def _mark_static(t: Tracer, tensor: Value, index: Value | None = None) -> Value:
    """``mark_static`` in compiled code: sizes are assumed to be what they are."""
    value = tensor.realize()
    dimensions = value.call_method(t, "size", [] if index is None else [index], {}).realize()
    for size in dimensions.unpack(t) if index is None or t.is_none(index) else [dimensions]:
        t.constant_of(size)
    return Constant(None)


registry.named["torch._dynamo.decorators", "mark_static"] = _mark_static


def _index_by_tensors(t: Tracer) -> Value:
    """The mode under which ``create_mask`` has tensors without dimensions as indices: capture takes them anyway."""
    return t.call(t.wrap_known(contextlib.nullcontext), [], {})


registry.named["torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex"] = _index_by_tensors
