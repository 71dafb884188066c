"""Modules (``nn.Module``): state in dicts of their own, calls that go through hooks."""

from __future__ import annotations

import types
from typing import Any

import torch
import torch.nn.modules.lazy
from torch import nn
from torch.nn.modules import module as module_code

from turret.frames.sources import AttrSource, BoundSource, ItemSource, Source, WeakSource
from turret.plugins.capture.errors import NotConstant, Postponed, Unsupported
from turret.plugins.capture.values.base import Rebuilder, Tracer, Value
from turret.plugins.capture.values.classes import bind_attribute, look_up
from turret.plugins.capture.values.mappings import Dict
from turret.plugins.capture.values.number_texts import NumberText
from turret.plugins.capture.values.objects import DELETED, MODULE_GETATTR, Instance
from turret.plugins.capture.values.tensors import Tensor

STATE = ("_parameters", "_buffers", "_modules")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip
_CALL, _CALL_IMPL = nn.Module.__call__, nn.Module._call_impl
CODE_OF_CALL = _CALL_IMPL.__code__
"""Of what calls a module's forward and hooks."""
_SETATTR = nn.Module.__setattr__
"""What modules do by torch's own code; a program may put something else in their place."""


class Module(Instance):
    """An ``nn.Module``, known by identity."""

    object: nn.Module
    source: Source

    def constant(self) -> Any:
        if self.mutated:
            raise NotConstant(self)
        return self.object

    def is_constant(self) -> bool:
        return False

    def key(self, t: Tracer) -> Any:
        t.identity_keys.note(self)
        return self.object

    def fallback_attr(self, t: Tracer, name: str) -> Value:
        """Parameters, buffers and submodules, which ``nn.Module.__getattr__`` finds."""
        if look_up(t, self.kind, "__getattr__")[1] is not MODULE_GETATTR:
            return super().fallback_attr(t, name)
        found = self.state(t, name)
        if found is not None:
            return found
        if name not in vars(self.object):
            self.assume_absent(t, name)
        for part in STATE:
            held = vars(self.object).get(part)
            if part not in self.stores and id(held) not in t.objects and isinstance(held, dict):
                t.guards.take("NO_KEY", AttrSource(self.source, part), name)
        raise t.raised(AttributeError, f"{self.kind.__name__!r} object has no attribute {name!r}")

    def state(self, t: Tracer, name: str) -> Value | None:
        """A parameter, buffer or submodule, or None."""
        own = vars(self.object)
        for part in STATE:
            wrapped = self.stores.get(part)
            held = own.get(part)
            if wrapped is not None or id(held) in t.objects:
                t.blocks.refuse(f"{part} of {self.describe()} as a dict")
                holder: Any = wrapped or t.objects[id(held)]
                found = holder.find(t, t.wrap_known(name))
                if found is not None:
                    return found
            elif held is not None and name in held:
                return t.wrap(held[name], ItemSource(AttrSource(self.source, part), name))
            elif held is not None and not isinstance(held, dict):
                raise Unsupported(f"{part} of {self.describe()}")
        return None

    def get_attr(self, t: Tracer, name: str) -> Value:
        known = name in self.stores or name in vars(self.object) or look_up(t, self.kind, name)[0] is not None
        if known or look_up(t, self.kind, "__getattr__")[1] is not MODULE_GETATTR:
            return super().get_attr(t, name)
        if isinstance(look_up(t, self.kind, "__getattribute__")[1], types.FunctionType):
            return super().get_attr(t, name)
        return self.fallback_attr(t, name)

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        owner, setter = look_up(t, self.kind, "__setattr__")
        if setter is not _SETATTR:
            t.call(bind_attribute(t, self, owner, "__setattr__", setter), [t.wrap_known(name), value], {})
            return
        self.module_setattr(t, name, value if isinstance(value, NumberText) else value.realize())

    def module_setattr(self, t: Tracer, name: str, value: Value) -> None:
        """``nn.Module.__setattr__``, which is followed where what it decides on is a parameter, buffer or submodule."""
        if is_module(value) or isinstance(value, Tensor) or self.state(t, name) is not None:
            t.follow(t.wrap_known(nn.Module.__setattr__), [self, t.wrap_known(name), value], {})
            return
        for part in STATE:
            held = vars(self.object).get(part)
            if part not in self.stores and id(held) not in t.objects:
                t.guards.take("NO_KEY", AttrSource(self.source, part), name)
        self.store(t, name, value)

    def hooks_in_use(self, t: Tracer) -> bool:
        """Whether a call has to go through hooks; assumes that it does not, where it does not."""
        own = vars(self.object)
        if isinstance(self.object, nn.modules.lazy.LazyModuleMixin) and "_initialize_hook" in own:
            raise Postponed(f"{self.kind.__qualname__} makes its parameters at its first call")
        hooks = [*(getattr(module_code, name) for name in _GLOBAL_HOOKS), *(own.get(name) for name in _HOOKS)]
        if any(hooks) or any(n in self.stores for n in _HOOKS):
            return True
        if any(isinstance(held := t.objects.get(id(found)), Dict) and held.items for found in hooks):
            return True  # compiled code added some
        for name in _HOOKS:
            t.guards.take("KEYS", AttrSource(self.source, name), ())
        t.guards.assume_no_global_hooks(module_code, _GLOBAL_HOOKS)
        return False

    def is_called_plainly(self, t: Tracer) -> bool:
        """Whether torch's own code lies between a call of the module and its ``forward``."""
        return look_up(t, self.kind, "_call_impl")[1] is _CALL_IMPL

    def call(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        owner, method = look_up(t, self.kind, "__call__")
        if method is not _CALL or not self.is_called_plainly(t):
            if isinstance(method, types.FunctionType):
                return t.call(bind_attribute(t, self, owner, "__call__", method), args, kwargs)
            raise Unsupported(f"the call of {self.describe()}")
        if isinstance(self.object, torch.jit.ScriptModule):
            raise Unsupported("a scripted module")
        compiled = vars(self.object).get("_compiled_call_impl")
        if compiled is not None and not hasattr(compiled, "_torchdynamo_inline"):  # torch's becomes a part of the graph
            raise Unsupported("a module that was compiled in place")
        if self.hooks_in_use(t):
            return t.call(self.get_attr(t, "_call_impl"), args, kwargs)
        return self.forward(t, args, kwargs)

    def forward(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """``module.forward(*args, **kwargs)``."""
        return t.blocks.call_module(self, args, kwargs)

    def rebuild(self, r: Rebuilder) -> str:
        return r.constant(self.object)

    def write_stores(self, r: Rebuilder, name: str, line: Any) -> None:
        for attribute, value in self.stores.items():
            if value is DELETED:
                line(f"{r.constant(object)}.__delattr__({name}, {attribute!r})")
            else:
                line(f"{r.constant(object)}.__setattr__({name}, {attribute!r}, {r.load(value)})")


class LocalModule(Module):
    """A module of which another one may be there on the next call: known by its class, and by what it holds."""

    def __init__(self, t: Tracer, object: nn.Module, source: Source) -> None:
        super().__init__(type(object), object, source)
        self.t, self.is_pinned = t, False
        t.guards.take("TYPE", source, type(object))

    def constant(self) -> Any:
        """The module, assumed to be the same one on every call."""
        found = super().constant()
        self.pin()
        return found

    def pin(self) -> None:
        """Guard that the module is the same one."""
        if not self.is_pinned:
            self.is_pinned = True
            held = WeakSource(str(self.source), self.object)
            self.t.guards.take("IS", self.source, others=(held,))

    def forward(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call(self.get_attr(t, "forward"), args, kwargs)


def is_module(value: Value) -> bool:
    """Whether a value is a module: one that existed before, or one made in compiled code."""
    return isinstance(value, Instance) and issubclass(value.kind, nn.Module)


def is_module_call(function: Any) -> bool:
    """Whether a function is what calling a module runs."""
    return function is _CALL or function is _CALL_IMPL


def bound(module: nn.Module) -> BoundSource:
    return BoundSource(type(module).__qualname__, module)
