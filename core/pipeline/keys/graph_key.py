"""Keys of captured graphs: equal keys promise that compiling gives the same artifact.

A second process that captures the same graph loads plans and signature instead of tracing, scheduling and
compiling again.  The key covers the graph, what is known of its inputs (layouts, dtypes, aliasing, who wants
gradients), what was assumed of symbolic sizes, the configuration, the modes of torch that tracing looks at,
and Turret's own source.  A graph with something that cannot be named in a stable way (a user's function, an
opaque object) has no key and is compiled afresh.
"""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import platform
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from turret.frames.trace_modes import autocast_state
from turret.hooks.devices import device_for
from turret.hooks.products import CapturedGraph
from turret.pipeline.keys.code_fingerprint import fingerprint
from turret.pipeline.keys.op_code import library_patches
from turret.pipeline.keys.operators import OPERATORS, Opaque, library_operator
from turret.storage.environment import processor
from turret.torch_compat.autograd import is_known_leaf
from turret.torch_compat.modes import attention_enabled, fills_uninitialized_memory
from turret.torch_compat.native import products_are_exact
from turret.torch_compat.operators.native_functions import nn_c

TAGS = ("recompute", "ac_graph_id")
"""Notes on nodes of a captured graph that change what it compiles to."""


class Unstable(Exception):
    """Something in the graph has no name that is the same in every process; the text says what, where that is known."""


def graph_key(captured: CapturedGraph, settings: str) -> str:
    """Hex key of a captured graph under ``settings`` (text of the configuration and of the plugins).

    Raises ``Unstable`` for a graph that has none.
    """
    digest = hashlib.sha256()
    parts = (*environment(captured), *_inputs(captured), *_assumptions(captured))
    for part in (settings, source_fingerprint(), *parts):
        digest.update(part.encode() + b"\0")
    _hash_module(captured.module, digest)
    return digest.hexdigest()


@functools.cache
def source_fingerprint() -> str:
    """Hash of all Python source of Turret: another version never reads this one's artifacts."""
    digest = hashlib.sha256()
    for package in ("turret", "turret.plugins", "turret.contrib"):
        module = __import__(package, fromlist=["_"])
        for folder in module.__path__:
            for path in _sources(folder):
                with open(path, "rb", buffering=0) as file:  # a third less than Path.rglob and read_bytes take
                    digest.update(file.read())
    return digest.hexdigest()


def _sources(folder: str) -> Iterator[str]:
    """Python files under a folder, in an order that is the same everywhere."""
    for root, folders, names in os.walk(folder):
        folders.sort()
        yield from (f"{root}{os.sep}{name}" for name in sorted(names) if name.endswith(".py"))


def environment(captured: CapturedGraph | None = None) -> list[str]:
    """Versions, and the modes of torch that change what a trace of the same graph gives (of any, for None).

    Raises ``Unstable`` where the program replaced a part of torch by something that cannot be compared.
    """
    modes = None
    if captured is not None:
        places = sorted(captured.static_inputs), sorted(captured.steady_inputs)
        modes = (captured.grad_enabled, captured.inference_mode, *places)
    return [
        torch.__version__,
        platform.python_version(),
        processor(),
        *([] if captured is None else map(_device_text, devices_in(captured))),
        repr(modes),
        repr(autocast_state()),
        str(torch.get_default_dtype()),
        repr((torch.are_deterministic_algorithms_enabled(), fills_uninitialized_memory())),
        repr(torch.backends.mkldnn.enabled),
        repr([is_enabled() for is_enabled in attention_enabled.values()]),
        repr((torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision(), products_are_exact())),
        getattr(sys.modules.get("numpy"), "__version__", ""),
        _patches(),
        _added_ops(),
    ]


def _added_ops() -> str:
    """The scalar ops from outside.  Who adds one loads the table, which a warm start has no other use for."""
    table = sys.modules.get("turret.graph.scalar_ops")
    return "[]" if table is None else repr(sorted(table.ADDED.items()))


def _patches() -> str:
    try:
        return library_patches()
    except Opaque as error:
        raise Unstable(f"torch was changed in this process: {error}") from None


def operator_text(op: Any) -> str:
    """What a program's own operator is made of: all of its code that a trace runs.  Raises ``Unstable``."""
    try:
        return fingerprint(op)[0]
    except Opaque as error:
        raise Unstable(f"the operator {op}: {error}") from None


def devices_in(captured: CapturedGraph) -> list[torch.device]:
    """The devices that a graph's tensors lie on, in order of their names."""
    found = {x.device for x in captured.example_inputs if isinstance(x, torch.Tensor)}
    for node in captured.module.graph.nodes:
        value = node.meta.get("example_value", node.meta.get("val"))
        if isinstance(value, torch.Tensor):
            found.add(value.device)
    return sorted(found, key=str)


