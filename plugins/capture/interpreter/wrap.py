"""From real objects to values: by type, with the guard that each assumption needs."""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import re
import sys
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from turret.frames.annotations import is_in_graph, substitute_of
from turret.frames.class_members import class_member, find_in_mro, own_attribute
from turret.frames.sources import (
    AttrSource,
    BaseItemSource,
    BoundSource,
    CallSource,
    ItemSource,
    KeySource,
    ShownSource,
    Source,
    TypeSource,
    ValueSource,
    WeakSource,
    shown_by,
)
from turret.plugins.capture.facts.fingerprints import HEAP_TYPE, TRUSTED_ROOTS
from turret.plugins.capture.interpreter.torch_functions import is_graph_function
from turret.plugins.capture.python import lookups
from turret.plugins.capture.python.disabled import DISABLED, ORIGINAL, disabled_original
from turret.plugins.capture.python.instructions import VersionInfo
from turret.plugins.capture.registry import Handler, registry
from turret.plugins.capture.values.base import Constant, Lazy, MethodOfValue, Opaque, Tracer, Value
from turret.plugins.capture.values.big_ints import BigInt
from turret.plugins.capture.values.classes import Class
from turret.plugins.capture.values.distributed import AnyPlacement, description
from turret.plugins.capture.values.exceptions import ExceptionInstance
from turret.plugins.capture.values.floats import ChangingFloat
from turret.plugins.capture.values.functions import (
    Builtin,
    Function,
    Known,
    LocalFunction,
    Method,
    Partial,
)
from turret.plugins.capture.values.mappings import Dict, DictView, LoadedModules, MappingProxy
from turret.plugins.capture.values.modules import LocalModule, Module
from turret.plugins.capture.values.numpy_generators import METHODS as METHODS_OF_NUMPY
from turret.plugins.capture.values.numpy_generators import NumpyGenerator
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.outside_iterators import (
    NUMBER_AND_TEXT_ITERATORS,
    SEQUENCE_ITERATORS,
    combined_iterator,
    counter,
    outside_iterator,
    proxy,
)
from turret.plugins.capture.values.overriding import subclass_value
from turret.plugins.capture.values.python_modules import PythonModule
from turret.plugins.capture.values.sequences import Deque, List, NamedTuple, Range, Size, Slice, Tuple
from turret.plugins.capture.values.sets import Set
from turret.plugins.capture.values.wrappers import wrapper_value
from turret.torch_compat.operators.ops import HigherOrderOperator, OpOverload, OpOverloadPacket

_EQUAL_TYPES = (bool, int, float, str, bytes, complex, type(None), type(...), type(NotImplemented))
_IDENTITY_TYPES = (
    torch.dtype,
    torch.layout,
    torch.memory_format,
    torch.qscheme,
    types.CodeType,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
    types.GenericAlias,
    type(Callable[[int], int]),
    types.UnionType,
    typing.TypeVar,
    typing.ParamSpec,
    typing.TypeVarTuple,
    property,
    classmethod,
    staticmethod,
    functools.cached_property,
    torch.finfo,
    re.Pattern,
    re.Match,
    type(torch.__version__),
    VersionInfo,
    type(sys.flags),
    type(sys.float_info),
    torch.iinfo,
)
_BUILTIN_TYPES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
    OpOverload,
    OpOverloadPacket,
    HigherOrderOperator,
    type(torch.relu),
    type(re.compile("").search),
    functools._lru_cache_wrapper,
)

UNGUARDED_TYPES = (*_EQUAL_TYPES, *_IDENTITY_TYPES, *_BUILTIN_TYPES, types.FunctionType, types.ModuleType, type)
"""Kinds of globals that are taken for what they are in a package that programs do not patch."""

Wrapper = Callable[["Tracer", Any, Source], Value]


def wrap(t: Tracer, object: Any, source: Source) -> Value:
    """The value of an object that existed before, found at ``source``; guarded by what its kind assumes."""
    kind = type(object)
    if isinstance(object, _EQUAL_TYPES) and kind in _EQUAL_TYPES:
        return _constant(t, object, source)
    known = t.objects.get(id(object))
    if known is not None:
        if t.blocks.recording:
            t.blocks.note_known(known, source)
        _assume_same(t, known, source)
        return known
    wrapper = registry.wrappers.get(kind) or registry.named_wrappers.get((kind.__module__, kind.__qualname__))
    if wrapper is None:
        wrapper = (
            _opaque
            if _pretends(kind)
            else next((w for k, w in registry.base_wrappers if isinstance(object, k)), _instance)
        )
    value = wrapper(t, object, source)
    t.provenance.bases(object if isinstance(object, type) else kind)
    t.remember(object, value)
    return value


