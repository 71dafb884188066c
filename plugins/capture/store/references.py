"""References: how an object of this process is named in another one, and how it is found again there.

Functions, classes, modules and what is written in C are found by module and qualified name.  A module or parameter of
the program has no name of its own; it is found where this process found it, by its source.
"""

from __future__ import annotations

import collections
import enum
import functools
import importlib
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from turret.frames.class_members import own_attribute
from turret.plugins.capture.facts import fingerprints
from turret.torch_compat.operators.ops import OpNamespace, OpOverload, OpOverloadPacket


class NotPortable(Exception):
    """An object without a name that is the same in every process, or another reason not to keep a unit on disk."""


class Changed(Exception):
    """What a stored unit rests on is not as it was."""


_STEPS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (staticmethod, ("__func__",)),
    (classmethod, ("__func__",)),
    (property, ("fget", "fset", "fdel")),
    (functools.cached_property, ("func",)),
)
"""Descriptors, and the attributes by which they hold functions."""
_WRAPPERS = 8
"""Functions around a function that ``functools.wraps`` leads through."""
_OWN = "turret.plugins.capture."
"""Functions that guards call lie here; what is not loaded of it is harmless to load."""
_HOMES = ("torch", "torch._C", "torch._C._nn", "torch.nn.functional", "torch._C._VariableFunctions")

Reference = list
"""Plain data: a kind, then what the kind needs."""


@functools.cache
def _named_types() -> dict[Any, Reference]:
    """Types of the interpreter that do not lie where their names say."""
    return {v: ["member", "types", n, []] for n, v in vars(types).items() if isinstance(v, type)}


def reference_of(value: Any, label: str = "") -> Reference | None:
    """How to find an object by name, or None; ``label`` may be the expression of a module's attribute."""
    for candidate in _candidates(value, label):
        try:
            if find(candidate) is value:
                return candidate
        except (Changed, TypeError):
            continue
    return None


def _candidates(value: Any, label: str) -> Iterator[Reference]:
    """References that may lead to an object, likely ones first."""
    for kind, references in _BY_KIND:
        if isinstance(value, kind):
            yield from references(value)
            return
    if type(value) is dict and isinstance(value.get("__name__"), str):
        yield from _namespace(value)
        return
    if isinstance(value, type) and value in _named_types():
        yield _named_types()[value]
    yield from _by_names(value)
    if re.fullmatch(r"[\w.]+\.\w+", label):
        module, _, name = label.rpartition(".")
        yield ["member", module, name, []]


def _namespace(value: dict[str, Any]) -> list[Reference]:
    spec = value.get("__spec__")  # that of ``_collections_abc`` goes by the name ``collections.abc``
    return [["namespace", value["__name__"]], *([] if spec is None else [["namespace", spec.name]])]


def _member_of_enum(value: enum.Enum) -> list[Reference]:
    owner = reference_of(type(value))
    return [] if owner is None or value.name is None else [["enum", owner, value.name]]


_BY_KIND: tuple[tuple[Any, Callable[[Any], list[Reference]]], ...] = (
    (OpNamespace, lambda value: [["op", value.name]]),
    (types.ModuleType, lambda value: [["module", value.__name__]]),
    ((OpOverload, OpOverloadPacket), lambda value: [["op", str(value)]]),
    (enum.Enum, _member_of_enum),
)
"""Objects that are named in a way of their kind."""


def _by_names(value: Any) -> Iterator[Reference]:
    """By what an object says of itself: the class that it belongs to, its qualified name, its name."""
    name, module = own_attribute(value, "__qualname__"), own_attribute(value, "__module__")
    owner = own_attribute(value, "__objclass__")
    if isinstance(owner, type) and isinstance(name, str):
        yield ["member", owner.__module__, f"{owner.__qualname__}.{value.__name__}", []]
    if isinstance(module, str) and isinstance(name, str):
        for steps in _ways_into(module, name):
            yield ["member", module, name, steps]
    simple = own_attribute(value, "__name__")
    if isinstance(simple, str) and not isinstance(value, types.FunctionType):
        for home in _homes(value):
            yield ["member", home, simple, []]


