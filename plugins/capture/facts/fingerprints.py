"""Fingerprints of code, functions, classes and modules: what capture takes of them without a guard.

Equal fingerprints in two processes promise that following the code gives the same, as far as no guard says more:
bytecode, constants and names, but neither file nor line numbers; of a class also its bases and what each of them
has under which name.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from turret.frames.class_members import own_attribute
from turret.pipeline.keys.code_fingerprint import of_code

TRUSTED_ROOTS = (frozenset(sys.stdlib_module_names) | {"torch", "builtins", "turret", "typing_extensions"}) - {
    "__main__",
    "test",
    "this",
}
"""Packages whose functions, classes and modules programs do not replace; they need no guards."""
PLAIN = (bool, int, float, str, bytes, complex, type(None), type(...), type(NotImplemented))
HEAP_TYPE = 1 << 9
"""The flag of classes that ``class`` statements make (``Py_TPFLAGS_HEAPTYPE``)."""
_UNSEEN = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "_abc_impl", "__firstlineno__", "__static_attributes__",
        "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__slotnames__",
        "__abstractmethods__", "__parameters__",
    }
)  # fmt: skip
"""Entries of a class that do not decide what its code does, or that come and go while it is used."""
_READ_PAST_GUARDS = frozenset({"_fields", "_field_defaults", "__match_args__", "__slots__"})
"""Data of a user's class that capture reads as they are; everything else is guarded where it is read."""
_NESTING = 4

Memo = dict
"""Fingerprints of classes, for as long as nothing of the program runs."""


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def of_function(function: types.FunctionType) -> str:
    """Of its code, its namespace, its defaults, and the names of what hangs on it."""
    return _digest(
        of_code(function.__code__),
        function.__globals__.get("__name__"),
        describe(function.__defaults__),
        describe(function.__kwdefaults__),
        sorted(function.__dict__),
        len(function.__closure__ or ()),
    )


def name_of(kind: type) -> str:
    """Module and qualified name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def of_class(kind: type, memo: Memo) -> str:
    """Of the classes that it inherits from, and of all that they define."""
    found = memo.get(kind)
    if found is None:
        bases = [_own_class(base, memo) for base in kind.__mro__]
        found = memo[kind] = _digest(bases, _metaclass(type(kind), memo))
    return found


def _metaclass(kind: type, memo: Memo) -> str:
    return name_of(kind) if kind.__module__.partition(".")[0] in TRUSTED_ROOTS else of_class(kind, memo)


def _own_class(kind: type, memo: Memo) -> str:
    """What one class defines itself."""
    if not kind.__flags__ & HEAP_TYPE:
        return name_of(kind)
    key = ("own", kind)
    if key not in memo:
        memo[key] = _members(kind)
    return memo[key]


def _members(kind: type) -> str:
    trusted = kind.__module__.partition(".")[0] in TRUSTED_ROOTS
    enumeration = isinstance(kind, enum.EnumMeta)
    members = []
    for name, raw in sorted(vars(kind).items(), key=lambda item: str(item[0])):
        if name in _UNSEEN:
            continue
        values = trusted or enumeration or name in _READ_PAST_GUARDS
        members.append((name, _member(raw) if values or code_of(raw) else type(raw).__name__))
    return _digest(name_of(kind), members)


def code_of(raw: Any) -> list[types.FunctionType]:
    """The Python functions behind a member of a class: a function, or what a descriptor calls."""
    if isinstance(raw, types.FunctionType):
        return [raw]
    if isinstance(raw, (staticmethod, classmethod)):
        return code_of(raw.__func__)
    if isinstance(raw, property):
        return [f for part in (raw.fget, raw.fset, raw.fdel) for f in code_of(part)]
    if isinstance(raw, functools.cached_property):
        return code_of(raw.func)
    if isinstance(raw, (functools.partialmethod, functools.partial)):
        return code_of(raw.func)
    wrapped = raw.__wrapped__ if isinstance(raw, functools._lru_cache_wrapper) else None
    return code_of(wrapped) if wrapped is not None else []


def _member(raw: Any) -> str:
    functions = code_of(raw)
    if functions:
        return f"{type(raw).__name__} {[of_function(f) for f in functions]}"
    return describe(raw)


def of_module(module: nn.Module, memo: Memo) -> str:
    """Of its class, and of the names of what it has: attributes, parameters, buffers and submodules."""
    own = vars(module)
    parts = [tuple(own.get(part) or ()) for part in ("_parameters", "_buffers", "_modules")]
    return _digest(of_class(type(module), memo), sorted(own), parts)


def describe(value: Any, nesting: int = _NESTING) -> str:
    """Text that is equal for equal values in any process; of an object without a value its class."""
    kind = type(value)
    if kind in PLAIN or isinstance(
        value, (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme)
    ):
        return f"{kind.__name__} {value!r}"
    if kind in _PARTS and nesting > 0:
        parts = _PARTS[kind](functools.partial(describe, nesting=nesting - 1), value)
        return f"{kind.__name__}({','.join(parts)})"
    if isinstance(value, types.CodeType):
        return of_code(value)
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type):
        return f"class {name_of(value)}"
    if isinstance(value, enum.Enum):
        return f"{name_of(kind)}.{value.name} {describe(value.value, nesting - 1)}"
    functions = code_of(value)
    if functions:
        return f"{kind.__name__} {[of_function(f) for f in functions]}"
    name = own_attribute(value, "__qualname__") or own_attribute(value, "__name__")
    return f"{name_of(kind)} {name if isinstance(name, str) else ''}"


_PARTS: dict[type, Callable[[Callable[[Any], str], Any], Iterable[str]]] = {
    **dict.fromkeys((tuple, list, torch.Size), map),
    **dict.fromkeys((set, frozenset), lambda describe, items: sorted(map(describe, items))),
    dict: lambda describe, items: (f"{describe(k)}:{describe(v)}" for k, v in items.items()),
}
"""The texts of what containers hold, in an order that is the same in every process."""