def _assume_same(t: Tracer, known: Value, source: Source) -> None:
    if isinstance(known, LocalFunction):
        if known.source != source:
            t.guards.take("SAME", source, others=(known.source,))
    elif isinstance(known, (Known, Constant)):
        if not isinstance(source, BoundSource):
            object = (
                known.constant()
            )  # what was assumed to be equal where it was met first is no more where it is again
            t.guards.take("EQUALS" if registry.wrappers.get(type(object)) is equal else "ID", source, object)
    elif known.source is not None and known.source != source:
        t.guards.take("SAME", source, others=(known.source,))


def _constant(t: Tracer, object: Any, source: Source) -> Value:
    if type(object) is int and not isinstance(source, BoundSource):
        symbolic = t.recorder.dynamic_int(object, source)
        if symbolic is not None:
            return symbolic
        if t.policy.is_unknown_int(source, object):
            return _big_int(t, object, source)
    if type(object) is float and t.policy.changing_float(source, object):
        t.guards.take("TYPE", source, float)
        return ChangingFloat(t, object, source)
    if not isinstance(source, BoundSource):
        t.guards.take("EQUALS", source, object)
    return Constant(object, source)


def _big_int(t: Tracer, object: int, source: Source) -> Value:
    known = t.objects.get(id(object))
    if isinstance(known, BigInt):
        _assume_same(t, known, source)
        return known
    made = BigInt(t, object, source)
    t.remember(object, made)
    return made


def identity(t: Tracer, object: Any, source: Source) -> Value:
    if not isinstance(source, BoundSource):
        t.guards.take("ID", source, object)
    return Constant(object, source)


def equal(t: Tracer, object: Any, source: Source) -> Value:
    """An immutable object, assumed to be equal on every call."""
    if not isinstance(source, BoundSource):
        t.guards.take("EQUALS", source, object)
    return Constant(object, source)


def known(cls: type[Known]) -> Wrapper:
    """Wraps objects that are assumed to be the same ones on every call."""

    def wrapper(t: Tracer, object: Any, source: Source) -> Value:
        if not isinstance(source, BoundSource):
            t.guards.take("ID", source, object)
        return cls(object, BoundSource(own_attribute(object, "__qualname__") or str(source), object))

    return wrapper


def _builtin(t: Tracer, object: Any, source: Source) -> Value:
    """A function written in C; one that is bound to an object is a method of that, and new at each call."""
    if type(object) in _BOUND_TYPES and not isinstance(source, BoundSource) and object not in registry.functions:
        name = lookups.name_of_method(object)
        if name is not None:
            t.guards.take("TYPE", source, type(object))
            t.guards.take("CALL", source, (lookups.name_of_method, name))
            owner = t.wrap(object.__self__, AttrSource(source, "__self__"))
            # Of an instance of the program's, an attribute of its own may have the name.
            method = class_member(owner.type(), name) if isinstance(owner, Instance) else None
            return MethodOfValue(owner, name, source, None if method is None else t.wrap_known(method))
    return known(Builtin)(t, object, source)


_BOUND_TYPES = (types.BuiltinMethodType, types.MethodWrapperType)


def _function(t: Tracer, object: Any, source: Source) -> Value:
    """A function: by identity; or, for one that may be made anew for each call (a lambda passed in), by its code."""
    original = disabled_original(object)
    fresh = not isinstance(source, BoundSource) and t.policy.fresh_function(source, original or object)
    if not fresh or (original is None and not _is_plain_function(object)):
        if isinstance(source, BoundSource) or "<locals>" not in object.__qualname__:
            return known(Function)(t, object, source)
        held = WeakSource(object.__qualname__, object)  # what was made in a call is not to outlive its caller's use
        t.guards.take("IS", source, others=(held,))
        return Function(object, held)
    if original is not None:
        marks = AttrSource(source, "__dict__")
        t.guards.take("ID", ItemSource(marks, DISABLED), True)
        if original is not object:
            t.guards.take("ID", AttrSource(ItemSource(marks, ORIGINAL), "__code__"), original.__code__)
    return LocalFunction(t, object, source)


