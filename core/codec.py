"""Writing products as JSON and reading them back: plain data and tensors, never a pickle.

A class takes part by ``@record``; its fields must hold what this module can write.
"""

from __future__ import annotations

import enum
import json
import math
from typing import Any

import attrs
import torch

from turret.errors import CacheError

_RECORDS: dict[str, type] = {}


def record(cls: type) -> type:
    """Register an attrs class (or an enum) under its name."""
    _RECORDS[cls.__name__] = cls
    return cls


def dumps(value: Any) -> str:
    """JSON text of a value; raises ``CacheError`` for what cannot be written."""
    return json.dumps(_encode(value))


def loads(text: str) -> Any:
    """The value that ``dumps`` wrote.  Builds registered records and tensors; runs nothing else."""
    return _decode(json.loads(text))


def _encode(value: Any) -> Any:
    """Plain JSON values stay; everything else becomes ``{"$": kind, ...}``."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
    if isinstance(value, complex):
        return {"$": "complex", "v": [value.real, value.imag]}
    if isinstance(value, list):
        return [_encode(v) for v in value]
    if isinstance(value, tuple):
        return {"$": "tuple", "v": [_encode(v) for v in value]}
    if isinstance(value, dict):
        return {"$": "dict", "v": [[k, _encode(v)] for k, v in value.items()]}
    if _RECORDS.get(type(value).__name__) is type(value):
        return _encode_record(value)
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"$": "torch", "v": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"$": "device", "v": str(value)}
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value)
    raise CacheError(f"no way to write a {type(value).__name__} ({value!r}) to the cache")


def _encode_record(value: Any) -> dict[str, Any]:
    kind = type(value).__name__
    if isinstance(value, enum.Enum):
        return {"$": kind, "v": value.value}
    return {"$": kind, **{a.name: _encode(getattr(value, a.name)) for a in attrs.fields(type(value))}}


def _encode_tensor(value: torch.Tensor) -> dict[str, Any]:
    data = value.detach().cpu().contiguous()
    return {
        "$": "tensor",
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "device": str(value.device),
        "hex": data.reshape(-1).view(torch.uint8).numpy().tobytes().hex() if data.numel() else "",
    }


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    match value["$"]:
        case "float":
            return float(value["v"])
        case "complex":
            return complex(*value["v"])
        case "tuple":
            return tuple(_decode(v) for v in value["v"])
        case "dict":
            return {k: _decode(v) for k, v in value["v"]}
        case "torch":
            return getattr(torch, value["v"])
        case "device":
            return torch.device(value["v"])
        case "tensor":
            return _decode_tensor(value)
        case kind:
            cls = _RECORDS[kind]
            if issubclass(cls, enum.Enum):
                return cls(value["v"])
            return cls(**{k: _decode(v) for k, v in value.items() if k != "$"})


def _decode_tensor(value: dict) -> torch.Tensor:
    dtype = getattr(torch, value["dtype"])
    dense = torch.empty(value["shape"], dtype=dtype)
    if dense.numel():
        content = torch.frombuffer(bytearray.fromhex(value["hex"]), dtype=torch.uint8)
        dense = content.view(dtype).reshape(value["shape"])
    result = torch.empty_strided(value["shape"], value["stride"], dtype=dtype, device=value["device"])
    return result.copy_(dense)
