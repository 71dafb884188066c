"""The code behind operators: what a program registered for its own, and where it replaced functions of the libraries.

A trace runs this code without following it: fake implementations, gradient formulas, decompositions, methods that were
hung on ``torch.Tensor``.  All of it belongs in the keys of what was traced.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from turret.graph.op_traits import has_registered_effect
from turret.hooks.vouched_ops import voucher
from turret.pipeline.keys.code_fingerprint import (
    LIBRARY_ROOTS,
    PLAIN,
    UNSEEN,
    Opaque,
    fingerprint,
    is_library,
    is_library_function,
)

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
_TRACED_KEYS = (
    "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional", "Autograd",
    "AutogradCPU", "AutogradCUDA", "AutogradOther", "ADInplaceOrView", "BackendSelect", "Functionalize", "Python",
    "FuncTorchBatched", "AutocastCPU", "AutocastCUDA", "Conjugate", "Negative", "Meta",
)  # fmt: skip
"""Dispatch keys whose kernels a trace runs; kernels of a device run when the compiled program does."""
_HASHED_BYTES = 64 << 20
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)


@functools.cache
def _traced_keys() -> tuple[str, ...]:
    """Those of the keys that this version of torch has."""

    def is_known(key: str) -> bool:
        try:
            torch._C._parse_dispatch_key(key)
        except RuntimeError:
            return False
        return True

    return tuple(filter(is_known, _TRACED_KEYS))


def is_library_namespace(name: str) -> bool:
    """Whether the operators of a namespace are a library's (functional forms of a program's own are not)."""
    return name in _LIBRARY_NAMESPACES


def library_operator(op: Any) -> bool:
    """Whether an operator is torch's or Turret's own."""
    if isinstance(op, torch._ops.HigherOrderOperator):
        return is_library(type(op).__module__)
    name = _qualified(op)
    return is_library_namespace(name.partition("::")[0]) and not name.startswith("turret::pure_")


def _qualified(op: Any) -> str:
    return op._schema.name if isinstance(op, torch._ops.OpOverload) else op._qualified_op_name


def voucher_of(op: Any) -> str:
    """What plugins say of an operator that is theirs; empty where none does."""
    return "" if isinstance(op, torch._ops.HigherOrderOperator) else voucher(_qualified(op).partition("::")[0])


def registrations(op: Any) -> Iterator[Any]:
    """What a trace may run of an operator of the program's own.  Raises ``Opaque`` for what cannot be looked at."""
    if text := voucher_of(op):
        yield text
        return
    if isinstance(op, torch._ops.HigherOrderOperator):
        yield from (sorted(map(str, op.py_kernels)), list(op.py_kernels.values()), type(op))
        return
    packet = op if isinstance(op, torch._ops.OpOverloadPacket) else op.overloadpacket
    name = packet._qualified_op_name
    definition = torch._library.custom_ops.OPDEFS.get(name)
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


def _of_overload(op: torch._ops.OpOverload, defined: bool) -> Iterator[Any]:
    name = op._schema.name + (f".{op._schema.overload_name}" if op._schema.overload_name else "")
    yield str(op._schema)
    yield sorted(str(tag) for tag in op.tags)
    has_kernel = [key for key in _traced_keys() if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)]
    yield has_kernel
    yield {str(key): kernel for key, kernel in op.py_kernels.items()}
    entry = torch._library.simple_registry.singleton._data.get(name)  # ``find`` would make one
    fake = None if entry is None else entry.fake_impl.kernel
    if entry is not None:
        yield has_registered_effect(op)
        yield from (None if fake is None else fake.func, list(entry.torch_dispatch_rules._data.items()))
    yield [table.get(op) for table in torch._decomp.global_decomposition_table.values()]
    in_python = {key for key in has_kernel if _in_python(name, key)} - ({"Meta"} if fake is not None else set())
    if in_python and not defined:
        raise Opaque(f"{name} has a kernel in Python for {', '.join(sorted(in_python))}, which torch does not show")
    if len(has_kernel) > len(in_python) + (fake is not None):
        yield _extensions_text()


def _in_python(name: str, key: str) -> bool:
    """Whether a kernel was registered from Python by ``torch.library.Library.impl``."""
    qualified = name.replace("::", "/", 1)
    return f"{qualified}/{key}" in torch.library._impls or (
        key == "CompositeImplicitAutograd" and f"{qualified}/" in torch.library._impls
    )


# Files in C.


def extension_text(module: str) -> str:
    """The identity of the file of an extension module."""
    return _file_text(getattr(sys.modules.get(module), "__file__", None) or module)


def _extensions_text() -> list[str]:
    """Of all libraries in C that are no part of Python or torch: kernels may lie in any of them."""
    files = {str(path) for path in torch.ops.loaded_libraries}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith((".so", ".pyd", ".dylib")) and name.partition(".")[0] not in _KNOWN:
            files.add(path)
    return sorted(map(_file_text, files))


