"""``Tensor.untyped_storage`` of tensors that existed before: how large the memory is, and letting go of it."""

from __future__ import annotations

import attrs
import torch
from torch import fx

from turret.frames.sources import CallSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.record.effects import LaterCall
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.trees import pytree


@attrs.frozen(eq=False)
class ResizedMemory:
    """Memory that is smaller from a step of the frame on, of which ``node`` was the last one of the graph."""

    fake: torch.Tensor
    size: int
    node: fx.Node | None
    step: int


class Storage(Value):
    """The memory of a tensor, which has its size before and behind the graph.

    It is found anew where it is needed; which tensors share it is asked of their sources.
    """

    def __init__(self, tensor: Tensor) -> None:
        assert tensor.source is not None
        self.tensor, self.source = tensor, CallSource(tensor.source, torch.Tensor.untyped_storage)

    def type(self) -> type:
        return torch.UntypedStorage

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "device":
            return Constant(self.tensor.fake.device)
        return super().get_attr(t, name)

    def m_size(self, t: Tracer) -> Value:
        return self.length(t)

    def m_nbytes(self, t: Tracer) -> Value:
        return self.length(t)

    def length(self, t: Tracer) -> Value:
        real = self.tensor.real
        assert real is not None and self.tensor.source is not None
        resized = _resized(t, self.tensor)
        if resized is not None:
            return Constant(resized.size)
        return t.wrap(lookups.size_of_storage(real), CallSource(self.tensor.source, lookups.size_of_storage))

    def truth(self, t: Tracer) -> bool:
        return t.truth(self.length(t))

    def m_resize_(self, t: Tracer, size: Value) -> Value:
        """Memory gets smaller behind the graph, which must not look at it any more."""
        wanted, known = t.constant_of(size), t.constant_of(self.length(t))
        if type(wanted) is not int or not 0 <= wanted <= known or t.recorder.open_regions:
            raise Unsupported("UntypedStorage.resize_ that adds memory, to a size that changes, or on some paths only")
        if self.tensor.new_data is not None:
            raise Unsupported("UntypedStorage.resize_ of the memory of a tensor whose data were set since")
        if wanted == known:
            return self
        for item in t.recorder.inputs:
            if isinstance(item.example, torch.Tensor) and _memory(item.example) == _memory(self.tensor.fake):
                item.static = item.steady = False  # it lies elsewhere where it gets memory again
        last = next(reversed(t.recorder.root_graph.nodes), None)
        t.recorder.resized_memory.append(ResizedMemory(self.tensor.fake, wanted, last, t.call_stack.step))
        t.effects.later.append(LaterCall(torch.UntypedStorage.resize_, [self, Constant(wanted)]))
        return self

    def rebuild(self, r: Rebuilder) -> str:
        if self.tensor.new_data is not None:
            raise Unsupported("a storage of a tensor whose data were set since")
        return r.assign(f"{r.load(self.tensor)}.untyped_storage()")


@registry.tensor_method("untyped_storage")
def untyped_storage(t: Tracer, tensor: Tensor) -> Value:
    moved = tensor.new_data is not None or t.recorder.versions.changed(t.recorder.inputs)
    if tensor.source is None or tensor.real is None or moved:
        raise tensor.not_in_graphs(t, "untyped_storage")
    return Storage(tensor)


def _memory(tensor: torch.Tensor) -> int | None:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else None


def _resized(t: Tracer, tensor: Tensor) -> ResizedMemory | None:
    """How the memory of a tensor was last resized in the frame."""
    memory = _memory(tensor.fake)
    return next((r for r in reversed(t.recorder.resized_memory) if _memory(r.fake) == memory), None)


def check_resized(t: Tracer) -> None:
    """Refuse to let go of memory that the graph looks at afterwards, or a backward of it might."""
    nodes = list(t.recorder.root_graph.nodes)
    for resized in t.recorder.resized_memory:
        if any(v.requires_grad for node in nodes if node.op != "placeholder" for v in _made(node)):
            raise Unsupported("UntypedStorage.resize_ where a backward may look at the memory", step=resized.step)
        after = nodes[nodes.index(resized.node) + 1 :] if resized.node is not None else nodes
        memory = _memory(resized.fake)
        if any(memory in map(_memory, _tensors(node)) for node in after if node.op != "placeholder"):
            raise Unsupported("UntypedStorage.resize_ of memory that is used afterwards", step=resized.step)


def _made(node: fx.Node) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(node.meta.get("example_value")) if isinstance(v, torch.Tensor)]


def _tensors(node: fx.Node) -> list[torch.Tensor]:
    """What a node is given and what it gives."""
    return [v for n in (node, *node.all_input_nodes) for v in _made(n)]


registry.followed |= {"_same_storage_size"}
