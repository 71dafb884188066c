"""``Tensor.register_hook``: a graph and a call in it for what the graph made, else a call after the graph."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import fx

from turret.graph.gradient_hooks import note_hook
from turret.graph.ops.live_memory import say_live
from turret.graph.wrapper_tensors import parts_of
from turret.plugins.capture.autograd.later import RunsLater
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Tracer, Value
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.fakes import FakeTensor
from turret.torch_compat.modes import set_grad_enabled


@attrs.define(eq=False)
class GradientHook:
    """The function of a node: hooks ``graph`` (of a gradient, then of what else the hook uses) on its first input.

    ``written``: which of what else it uses the hook writes to; ``label`` tells this call from others of the graph.
    """

    graph: fx.GraphModule
    written: frozenset[int] = frozenset()
    label: str = ""
    __name__: str = "gradient_hook"

    def __call__(self, tensor: torch.Tensor, *rest: Any) -> None:
        def hook(gradient: torch.Tensor) -> Any:
            if any(isinstance(part, FakeTensor) for part in parts_of(gradient)):
                say_live(rest, self.label, self.written)
            return self.graph(gradient, *rest)[0]

        tensor.register_hook(hook)
        note_hook(tensor)


class Handle(Value):
    """What ``register_hook`` returns; capture knows nothing to do with it."""

    def type(self) -> type:
        return torch.utils.hooks.RemovableHandle


@registry.tensor_method("register_hook")
def register_hook(t: Tracer, tensor: Tensor, hook: Value) -> Value:
    """``tensor.register_hook(hook)``."""
    fake = tensor.fake
    if not fake.requires_grad:
        raise t.raised(RuntimeError, "cannot register a hook on a tensor that doesn't require gradient")
    if tensor.source is not None:
        # Compiled code changes nothing in the history of a leaf: a hook may as well be registered after it.
        if not fake.is_leaf or type(tensor) is not Tensor or t.recorder.open_regions:
            raise Unsupported("Tensor.register_hook of a tensor that existed before and is no leaf, or wraps others")
        t.effects.later.append((torch.Tensor.register_hook, [tensor, hook], {}))
        t.blocks.refuse("a gradient hook of what existed before")
        return Handle()
    before, grad_mode = RunsLater(t, hook), torch.is_grad_enabled()
    node = t.recorder.node_here(tensor.node)
    set_grad_enabled(False)
    try:
        with t.recorder.region() as region:
            given = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
            result = t.call(hook, [t.recorder.tensor(region.placeholder("gradient", given), given)], {}).realize()
            written = before.writes(region, 1, "a gradient hook")
            if not isinstance(result, Tensor) and not t.is_none(result):
                raise Unsupported(f"a gradient hook that returns {result.describe()}")
            graph = region.close([t.recorder.argument(result)[0]])
    finally:
        set_grad_enabled(grad_mode)
    t.recorder.call_region(GradientHook(graph, written, t.recorder.label()), [node, *region.lifted])
    return Handle()


def refuse_hooks_set_later(t: Tracer) -> None:
    """Of a backward inside the graph, which would call hooks that are registered after it."""
    if any(function is torch.Tensor.register_hook for function, _, _ in t.effects.later):
        raise Unsupported("a backward in which a hook is called that the program registered on what existed before")
