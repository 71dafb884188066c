"""Making tensors that are spread over processes.

``torch.distributed.tensor`` is loaded by programs that use it, and not here.
"""

from __future__ import annotations

from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.distributed import DistributedTensor, FromLocal
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
    target = FromLocal(
        mesh, None if given is None else tuple(given), {name: t.constant_of(value) for name, value in named.items()}
    )
    t.recorder.distributed = True
    return t.recorder.call_region(target, [local.node])


def placement(kind: str) -> None:
    """Enter a class of placements: making one is making a constant."""
    registry.named["torch.distributed.tensor.placement_types", kind] = lambda t, *args, **kwargs: t.fold(
        _placement_class(kind), list(args), kwargs
    )


def _placement_class(kind: str) -> type:
    from torch.distributed.tensor import placement_types

    return getattr(placement_types, kind)


registry.named["torch.distributed.tensor._api", "DTensor.from_local"] = from_local
for _kind in ("Shard", "Replicate", "Partial"):
    placement(_kind)
