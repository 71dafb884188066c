"""``torch.autograd.forward_ad``: a block with dual tensors is a graph of its own, and one call at a level of its own.

All tensors that the block makes are results of the call: which of them the program uses later is not known when it
ends.
"""

from __future__ import annotations

import contextlib
import operator

import attrs
from torch.autograd import forward_ad

from turret.plugins.capture.autograd.transforms import DualLevel
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.record.graph import Subgraph
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.torch_compat.autograd import forward_ad_level
from turret.torch_compat.modes import forward_gradients_enabled, set_forward_gradients


@attrs.define(eq=False)
class _Block:
    """A block under way: what ends it where capturing does."""

    region: Subgraph
    ends: contextlib.ExitStack


registry.followed |= {f"_set_fwd_grad_enabled.{name}" for name in ("__init__", "__enter__", "__exit__")}


@registry.function(set_forward_gradients)
def set_enabled(t: Tracer, enabled: Value) -> Value:
    """The mode, which tells on nothing where there are no dual tensors."""
    if t.state.dual_levels or forward_ad_level() >= 0:
        raise Unsupported("forward-mode gradients turned on or off in a block with dual tensors")
    return t.state.set(set_forward_gradients, [enabled], {})


@registry.function(forward_ad.dual_level.__enter__)
def enter(t: Tracer, level: Value) -> Value:
    if not t.truth(t.call(t.wrap_known(forward_gradients_enabled), [], {})):
        raise Unsupported("a level of dual tensors where forward-mode gradients are off")
    ends = contextlib.ExitStack()
    region = ends.enter_context(t.recorder.region("dual_level"))
    try:
        number = forward_ad.enter_dual_level()
    except RuntimeError as error:
        ends.close()
        raise Unsupported(f"a level of dual tensors: {error}") from error
    ends.callback(forward_ad.exit_dual_level)
    t.state.dual_levels.append(_Block(region, ends))
    return Constant(number)


@registry.function(forward_ad.dual_level.__exit__)
def leave(t: Tracer, level: Value, *exception: Value) -> Value:
    """The block ends: its graph is called, and its tensors are results of the call from then on."""
    block = t.state.dual_levels.pop()
    recorder, graph = t.recorder, block.region.graph
    made = [v for v in recorder.by_fake.values() if v.node.graph is graph and v.node.op != "placeholder"]
    module = block.region.close([v.node for v in made])
    block.ends.close()
    results = tuple(v.fake for v in made)
    call = DualLevel(module, 0, "dual_level")
    node = recorder.record("call_function", call, tuple(map(recorder.node_here, block.region.lifted)), {}, results)
    for number, value in enumerate(made):
        value.node = recorder.record("call_function", operator.getitem, (node, number), {}, value.fake)
    return Constant(None)


def _level_of(t: Tracer, level: Value | None) -> None:
    if not t.state.dual_levels or (level is not None and not t.is_none(level)):
        raise Unsupported("dual tensors of a level that was entered elsewhere, or is named")


@registry.function(forward_ad.make_dual)
def make_dual(t: Tracer, tensor: Value, tangent: Value, *, level: Value | None = None) -> Value:
    _level_of(t, level)
    return t.recorder.call(forward_ad.make_dual, [tensor, tangent], {})


@registry.function(forward_ad.unpack_dual)
def unpack_dual(t: Tracer, tensor: Value, *, level: Value | None = None) -> Value:
    _level_of(t, level)
    return t.recorder.call(forward_ad.unpack_dual, [tensor], {})
