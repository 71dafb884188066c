"""Tensors that are spread over processes (``DTensor``), in the graph, and what says how they are spread.

They are wrappers of this process's part: the graph holds that, and the collectives that the class calls for what is
computed of it, by its own rules, when the joint trace runs.  Meshes and placements are constants.
"""

from __future__ import annotations

from typing import Any

import attrs

from turret.frames.sources import BoundSource, Source
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Constant, MethodOfValue, Tracer, Value
from turret.plugins.capture.values.wrappers import WrapperTensor


@attrs.frozen(eq=False)
class FromLocal:
    """The function of a node that makes a tensor of each process's part."""

    mesh: Any
    placements: tuple[Any, ...] | None
    named: dict[str, Any]
    __name__: str = "from_local"

    def __call__(self, local: Any) -> Any:
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(local, self.mesh, self.placements, run_check=False, **self.named)


@attrs.frozen(eq=False)
class CallFunction:
    """The function of a node that calls one of ``torch.distributed.tensor``, with tensors and then with constants."""

    name: str
    args: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *tensors: Any) -> Any:
        from torch.distributed import tensor

        return getattr(tensor, self.name)(*tensors, *self.args, **self.named)


@attrs.frozen(eq=False)
class CallMethod:
    """The function of a node that calls a method of such a tensor with constants."""

    name: str
    args: tuple[Any, ...]
    named: dict[str, Any]

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, value: Any) -> Any:
        return getattr(value, self.name)(*self.args, **self.named)


class DistributedTensor(WrapperTensor):
    """A tensor of the graph that is spread over processes."""

    def own_attribute(self, t: Tracer, name: str) -> Value:
        if name in ("placements", "device_mesh"):
            return t.wrap_known(getattr(self.fake, name))
        if name in _METHODS:
            return MethodOfValue(self, name)
        return super().own_attribute(t, name)

    def call_torchs(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in _METHODS:
            return super().call_torchs(t, name, args, kwargs)
        given = tuple(map(t.constant_of, args))
        made = CallMethod(name, given, {k: t.constant_of(v) for k, v in kwargs.items()})
        return t.recorder.call_region(made, [self.node])


_METHODS = ("redistribute", "to_local", "full_tensor")


class Description(Constant):
    """A mesh or a placement: its methods, but for those that make something, answer as they did while capturing."""

    def get_attr(self, t: Tracer, name: str) -> Value:
        if callable(getattr(self.value, name, None)):
            return MethodOfValue(self, name)
        return super().get_attr(t, name)

    def call_method(self, t: Tracer, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name.startswith("_") and name != "__getitem__":
            raise Unsupported(f"method {name!r} of {self.describe()}")
        return t.fold(getattr(self.value, name), args, kwargs)


def is_placement(kind: type) -> bool:
    """Whether a class is that of placements; the module that has them is loaded by programs that use it."""
    return any(base.__module__ == _PLACEMENTS and base.__name__ == "Placement" for base in kind.__mro__)


_PLACEMENTS = "torch.distributed.tensor.placement_types"


class _Placements(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return is_placement(type(instance))


class AnyPlacement(metaclass=_Placements):
    """Stands for the class of placements."""


def description(t: Tracer, object: Any, source: Source) -> Value:
    """A placement, assumed to be equal on every call, or a mesh, assumed to be the same one."""
    if not isinstance(source, BoundSource):
        t.guards.take("EQUALS" if is_placement(type(object)) else "ID", source, object)
    return Description(object, source)
