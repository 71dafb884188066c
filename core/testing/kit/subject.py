"""What is under test: a way to compile functions, the device that their inputs are on, and what came of them."""

from __future__ import annotations

import collections
import importlib
import inspect
import operator
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from turret.errors import PluginError
from turret.hooks.devices import HOST
from turret.hooks.events import Event
from turret.hooks.hookspecs import hookimpl
from turret.hooks.plugin_manager import Manager, default_manager

Compiler = Callable[[Callable], Callable]
"""A system under test: takes a function, returns one that must behave the same."""


BUILT_IN = "turret"
"""What stands for no plugin: the built-in stages are under test."""


class Observer:
    """A plugin that notes what graphs became, kernels, library calls or calls of eager's, and why all ran eagerly."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was seen."""
        self.graphs = self.kernels = self.taken = 0
        self.externs: collections.Counter[str] = collections.Counter()
        self.eager_calls: dict[str, str] = {}
        self.fallbacks: list[str] = []
        self.breaks: list[str] = []
        self.stage = ""

    @hookimpl
    def turret_event(self, event: Event) -> None:
        if event.kind == "compile_started":
            self.graphs += 1
        elif event.kind == "stage_started":
            self.stage = event.stage
        elif event.kind == "fallback":
            self.fallbacks.append(event.message)
        elif event.kind == "graph_break":
            self.breaks.append(event.message)
        elif event.kind == "product" and event.stage == "place":
            eager = {name: node.reason for name, node in event.product.nodes.items() if node.where == "eager"}
            self.eager_calls.update(eager)
        elif event.kind == "product" and event.stage == "compile_graph":
            self.taken += 1
        elif event.kind == "product" and event.stage == "schedule":
            self.kernels += len(event.product.kernels)
            self.externs.update(str(extern.op) for extern in event.product.externs)

    @property
    def made(self) -> str:
        """``"kernels"``, ``"library"`` (calls of the device's libraries), ``"both"``, ``"eager"``, or ``"views"``.

        ``"compiler"``: graphs or clusters that a compiler of others took (``turret_compile_graph``).
        """
        library = sum(self.externs.values()) - len(self.eager_calls)
        if self.kernels:
            return "both" if self.externs or self.taken else "kernels"
        if self.taken:
            return "compiler"
        if self.externs:
            return "library" if library > 0 else "eager"
        return "views" if self.graphs else "eager"

    @property
    def why_eager(self) -> str:
        """Why all of it ran eagerly, or an empty string."""
        if self.fallbacks:
            return self.fallbacks[0]
        if self.made == "eager":
            reasons = dict.fromkeys(f"{name}: {reason}" for name, reason in self.eager_calls.items())
            return "; ".join([*reasons, *self.breaks[:1]]) or "nothing was captured"
        return ""