def _is_plain_function(object: types.FunctionType) -> bool:
    """Whether capture knows nothing of a function but its code."""
    marked = is_in_graph(object) or substitute_of(object) is not None
    return object.__dict__.keys() <= {"__wrapped__"} and not (
        marked or object in registry.functions or is_graph_function(object)
    )


def _assume(t: Tracer, kind: str, source: Source, expected: Any) -> None:
    """Take a guard later on; what waits to do so holds the tracer alone, which lets go of all that is its own."""
    t.guards.take(kind, source, expected)


def _tuple(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, tuple)
    t.guards.take("LENGTH", source, len(object))
    return Tuple([Lazy(t, v, ItemSource(source, n)) for n, v in enumerate(object)], source)


def _list(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, list)
    assume_length = functools.partial(_assume, t, "LENGTH", source, len(object))
    return List([Lazy(t, v, ItemSource(source, n)) for n, v in enumerate(object)], source, assume_length)


def _deque(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, type(object))
    t.guards.take("CALL", source, (lookups.maxlen_of, object.maxlen))
    assume_length = functools.partial(_assume, t, "LENGTH", source, len(object))
    return Deque(
        [Lazy(t, v, ItemSource(source, n)) for n, v in enumerate(object)], source, object.maxlen, assume_length
    )


def _size(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, type(object))
    t.guards.take("LENGTH", source, len(object))
    return Size([t.wrap(v, ItemSource(source, n)) for n, v in enumerate(object)], source)


def _namedtuple(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, type(object))
    return NamedTuple([Lazy(t, v, ItemSource(source, n)) for n, v in enumerate(object)], type(object), source)


_KEY_TYPES = (*_EQUAL_TYPES, torch.dtype, torch.device, type, types.FunctionType, enum.Enum)


def _plain_key(key: Any) -> bool:
    return isinstance(key, _KEY_TYPES) or (type(key) is tuple and all(map(_plain_key, key)))


def _dict(t: Tracer, object: Any, source: Source) -> Value:
    if object is sys.modules:
        return LoadedModules(BoundSource("sys.modules", object))
    kind = type(object)
    t.guards.take("TYPE", source, kind)
    items: dict[Any, tuple[Value, Value]] = {}
    pairs = dict.items(object)
    assume_keys = None
    if all(map(_plain_key, object)):
        assume_keys = functools.partial(_assume, t, "KEYS", source, tuple(object))
        for key, value in pairs:
            items[key] = (Constant(key), Lazy(t, value, ItemSource(source, key)))
    else:
        t.guards.take("LENGTH", source, len(object))
        for number, (key, value) in enumerate(pairs):
            if _plain_key(key):
                wrapped: Value = Constant(key)
                t.guards.take("EQUALS", KeySource(source, number), key)
            else:
                wrapped = t.wrap(key, KeySource(source, number))
            items[wrapped.realize().key(t)] = (wrapped, Lazy(t, value, ValueSource(source, number)))
    factory = None
    if kind is collections.defaultdict:
        factory = t.wrap(object.default_factory, AttrSource(source, "default_factory"))
    return Dict(items, kind, source, factory, object, assume_keys)


def _mapping_proxy(t: Tracer, object: Any, source: Source) -> Value:
    shown = shown_by(object)
    if type(shown) not in (dict, collections.OrderedDict, collections.defaultdict):
        return _opaque(t, object, source)
    t.guards.take("TYPE", source, types.MappingProxyType)
    owner = t.wrap(shown, ShownSource(source))
    return MappingProxy(owner, source) if type(owner) is Dict else _opaque(t, object, source)


def _view(part: str) -> Wrapper:
    def wrapper(t: Tracer, object: Any, source: Source) -> Value:
        shown = lookups.dict_of_view(object)
        if type(shown) not in (dict, collections.OrderedDict, collections.defaultdict):
            return _opaque(t, object, source)
        t.guards.take("TYPE", source, type(object))
        owner = t.wrap(shown, CallSource(source, lookups.dict_of_view))
        assert isinstance(owner, Dict)
        return DictView(owner, part, source)

    return wrapper


