"""The code behind operators: what a program registered for its own, and where it replaced functions of the libraries.

A trace runs this code without following it: fake implementations, gradient formulas, decompositions, methods that were
hung on ``torch.Tensor``.  All of it belongs in the keys of what was traced.
"""

from __future__ import annotations

import datetime
import functools
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from turret.pipeline.keys.code_fingerprint import PLAIN, UNSEEN, fingerprint
from turret.pipeline.keys.libraries import is_library, is_library_function
from turret.pipeline.keys.operators import OPERATORS, TRACED_KEYS, Opaque, cover_of, library_operator
from turret.torch_compat.dispatch import registrations_text
from turret.torch_compat.operators.decompositions import torch_table
from turret.torch_compat.operators.library import python_kernels

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
    return [op for op in called if not library_operator(op) and not cover_of(op)]


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
    yield "decompositions", torch_table


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
    return isinstance(own_name, str) and _bare_name(own_name) == _bare_name(_ALIASES.get(name, name))


def _bare_name(name: str) -> str:
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
    names = [name for name, _ in _KERNELS(python_kernels)]
    return [name for name in names if not _registered_by_torch(*name.removeprefix("aten/").rsplit("/", 1))]


def _registered_by_torch(name: str, key: str) -> bool:
    """Whether torch's own modules registered the kernel in use: some for ``vmap``, at its first use or on import.

    The dispatcher knows the file in which the kernel's library was made.  A library that ``torch.library`` makes on
    behalf of its caller tells of ``torch.library`` alone, so what was registered by such a one is the program's.
    """
    file = _registration_file(registrations_text(f"aten::{name}"), key or "CompositeImplicitAutograd")
    root = os.path.dirname(torch.__file__) + os.sep
    return file.startswith(root) and not file.removeprefix(root).startswith(_REGISTER_FOR_OTHERS)


def _registration_file(dump: str, key: str) -> str:
    """The file that a dispatcher's dump names for the kernel in use at a key; empty where it names none."""
    found = re.search(rf"^{re.escape(key)}(?:\[[^]]*\])?: registered at (.*?):\d+ :: ", dump, re.MULTILINE)
    return found[1] if found else ""


_REGISTER_FOR_OTHERS = ("library.py", f"_library{os.sep}", f"_custom_op{os.sep}")

_CAPSULE = type(datetime.datetime_CAPI)
_REPLACED_KEYS = frozenset(TRACED_KEYS) - {"Meta"} | {""}
_KERNELS = _Snapshot(_replaced_kernels)
_SNAPSHOTS = {name: _Snapshot(_foreign_callables) for name in _PUBLIC}
_SNAPSHOTS |= {name: _Snapshot(_foreign_functions) for name in (*_INNER, "decompositions")}
_SNAPSHOTS["torch.Tensor"] = _Snapshot(_foreign_members)
