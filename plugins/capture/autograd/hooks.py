"""``Tensor.register_hook``: a graph and a call in it for what the graph made, else a call after the graph.

So is one on a result of the graph, which others may hook or have retain its gradient: hooks of a tensor are called in
the order in which they came, and all see the whole gradient.
"""

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
    """What registering a hook returns: of a hook in the graph, which ``remove`` takes out of it again.

    ``tensor`` and ``hook`` are those of one that may as well be registered after the graph; where it is loaded, it is.
    """

    def __init__(self, node: fx.Node, tensor: Tensor | None = None, hook: Value | None = None) -> None:
        self.node, self.tensor, self.hook = node, tensor, hook

    def type(self) -> type:
        return torch.utils.hooks.RemovableHandle

    def is_in_graph(self) -> bool:
        """Whether the hook is called by the graph."""
        return self.node in self.node.graph.nodes

    def m_remove(self, t: Tracer) -> Value:
        """The hook is as if it had never been; a backward in between has called it."""
        if not self.is_in_graph():
            return Constant(None)
        if t.recorder.open_regions or _takes_gradients(self.node.graph):
            raise Unsupported("removing a gradient hook beside a backward")
        self.node.graph.erase_node(self.node)
        return Constant(None)

    def leave_graph(self, r: Rebuilder) -> str:
        """Register the hook after the graph, and those of the tensor that came before; the expression that does it."""
        assert self.tensor is not None and self.hook is not None
        self.node.graph.erase_node(self.node)
        for earlier in r.t.recorder.hooked_tensors[id(self.tensor)]:
            if earlier is self:
                break
            if earlier.is_in_graph() and earlier.hook is not None:
                r.line(earlier.leave_graph(r))
        return f"{r.load(self.tensor)}.register_hook({r.load(self.hook)})"

    def rebuild(self, r: Rebuilder) -> str:
        if self.hook is None or not self.is_in_graph() or _takes_gradients(self.node.graph):
            return super().rebuild(r)
        return r.assign(self.leave_graph(r))


def _takes_gradients(graph: fx.Graph) -> bool:
    return any(node.target is torch.autograd.grad for node in graph.nodes)


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
    handles = t.recorder.hooked_tensors.setdefault(id(tensor), [])
    if tensor.source is not None:
        return _register_later(t, torch.Tensor.register_hook, tensor, hook)
    try:
        handles.append(_register_in_graph(t, tensor, hook))
        return handles[-1]
    except Unsupported as error:
        if error.step is None and tensor.node.users:
            # No gradient of what the graph computed of it gets to a result of the graph that holds it: a hook there
            # would be called without it.
            error.step = t.recorder.made_at.get(tensor.node.name, (NOWHERE,))[0]
        raise


def _register_in_graph(t: Tracer, tensor: Tensor, hook: Value) -> Handle:
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
    node = next(iter(reversed(t.recorder.graph.nodes)))
    return Handle(node) if written or t.recorder.open_regions else Handle(node, tensor, hook)


def register_behind(t: Tracer, r: Rebuilder) -> None:
    """Register hooks on results of the graph after it, and not in it; not where a backward in the graph calls them."""
    if not t.recorder.hooked_tensors or _takes_gradients(t.recorder.graph):
        return
    left = [h for handles in t.recorder.hooked_tensors.values() for h in handles if h.hook is not None]
    while found := [h for h in left if h.is_in_graph() and h.tensor.node in r.outputs]:
        for handle in found:
            if handle.is_in_graph():
                r.effect(handle.leave_graph(r))


def refuse_hooks_set_later(t: Tracer) -> None:
    """Of a backward inside the graph, which would call hooks that are registered after it."""
    if any(isinstance(call.result, LaterHandle) for call in t.effects.later):
        raise Unsupported("a backward in which a hook is called that the program registered on what existed before")
