"""Writing products as JSON and reading them back: plain data and tensors, never a pickle.

A class takes part by ``@record``; its fields must hold what this module can write.
"""

from __future__ import annotations

import enum
import functools
import importlib
import json
import math
from collections.abc import Callable
from typing import Any

import attrs
import torch

from turret.errors import CacheError

_RECORDS: dict[str, type] = {}
_HOMES = {
    "Assembly": "turret.pipeline.graph_compilers.assembly",
    "Part": "turret.pipeline.graph_compilers.assembly",
    "Interface": "turret.pipeline.graph_compilers.layouts",
    "TensorLayout": "turret.pipeline.graph_compilers.layouts",
}
"""Modules of records that are loaded when one is read, and not before."""


def record(cls: type) -> type:
    """Register an attrs class (or an enum) under its name."""
    _RECORDS[cls.__name__] = cls
    return cls


def record_types() -> dict[str, type]:
    """The classes that are registered, by name."""
    return dict(_RECORDS)


def dumps(value: Any) -> str:
    """JSON text of a value; raises ``CacheError`` for what cannot be written."""
    return json.dumps(_encode(value))


def loads(text: str) -> Any:
    """The value that ``dumps`` wrote.  Builds registered records and tensors; runs nothing else."""
    return _decode(json.loads(text))


def _encode(value: Any) -> Any:
    """Plain JSON values stay; everything else becomes ``{"$": kind, ...}``."""
    if _RECORDS.get(type(value).__name__) is type(value):
        return _encode_record(value)
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    encode = _ENCODERS.get(kind)
    if encode is None:
        raise _unwritable(value)
    return encode(value)


def _unwritable(value: Any) -> CacheError:
    return CacheError(f"no way to write a {type(value).__name__} ({value!r}) to the cache")


def _encode_float(value: float) -> Any:
    return value if math.isfinite(value) else {"$": "float", "v": repr(value)}


def _encode_complex(value: complex) -> dict[str, Any]:
    return {"$": "complex", "v": [_encode(value.real), _encode(value.imag)]}


def _encode_list(value: list[Any]) -> list[Any]:
    return [_encode(v) for v in value]


def _encode_tuple(value: tuple[Any, ...]) -> dict[str, Any]:
    return {"$": "tuple", "v": [_encode(v) for v in value]}


def _encode_dict(value: dict[Any, Any]) -> dict[str, Any]:
    return {"$": "dict", "v": [[_encode(k), _encode(v)] for k, v in value.items()]}


def _encode_name(value: Any) -> dict[str, Any]:
    return {"$": "torch", "v": str(value).removeprefix("torch.")}


def _encode_device(value: torch.device) -> dict[str, Any]:
    return {"$": "device", "v": str(value)}


def _encode_record(value: Any) -> dict[str, Any]:
    kind = type(value).__name__
    if isinstance(value, enum.Enum):
        return {"$": kind, "v": value.value}
    return {"$": kind, **{a.name: _encode(getattr(value, a.name)) for a in attrs.fields(type(value))}}


def _encode_tensor(value: torch.Tensor) -> dict[str, Any]:
    """Elements in order; of a tensor that covers some memory more than once, that memory."""
    if value.layout is not torch.strided or value.is_quantized:
        raise _unwritable(value)
    value = value.detach().resolve_conj().resolve_neg()
    overlaps = any(stride == 0 and size > 1 for size, stride in zip(value.shape, value.stride(), strict=True))
    if overlaps:
        flat = value.as_strided((_span(value.shape, value.stride()),), (1,))
    else:
        flat = value.clone(memory_format=torch.contiguous_format).reshape(-1)
    return {
        "$": "tensor",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "device": str(value.device),
        "memory": overlaps,
        "hex": flat.cpu().view(torch.uint8).numpy().tobytes().hex() if flat.numel() else "",
    }


_ENCODERS: dict[type, Callable[[Any], Any]] = {
    float: _encode_float,
    complex: _encode_complex,
    list: _encode_list,
    tuple: _encode_tuple,
    torch.Size: _encode_tuple,
    dict: _encode_dict,
    torch.dtype: _encode_name,
    torch.layout: _encode_name,
    torch.memory_format: _encode_name,
    torch.device: _encode_device,
    torch.Tensor: _encode_tensor,
    torch.nn.Parameter: _encode_tensor,
}


def _span(shape: Any, stride: Any) -> int:
    """Elements from the first to the last of a layout; 0 where there are none."""
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    kind = value["$"]
    if kind == "tensor":
        return _decode_tensor(value)
    decode = _DECODERS.get(kind)
    return _decode_record(kind, value) if decode is None else decode(value["v"])


def _decode_record(kind: str, value: dict[str, Any]) -> Any:
    if kind in _HOMES:
        importlib.import_module(_HOMES[kind])
    cls = _RECORDS[kind]
    if issubclass(cls, enum.Enum):
        return cls(value["v"])
    return cls(**{k: _decode(v) for k, v in value.items() if k != "$"})


def _decode_dict(items: list[Any]) -> dict[Any, Any]:
    return {_decode(k): _decode(v) for k, v in items}


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "complex": lambda parts: complex(*map(_decode, parts)),
    "tuple": lambda items: tuple(map(_decode, items)),
    "dict": _decode_dict,
    "torch": functools.partial(getattr, torch),
    "device": torch.device,
}
"""For each kind that is no record what makes it of its ``"v"``."""


def _decode_tensor(value: dict[str, Any]) -> torch.Tensor:
    dtype, shape, stride = getattr(torch, value["dtype"]), value["shape"], value["stride"]
    flat = torch.empty(0, dtype=dtype)
    if value["hex"]:
        flat = torch.frombuffer(bytearray.fromhex(value["hex"]), dtype=torch.uint8).view(dtype)
    if value["memory"]:
        return flat.to(value["device"]).as_strided(shape, stride)
    result = torch.empty_strided(shape, stride, dtype=dtype, device=value["device"])
    return result.copy_(flat.reshape(shape))
