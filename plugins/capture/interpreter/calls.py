"""Calls: binding arguments, inlining Python functions, making instances, and what a builtin does."""

from __future__ import annotations

import collections
import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Hashable
from typing import Any

import torch

from turret.frames.annotations import REGION_FUNCTION, is_in_graph, region_of, substitute_of
from turret.frames.descriptions import name_of
from turret.frames.guards import function_modes
from turret.frames.sources import BoundSource
from turret.frames.trace_modes import home_of, is_replaced
from turret.plugins.capture.errors import AskedFor, Unsupported
from turret.plugins.capture.interpreter.frame import RETURNED, Frame
from turret.plugins.capture.interpreter.overrides import is_of_torch
from turret.plugins.capture.interpreter.remembering import call_of_cache, call_remembering
from turret.plugins.capture.interpreter.torch_functions import call_torch, is_graph_function, is_torch_builtin
from turret.plugins.capture.interpreter.wrap import is_namedtuple
from turret.plugins.capture.python import lookups
from turret.plugins.capture.python.disabled import kept_from_torchs_compiler
from turret.plugins.capture.python.signatures import takes
from turret.plugins.capture.registry import handled, registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.classes import (
    _C_METHODS,
    ORDINARY_METACLASSES,
    _call_c_method,
    bind_attribute,
    builtin_base,
    look_up,
)
from turret.plugins.capture.values.exceptions import blank_exception
from turret.plugins.capture.values.functions import Function, Known, NestedFunction
from turret.plugins.capture.values.groups import new_group
from turret.plugins.capture.values.instance_texts import formatted
from turret.plugins.capture.values.made_wrappers import completed, is_made_here
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.modules import Module, is_module_call
from turret.plugins.capture.values.objects import FunctionInstance, Instance
from turret.plugins.capture.values.overriding import OF_TORCH, is_plain_subclass
from turret.plugins.capture.values.sequences import Deque, List, NamedTuple, Tuple
from turret.plugins.capture.values.sets import Set
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.fakes import unset_fake_temporarily

_DICTS = (dict, collections.OrderedDict, collections.defaultdict)
_FIELDS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_SUSPENDABLE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NOT_FOLLOWED = (
    "logging", "warnings", "threading", "multiprocessing", "subprocess", "asyncio", "random", "tempfile", "shutil",
    "socket", "ast", "traceback", "linecache", "tokenize", "pickle", "copyreg", "re", "json", "datetime",
    "time", "weakref", "importlib", "unittest", "queue", "concurrent", "os", "posixpath", "tqdm", "rich",
    "torch._dynamo", "torch._inductor", "torch.fx", "torch._subclasses", "torch._logging", "torch.distributed",
    "torch._functorch", "torch.jit", "torch.onnx", "torch.package", "torch.multiprocessing", "torch.profiler",
    "torch.export", "torch._ops", "torch._library", "torch.library", "torch.overrides", "torch.serialization",
    "torch._prims", "torch._refs", "torch._decomp", "torch.autograd.function", "torch.autograd.graph",
    "torch.autograd.forward_ad", "numpy",
)  # fmt: skip


_TRANSPARENT = {
    # What torch compiles is a part of the graph around.
    ("torch._dynamo.eval_frame", "_TorchDynamoContext.__call__.<locals>.compile_wrapper"): "fn",
    ("dataclasses", "_recursive_repr.<locals>.wrapper"): "user_function",
    ("reprlib", "recursive_repr.<locals>.decorating_function.<locals>.wrapper"): "user_function",
    ("torch.jit._trace", "_script_if_tracing.<locals>.wrapper"): "fn",
    # Contexts that are settings of torch's own compiler, as decorators.
    ("torch._dynamo.external_utils", "wrap_dunder_call_ctx_manager.<locals>.inner"): "func",
    # torch.compile, once in use, counts the modules that are made.
    ("torch._dynamo.mutation_guard", "install_generation_tagging_init.<locals>.patched_init"): "init",
    ("torch._dynamo.mutation_guard", "install_generation_tagging_init.<locals>.patched_setstate"): "setstate",
}
"""Wrappers that do nothing, here, but call what they wrap: by module and name, the variable that holds it."""


