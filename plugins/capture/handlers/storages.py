"""``Tensor.untyped_storage`` of tensors that existed before: how large the memory is."""

from __future__ import annotations

import torch

from turret.frames.sources import CallSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.tensors import Tensor


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
        return t.wrap(lookups.size_of_storage(real), CallSource(self.tensor.source, lookups.size_of_storage))

    def truth(self, t: Tracer) -> bool:
        return t.truth(self.length(t))

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


registry.followed |= {"_same_storage_size"}
