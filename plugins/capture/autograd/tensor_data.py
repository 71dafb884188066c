"""Where a tensor lies and what it holds: ``data_ptr``, ``x.data = y`` and ``x.set_(y)``."""

from __future__ import annotations

import torch

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Answer, Constant, Tracer, Value
from turret.plugins.capture.values.tensors import Tensor


class DataPointer(Value):
    """``Tensor.data_ptr()``: good for asking whether two tensors start at the same place."""

    def __init__(self, tensor: Tensor) -> None:
        # Of new data the graph may hold a copy; the program has them themselves, and may set others later.
        self.tensor, self.fake = tensor, (tensor.new_data or tensor).fake
        self.real = None if tensor.new_data is not None else tensor.real

    def type(self) -> type:
        return int

    def describe(self) -> str:
        return f"the address of {self.tensor.describe()}"

    def compare(self, t: Tracer, symbol: str, other: Value) -> Answer:
        if not isinstance(other, DataPointer) or symbol not in ("==", "!="):
            raise Unsupported(f"{self.describe()} {symbol} {other.describe()}")
        same = self.fake is other.fake or _start_together(self, other)
        return Constant(same == (symbol == "=="))


def _start_together(first: DataPointer, second: DataPointer) -> bool:
    """Whether two tensors begin at the same place in the same memory."""
    if first.fake.numel() == 0 or second.fake.numel() == 0:
        raise Unsupported("comparing addresses of tensors without elements")
    # Inputs that share memory are guarded to share it, but not where in it they start.
    inputs = first.real is not None and second.real is not None
    one, two = (first.real, second.real) if inputs else (first.fake, second.fake)
    assert one is not None and two is not None
    if one.untyped_storage()._cdata != two.untyped_storage()._cdata:
        return False
    if inputs:
        raise Unsupported("comparing addresses of tensors that share memory")
    return one.storage_offset() * one.element_size() == two.storage_offset() * two.element_size()


@registry.tensor_method("data_ptr")
def data_pointer(t: Tracer, tensor: Tensor) -> Value:
    return DataPointer(tensor)


@registry.tensor_setter("data")
def set_data(t: Tracer, tensor: Tensor, value: Value) -> None:
    """``tensor.data = value``: the tensor stands for the new data from here on, and takes it after the graph."""
    value = value.realize()
    if not isinstance(value, Tensor):
        raise Unsupported(f"setting the data of a tensor to {value.describe()}")
    old, new = tensor.fake, value.fake
    if (old.dtype, old.device) != (new.dtype, new.device) or tensor.real is None:
        raise Unsupported("setting the data of a tensor of another type, or of one that the graph made")
    data = t.recorder.call_method("detach", [value], {})
    assert isinstance(data, Tensor)
    current = data
    if old.requires_grad:
        current = _copied(t, tensor, data) if old.shape == new.shape else _leaf(t, tensor, data)
    for item in t.recorder.inputs:
        if item.node is tensor.node:
            item.static = item.steady = False  # it lies elsewhere on the next call
    t.effects.note(tensor)
    tensor.node, tensor.fake, tensor.new_data = current.node, current.fake, data
    t.recorder.by_fake[id(current.fake)] = tensor


@registry.tensor_method("set_")
def set_memory(t: Tracer, tensor: Tensor, source: Value | None = None, /, *layout: Value, **named: Value) -> Value:
    """``tensor.set_(other)``: the tensor lies where another one does, which need not be as large, from here on."""
    given = None if source is None else source.realize()
    if layout or named or not (given is None or isinstance(given, Tensor)):
        raise Unsupported("Tensor.set_ of a storage")
    old = tensor.fake
    if given is None:
        options = {"dtype": t.wrap_known(old.dtype), "device": t.wrap_known(old.device)}
        given = t.recorder.call(torch.empty, [Constant(0)], options)
    assert isinstance(given, Tensor)
    new = given.fake
    if old.requires_grad or new.requires_grad or t.recorder.open_regions:
        raise Unsupported("Tensor.set_ where gradients or a graph in the graph have a part in it")
    if (old.dtype, old.device, old.layout) != (new.dtype, new.device, new.layout) or given is tensor:
        raise Unsupported("Tensor.set_ of a tensor of another type")
    if tensor.real is not None:
        set_data(t, tensor, given)
        return tensor
    tensor.lie_where(t, given)
    return tensor


def _copied(t: Tracer, tensor: Tensor, data: Tensor) -> Tensor:
    """A copy of a tensor with the new values whose gradient goes to the old one."""
    with_history = torch.is_grad_enabled()
    current = t.recorder.call_method("clone", [tensor], {})
    assert isinstance(current, Tensor)
    detached = t.recorder.call_method("detach", [current], {})
    t.recorder.call_method("copy_", [detached, data], {})
    if not with_history:
        t.recorder.call_method("requires_grad_", [current], {})
    version = t.recorder.versions.of
    t.recorder.data_copies.append((current.fake, version(current.fake), data.fake, version(data.fake)))
    return current


def _leaf(t: Tracer, tensor: Tensor, data: Tensor) -> Tensor:
    """A leaf of another shape than the old one, which no gradient of the graph can go to."""
    if not tensor.fake.is_leaf:
        raise Unsupported("setting the data of a tensor with a history to one of another shape")
    current = t.recorder.call_method("detach", [data], {})
    assert isinstance(current, Tensor)
    t.recorder.call_method("requires_grad_", [current], {})
    t.recorder.resized_data.append(current.node)
    return current


def check_copies(t: Tracer) -> None:
    """New data of tensors with gradients live twice in the graph: neither copy may be written to.

    Where they have another shape, nothing that autograd follows may be made of them.
    """
    for node in t.recorder.resized_data:
        made = [user.meta.get("example_value") for user in node.users if user.target != "requires_grad_"]
        if any(getattr(v, "requires_grad", True) for v in made):
            raise Unsupported("a gradient of a tensor whose data were set to data of another shape")
    for copy, copied_at, data, taken_at in t.recorder.data_copies:
        if t.recorder.versions.of(copy) != copied_at or t.recorder.versions.of(data) != taken_at:
            raise Unsupported("a change in place of the new data of a tensor")