def _set(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, type(object))
    if not all(map(_plain_key, object)):
        return _set_of_objects(t, object, source)
    t.guards.take("KEYS", source, tuple(object))
    made = Set({k: Constant(k) for k in object}, type(object), source)
    return made.keep(object) if isinstance(object, frozenset) and isinstance(source, BoundSource) else made


def _set_of_objects(t: Tracer, object: Any, source: Source) -> Value:
    """A set whose elements no constants can name: tensors, modules, objects."""
    t.guards.take("LENGTH", source, len(object))
    elements = CallSource(source, lookups.elements)
    items: dict[Any, Value] = {}
    for number, element in enumerate(object):
        value = Constant(element) if _plain_key(element) else t.wrap(element, ItemSource(elements, number)).realize()
        if isinstance(value, Constant):
            t.guards.take("EQUALS", ItemSource(elements, number), element)
        items[value.key(t)] = value
    return Set(items, type(object), source)


def _slice(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, slice)
    return Slice([t.wrap(getattr(object, n), AttrSource(source, n)) for n in ("start", "stop", "step")], source)


def _range(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("EQUALS", source, object)
    return Range([Constant(object.start), Constant(object.stop), Constant(object.step)], source)


def _method(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, types.MethodType)
    owner = t.wrap(object.__self__, AttrSource(source, "__self__"))
    if isinstance(owner, NumpyGenerator) and object.__name__ in METHODS_OF_NUMPY:
        return MethodOfValue(owner, object.__name__, source)
    return Method(t.wrap(object.__func__, AttrSource(source, "__func__")), owner, source)


def _partial(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, functools.partial)
    function = t.wrap(object.func, AttrSource(source, "func"))
    args = t.wrap(object.args, AttrSource(source, "args")).unpack(t)
    kwargs = t.wrap(object.keywords, AttrSource(source, "keywords"))
    return Partial(function, args, {k.constant(): v for k, v in t.pairs(kwargs)}, source, object)


def _tensor(t: Tracer, object: Any, source: Source) -> Value:
    return t.recorder.tensor_input(object, source)


def _tensor_of_class(t: Tracer, object: Any, source: Source) -> Value:
    found = subclass_value(t, object, source) or wrapper_value(t, object, source)
    return found or _instance(t, object, source)


def _module(t: Tracer, object: Any, source: Source) -> Value:
    if not isinstance(source, BoundSource) and t.policy.fresh_module(source, object):
        return LocalModule(t, object, source)
    if isinstance(source, BoundSource):
        held = type(source)(str(source), object)
    else:
        held = WeakSource(str(source), object)
        t.guards.take("IS", source, others=(held,))
    t.guards.take("ID", TypeSource(held), type(object))
    return Module(type(object), object, held)


def _exception(t: Tracer, object: Any, source: Source) -> Value:
    t.guards.take("TYPE", source, type(object))
    args = [Lazy(t, a, ItemSource(AttrSource(source, "args"), n)) for n, a in enumerate(object.args)]
    t.guards.take("LENGTH", AttrSource(source, "args"), len(args))
    return ExceptionInstance(type(object), list(args), object, source)


def _instance(t: Tracer, object: Any, source: Source) -> Value:
    kind = type(object)
    if hasattr(kind, "__members__") and type(kind).__name__ == "pybind11_type":
        return identity(t, object, source)  # an enum of torch's
    if isinstance(object, _ANNOTATIONS) and not _is_generic(object):
        return identity(t, object, source)
    in_c = not kind.__flags__ & HEAP_TYPE and kind not in _PLAIN_IN_C
    if in_c or isinstance(object, torch.Tensor) or _foreign(kind):
        t.guards.take("TYPE", source, kind)
        return Opaque(object, source)
    t.guards.take("TYPE", source, kind)
    return Instance(kind, object, source, _payload(t, object, source))


def _opaque(t: Tracer, object: Any, source: Source) -> Value:
    """An object that is not looked into; what is done with it is done as Python."""
    if not isinstance(source, BoundSource):
        t.guards.take("ID", source, object)
    return Opaque(object, source)


def _pretends(kind: type) -> bool:
    """Whether a class computes the ``__class__`` or the ``__dict__`` of its instances, which then says nothing."""
    held = find_in_mro(kind, "__dict__")[1]
    return find_in_mro(kind, "__class__")[0] is not object or not isinstance(held, _DICT_DESCRIPTORS)


_DICT_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType, types.NoneType)

