"""Operators: whose they are, and the code that a program registered for its own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from turret.graph.op_traits import has_registered_effect
from turret.hooks.registration.covered_ops import cover
from turret.pipeline.keys.libraries import extensions_text, is_library
from turret.torch_compat.dispatch import has_kernel_for, parse_dispatch_key
from turret.torch_compat.operators.decompositions import torch_tables
from turret.torch_compat.operators.library import custom_ops, fake_registry, python_kernels
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload, OpOverloadPacket

_LIBRARY_NAMESPACES = frozenset(
    {
        "aten", "prim", "prims", "rngprims", "quantized", "_quantized", "quantized_decomposed", "quantization", "mkl",
        "mkldnn", "mkldnn_prepacked", "onednn", "xnnpack", "sparse", "static_runtime", "profiler", "inductor",
        "inductor_prims", "c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd", "_dtensor",
        "symm_mem", "fsdp", "streams", "export", "flex_lib", "debugprims", "debug_mode_ops", "onnx", "onnx_symbolic",
        "higher_order", "turret", "_native",
    }
)  # fmt: skip
"""Namespaces whose operators are torch's or Turret's."""
TRACED_KEYS = (
    "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "Autograd",
    "AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView", "BackendSelect", "Functionalize", "Python",
    "FuncTorchBatched", "AutocastCPU", "AutocastCUDA", "Conjugate", "Negative", "Meta",
)  # fmt: skip
"""Dispatch keys whose kernels a trace runs; kernels of a device run when the compiled program does."""
OPERATORS = (OpOverload, OpOverloadPacket, HigherOrderOperator)


class Opaque(Exception):
    """Something whose equality with another process's cannot be told; the text says what."""


@functools.cache
def _traced_keys() -> tuple[str, ...]:
    """Those of the keys that this version of torch has."""

    def is_known(key: str) -> bool:
        try:
            parse_dispatch_key(key)
        except RuntimeError:
            return False
        return True

    return tuple(filter(is_known, TRACED_KEYS))


def is_library_namespace(name: str) -> bool:
    """Whether the operators of a namespace are a library's (functional forms of a program's own are not)."""
    return name in _LIBRARY_NAMESPACES


def library_operator(op: Any) -> bool:
    """Whether an operator is torch's or Turret's own."""
    if isinstance(op, HigherOrderOperator):
        return is_library(type(op).__module__)
    name = _qualified(op)
    return is_library_namespace(name.partition("::")[0]) and not name.startswith("turret::pure_")


def _qualified(op: Any) -> str:
    return op._schema.name if isinstance(op, OpOverload) else op._qualified_op_name


def cover_of(op: Any) -> str:
    """What plugins say of an operator that is theirs; empty where none does."""
    return "" if isinstance(op, HigherOrderOperator) else cover(_qualified(op).partition("::")[0])


def registrations(op: Any) -> Iterator[Any]:
    """What a trace may run of an operator of the program's own.  Raises ``Opaque`` for what cannot be looked at."""
    if text := cover_of(op):
        yield text
        return
    if isinstance(op, HigherOrderOperator):
        yield from (sorted(map(str, op.py_kernels)), list(op.py_kernels.values()), type(op))
        return
    packet = op if isinstance(op, OpOverloadPacket) else op.overloadpacket
    name = packet._qualified_op_name
    definition = custom_ops.get(name)
    if definition is not None:
        yield from _of_definition(definition)
    for overload in packet.overloads():
        yield from _of_overload(getattr(packet, overload), definition is not None)


def _of_definition(definition: Any) -> Iterator[Any]:
    """Of an operator that ``torch.library.custom_op`` made: everything but what runs when it is called for good."""
    yield definition._schema
    for part in (
        "_abstract_fn",
        "_backward_fn",
        "_setup_context_fn",
        "_vmap_fn",
        "_torch_dispatch_fns",
        "_autocast_dtype",
    ):
        yield part
        yield getattr(definition, part, None)


def _of_overload(op: OpOverload, defined: bool) -> Iterator[Any]:
    name = op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")
    yield str(op._schema)
    yield sorted(str(tag) for tag in op.tags)
    has_kernel = [key for key in _traced_keys() if has_kernel_for(name, key)]
    yield has_kernel
    yield {str(key): kernel for key, kernel in op.py_kernels.items()}
    entry = fake_registry._data.get(name)  # ``find`` would make one
    fake = None if entry is None else entry.fake_impl.kernel
    if entry is not None:
        yield has_registered_effect(op)
        yield from (None if fake is None else fake.func, list(entry.torch_dispatch_rules._data.items()))
    yield [table.get(op) for table in torch_tables.values()]
    in_python = {key for key in has_kernel if _in_python(name, key)} - ({"Meta"} if fake is not None else set())
    if in_python and not defined:
        raise Opaque(f"{name} has a kernel in Python for {', '.join(sorted(in_python))}, which torch does not show")
    if len(has_kernel) > len(in_python) + (fake is not None):
        yield extensions_text()


def _in_python(name: str, key: str) -> bool:
    """Whether a kernel was registered from Python by ``torch.library.Library.impl``."""
    qualified = name.replace("::", "/", 1)
    return f"{qualified}/{key}" in python_kernels or (
        key == "CompositeImplicitAutograd" and f"{qualified}/" in python_kernels
    )