@attrs.define(eq=False)
class Subject:
    """Plugins of Turret's, or any other compiler, on a device.

    ``plugins``: names as ``module:object`` (a plugin, or a class or function that makes one), or plugin objects;
    ``"turret"`` for the built-in stages alone.
    ``compiler``, where given, is what is under test, and neither plugins nor options matter.  ``options`` are those of
    ``turret.compile``.
    """

    plugins: Sequence[Any] = ()
    device: str = HOST.type
    options: Mapping[str, Any] = attrs.field(factory=dict)
    compiler: Compiler | None = None
    observer: Observer = attrs.field(factory=Observer, init=False)
    made: tuple[Any, ...] = attrs.field(default=(), init=False)
    """The plugins as objects."""

    def __attrs_post_init__(self) -> None:
        self.made = tuple(plugin_of(given) for given in self.plugins if given != BUILT_IN)

    def __str__(self) -> str:
        if self.compiler is not None:
            return f"{_name_of(self.compiler) or repr(self.compiler)} on {self.device}"
        names = [given if isinstance(given, str) else type(given).__qualname__ for given in self.plugins]
        return f"{', '.join(names) or 'Turret'} on {self.device}"

    @property
    def is_turret(self) -> bool:
        """Whether what is under test is Turret with plugins."""
        return self.compiler is None

    @property
    def to_give(self) -> list[Any]:
        """The plugins that are to be given to a compilation: installed ones take part by themselves."""
        return not_installed(self.made)

    def implements(self, hook: str) -> bool:
        """Whether one of the plugins implements a hook."""
        return any(hook in hooks_of(plugin) for plugin in self.made)

    def compile(self, function: Callable, **options: Any) -> Callable:
        """``function`` compiled, where what fails raises; ``options`` come on top."""
        if self.compiler is not None:
            return self.compiler(function)
        import turret

        chosen = {"on_error": "raise", "cache": False, **self.options, **options}
        return turret.compile(function, plugins=[*self.to_give, self.observer], options=chosen)

    def reset(self) -> None:
        """Forget what was compiled."""
        if self.is_turret:
            import turret

            turret.reset()
        elif "torch._dynamo" in sys.modules:
            torch.compiler.reset()

    def source(self) -> str:
        """A line of Python that makes this subject, named ``subject``."""
        device = f", device={self.device!r}" if self.device != HOST.type else ""
        if self.compiler is not None:
            return f"subject = Subject(compiler=object_of({_name_of(self.compiler)!r}){device})"
        names = [given if isinstance(given, str) else _name_of(type(given)) for given in self.plugins]
        options = f", options={dict(self.options)!r}" if self.options else ""
        return f"subject = Subject({names!r}{device}{options})"

    def folders(self) -> list[str]:
        """Folders that modules of the plugins come from and that a new process would not find by itself."""
        subject = self.made if self.compiler is None else (self.compiler,)
        names = [getattr(p, "__module__", None) or type(p).__module__ for p in subject]
        names += [given.replace(":", ".") for given in self.plugins if isinstance(given, str)]
        installed = {Path(path) for path in sysconfig.get_paths().values()}
        found: dict[str, None] = {}
        for name in names:
            if name.partition(".")[0] in ("turret", "__main__"):
                continue
            folder = _import_folder(name)
            if folder and not any(folder == path or path in folder.parents for path in installed):
                found[str(folder)] = None
        return list(found)


def _import_folder(name: str) -> Path | None:
    """The folder that the import path needs for ``name``: that above the outermost of its packages that has a file.

    A package without ``__init__.py`` has none, and what is in it is asked."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        file = getattr(sys.modules.get(".".join(parts[:depth])), "__file__", None)
        if file is not None:
            return Path(file).parents[depth if Path(file).name == "__init__.py" else depth - 1]
    return None


def not_installed(plugins: Sequence[Any]) -> list[Any]:
    """Plugins but for those that an installed entry point brings."""
    return [plugin for plugin in plugins if not default_manager().is_registered(plugin)]


def hooks_of(plugin: Any) -> list[str]:
    """Names of the hooks that a plugin implements."""
    manager = Manager("turret")
    names = (name for name in dir(plugin) if name.startswith("turret_"))
    return [name for name in names if manager.parse_hookimpl_opts(plugin, name) is not None]


def object_of(name: str) -> Any:
    """The object that ``module:object`` (or ``module.object``) names; ``PluginError`` where there is none."""
    module, colon, attribute = name.partition(":")
    if not colon:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            module, _, attribute = name.rpartition(".")
    try:
        found: Any = operator.attrgetter(attribute)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise PluginError(
            f"no plugin {name!r}: {error}; give module:object, where the module can be imported"
        ) from error
    return found


def plugin_of(given: Any) -> Any:
    """A plugin as an object: itself, or what its name, class or function makes."""
    found = object_of(given) if isinstance(given, str) else given
    if isinstance(found, type) or (inspect.isfunction(found) and not hasattr(found, "turret_impl")):
        return found()
    return found


def _name_of(value: Any) -> str:
    """``module:object`` of something that can be imported, else its name with a word on what to do."""
    module, name = getattr(value, "__module__", ""), getattr(value, "__qualname__", type(value).__qualname__)
    if module in ("", "__main__") or "<" in name:
        return f"put here the name of {name}, as module:object"
    return f"{module}:{name}"
