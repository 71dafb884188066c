"""``torch.inference_mode`` in compiled code: the graph runs the block without gradients, results become its tensors.

While capturing the mode is on for real, so that fake tensors are made in it where eager's are, and operations that
autograd forbids on them are refused.  The graph itself never enters it: tensors that were made in the mode, and that
leave the graph, are given that property by the rebuilt code (``lookups.made_in_inference_mode``).
"""

from __future__ import annotations

import torch

from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value


@registry.function(torch.inference_mode.__enter__)
def enter(t: Tracer, block: Value) -> Value:
    t.state.enter_inference_mode(t.truth(block.get_attr(t, "mode")))
    return Constant(None)


@registry.function(torch.inference_mode.__exit__)
def leave(t: Tracer, block: Value, *exception: Value) -> Value:
    t.state.leave_inference_mode()
    return Constant(None)