_FOLLOWED = frozenset(
    {
        "unittest.case", "torch.fx._pytree", "torch.export._unlift", "torch.export._tree_utils",
        "torch.export.unflatten", "torch.distributed.tensor._api", "torch.distributed.tensor.parallel.style",
        "torch.distributed.tensor.parallel.input_reshard", "torch._functorch._aot_autograd.subclass_parametrization",
        "torch._dynamo.test_case",
    }
)  # fmt: skip
"""Modules inside those, whose functions are inlined: what exported programs call, and modules spread over processes."""


def not_followed(name: str) -> bool:
    """Whether functions of a module are not inlined: their effects are outside of what a graph can hold."""
    if name in _FOLLOWED:
        return False
    return name.startswith(_NOT_FOLLOWED) and any(name == n or name.startswith(n + ".") for n in _NOT_FOLLOWED)


def _too_many(function: Any, code: types.CodeType, given: int, kwargs: dict[str, Value]) -> str:
    """The interpreter's words for too many positional arguments."""
    nested = isinstance(function, NestedFunction)
    defaults = len(function.defaults if nested else function.object.__defaults__ or ())
    count = code.co_argcount
    takes = f"from {count - defaults} to {count}" if defaults else str(count)
    only = code.co_varnames[count : count + code.co_kwonlyargcount]
    named = sum(n in kwargs for n in only)
    were = f"{given} {'was' if given == 1 and not named else 'were'} given"
    if named:
        plural = "s" if given != 1 else ""
        more = f"(and {named} keyword-only argument{'s' if named != 1 else ''})"
        were = f"{given} positional argument{plural} {more} were given"
    return f"{_name_of(function)}() takes {takes} positional argument{'s' if count != 1 or defaults else ''} but {were}"


def _name_of(function: Any) -> str:
    """What the interpreter calls a function in errors about its arguments."""
    if not isinstance(function, NestedFunction):
        return function.object.__qualname__
    named = function.attributes.get("__qualname__")
    return named.constant() if named is not None and named.is_constant() else function.qualified_name


def _missing(function: Any, code: types.CodeType, missing: list[int]) -> str:
    """The interpreter's words for parameters without an argument: first for those that take positional ones."""
    positional = [n for n in missing if n < code.co_argcount]
    names = [repr(code.co_varnames[n]) for n in positional or missing]
    what = f"{'positional' if positional else 'keyword-only'} argument{'s' if len(names) > 1 else ''}"
    listed = names[0] if len(names) == 1 else " and ".join(names)
    if len(names) > 2:
        listed = f"{', '.join(names[:-1])}, and {names[-1]}"
    return f"{_name_of(function)}() missing {len(names)} required {what}: {listed}"


_IS_ABSTRACT = 1 << 20
"""Flag of classes with abstract methods."""


def _is_made_by_object(kind: type) -> bool:
    """Whether ``object.__new__`` makes instances of a class: no class that it derives from keeps state in C."""
    news = (vars(base).get("__new__") for base in kind.__mro__)
    return next(new for new in news if isinstance(new, types.BuiltinFunctionType)) is object.__new__