_ANNOTATIONS: tuple[type, ...] = (typing._SpecialForm, typing._BaseGenericAlias)  # type: ignore[attr-defined]
"""Types as annotations write them (``Optional[List[int]]``); classes with parameters of a program's own can be called.
"""


def _is_generic(alias: Any) -> bool:
    """Whether an alias is of a class of a program's own, which makes instances when it is called."""
    origin = getattr(alias, "__origin__", None)
    return isinstance(origin, type) and issubclass(origin, typing.Generic)


_PLAIN_IN_C = (
    dict, list, tuple, set, frozenset, collections.deque, collections.OrderedDict, collections.defaultdict, int, str,
    types.SimpleNamespace,
)  # fmt: skip
"""Classes written in C that keep nothing but their items or attributes."""


def _foreign(kind: type) -> bool:
    """Whether a class keeps state in C that its attributes do not show."""
    for base in kind.__mro__[:-1]:
        if not base.__flags__ & HEAP_TYPE and base not in _PLAIN_IN_C:
            return base is not Exception and not issubclass(base, BaseException)
    return (kind.__module__ or "").partition(".")[0] in ("numpy", "torch") and any(
        "torch._C" in (b.__module__ or "") for b in kind.__mro__
    )


def _payload(t: Tracer, object: Any, source: Source) -> Value | None:
    """The plain container inside an instance of a subclass of one."""
    kind = type(object)  # and not what the object says of itself
    if issubclass(kind, dict):
        return _dict_inside(t, object, source)
    if issubclass(kind, (set, frozenset)):
        return _set_inside(t, object, source)
    if issubclass(kind, list):
        t.guards.take("OWN_LENGTH", source, list.__len__(object))
        return List([Lazy(t, v, _payload_item(source, list, n)) for n, v in enumerate(list.__iter__(object))], source)
    if issubclass(kind, tuple):
        t.guards.take("OWN_LENGTH", source, tuple.__len__(object))
        return Tuple(
            [Lazy(t, v, _payload_item(source, tuple, n)) for n, v in enumerate(tuple.__iter__(object))], source
        )
    if issubclass(kind, collections.deque):
        length, maxlen = collections.deque.__len__(object), lookups.maxlen_of(object)
        t.guards.take("CALL", source, (collections.deque.__len__, length))
        t.guards.take("CALL", source, (lookups.maxlen_of, maxlen))
        elements = CallSource(source, lookups.elements)
        held = enumerate(collections.deque.__iter__(object))
        return Deque([Lazy(t, v, ItemSource(elements, n)) for n, v in held], source, maxlen)
    return Opaque(object, source) if issubclass(kind, (int, str)) else None


def _dict_inside(t: Tracer, object: dict, source: Source) -> Value:
    base = next(b for b in (collections.OrderedDict, collections.defaultdict, dict) if isinstance(object, b))
    if not all(map(_plain_key, dict.keys(object))):
        return Opaque(object, source)
    t.guards.take("OWN_KEYS", source, tuple(dict.keys(object)))
    items: dict[Any, tuple[Value, Value]] = {
        k: (Constant(k), Lazy(t, v, _payload_item(source, base, k))) for k, v in dict.items(object)
    }
    factory = None
    if base is collections.defaultdict:
        factory = t.wrap(lookups.factory_of(object), CallSource(source, lookups.factory_of)).realize()
    return Dict(items, base, source, factory)


def _set_inside(t: Tracer, object: set | frozenset, source: Source) -> Value:
    elements = lookups.elements(object)
    if not all(map(_plain_key, elements)):
        return Opaque(object, source)
    t.guards.take("CALL", source, (lookups.elements, elements))
    return Set({k: Constant(k) for k in elements}, frozenset if isinstance(object, frozenset) else set, source)


def _payload_item(source: Source, base: type, key: Any) -> Source:
    return BaseItemSource(source, dict if issubclass(base, dict) else base, key)


_DICTS: tuple[dict, ...] = ({}, collections.OrderedDict())


def _views(owner: dict) -> tuple[tuple[str, Any], ...]:
    return ("keys", owner.keys()), ("values", owner.values()), ("items", owner.items())


