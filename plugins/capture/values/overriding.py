"""Tensors of classes that answer for torch's functions (``__torch_function__``), around the tensors of the graph."""

from __future__ import annotations

import types
from typing import Any

import torch

from turret.frames.class_members import find_in_mro
from turret.frames.sources import CallSource, Source
from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.values.base import Constant, Rebuilder, Tracer, Value
from turret.plugins.capture.values.classes import bind_attribute, look_up
from turret.plugins.capture.values.functions import Callable_
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.function_overrides import disabled_torch_dispatch, disabled_torch_function
from turret.torch_compat.operators.native_functions import TensorBase

OF_TORCH = (torch.Tensor, TensorBase, torch.nn.Parameter, torch.nn.Buffer)
"""Classes whose members are torch's functions."""
_OF_THE_OBJECT = frozenset({"grad", "_grad", "is_leaf", "grad_fn", "_base", "retains_grad", "output_nr", "_version"})
"""Attributes of a tensor that a view of it does not share."""


def answers(kind: type) -> bool:
    """Whether instances of a class answer for torch's functions."""
    found = find_in_mro(kind, "__torch_function__")[1]
    return found is not None and found is not disabled_torch_function


def is_plain_subclass(kind: type) -> bool:
    """Whether a class of tensors says nothing of ATen operators, as wrappers of other tensors do."""
    dispatch = find_in_mro(kind, "__torch_dispatch__")[1]
    return dispatch in (torch.Tensor.__dict__["__torch_dispatch__"], disabled_torch_dispatch)


def is_overriding(value: Value) -> bool:
    """Whether a value is an object that answers for torch's functions, or a tensor of such a class."""
    return isinstance(value, Instance) and answers(value.kind)


class SubclassTensor(Instance):
    """A tensor of a class of the program's; ``held`` is the plain one in its memory, which graphs compute with."""

    def __init__(self, kind: type, held: Tensor, object: Any = None, source: Source | None = None) -> None:
        super().__init__(kind, object, source)
        self.held = held
        held.outer = self

    def describe(self) -> str:
        return f"{self.held.describe()} of {self.kind.__qualname__}"

    def key(self, t: Tracer) -> Any:
        return self

    def from_torch(self, t: Tracer, name: str, raw: Any) -> Value:
        """An attribute or method that tensors have from torch, ``raw`` as it lies in their class."""
        if isinstance(raw, (types.GetSetDescriptorType, property)):
            return t.overrides.attribute(self, name)
        if isinstance(raw, (classmethod, staticmethod)) or not callable(raw):
            return bind_attribute(t, self, torch.Tensor, name, raw)
        return MethodOfTorch(self, name)

    def special(self, t: Tracer, name: str) -> Value | None:
        owner, raw = look_up(t, self.kind, name)
        if owner is None or raw is None:
            return None
        if owner in OF_TORCH and not isinstance(raw, classmethod):
            return MethodOfTorch(self, name)
        return super().special(t, name)

    def generic_attr(self, t: Tracer, name: str) -> Value:
        owner, raw = look_up(t, self.kind, name)
        if owner not in OF_TORCH or name in ("__class__", "__dict__") or isinstance(raw, classmethod):
            return super().generic_attr(t, name)
        if not isinstance(raw, (types.GetSetDescriptorType, property)):
            if (found := self.own(t, name)) is not None:
                return found
            self.assume_absent(t, name)
        return self.from_torch(t, name, raw)

    def torchs_attribute(self, t: Tracer, name: str) -> Value:
        """An attribute of tensors, past what the class has to say."""
        if self.object is None or name not in _OF_THE_OBJECT:
            return self.held.get_attr(t, name)
        assert self.source is not None
        if name in ("grad", "_grad"):
            return t.wrap(lookups.gradient(self.object), CallSource(self.source, lookups.gradient))
        if name == "is_leaf":
            t.guards.take("CALL", self.source, (lookups.is_leaf, lookups.is_leaf(self.object)))
            return Constant(lookups.is_leaf(self.object))
        raise Unsupported(f"{name} of {self.describe()}")

    def store(self, t: Tracer, name: str, value: Value) -> None:
        owner, raw = look_up(t, self.kind, name)
        if owner in OF_TORCH and isinstance(raw, (types.GetSetDescriptorType, property)):
            t.overrides.set_attribute(self, name, value)
            return
        super().store(t, name, value)

    def unpack(self, t: Tracer) -> list[Value]:
        return list(t.drain(self.iterate(t)))

    def rebuild(self, r: Rebuilder) -> str:
        made = f"{r.constant(lookups.as_class)}({r.load(self.held)}, {r.constant(self.kind)})"
        name = r.remember(self, r.assign(made))
        self.write_stores(r, name, r.line)
        return name

    def check(self) -> None:
        """Refuse what only shows in the object itself, whose memory alone the graph has."""
        if self.object is None:
            return
        real, fake = lookups.plain_tensor(self.object), self.held.fake
        for mine, theirs in ((fake.shape, real.shape), (fake.stride(), real.stride())):
            if len(mine) != len(theirs) or any(
                isinstance(m, int) and m != n for m, n in zip(mine, theirs, strict=True)
            ):
                raise Unsupported(f"a change of the shape of {self.describe()}", step=NOWHERE)
        if self.held.new_data is not None or self.held.stores:
            raise Unsupported(f"attributes set on {self.describe()} past its class", step=NOWHERE)


class MethodOfTorch(Callable_):
    """A method that a tensor has from torch, bound; the class of the tensor answers for calls of it."""

    def __init__(self, owner: SubclassTensor, name: str) -> None:
        self.owner, self.name = owner, name

    def type(self) -> type:
        return types.BuiltinMethodType

    def describe(self) -> str:
        return f"method {self.name!r} of {self.owner.describe()}"

    def get_attr(self, t: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.owner
        return Constant(self.name) if name == "__name__" else super().get_attr(t, name)

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.overrides.method(self.owner, self.name, args, kwargs)

    def rebuild(self, r: Rebuilder) -> str:
        return r.assign(f"{r.load(self.owner)}.{self.name}")


def subclass_value(t: Tracer, object: Any, source: Source) -> Value | None:
    """A tensor of a class of the program's that existed before; None for one that capture does not follow."""
    kind = type(object)
    if not is_plain_subclass(kind) or torch.nn.parameter.is_lazy(object):
        return None
    if not answers(kind):
        return t.recorder.tensor_input(object, source)
    t.blocks.refuse(f"a tensor of {kind.__qualname__}")
    t.guards.take("TYPE", source, kind)
    t.overrides.assume_state()
    held = t.recorder.tensor_input(lookups.plain_tensor(object), CallSource(source, lookups.plain_tensor))
    assert isinstance(held, Tensor)
    made = SubclassTensor(kind, held, object, source)
    t.overrides.inputs.append(made)
    return made
