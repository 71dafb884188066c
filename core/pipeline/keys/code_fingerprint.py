"""Fingerprints of functions with all that they reach: code, closures, defaults, the globals that they name, and so on.

Equal fingerprints in two processes promise that calling the functions on equal arguments does the same.  Functions of
the libraries (the standard library, torch, Turret) are known by name; ``library_patches`` tells where a program
replaced one.  What has neither a value nor code that could be compared raises ``Opaque``.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import logging
import pathlib
import re
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy
import torch

from turret.pipeline.keys.libraries import extension_text, is_library, is_library_function
from turret.pipeline.keys.operators import OPERATORS, Opaque, is_library_namespace, library_operator, registrations
from turret.torch_compat.operators.library import CustomOpDef
from turret.torch_compat.operators.ops import OpNamespace, OpOverloadPacket

PLAIN = (bool, int, float, str, bytes, complex, type(None), type(...), type(NotImplemented))
_REPRESENTED = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, range, slice, bytearray, re.Pattern,
    pathlib.PurePath, types.GenericAlias, types.UnionType, typing.TypeVar,
)  # fmt: skip
"""Kinds of values that their text tells apart."""
_TUPLE_GETTER = type(vars(collections.namedtuple("_Sample", "field"))["field"])
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
UNSEEN = frozenset(
    {
        "__dict__", "__weakref__", "__doc__", "_abc_impl", "__firstlineno__", "__static_attributes__",
        "__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__slotnames__",
    }
)  # fmt: skip
"""Members of a class that do not decide what its code does, or that come and go while it is used."""
_MOST_OBJECTS = 20_000
_MOST_BYTES = 4 << 20
HEAP_TYPE = 1 << 9
"""The flag of classes that ``class`` statements make (``Py_TPFLAGS_HEAPTYPE``)."""


def fingerprint(*values: Any) -> tuple[str, frozenset[types.CodeType]]:
    """Hex digest of values and all that they reach, and the code of the program among that.  Raises ``Opaque``."""
    walk = _Walk()
    try:
        for value in values:
            walk.value(value)
    except Opaque:
        raise
    except Exception as error:  # what is asked of the program's objects may raise anything
        raise Opaque(f"{type(error).__name__}: {error}") from error
    return walk.digest.hexdigest(), frozenset(walk.codes)


@functools.lru_cache(maxsize=8192)
def of_code(code: types.CodeType) -> str:
    """Fingerprint of a code object and of those among its constants; of neither its file nor its lines."""
    parts = (
        code.co_code, [_constant(c) for c in code.co_consts], code.co_names, code.co_varnames, code.co_freevars,
        code.co_cellvars, code.co_exceptiontable, code.co_flags, code.co_argcount, code.co_posonlyargcount,
        code.co_kwonlyargcount, code.co_qualname,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _constant(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return of_code(value)
    if type(value) is tuple:
        return f"({','.join(map(_constant, value))})"
    if type(value) is frozenset:
        return f"{{{','.join(sorted(map(_constant, value)))}}}"
    return f"{type(value).__name__} {value!r}"


def all_names(code: types.CodeType) -> set[str]:
    """Names of globals and attributes in a code object and in those among its constants."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= all_names(constant)
    return found


