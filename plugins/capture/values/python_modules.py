"""Modules of Python code (``types.ModuleType``), whose class may compute attributes."""

from __future__ import annotations

import types
from typing import Any

from turret.frames.class_members import class_member, find_in_mro
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.values.base import Tracer, Value
from turret.plugins.capture.values.classes import bind_attribute, look_up
from turret.plugins.capture.values.functions import Known


class PythonModule(Known):
    """A module of Python code."""

    def get_attr(self, t: Tracer, name: str) -> Value:
        owner, raw = self._computed(t, name)
        if owner is not None:
            return bind_attribute(t, self, owner, name, raw)
        scope = vars(self.object)
        stored = t.effects.global_value(scope, name)
        if stored is not None:
            return stored
        return self.child(t, name, self.found(t, name))

    def set_attr(self, t: Tracer, name: str, value: Value) -> None:
        owner, raw = self._computed(t, name)
        if owner is not None:
            self._set_computed(t, owner, name, raw, value)
            return
        if look_up(t, type(self.object), "__setattr__")[1] is not types.ModuleType.__setattr__:
            raise Unsupported(f"setting {name!r} of {self.describe()}, whose class has a __setattr__")
        t.effects.set_global(vars(self.object), name, value)

    def _set_computed(self, t: Tracer, owner: type, name: str, raw: Any, value: Value) -> None:
        if isinstance(raw, property):
            if raw.fset is None:
                raise t.raised(AttributeError, f"property {name!r} of {owner.__name__!r} object has no setter")
            t.call(t.wrap_known(raw.fset), [self, value], {})
            return
        if not isinstance(look_up(t, type(raw), "__set__")[1], types.FunctionType):
            raise Unsupported(f"setting {name!r} of {self.describe()}")
        t.call(t.wrap_known(raw).get_attr(t, "__set__"), [self, value], {})

    def _computed(self, t: Tracer, name: str) -> tuple[Any, Any]:
        """What the module's class computes an attribute with, and which class has that; else None for both."""
        kind = type(self.object)
        if kind is types.ModuleType or not hasattr(type(find_in_mro(kind, name)[1]), "__set__"):
            return None, None
        owner = look_up(t, kind, name)[0]
        if owner is types.ModuleType or owner is object:
            return None, None
        return owner, t.provenance.make(class_member, owner, name)