def _homes(value: Any) -> list[str]:
    owner = own_attribute(value, "__self__")
    own = [owner.__name__] if isinstance(owner, types.ModuleType) else []
    return [*own, *_HOMES]


def _ways_into(module: str, name: str) -> list[list[str]]:
    """From what lies under a name to what may be inside: the functions of descriptors, what wrappers wrap."""
    ways: list[list[str]] = [[]]
    try:
        raw = find(["member", module, name, []])
    except Changed:
        return ways
    for kind, steps in _STEPS:
        if isinstance(raw, kind):
            ways += [[step] for step in steps]
    for way in list(ways):
        for count in range(1, _WRAPPERS):
            ways.append(way + ["__wrapped__"] * count)
    return ways


def find(reference: Reference) -> Any:
    """The object of a reference; raises ``Changed`` where there is none.  Imports nothing of the program's."""
    match reference:
        case ["module", name]:
            return _module(name)
        case ["namespace", name]:
            return vars(_module(name))
        case ["op", text]:
            return _operator(text)
        case ["enum", owner, name]:
            return _step(find(owner), name)
        case ["member", module, path, steps]:
            found: Any = _container(module)
            for name in path.split("."):
                found = _step(found, name)
            for step in steps:
                found = getattr(found, step, None)
            return found
    raise Changed(f"a reference {reference!r} of a kind that is not known")


def _container(name: str) -> Any:
    """A module, or an attribute of one that acts as one (``torch._C._VariableFunctions``)."""
    if name.startswith(_OWN):
        return importlib.import_module(name)
    found = sys.modules.get(name)
    if found is None and name.startswith("torch."):
        parent, _, last = name.rpartition(".")
        found = getattr(sys.modules.get(parent), last, None)
    if found is None:
        raise Changed(f"the module {name} is not loaded")
    return found


def _module(name: str) -> types.ModuleType:
    found = sys.modules.get(name)
    if found is None:
        raise Changed(f"the module {name} is not loaded")
    return found


def _step(owner: Any, name: str) -> Any:
    """A member as it lies in a class or a module, no descriptor applied."""
    if isinstance(owner, type):
        if isinstance(owner, enum.EnumMeta) and name in owner.__members__:
            return owner.__members__[name]
        found = vars(owner)[name] if name in vars(owner) else own_attribute(owner, name)
    else:
        found = getattr(owner, name, None)
    if found is None:
        raise Changed(f"{getattr(owner, '__name__', owner)} has no {name}")
    return found


def _operator(text: str) -> Any:
    try:
        found: Any = torch.ops
        for name in text.split("."):
            found = getattr(found, name)
    except (AttributeError, RuntimeError) as error:
        raise Changed(f"there is no operator {text}") from error
    return found


FOUND_BY_SOURCE = (
    nn.Module, torch.Tensor, types.FunctionType, property, staticmethod, classmethod, functools.cached_property,
    types.CodeType, weakref.ref,
)  # fmt: skip
"""Kinds of objects that may stand for one another in two processes: all that capture assumed of them is guarded, or
in their fingerprints."""


def fingerprint(value: Any, memo: fingerprints.Memo) -> str:
    """What is compared, in the other process, of an object that a reference or a source led to."""
    if isinstance(value, types.FunctionType):
        return fingerprints.of_function(value)
    if isinstance(value, type):
        return fingerprints.of_class(value, memo)
    if isinstance(value, nn.Module):
        return fingerprints.of_module(value, memo)
    if isinstance(value, torch.Tensor):
        return "tensor"  # a guard speaks of its properties
    if isinstance(value, dict):
        return "namespace"
    if isinstance(value, collections.abc.MutableMapping):
        return fingerprints.name_of(type(value))
    return fingerprints.describe(value)