def all_codes(code: types.CodeType) -> Iterable[types.CodeType]:
    """A code object and those among its constants."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from all_codes(constant)


class _Walk:
    """One walk over all that some values reach; what is met again is named by its number."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.codes: set[types.CodeType] = set()
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no address is used again during the walk
        self._waiting: list[Any] = []
        self._running = False

    def text(self, *parts: Any) -> None:
        self.digest.update(repr(parts).encode(errors="surrogatepass"))

    def value(self, value: Any) -> None:
        """Take a value in; what it reaches follows in the order in which it was met."""
        if type(value) in PLAIN:
            self.text(type(value).__name__, value)
            return
        number = self._numbers.get(id(value))
        if number is not None:
            self.text("again", number)
            return
        if len(self._kept) >= _MOST_OBJECTS:
            raise Opaque(f"more than {_MOST_OBJECTS} objects within reach of the code")
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        self.text("new", type(value).__name__)
        self._waiting.append(value)
        if not self._running:
            self._run()

    def _run(self) -> None:
        self._running = True
        try:
            while self._waiting:
                self._object(self._waiting.pop())
        finally:
            self._running = False

    def values(self, label: str, values: Iterable[Any]) -> None:
        values = list(values)
        self.text(label, len(values))
        for value in values:
            self.value(value)

    def _object(self, value: Any) -> None:
        kind = type(value)
        handler = _HANDLERS.get(kind)
        if handler is None:
            handler = next((h for base, h in _BY_BASE if isinstance(value, base)), _Walk._instance)
        handler(self, value)

    # Code.

    def _function(self, function: types.FunctionType) -> None:
        self.text("function", function.__module__, function.__qualname__)
        cells = [_content(cell) for cell in function.__closure__ or ()]
        if is_library_function(function):
            self.values("closure", cells)
            return
        code = function.__code__
        self.codes.update(all_codes(code))
        self.text(of_code(code))
        self.values("closure", cells)
        self.values("defaults", (function.__defaults__, function.__kwdefaults__))
        self._attributes("attributes", function.__dict__)
        self._globals(all_names(code), function.__globals__)

    def _globals(self, names: set[str], scope: dict[str, Any]) -> None:
        """What code finds under the names that it has; of the program's modules also their attributes of such names."""
        for name in sorted(names & scope.keys()):
            found = scope[name]
            self.text("global", name)
            self.value(found)
            if isinstance(found, types.ModuleType):
                self._module_attributes(found, names, 0)
        if "ops" in names:
            self._operators(names)

    def _module_attributes(self, module: types.ModuleType, names: set[str], depth: int) -> None:
        if is_library(module.__name__) or depth > 4:
            return
        own = vars(module)
        for name in sorted(names & own.keys()):
            self.text("attribute", module.__name__, name)
            self.value(own[name])
            if isinstance(own[name], types.ModuleType) and own[name] is not module:
                self._module_attributes(own[name], names, depth + 1)

    def _operators(self, names: set[str]) -> None:
        """Operators of the program's own that code calls as ``torch.ops.namespace.name``."""
        for namespace in sorted(names & vars(torch.ops).keys()):
            space = getattr(torch.ops, namespace)
            if not isinstance(space, OpNamespace) or is_library_namespace(namespace):
                continue
            for name in sorted(names - {"name", "ops"}):
                packet = getattr(space, name, None)
                if isinstance(packet, OpOverloadPacket):
                    self.value(packet)

    def _method(self, method: types.MethodType) -> None:
        self.values("method", (method.__func__, method.__self__))

    def _builtin(self, function: Any) -> None:
        owner = getattr(function, "__objclass__", None)
        self.text("builtin", function.__name__, getattr(function, "__module__", None), getattr(owner, "__name__", None))
        held = getattr(function, "__self__", None)
        if held is not None and not isinstance(held, types.ModuleType):
            self.value(held)

    def _code(self, code: types.CodeType) -> None:
        self.codes.update(all_codes(code))
        self.text(of_code(code))

    def _parts(self, value: Any) -> None:
        """Descriptors and wrappers: what they hold."""
        names = next(names for kind, names in _PARTS if isinstance(value, kind))
        self.values(type(value).__name__, (getattr(value, name, None) for name in names))

    def _class(self, kind: type) -> None:
        self.text("class", kind.__module__, kind.__qualname__)
        if is_library(kind.__module__) or not kind.__flags__ & HEAP_TYPE:
            if not is_library(kind.__module__) and not kind.__flags__ & HEAP_TYPE:
                self._extension(kind.__module__)
            return
        self.values("bases", kind.__mro__[1:])
        self.value(type(kind))
        members = {n: raw for n, raw in vars(kind).items() if n not in UNSEEN}
        if isinstance(kind, enum.EnumMeta):
            enumerated: Mapping[str, enum.Enum] = kind.__members__
            members = {n: m.value for n, m in enumerated.items()} | {
                n: raw for n, raw in members.items() if isinstance(raw, (types.FunctionType, property))
            }
        self._attributes("members", members)

    def _extension(self, module: str) -> None:
        self.text(extension_text(module))

    def _module(self, module: types.ModuleType) -> None:
        self.text("module", module.__name__)

    # Values.

    def _attributes(self, label: str, found: Any) -> None:
        self.text(label, len(found))
        for name, value in sorted(found.items(), key=lambda item: str(item[0])):
            self.text(name if type(name) is str else repr(name))
            self.value(value)

    def _sequence(self, value: Any) -> None:
        self.values("items", value)

    def _mapping(self, value: Any) -> None:
        self.values("keys", value.keys())
        self.values("values", value.values())
        if isinstance(value, collections.defaultdict):
            self.value(value.default_factory)

    def _set(self, value: Any) -> None:
        self.text("set", sorted(fingerprint(item)[0] for item in value))
        for item in value:
            self.codes |= fingerprint(item)[1]

    def _represented(self, value: Any) -> None:
        self.text(repr(value))

    def _named(self, value: Any) -> None:
        self.text(type(value).__name__, getattr(value, "name", ""))

    def _reduced(self, value: Any) -> None:
        self.values("parts", value.__reduce__()[1])

    def _enum(self, value: enum.Enum) -> None:
        self.text(value.name)
        self.values("member", (type(value), value.value))

    def _reference(self, value: weakref.ref[Any]) -> None:
        self.value(value())

    def _tensor(self, value: torch.Tensor) -> None:
        whole = value.layout is torch.strided and type(value) in (torch.Tensor, torch.nn.Parameter)
        if not whole or value.is_meta or value.numel() * value.itemsize > _MOST_BYTES or value.is_quantized:
            raise Opaque(f"a tensor of {value.numel()} elements ({type(value).__name__}) within reach of the code")
        self.text(str(value.dtype), str(value.device), tuple(value.shape), tuple(value.stride()), value.requires_grad)
        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        self.digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")

    def _array(self, value: numpy.ndarray) -> None:
        if value.dtype.hasobject or value.nbytes > _MOST_BYTES:
            raise Opaque(f"an array of {value.size} elements of {value.dtype} within reach of the code")
        self.text(str(value.dtype), value.shape, value.strides)
        self.digest.update(value.tobytes())

    def _operator(self, op: Any) -> None:
        self.text("operator", str(op))
        if not library_operator(op):
            self.values("registrations", registrations(op))

    def _definition(self, definition: Any) -> None:
        self.value(definition._opoverload)

    def _instance(self, value: Any) -> None:
        """An object of a class: the class, and what hangs on the object."""
        kind, state = type(value), _slots(value)
        own = getattr(value, "__dict__", None)
        if not isinstance(own, dict) and not state and not (kind.__flags__ & HEAP_TYPE and is_plain_heap(kind)):
            raise Opaque(f"a {kind.__module__}.{kind.__qualname__} within reach of the code")
        self.value(kind)
        for base in PLAIN[:6]:
            if isinstance(value, base):
                self.text(base.__name__, base.__repr__(value))
        if isinstance(value, dict):
            self._mapping(value)
        if isinstance(value, (list, tuple)):
            self._sequence(value)
        if isinstance(value, (set, frozenset)):
            self._set(value)
        self._attributes("state", {**(own or {}), **state})


