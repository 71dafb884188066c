"""What a tensor tells of its past: how often it was written to (``_version``), and what it is a view of (``_base``)."""

from __future__ import annotations

import operator

import torch

from turret.frames.sources import AttrSource
from turret.plugins.capture.errors import NOWHERE, Unsupported
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.tensors import Tensor


@registry.tensor_attribute("_version")
def version(t: Tracer, tensor: Tensor) -> Value:
    """The count of writes: what it was when the frame began, which is another one on each call, and those since."""
    _require_plain(t, tensor, "_version")
    if tensor.fake.is_inference():
        raise Unsupported("_version of a tensor that was made in inference mode")
    written = tensor.fake._version
    origin = _origin(t, tensor, written > 0)
    if origin is None:
        return Constant(written)
    assert origin.real is not None and origin.source is not None
    before = t.recorder.int_input(origin.real._version, AttrSource(origin.source, "_version"), is_int=True)
    return t.binary(operator.add, before, Constant(written))


def _origin(t: Tracer, tensor: Tensor, is_written: bool) -> Tensor | None:
    """The input that a tensor shares its count with; None where the graph made the memory."""
    memory = tensor.fake.untyped_storage()._cdata
    plain = [v for v in t.recorder.by_fake.values() if type(v) is Tensor and v.fake.layout is torch.strided]
    sharing = [v for v in plain if v.fake.untyped_storage()._cdata == memory]
    family = [v for v in sharing if _root(v) is _root(tensor)]
    origin = tensor if tensor.real is not None else next((v for v in family if v.real is not None), None)
    # Whether what came in beside its memory shares its count nobody knows; ``data`` and what was moved do not, where
    # fakes do.
    beside = [v for v in sharing if v.real is not None and v not in family]
    if any(origin is None or v.fake._version for v in beside) or (is_written and any(map(_counts_alone, sharing))):
        # Behind a graph break the count would be the one that the graph's result has.
        step = NOWHERE if is_written else None
        raise Unsupported("_version of a tensor in the memory of another one that is no view of it", step=step)
    return origin


def _root(tensor: Tensor) -> torch.Tensor:
    return tensor.fake if tensor.fake._base is None else tensor.fake._base


def _counts_alone(tensor: Tensor) -> bool:
    return tensor.is_moved or (tensor.node.target is getattr and tensor.node.args[1] == "data")


@registry.tensor_attribute("_base")
def base(t: Tracer, tensor: Tensor) -> Value:
    """The tensor that another one is a view of, or None."""
    _require_plain(t, tensor, "_base")
    if tensor.real is not None and tensor.source is not None:
        return t.wrap(tensor.real._base, AttrSource(tensor.source, "_base"))
    found = tensor.fake._base
    if found is None:
        return Constant(None)
    known = t.recorder.by_fake.get(id(found))
    if known is not None:
        return known.outer or known
    for item in t.recorder.inputs:
        if isinstance(item.example, torch.Tensor) and item.example._base is found:
            return base(t, t.recorder.by_fake[id(item.example)])
    raise Unsupported("_base of a view of what a call of torch's made and kept to itself")


def _require_plain(t: Tracer, tensor: Tensor, name: str) -> None:
    """Refuse tensors whose stand-ins in the graph have a past of their own."""
    if type(tensor) is not Tensor or tensor.outer is not None or tensor.fake.layout is not torch.strided:
        raise Unsupported(f"{name} of a tensor of another class")
    if tensor.new_data is not None or tensor.is_moved:
        raise Unsupported(f"{name} of a tensor whose data were set", step=NOWHERE)
    if t.recorder.open_regions:
        raise Unsupported(f"{name} in a graph in the graph")
