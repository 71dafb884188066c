"""``Tensor.register_hook``: a graph and a call in it for what the graph made, else a call after the graph."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import fx

from turret.frames.sources import AttrSource
from turret.graph.autograd.gradient_hooks import note_hook
from turret.graph.ops.live_memory import say_live
from turret.graph.wrapper_tensors import parts_of
from turret.plugins.capture.autograd.later import RunsLater
from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.plugins.capture.record.effects import LaterCall
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
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
    """What registering a hook returns: of a hook in the graph, which ``remove`` takes out of it again."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def type(self) -> type:
        return torch.utils.hooks.RemovableHandle

    def m_remove(self, t: Tracer) -> Value:
        """The hook is as if it had never been; a backward in between has called it."""
        if self.node not in self.node.graph.nodes:
            return Constant(None)
        if t.recorder.open_regions or any(n.target is torch.autograd.grad for n in self.node.graph.nodes):
            raise Unsupported("removing a gradient hook beside a backward")
        self.node.graph.erase_node(self.node)
        return Constant(None)


class LaterHandle(Handle):
    """The same of a hook that is registered after the graph: where it is loaded, that is done."""

    def __init__(self, register: Any, tensor: Tensor, hook: Value, earlier: list[LaterHandle]) -> None:
        self.earlier = earlier
        self.registering = LaterCall(register, [tensor, hook], result=self)
        self.removed = False

    def m_remove(self, t: Tracer) -> Value:
        if self.registering in t.effects.later:
            t.effects.later.remove(self.registering)
        self.removed = True
        return Constant(None)

    def rebuild(self, r: Rebuilder) -> str:
        for handle in self.earlier:  # hooks of a tensor are called in the order in which they came
            if not handle.removed:
                r.load(handle)
        name = r.assign(self.registering.expression(r))
        if self.removed:
            r.line(f"{name}.remove()")
        return name


def _register_later(t: Tracer, register: Any, tensor: Tensor, hook: Value) -> Value:
    """Compiled code changes nothing in the history of a leaf: a hook may as well be registered after it."""
    if not tensor.fake.is_leaf or type(tensor) is not Tensor or t.recorder.open_regions:
        name = register.__name__
        raise Unsupported(f"Tensor.{name} of a tensor that existed before and is no leaf, or wraps others")
    earlier = [c.result for c in t.effects.later if isinstance(c.result, LaterHandle)]
    handle = LaterHandle(register, tensor, hook, earlier)
    t.effects.later.append(handle.registering)
    t.blocks.refuse("a gradient hook of what existed before")
    return handle


@registry.tensor_method("register_post_accumulate_grad_hook")
def register_post_accumulate_grad_hook(t: Tracer, tensor: Tensor, hook: Value) -> Value:
    """``tensor.register_post_accumulate_grad_hook(hook)``."""
    if tensor.source is None or not tensor.fake.requires_grad:
        raise Unsupported("Tensor.register_post_accumulate_grad_hook of what is no leaf from before")
    return _register_later(t, torch.Tensor.register_post_accumulate_grad_hook, tensor, hook)


@registry.tensor_attribute("_backward_hooks")
def backward_hooks(t: Tracer, tensor: Tensor) -> Value:
    """The hooks that a tensor came with, by number; None of one that the graph made."""
    if type(tensor) is not Tensor or tensor.outer is not None or id(tensor) in t.recorder.hooked_tensors:
        raise Unsupported("_backward_hooks of a tensor of another class, or that was given hooks in compiled code")
    if tensor.real is None or tensor.source is None:
        return Constant(None)
    return t.wrap(tensor.real._backward_hooks, AttrSource(tensor.source, "_backward_hooks"))


@registry.tensor_method("register_hook")
def register_hook(t: Tracer, tensor: Tensor, hook: Value) -> Value:
    """``tensor.register_hook(hook)``."""
    fake = tensor.fake
    if not fake.requires_grad:
        raise t.raised(RuntimeError, "cannot register a hook on a tensor that doesn't require gradient")
    t.recorder.hooked_tensors.add(id(tensor))
    if tensor.source is not None:
        return _register_later(t, torch.Tensor.register_hook, tensor, hook)
    try:
        return _register_in_graph(t, tensor, hook)
    except Unsupported as error:
        if error.step is None and tensor.node.users:
            # No gradient of what the graph computed of it gets to a result of the graph that holds it: a hook there
            # would be called without it.
            error.step = t.recorder.made_at.get(tensor.node.name, (NOWHERE,))[0]
        raise


def _register_in_graph(t: Tracer, tensor: Tensor, hook: Value) -> Value:
    """A hook on what the graph made, as a graph of its own."""
    fake, before, grad_mode = tensor.fake, RunsLater(t, hook), torch.is_grad_enabled()
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
    return Handle(next(iter(reversed(t.recorder.graph.nodes))))


def refuse_hooks_set_later(t: Tracer) -> None:
    """Of a backward inside the graph, which would call hooks that are registered after it."""
    if any(isinstance(call.result, LaterHandle) for call in t.effects.later):
        raise Unsupported("a backward in which a hook is called that the program registered on what existed before")