def _slots(value: Any) -> dict[str, Any]:
    """What an object holds in slots, by their names."""
    found = {}
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                found[name] = getattr(value, name)
    return found


def is_plain_heap(kind: type) -> bool:
    """Whether instances of a class hold nothing but what Python shows: all bases are classes of Python or builtins."""
    return all(base.__flags__ & HEAP_TYPE or base.__module__ == "builtins" for base in kind.__mro__)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "an empty cell"


_PARTS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    ((staticmethod, classmethod), ("__func__",)),
    (property, ("fget", "fset", "fdel")),
    (functools.cached_property, ("func",)),
    ((functools.partial, functools.partialmethod), ("func", "args", "keywords")),
    (functools._lru_cache_wrapper, ("__wrapped__",)),
)
_HANDLERS: dict[type, Callable[[_Walk, Any], None]] = {
    types.FunctionType: _Walk._function,
    types.MethodType: _Walk._method,
    types.BuiltinFunctionType: _Walk._builtin,
    types.MethodDescriptorType: _Walk._builtin,
    types.WrapperDescriptorType: _Walk._builtin,
    types.MethodWrapperType: _Walk._builtin,
    types.ClassMethodDescriptorType: _Walk._builtin,
    types.GetSetDescriptorType: _Walk._builtin,
    types.MemberDescriptorType: _Walk._builtin,
    types.CodeType: _Walk._code,
    list: _Walk._sequence,
    tuple: _Walk._sequence,
    torch.Size: _Walk._sequence,
    collections.deque: _Walk._sequence,
    dict: _Walk._mapping,
    collections.OrderedDict: _Walk._mapping,
    collections.defaultdict: _Walk._mapping,
    types.MappingProxyType: _Walk._mapping,
    set: _Walk._set,
    frozenset: _Walk._set,
    **dict.fromkeys(_LOCKS, _Walk._named),
    _TUPLE_GETTER: _Walk._reduced,
}
_BY_BASE: tuple[tuple[Any, Callable[[_Walk, Any], None]], ...] = (
    (enum.Enum, _Walk._enum),
    (type, _Walk._class),
    (types.ModuleType, _Walk._module),
    (tuple(kind for kinds, _ in _PARTS for kind in (kinds if isinstance(kinds, tuple) else (kinds,))), _Walk._parts),
    (torch.Tensor, _Walk._tensor),
    (OPERATORS, _Walk._operator),
    (CustomOpDef, _Walk._definition),
    ((*_REPRESENTED, numpy.generic, numpy.dtype), _Walk._represented),
    (numpy.ndarray, _Walk._array),
    (numpy.ufunc, _Walk._builtin),
    (logging.Logger, _Walk._named),
    (weakref.ref, _Walk._reference),
)