_KNOWN = LIBRARY_ROOTS | {"numpy"}


def _file_text(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError:
        return os.path.basename(path)
    return f"{os.path.basename(path)} {_file_hash(path, status.st_size, status.st_mtime_ns, status.st_ino)}"


@functools.lru_cache(maxsize=256)
def _file_hash(path: str, size: int, modified: int, inode: int) -> str:
    """Hash of a file's content; of one that is very large its size and time beside both ends."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if size <= _HASHED_BYTES:
            digest.update(file.read())
        else:
            digest.update(f"{size} {modified}".encode() + file.read(_HASHED_BYTES // 2))
            file.seek(-_HASHED_BYTES // 2, os.SEEK_END)
            digest.update(file.read())
    return digest.hexdigest()


# What a graph calls.


def runs_own_code(module: fx.GraphModule) -> bool:
    """Whether a trace of a graph may run code of the program's: operators of its own, or what it put into torch."""
    return bool(_own_operators(module) or fingerprint(*_patches())[1])


def traced_code(module: fx.GraphModule) -> frozenset[types.CodeType]:
    """The program's code that a trace of a graph is known to lead to.  Raises ``Opaque``."""
    return fingerprint(*_own_operators(module), *_patches())[1]


def _own_operators(module: fx.GraphModule) -> list[Any]:
    graphs = [part.graph for part in module.modules() if isinstance(part, fx.GraphModule)]
    called = dict.fromkeys(n.target for graph in graphs for n in graph.nodes if isinstance(n.target, OPERATORS))
    return [op for op in called if not library_operator(op) and not voucher_of(op)]


def _patches() -> list[Any]:
    return [raw for where, namespace in _namespaces() for _, raw in _SNAPSHOTS[where](namespace)]


# Where a program replaced what is the libraries'.


class _Snapshot:
    """What a program put into a namespace, looked for anew when one of its members is another one."""

    def __init__(self, find: Callable[[Any], list[tuple[str, Any]]]) -> None:
        self.find = find
        self.seen: Any = None
        self.found: list[tuple[str, Any]] = []

    def __call__(self, now: Any) -> list[tuple[str, Any]]:
        if self.seen is None or self._differs(now):
            self.seen = now.copy()
            self.found = self.find(self.seen)
        return self.found

    def _differs(self, now: Any) -> bool:
        try:
            return bool(now != self.seen)
        except Exception:  # what compares two members may be the program's
            return True


def library_patches() -> str:
    """Text of what a program replaced or added in torch, with the code of it.  Raises ``Opaque``."""
    foreign = [(where, *member) for where, namespace in _namespaces() for member in _SNAPSHOTS[where](namespace)]
    kernels = _foreign_kernels()
    if kernels:
        raise Opaque(f"kernels of torch's operators in Python ({kernels[0]}), which torch does not show")
    if not foreign:
        return ""
    names = [(where, name) for where, name, _ in foreign]
    return f"{names} {fingerprint(*(raw for _, _, raw in foreign))[0]}"


def _namespaces() -> Iterator[tuple[str, Any]]:
    yield "torch.Tensor", vars(torch.Tensor)
    for name in (*_PUBLIC, *_INNER):
        module = sys.modules.get(name)  # what is not loaded was not patched
        if module is not None:
            yield name, vars(module)
    yield "decompositions", torch._decomp.decomposition_table


_PUBLIC = (
    "torch", "torch.functional", "torch.nn.functional", "torch._C._nn", "torch._C._linalg", "torch._C._fft",
    "torch._C._special",
)  # fmt: skip
"""Modules whose functions programs call, and what these call: anything callable in them is looked at."""
_INNER = (
    "torch._tensor", "torch._refs", "torch._refs.nn.functional", "torch._refs.linalg", "torch._refs.special",
    "torch._refs.fft", "torch._decomp.decompositions", "torch._decomp.decompositions_for_rng", "torch._prims",
    "torch._prims_common", "torch._meta_registrations",
)  # fmt: skip
"""Modules that traces run through: their functions in Python are looked at."""


def _foreign_members(members: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Members of a class that are not the library's own."""
    return sorted((m for m in members.items() if m[0] not in UNSEEN and not _is_own(*m)), key=_name_of)


def _foreign_callables(members: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Members of a module that can be called and are not the library's own."""
    callables = (m for m in members.items() if type(m[1]) not in _NEVER_FOREIGN and callable(m[1]))
    return sorted((m for m in callables if not _is_own(*m)), key=_name_of)


def _foreign_functions(members: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Functions in Python in a module or table that are the program's."""
    functions = (m for m in members.items() if type(m[1]) is types.FunctionType)
    return sorted(((str(n), f) for n, f in functions if not _is_own_function(f)), key=_name_of)


def _name_of(member: tuple[str, Any]) -> str:
    return member[0]


def _is_own_function(function: types.FunctionType) -> bool:
    """Whether a function is a library's, by its namespace and the file of its code."""
    scope = function.__globals__
    if _LIBRARY_SCOPES.get(id(scope)) is not scope:
        if not is_library_function(function):
            return False
        _LIBRARY_SCOPES[id(scope)] = scope
    return _file_is_library(function.__code__.co_filename)


_LIBRARY_SCOPES: dict[int, dict[str, Any]] = {}
"""Namespaces of modules of libraries, by their ids."""
_NEVER_FOREIGN = (type, types.ModuleType, *PLAIN, list, tuple, dict, set, frozenset)


def _is_own(name: str, raw: Any) -> bool:
    """Whether a member is what a library put there: code of its own, or what is written in C under its own name."""
    if type(raw) is types.BuiltinFunctionType and raw.__name__ == name:
        return True
    if isinstance(raw, types.FunctionType):
        return _is_own_function(raw)
    if isinstance(raw, (staticmethod, classmethod)):
        return _is_own(name, raw.__func__)
    if isinstance(raw, functools._lru_cache_wrapper):
        return _is_own(name, raw.__wrapped__)
    if isinstance(raw, property):
        return all(_is_own(name, part) for part in (raw.fget, raw.fset, raw.fdel) if part is not None)
    if isinstance(raw, (type, types.ModuleType, *OPERATORS)) or type(raw).__module__ in _TYPING:
        return True
    if type(raw) in PLAIN or type(raw) is _CAPSULE:
        return name.startswith("__")
    own_name = getattr(raw, "__name__", None)
    return isinstance(own_name, str) and _likeness(own_name) == _likeness(_ALIASES.get(name, name))


def _likeness(name: str) -> str:
    """A name without what torch's aliases differ in: ``logsigmoid`` is ``log_sigmoid``."""
    return name.replace("_", "").removesuffix("impl")


_ALIASES = {"__itruediv__": "__idiv__", "__pos__": "positive", "__torch_dispatch__": "_disabled_torch_dispatch"}
_TYPING = ("typing", "typing_extensions", "types")


@functools.lru_cache(maxsize=4096)
def _file_is_library(name: str) -> bool:
    return name.startswith(_library_folders()) or is_library(os.path.basename(name).removesuffix(".py"))


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """Beginnings of the names of files of libraries, and of code that they generate."""
    modules = (sys.modules[name] for name in ("torch", "os", "turret"))
    return ("<", *(os.path.dirname(module.__file__ or "") + os.sep for module in modules))


def _replaced_kernels(impls: set[str]) -> list[tuple[str, Any]]:
    """Kernels of torch's operators that were registered from Python, and that a trace would run."""
    return sorted((i, "") for i in impls if i.startswith("aten/") and i.rpartition("/")[2] in _REPLACED_KEYS)


def _foreign_kernels() -> list[str]:
    """Those of them that the program registered; asked each time, as one may be overridden under the same name."""
    names = [name for name, _ in _KERNELS(torch.library._impls)]
    return [name for name in names if not _registered_by_torch(*name.removeprefix("aten/").rsplit("/", 1))]


def _registered_by_torch(name: str, key: str) -> bool:
    """Whether torch's own modules registered the kernel in use: some for ``vmap``, at its first use or on import.

    The dispatcher knows the file in which the kernel's library was made.  A library that ``torch.library`` makes on
    behalf of its caller tells of ``torch.library`` alone, so what was registered by such a one is the program's.
    """
    file = _registration_file(torch._C._dispatch_dump(f"aten::{name}"), key or "CompositeImplicitAutograd")
    root = os.path.dirname(torch.__file__) + os.sep
    return file.startswith(root) and not file.removeprefix(root).startswith(_REGISTER_FOR_OTHERS)


def _registration_file(dump: str, key: str) -> str:
    """The file that a dispatcher's dump names for the kernel in use at a key; empty where it names none."""
    found = re.search(rf"^{re.escape(key)}(?:\[[^]]*\])?: registered at (.*?):\d+ :: ", dump, re.MULTILINE)
    return found[1] if found else ""


_REGISTER_FOR_OTHERS = ("library.py", f"_library{os.sep}", f"_custom_op{os.sep}")

_CAPSULE = type(datetime.datetime_CAPI)
_REPLACED_KEYS = frozenset(_TRACED_KEYS) - {"Meta"} | {""}
_KERNELS = _Snapshot(_replaced_kernels)
_SNAPSHOTS = {name: _Snapshot(_foreign_callables) for name in _PUBLIC}
_SNAPSHOTS |= {name: _Snapshot(_foreign_functions) for name in (*_INNER, "decompositions")}
_SNAPSHOTS["torch.Tensor"] = _Snapshot(_foreign_members)