class Caller(Tracer):
    """The part of the tracer that knows how calls work."""

    def call(self, function: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``function(*args, **kwargs)``."""
        return function.realize().call(self, args, kwargs)

    def call_function(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Inline a Python function, unless it is one that goes to the graph or has a handler."""
        if isinstance(function, Function):
            region = region_of(function.object)
            if region is not None and not isinstance(region, types.FunctionType):
                marked = function.get_attr(self, REGION_FUNCTION).realize()  # a module's parameters are inputs
                return self.call(marked, args, kwargs)
            if region is not None:
                known = self.wrap_known(region)
                return self.blocks.call_marked(known, args, kwargs, lambda: self.call_unmarked(known, args, kwargs))
        return self.call_unmarked(function, args, kwargs)

    def call_unmarked(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The same, whether or not the function is marked as a region."""
        if isinstance(function, Function):
            function.note_code(self)
            if is_graph_function(function.object):
                answer = self.overrides.call(function.object, args, kwargs)
                if answer is not None:
                    return answer
                args, kwargs = self.overrides.plain(args, kwargs)
            special = self.special_function(function, args, kwargs)
            if special is not None:
                return special
        return self.follow(function, args, kwargs)

    def follow(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Inline a Python function, whatever is known of it."""
        frame = self.frame_of(function, args, kwargs)
        if frame.code.co_flags & _SUSPENDABLE:
            raise Unsupported("async code")
        signal = frame.run()
        assert signal is RETURNED
        return frame.result

    def special_function(self, function: Function, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """The result of a Python function that is not inlined; None for one that is."""
        object = function.object
        name = object.__globals__.get("__name__") or ""
        handler = registry.of_function(object, name)
        if handler is not None:
            return handled(handler, object, self, args, kwargs)
        compiled = object.__dict__.get("turret_target")
        if compiled is not None:  # compiled on its own; inside another capture it is part of that
            return self.call(self.wrap_known(compiled), args, kwargs)
        if is_module_call(object) and args:
            module = args[0].realize()
            if isinstance(module, Module) and module.is_called_plainly(self) and not module.hooks_in_use(self):
                return module.forward(self, args[1:], kwargs)
        if is_graph_function(object):
            return self.call_graph_function(object, args, kwargs)
        marked = self.call_marked(object, args, kwargs)
        return self.call_by_module(function, name, args, kwargs) if marked is None else marked

    def call_by_module(
        self, function: Function, name: str, args: list[Value], kwargs: dict[str, Value]
    ) -> Value | None:
        """The result of a function by what is known of its module; None for one to be followed."""
        object = function.object
        handler = registry.of_module(name)
        if handler is not None and (answer := handler(self, function, args, kwargs)) is not None:
            return answer
        if (variable := _TRANSPARENT.get((name, object.__code__.co_qualname))) is not None:
            return self.call(function.cells(self)[object.__code__.co_freevars.index(variable)].content, args, kwargs)
        of_graph_module = object.__name__ == "call_wrapped"
        followed = of_graph_module or object.__code__.co_qualname in registry.followed
        if not_followed(name) and not followed:
            raise Unsupported(f"a call of {name}.{object.__qualname__}")
        return None

    def call_graph_function(self, object: types.FunctionType, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """Record a call of a Python function of torch as one node of the graph."""
        self.finds_itself(object)
        receiver = args[0].realize() if args else None
        is_method = object.__globals__["__name__"] == "torch._tensor" and not is_replaced(object)
        if is_method and isinstance(receiver, Tensor):  # what is replaced has another's name
            return receiver.call_torchs(self, object.__name__, args[1:], kwargs)
        return self.recorder.call(object, args, kwargs)

    def call_marked(self, object: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """The result of a function that the program said something of; None for one to be followed."""
        if is_in_graph(object):
            return self.recorder.call(object, args, kwargs)
        substitute = substitute_of(object)
        if substitute is not None:
            return self.call(self.wrap_known(substitute), args, kwargs)
        if getattr(object, "_dynamo_marked_constant", False):
            plain = [self.constant_of(v) for v in args]
            named = {k: self.constant_of(v) for k, v in kwargs.items()}
            with unset_fake_temporarily():
                result = object(*plain, **named)
            self.provenance.bound_to_process(f"{object.__qualname__} gives a result that is assumed to be constant")
            return self.wrap_known(result)
        if getattr(object, "_torchdynamo_disable", False):
            hidden = kept_from_torchs_compiler(object)
            if hidden is not None:
                return self.call(self.wrap_known(hidden), args, kwargs)
            reason = getattr(object, "_torchdynamo_disable_msg", None)
            raise AskedFor(
                f"{object.__qualname__} is marked to run outside of compiled code" + (f": {reason}" if reason else "")
            )
        return None

    def frame_of(self, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Frame:
        """A new frame with the arguments bound."""
        if isinstance(function, NestedFunction):
            code, scope, source = function.code, function.scope, function.scope_source
            closure = function.closure
        else:
            code, scope, source = function.object.__code__, function.object.__globals__, None
            closure = function.cells(self)
        frame = Frame(self, code, scope, source, closure)
        self.bind(frame, function, args, dict(kwargs))
        return frame

    def bind(self, frame: Frame, function: Any, args: list[Value], kwargs: dict[str, Value]) -> None:
        """Fill a frame's parameters as the interpreter does."""
        code = frame.code
        count, keyword_only = code.co_argcount, code.co_kwonlyargcount
        local = frame.locals
        given = min(count, len(args))
        local[:given] = args[:given]
        slot = count + keyword_only
        if code.co_flags & inspect.CO_VARARGS:
            local[slot] = Tuple(args[count:])
            slot += 1
        rest = self.bind_keywords(function, code, local, kwargs) if kwargs else kwargs
        if len(args) > count and not code.co_flags & inspect.CO_VARARGS:  # the interpreter looks at keywords first
            raise self.raised(TypeError, _too_many(function, code, len(args), kwargs))
        if code.co_flags & inspect.CO_VARKEYWORDS:
            local[slot] = self.new_dict(rest)
        self.fill_defaults(frame, function)

    def bind_keywords(
        self, function: Any, code: types.CodeType, local: list[Any], kwargs: dict[str, Value]
    ) -> dict[str, Value]:
        """Fill the parameters that keywords name, in the order of the keywords; returns those that name none."""
        count = code.co_argcount + code.co_kwonlyargcount
        accepted = {code.co_varnames[n]: n for n in range(code.co_posonlyargcount, count)}
        rest: dict[str, Value] = {}
        for name, value in kwargs.items():
            number = accepted.get(name)
            if number is None and not code.co_flags & inspect.CO_VARKEYWORDS:
                raise self.raised(TypeError, f"{_name_of(function)}() got an unexpected keyword argument {name!r}")
            if number is None:
                rest[name] = value
            elif local[number] is not None:
                raise self.raised(TypeError, f"{_name_of(function)}() got multiple values for argument {name!r}")
            else:
                local[number] = value
        return rest

    def fill_defaults(self, frame: Frame, function: Any) -> None:
        """Parameters that were not given."""
        code, local = frame.code, frame.locals
        if not isinstance(function, NestedFunction) and None in local[: code.co_argcount]:
            function.note_defaults(self)
        missing = []
        for number in range(code.co_argcount + code.co_kwonlyargcount):
            if local[number] is None:
                local[number] = self.default_of(function, code, number)
                if local[number] is None:
                    missing.append(number)
        if missing:
            raise self.raised(TypeError, _missing(function, code, missing))

    def default_of(self, function: Any, code: types.CodeType, number: int) -> Value | None:
        """The default of a parameter; None where it has none."""
        nested = isinstance(function, NestedFunction)
        if number >= code.co_argcount:
            name = code.co_varnames[number]
            keyword: Any = function.keyword_defaults if nested else function.object.__kwdefaults__ or {}
            if name not in keyword:
                return None
            return keyword[name] if nested else function.default(self, "__kwdefaults__", name, keyword[name])
        defaults: Any = function.defaults if nested else function.object.__defaults__ or ()
        position = number - (code.co_argcount - len(defaults))
        if position < 0:
            return None
        return defaults[position] if nested else function.default(self, "__defaults__", position, defaults[position])

    # Classes.

    def call_class(self, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``cls(*args, **kwargs)``."""
        kind: type = cls.object
        handler = registry.of_class(kind)
        if handler is not None:
            return handled(handler, kind, self, args, kwargs)
        if is_namedtuple(kind):
            return self.new_namedtuple(kind, args, kwargs)
        if isinstance(kind, enum.EnumMeta):
            return self.member_of(kind, args, kwargs)
        if typing.is_typeddict(kind):
            return handled(registry.classes[dict], kind, self, args, kwargs)
        if issubclass(kind, torch.autograd.Function):
            made = FunctionInstance(kind)
            owner, init = look_up(self, kind, "__init__")
            if init is torch.autograd.Function.__init__:  # which warns
                self.follow(self.wrap_known(init), [made, *args], kwargs)
            else:
                self.call(bind_attribute(self, made, owner, "__init__", init), args, kwargs)
            return made
        if issubclass(kind, torch.Tensor) and is_plain_subclass(kind):
            return self.instantiate(cls, args, kwargs)
        if issubclass(kind, torch.Tensor) and is_made_here(kind):
            return completed(self, self.instantiate(cls, args, kwargs))
        if issubclass(kind, (torch.Tensor, torch.jit.ScriptModule)):
            raise Unsupported(f"making a {kind.__qualname__} in compiled code")
        if type(kind) not in ORDINARY_METACLASSES:
            method = look_up(self, type(kind), "__call__")[1]
            if isinstance(method, types.FunctionType):
                return self.call(self.wrap_known(method), [cls, *args], kwargs)
            if method is not type.__dict__["__call__"]:
                raise Unsupported(f"the metaclass {type(kind).__name__}")
        return self.instantiate(cls, args, kwargs)

    def member_of(self, kind: enum.EnumMeta, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The member of an enumeration for a value; a class without members is one to derive another from."""
        if not kind.__members__ and (len(args) > 1 or kwargs):
            raise Unsupported("an enumeration made in compiled code")
        return self.fold(kind, args, kwargs)

    def instantiate(self, cls: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``type.__call__(cls, *args, **kwargs)``: what a metaclass does unless it says otherwise."""
        kind: type = cls.object
        made = self.new_instance(cls, kind, args, kwargs).realize()
        if not isinstance(made, Instance) or kind not in made.kind.__mro__:
            return made
        owner, init = look_up(self, kind, "__init__")
        if init is object.__init__ or owner in OF_TORCH:
            if (args or kwargs) and look_up(self, kind, "__new__")[1] is object.__new__:
                raise self.raised(TypeError, f"{kind.__name__}() takes no arguments")
            return made
        self.call(bind_attribute(self, made, owner, "__init__", init), args, kwargs)
        return made

    def new_instance(self, cls: Any, kind: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``cls.__new__(cls, *args, **kwargs)``."""
        raw = look_up(self, kind, "__new__")[1]
        function = raw.__func__ if isinstance(raw, staticmethod) else raw
        if isinstance(function, types.FunctionType) and function.__module__ != "typing":
            return self.call(self.wrap_known(function), [cls, *args], kwargs)
        return self.blank(kind, args)

    def blank(self, kind: type, args: list[Value]) -> Value:
        """A new instance before ``__init__``."""
        made = self._blank(kind, args)
        if isinstance(look_up(self, kind, "__del__")[1], types.FunctionType):
            self.finalized.append((made, self.call_stack.step, self.call_stack.location()))
        return made

    def _blank(self, kind: type, args: list[Value]) -> Value:
        if is_namedtuple(kind):
            return NamedTuple(args[0].unpack(self), kind)
        if issubclass(kind, BaseExceptionGroup):
            return new_group(self, kind, args)
        if issubclass(kind, BaseException):
            return blank_exception(self, kind, args)
        if issubclass(kind, torch.Tensor):
            return self.call_builtin(torch.Tensor.__new__, [self.wrap_known(kind), *args], {})
        base = builtin_base(kind)
        if base is object and _is_made_by_object(kind):
            if kind.__flags__ & _IS_ABSTRACT:
                self.fails(object.__new__, kind)
            return Instance(kind)
        if base is types.SimpleNamespace:
            return Instance(kind)
        payload = self.blank_payload(base, args)
        if payload is not None:
            return Instance(kind, payload=payload)
        raise Unsupported(f"making an instance of {kind.__qualname__}")

    def blank_payload(self, base: type, args: list[Value]) -> Value | None:
        """The container, number or text that a new instance of a class derived from one also is; None for others."""
        if base in _DICTS:
            return Dict({}, base)
        if base is list:
            return List([])
        if base is set:
            return Set.of(self, [])
        if base is frozenset:
            return Set.of_its_own(self, args[0] if args else None)
        if base is collections.deque:
            return Deque([])
        if base is tuple:
            return Tuple(args[0].unpack(self) if args else [])
        return Constant(self.fold(base, args, {}).constant()) if base in (int, float, str, bytes) else None

    def new_namedtuple(self, kind: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not hasattr(kind, "_fields"):
            return NamedTuple(args[0].unpack(self), kind)
        fields = kind._fields
        try:
            kind.__new__(kind, *(None for _ in args), **dict.fromkeys(kwargs))
        except TypeError as error:  # which takes these arguments whatever they are, or refuses them
            raise self.raised_from(error) from None
        bound = {**kind._field_defaults, **dict(zip(fields, args, strict=False)), **kwargs}
        bound = {n: v if isinstance(v, Value) else self.wrap_known(v) for n, v in bound.items()}
        return NamedTuple([bound[n] for n in fields], kind)

    # Builtins.

    def finds_itself(self, function: types.FunctionType) -> None:
        """With a mode for torch's functions, the mode is handed what has the function's name in its module."""
        home, name = home_of(function), function.__name__
        if home is None or not function_modes():
            return
        if is_replaced(function):
            raise Unsupported(f"{name} of {home.__name__}, which was replaced, with a mode for torch's functions")
        if isinstance(home, types.ModuleType):
            self.provenance.item(home.__dict__, name, function)
        else:
            self.provenance.member(home, name, home, function)

    def call_builtin(self, object: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A function written in C."""
        if is_of_torch(object):
            answer = self.overrides.call(object, args, kwargs)
            if answer is not None:
                return answer
            args, kwargs = self.overrides.plain(args, kwargs)
        handler = registry.functions.get(object) if isinstance(object, Hashable) else None
        if handler is not None:
            return handled(handler, object, self, args, kwargs)
        if is_torch_builtin(object):
            return call_torch(self, object, args, kwargs)
        found = self.call_marked(object, args, kwargs)
        if found is None:
            found = self.call_wrapping(object, args, kwargs)
        return self.call_c(object, args, kwargs) if found is None else found

    def call_wrapping(self, object: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """A call of what stands around a function of Python; None where nothing does."""
        if isinstance(object, functools._lru_cache_wrapper):
            return call_remembering(self, object, args, kwargs)
        owner = getattr(object, "__self__", None)
        if isinstance(owner, functools._lru_cache_wrapper) and not args and not kwargs:
            return call_of_cache(self, owner, object.__name__)
        if hasattr(object, "__wrapped__") and isinstance(object.__wrapped__, types.FunctionType):
            return self.call(self.wrap_known(object.__wrapped__), args, kwargs)
        return None

    def call_c(self, object: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A method of a kind of objects, or a function of a module, that is known to be pure."""
        if isinstance(object, _C_METHODS) and hasattr(object, "__objclass__") and args:
            return self.call_descriptor(object, args, kwargs)
        owner = getattr(object, "__self__", None)
        if isinstance(owner, tuple(registry.pure_owners)):
            return self.call_of_owner(owner, object, args, kwargs)
        if isinstance(owner, types.ModuleType) and owner.__name__ in registry.pure_modules:
            return self.fold(object, args, kwargs)
        if isinstance(owner, _FIELDS) and object.__name__ == "__get__" and len(args) in (1, 2) and not kwargs:
            return self.call_getter(owner, args[0].realize())
        name = name_of(object)
        raise Unsupported(f"a call of {getattr(object, '__module__', None) or ''}.{name}, written in C")

    def call_getter(self, field: types.GetSetDescriptorType | types.MemberDescriptorType, value: Value) -> Value:
        """``field.__get__(value)``, which is the attribute where the class of the value leaves it to the field."""
        kind, name, owner = value.type(), field.__name__, field.__objclass__
        if not issubclass(kind, owner):
            reason = f"descriptor {name!r} for {owner.__name__!r} objects doesn't apply to a {kind.__name__!r} object"
            raise self.raised(TypeError, reason)
        asks = isinstance(look_up(self, kind, "__getattribute__")[1], types.FunctionType)
        if asks or look_up(self, kind, name)[1] is not field:
            raise Unsupported(f"the descriptor {owner.__name__}.{name} of {value.describe()}")
        return value.get_attr(self, name)

    def call_of_owner(self, owner: Any, object: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A pure method, bound to a constant or to a class."""
        if isinstance(owner, (str, bytes, frozenset)) and object.__name__ == "__iter__" and not args and not kwargs:
            return self.iterate(self.wrap_known(owner))
        if isinstance(owner, str):
            return self.call_text(object, args, kwargs)
        handler = registry.functions.get(getattr(type(owner), object.__name__, None))
        if handler is not None:
            return handled(handler, object, self, [self.wrap_known(owner), *args], kwargs)
        found = self.call_of_class(owner, object, args, kwargs) if isinstance(owner, type) else None
        return self.fold(object, args, kwargs) if found is None else found

    def call_text(self, object: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """A method of a text."""
        if object.__name__ == "join" and len(args) == 1:
            args = [Tuple(self.listed(args[0].realize(), "can only join an iterable"))]
        if (written := formatted(self, object, args, kwargs)) is not None:
            return written
        write = self.text if object.__name__ in ("format", "format_map") else self.fold
        return write(object, args, kwargs)

    def call_of_class(self, owner: type, object: Any, args: list[Value], kwargs: dict[str, Value]) -> Value | None:
        """A call of a method in C of a class; None for one that is pure.  Raises ``Unsupported`` for others."""
        name = object.__name__
        if owner in _DICTS and name == "fromkeys":
            named = owner is collections.OrderedDict or not kwargs
            if not named or not takes(self.from_keys, len(args) + 1, kwargs):
                raise Unsupported(f"the arguments of {object.__qualname__}()")
            return self.from_keys(owner, *args, **kwargs)
        if name == "__new__" and not kwargs:
            return self.blank(self.class_to_make(owner, object, args), args[1:])
        if name == "__subclasses__" and not args and not kwargs:
            return self.subclasses(owner)
        if owner.__module__ not in ("builtins", "torch", "numpy") and not issubclass(owner, tuple):
            raise Unsupported(f"a call of {object.__qualname__}")
        return None

    def class_to_make(self, owner: type, new: Any, args: list[Value]) -> type:
        """The class of what ``owner.__new__(*args)`` makes; raises what the interpreter raises of others."""
        kind = args[0].constant() if args else None
        if not isinstance(kind, type) or not issubclass(kind, owner):
            self.fails(new, *([kind] if args else []))
        if owner is object:
            if builtin_base(kind).__new__ is not new:
                self.fails(new, kind)
            if args[1:] and (kind.__new__ is not new or kind.__init__ is object.__init__):
                self.fails(new, kind, None)
        return kind

    def subclasses(self, cls: type) -> Value:
        """``cls.__subclasses__()``, assumed to stay the same."""
        found = lookups.subclasses(cls)
        self.guards.take("CALL", BoundSource(cls.__qualname__, cls), (lookups.subclasses, found))
        return self.new_list([self.wrap_known(c) for c in found])

    def call_descriptor(self, object: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``Kind.method(value, ...)`` of a method written in C."""
        value = args[0].realize()
        if isinstance(value, Instance) or (isinstance(value, Known) and object.__objclass__ is type):
            if isinstance(value, Known):
                return self.call(value.get_attr(self, object.__name__), args[1:], kwargs)
            return _call_c_method(value, object.__name__, object, self, *args[1:], **kwargs)
        name = object.__name__
        if name == "__setattr__" and len(args) == 3 and not kwargs:
            value.set_attr(self, self.constant_of(args[1]), args[2])
            return Constant(None)
        if name in ("__getitem__", "__contains__", "__iter__", "__len__") and not kwargs:
            own: dict[str, Callable[..., Value]] = {
                "__getitem__": value.get_item, "__contains__": value.contains, "__iter__": value.iterate
            }  # fmt: skip
            return value.length(self) if name == "__len__" else own[name](self, *args[1:])
        return value.call_method(self, name, args[1:], kwargs)

    def from_keys(self, kind: type, iterable: Value, value: Value | None = None) -> Value:
        """``kind.fromkeys(iterable, value)``, of dict and its kin."""
        made = Dict({}, kind)
        for key in iterable.realize().unpack(self):
            made.set_item(self, key, value or Constant(None))
        return made
