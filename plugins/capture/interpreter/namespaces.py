"""Names that a frame looks up outside of itself: globals, builtins, modules that it imports."""

from __future__ import annotations

import sys
import types
from typing import Any

from turret.frames.sources import ItemSource, Source
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.facts.fingerprints import TRUSTED_ROOTS
from turret.plugins.capture.interpreter.frame import Frame
from turret.plugins.capture.interpreter.wrap import UNGUARDED_TYPES
from turret.plugins.capture.values.base import Constant, Lazy, Tracer, Value
from turret.plugins.capture.values.functions import Known


class Namespaces:
    """The namespaces that one capture reads."""

    def __init__(self, t: Tracer) -> None:
        self.t = t

    def variable(self, frame: Frame, name: str) -> Value:
        """``LOAD_GLOBAL``: what the frame set, a global, or a builtin; raises NameError in the program."""
        t, scope = self.t, frame.scope
        stored = t.effects.global_value(scope, name)
        if stored is not None:
            return stored
        if name in scope and not t.effects.global_deleted(scope, name):
            return self.member(scope, frame.scope_source, name)
        if name in frame.builtins:
            if _is_trusted(scope):
                t.provenance.lacks(scope, name)
            else:
                t.guards.take("NO_KEY", frame.scope_source, name)
            t.provenance.item(frame.builtins, name, frame.builtins[name])
            return t.wrap_known(frame.builtins[name])
        raise t.raised(NameError, f"name {name!r} is not defined", name=Constant(name))

    def member(self, scope: dict[str, Any], source: Source, name: str) -> Value:
        """A global of a namespace; functions, classes and modules of packages that nobody patches need no guard."""
        found = scope[name]
        if _is_trusted(scope) and isinstance(found, UNGUARDED_TYPES):
            self.t.provenance.item(scope, name, found)
            return self.t.wrap_known(found)
        return Lazy(self.t, found, ItemSource(source, name))

    def import_module(self, frame: Frame, name: str, names: tuple[str, ...] | None, level: int) -> Value:
        """``import`` of a module that is loaded already; raises ``Unsupported`` for another."""
        if level:
            package = frame.scope.get("__package__") or frame.scope["__name__"].rpartition(".")[0]
            base = package.rsplit(".", level - 1)[0] if level > 1 else package
            name = f"{base}.{name}" if name else base
        if sys.modules.get(name) is None:
            raise Unsupported(f"the import of {name}, which is not loaded yet", "import it at the top of the file")
        found = name if names or level else name.partition(".")[0]
        for loaded in {name, found}:
            self.t.provenance.item(sys.modules, loaded, sys.modules[loaded])
        return self.t.wrap_known(sys.modules[found])

    def import_from(self, module: Value, name: str) -> Value:
        """``from module import name``; raises ImportError in the program."""
        t = self.t
        assert isinstance(module, Known)
        try:
            return module.get_attr(t, name).realize()
        except Raised as raised:
            if not issubclass(raised.value.type(), AttributeError):
                raise
        if (found := sys.modules.get(f"{module.object.__name__}.{name}")) is not None:
            return t.wrap_known(found)
        return t.fold(_import_from, [module, Constant(name)], {})  # raises


def _import_from(module: types.ModuleType, name: str) -> Any:
    """``from module import name``."""
    given = {"__import__": lambda *_: module}
    exec(f"from module import {name}", {"__builtins__": given})


def _is_trusted(scope: dict[str, Any]) -> bool:
    return str(scope.get("__name__", "")).partition(".")[0] in TRUSTED_ROOTS