def _device_text(device: torch.device) -> str:
    """All of a device that compiled code may depend on; binaries made for one do not run on another."""
    found = device_for(device.type)
    return f"{device} {found.properties(device.index or 0)} {found.settings()}"


def _inputs(captured: CapturedGraph) -> list[str]:
    """One line an input; ``storage n`` tells inputs that share memory."""
    storages: dict[int, int] = {}
    lines = []
    for value in captured.example_inputs:
        if isinstance(value, torch.Tensor):
            if value.layout != torch.strided or (type(value).__name__ not in ("FakeTensor", "Tensor", "Parameter")):
                raise Unstable
            storage = storages.setdefault(value.untyped_storage()._cdata, len(storages))
            lines.append(
                f"{value.dtype} {value.device} {list(value.shape)} {list(value.stride())} {value.storage_offset()} "
                f"{value.requires_grad} {is_known_leaf(value)} {value.is_conj()} {value.is_neg()} storage {storage}"
            )
        elif isinstance(value, (int, float, bool, torch.SymInt)):
            lines.append(f"{type(value).__name__} {value}")
        else:
            raise Unstable
    return lines


def _assumptions(captured: CapturedGraph) -> list[str]:
    """What capture assumed of symbolic sizes: a trace decides by it whether, say, an index counts from the end."""
    env = getattr(captured.fake_mode, "shape_env", None)
    if env is None:
        return []
    guards = [f"guard {guard.expr}" for guard in env.guards]
    ranges = sorted(f"range {symbol} {bounds.lower} {bounds.upper}" for symbol, bounds in env.var_to_range.items())
    return [*guards, *ranges, *sorted(f"same {symbol} {value}" for symbol, value in env.replacements.items())]


def _hash_module(module: fx.GraphModule, digest: Any) -> None:
    numbers: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        numbers[node] = len(numbers)
        target = node.target if node.op in ("call_method", "placeholder") else _target(module, node, digest)
        name = "" if node.op == "placeholder" else target
        line = f"{node.op} {name} {_text(node.args, numbers)} {_text(node.kwargs, numbers)}"
        tags = {k: str(node.meta[k]) for k in TAGS if k in node.meta}
        digest.update(f"{line} {tags}\0".encode())


def _target(module: fx.GraphModule, node: fx.Node, digest: Any) -> str:
    if node.op == "output":
        return ""
    if node.op in ("get_attr", "call_module"):
        value: Any = operator.attrgetter(str(node.target))(module)
        if isinstance(value, fx.GraphModule):
            _hash_module(value, digest)
        elif isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype} {list(value.shape)} {value.stride()} {value.requires_grad}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            raise Unstable
        return node.op
    if isinstance(node.target, OPERATORS) and not library_operator(node.target):
        digest.update(operator_text(node.target).encode())
    return function_name(node.target)


def function_name(target: Any) -> str:
    """A function's name that is the same in every process; raises ``Unstable`` where it has none."""
    if isinstance(target, OPERATORS):
        return f"{type(target).__name__} {target}"
    name = getattr(target, "__name__", None)
    if isinstance(target, types.FunctionType | types.BuiltinFunctionType | type | types.MethodDescriptorType):
        owner = getattr(target, "__module__", None) or getattr(
            getattr(target, "__objclass__", None), "__module__", None
        )
        root = (owner or "").partition(".")[0]
        if "<locals>" in target.__qualname__:
            return _local_name(target)
        if root in ("torch", "_operator", "operator", "math", "builtins"):
            return f"{owner}.{target.__qualname__}"
        if owner is None and name is not None and getattr(torch, name, None) is target:
            return f"torch.{name}"
    if name is not None and any(getattr(m, name, None) is target for m in (torch, nn_c, torch.nn.functional)):
        return f"torch:{name}"
    raise Unstable(f"a call of {name or target!r}")


def _local_name(target: Any) -> str:
    """Of a function that torch made inside another one (``max_pool2d``): those all have the same name of their own."""
    for name, function in vars(torch.nn.functional).items():
        if function is target:
            return f"torch.nn.functional.{name}"
    raise Unstable


_PLAIN = (bool, int, float, complex, str, type(None), type(...))
_TORCH_PLAIN = (torch.dtype, torch.device, torch.layout, torch.memory_format)


def _text(value: Any, numbers: dict[fx.Node, int]) -> str:
    if isinstance(value, fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, (_PLAIN, _TORCH_PLAIN)):
        return repr(value)
    if isinstance(value, slice):
        return f"slice({_text((value.start, value.stop, value.step), numbers)})"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({','.join(_text(v, numbers) for v in value)})"
    if isinstance(value, dict):
        return f"dict({','.join(f'{k!r}:{_text(v, numbers)}' for k, v in value.items())})"
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return str(value)
    return function_name(value)
