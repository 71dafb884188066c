"""Making tensors that are spread over processes.

``torch.distributed.tensor`` is loaded by programs that use it, and not here.
"""

from __future__ import annotations

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.distributed import CallFunction, DistributedTensor, FromLocal
from turret.plugins.capture.values.tensors import Tensor

_NONE, _FALSE = Constant(None), Constant(False)


def from_local(
    t: Tracer,
    local_tensor: Value,
    device_mesh: Value = _NONE,
    placements: Value = _NONE,
    *,
    run_check: Value = _FALSE,
    shape: Value = _NONE,
    stride: Value = _NONE,
    grad_placements: Value = _NONE,
) -> Value:
    """``DTensor.from_local``."""
    local = local_tensor.realize()
    if not isinstance(local, Tensor) or isinstance(local, DistributedTensor):
        raise Unsupported(f"DTensor.from_local of {local.describe()}")
    mesh = t.constant_of(device_mesh)
    if mesh is None:
        raise Unsupported("DTensor.from_local without a mesh", "name the mesh")
    if t.truth(run_check):
        raise Unsupported("DTensor.from_local with run_check=True", "leave run_check out, or check outside")
    given = t.constant_of(placements)
    named = {"shape": shape, "stride": stride, "grad_placements": grad_placements}
    known = {name: t.constant_of(value) for name, value in named.items()}
    # Left out where nobody named it: older versions of torch have no grad_placements.
    target = FromLocal(
        mesh,
        None if given is None else tuple(given),
        {name: value for name, value in known.items() if value is not None},
    )
    t.recorder.distributed = True
    return t.recorder.call_region(target, [local.node])


def distribute_tensor(
    t: Tracer,
    tensor: Value,
    device_mesh: Value = _NONE,
    placements: Value = _NONE,
    *,
    src_data_rank: Value = Constant(0),  # noqa: B008 (a constant does not change)
) -> Value:
    """``distribute_tensor`` of what all processes have: each takes its part."""
    given = tensor.realize()
    if t.constant_of(src_data_rank) is not None:
        raise Unsupported(
            "distribute_tensor, which sends parts from one process", "give src_data_rank=None where all have the tensor"
        )
    if not isinstance(given, Tensor) or isinstance(given, DistributedTensor) or given.fake.requires_grad:
        raise Unsupported(f"distribute_tensor of {given.describe()}, which requires gradients or is spread already")
    named = {"device_mesh": t.constant_of(device_mesh), "placements": t.constant_of(placements), "src_data_rank": None}
    return t.recorder.call_region(CallFunction("distribute_tensor", (), named), [given.node])


def _factory(name: str) -> None:
    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        named = {k: t.constant_of(v) for k, v in kwargs.items()}
        if named.get("requires_grad"):
            raise Unsupported(f"torch.distributed.tensor.{name} with requires_grad=True")
        return t.recorder.call_region(CallFunction(name, tuple(map(t.constant_of, args)), named), [])

    registry.named["torch.distributed.tensor._api", name] = handler


def _placement(name: str) -> None:
    """Enter a class of placements: making one is making a constant."""

    def handler(t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
        from torch.distributed import tensor

        return t.fold(getattr(tensor, name), list(args), kwargs)

    registry.named["torch.distributed.tensor.placement_types", name] = handler


registry.named["torch.distributed.tensor._api", "DTensor.from_local"] = from_local
registry.named["torch.distributed.tensor._api", "distribute_tensor"] = distribute_tensor
for _name in ("ones", "zeros", "empty", "full"):
    _factory(_name)
for _name in ("Shard", "Replicate", "Partial"):
    _placement(_name)