def is_namedtuple(kind: type) -> bool:
    """Whether a class was made by ``namedtuple``, and is a tuple as any other, or is one of torch's results."""
    if not issubclass(kind, tuple) or kind.__module__ == "torch.return_types":
        return issubclass(kind, tuple)
    made = hasattr(kind, "_fields") and kind.__bases__ == (tuple,) and kind.__flags__ & HEAP_TYPE != 0
    own = {name for name, value in vars(kind).items() if isinstance(value, types.FunctionType)} - _MADE_METHODS
    return made and not any(name in _OF_TUPLES or name.startswith("__") for name in own)


_OF_TUPLES = frozenset({"index", "count"})
_MADE_METHODS = frozenset(
    {"__new__", "__repr__", "__str__", "__format__", "__getnewargs__", "__init_subclass__", "__replace__"}
)
"""Of the special methods of a class made by ``namedtuple``, those that are no say in what a tuple does."""


class _NamedTuples(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return is_namedtuple(type(instance))


class _AnyNamedTuple(metaclass=_NamedTuples):
    pass


_WRAPPERS: dict[type, Handler] = {
    **dict.fromkeys(_IDENTITY_TYPES, identity),
    **dict.fromkeys((torch.device, torch.finfo, torch.iinfo), equal),
    types.FunctionType: _function,
    **dict.fromkeys(_BUILTIN_TYPES, _builtin),
    type: known(Class),
    types.ModuleType: known(PythonModule),
    types.MethodType: _method,
    functools.partial: _partial,
    tuple: _tuple,
    list: _list,
    collections.deque: _deque,
    torch.Size: _size,
    dict: _dict,
    collections.OrderedDict: _dict,
    collections.defaultdict: _dict,
    types.MappingProxyType: _mapping_proxy,
    **{type(view): _view(part) for owner in _DICTS for part, view in _views(owner)},
    set: _set,
    frozenset: _set,
    slice: _slice,
    range: _range,
    **dict.fromkeys((*NUMBER_AND_TEXT_ITERATORS, *SEQUENCE_ITERATORS), outside_iterator),
    itertools.count: counter,
    **dict.fromkeys((itertools.chain, zip, map, filter), combined_iterator),
    weakref.ProxyType: proxy,
    torch.Tensor: _tensor,
    nn.Parameter: _tensor,
    nn.Buffer: _tensor,
}
registry.wrappers |= _WRAPPERS
registry.base_wrappers += [
    (_AnyNamedTuple, _namedtuple),
    (type, known(Class)),
    (types.ModuleType, known(PythonModule)),
    (enum.Enum, identity),
    (AnyPlacement, description),
    (nn.Module, _module),
    (torch.Tensor, _tensor_of_class),
    (BaseException, _exception),
    (OpOverload, known(Builtin)),
    (OpOverloadPacket, known(Builtin)),
    (HigherOrderOperator, known(Builtin)),
]


if torch.distributed.is_available():
    registry.base_wrappers.append((torch.distributed.device_mesh.DeviceMesh, description))

_NEEDS_NO_SOURCE = (Constant, Known)


def wrap_known(t: Tracer, object: Any) -> Value:
    """The value of an object that is the same on every call: reached by something that is guarded already."""
    if isinstance(object, _EQUAL_TYPES) and type(object) in _EQUAL_TYPES:
        return Constant(object)
    if type(object) is tuple:
        return Tuple([wrap_known(t, v) for v in object])
    if type(object) is torch.Size:
        return Size([wrap_known(t, v) for v in object])
    if type(object) is list and t.objects.get(id(object)) is None and sys.getrefcount(object) <= 4:
        return List([wrap_known(t, v) for v in object])
    label = own_attribute(object, "__qualname__") or type(object).__qualname__
    return wrap(t, object, BoundSource(label, object))


def trusted(object: Any) -> bool:
    """Whether an object comes from a package that programs do not patch, and is no class made for one program."""
    if isinstance(object, type) and "<locals>" in object.__qualname__:
        return False
    if isinstance(object, types.FunctionType):  # ``functools.wraps`` gives it the name of what it wraps
        name = object.__globals__.get("__name__")
    else:
        name = object.__name__ if isinstance(object, types.ModuleType) else own_attribute(object, "__module__")
    return isinstance(name, str) and name.partition(".")[0] in TRUSTED_ROOTS
