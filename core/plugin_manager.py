"""Finding, registering and validating plugins."""

from __future__ import annotations

import functools
import importlib
import inspect
import reprlib
import sys
import types
from typing import Any

import pluggy

from turret import hookspecs
from turret.config import nearest
from turret.errors import PluginError

BUILTINS: tuple[str, ...] = (
    "turret.contrib.dynamo",
    "turret.plugins.devices.cpu",
    "turret.plugins.devices.cuda",
    "turret.plugins.capture",
    "turret.plugins.joint",
    "turret.plugins.decompositions",
    "turret.plugins.graph_pass",
    "turret.plugins.partition",
    "turret.plugins.place",
    "turret.plugins.lowerings",
    "turret.plugins.schedule",
    "turret.plugins.codegen.cpp",
    "turret.plugins.codegen.triton",
    "turret.plugins.wrap_runtime",
    "turret.logs",
    "turret.debug_folder",
    "turret.progress",
)
"""Built-in plugins, in order of registration; a later registration is asked first."""


class Manager(pluggy.PluginManager):
    """A plugin manager that runs no property of a plugin while it looks for hooks, as pluggy up to 1.6 does."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        found = inspect.getattr_static(plugin, name, None)
        return super().parse_hookimpl_opts(plugin, name) if isinstance(found, _FUNCTIONS) else None


_FUNCTIONS = (types.FunctionType, types.MethodType, staticmethod, classmethod)


def create(extra: tuple[Any, ...] = ()) -> pluggy.PluginManager:
    """A manager with the built-ins, installed entry points (group ``turret.plugins``) and ``extra``.

    ``extra`` holds plugin objects, modules, classes (instantiated), or dotted names; they are asked first, the
    last of them first of all.  Raises ``PluginError`` for what cannot be found or does not fit its hook.
    """
    manager = Manager("turret")
    manager.add_hookspecs(hookspecs)
    for name in BUILTINS:
        _register(manager, importlib.import_module(name), name)
    for plugin, name in _entry_points():
        _register(manager, plugin, name)
    for plugin in extra:
        if isinstance(plugin, str):
            plugin = _import(plugin)
        if isinstance(plugin, type):
            plugin = _made(plugin)
        _register(manager, plugin, _readable_name(manager, plugin))
    return manager


def _readable_name(manager: pluggy.PluginManager, plugin: Any) -> str:
    """Module, or module and class, of a plugin; numbered where it is taken."""
    kind = type(plugin)
    name = plugin.__name__ if isinstance(plugin, types.ModuleType) else f"{kind.__module__}.{kind.__qualname__}"
    number = 2
    unique = name
    while manager.has_plugin(unique):
        unique, number = f"{name} {number}", number + 1
    return unique


@functools.cache
def default_manager() -> pluggy.PluginManager:
    """The manager of callables compiled without plugins of their own."""
    return create()


@functools.cache
def _entry_points() -> tuple[tuple[Any, str], ...]:
    from importlib.metadata import entry_points

    found = []
    for point in entry_points(group="turret.plugins"):
        try:
            found.append((point.load(), point.name))
        except Exception as error:
            raise PluginError(f"the installed plugin {point.name} ({point.value}) does not load: {error}") from error
    return tuple(found)


def _import(name: str) -> Any:
    module, _, attribute = name.replace(":", ".").rpartition(".")
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError):
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise PluginError(
                f"no plugin {name!r}: {error}; give a module or module.object that can be imported"
            ) from error


def _made(kind: type) -> Any:
    try:
        return kind()
    except Exception as error:
        raise PluginError(
            f"a plugin of {kind.__qualname__} cannot be made: {type(error).__name__}: {error}; give an instance"
        ) from error


def _register(manager: pluggy.PluginManager, plugin: Any, name: str) -> None:
    if not any(manager.parse_hookimpl_opts(plugin, attribute) for attribute in dir(plugin)):
        raise PluginError(
            f"plugin {reprlib.repr(plugin)} (of type {type(plugin).__qualname__}) implements no hook; expected an "
            "object or module with functions marked by turret.hookimpl, or its dotted name"
        )
    if manager.is_registered(plugin):
        raise PluginError(f"plugin {manager.get_name(plugin)!r} is given twice; leave one of the two out")
    try:
        manager.register(plugin, name)
    except pluggy.PluginValidationError as error:
        raise PluginError(f"plugin {name!r} does not fit its hook: {error}") from error
    except ValueError as error:
        raise PluginError(f"plugin {name!r} has the name of another; give it a name of its own") from error
    known = {n for n in dir(hookspecs) if n.startswith("turret_")}
    for attribute in dir(plugin):
        unknown = attribute.startswith("turret_") and attribute not in known
        if unknown and manager.parse_hookimpl_opts(plugin, attribute) is not None:
            raise PluginError(f"plugin {name!r} implements {attribute}, no such hook{nearest(attribute, known)}")


def plugin_of(manager: pluggy.PluginManager, hook: str, traceback: Any) -> str:
    """Name of the plugin at fault where calling ``hook`` failed, for error messages: those that implement it, at least.

    A plugin's hook may call smaller ones (a partitioner asks for costs): then the fault is that of the innermost.
    """
    implementations = getattr(manager.hook, hook).get_hookimpls()
    fault = plugin_at_fault(manager.hook, traceback)
    return fault or ", ".join(impl.plugin_name for impl in implementations) or "none registered"


def plugin_at_fault(hooks: Any, traceback: Any) -> str:
    """Name of the plugin with the innermost implementation, of any of ``hooks``, that a traceback passed through."""
    codes = {
        impl.function.__code__: impl.plugin_name
        for caller in vars(hooks).values()
        if isinstance(caller, pluggy.HookCaller)
        for impl in caller.get_hookimpls()
        if hasattr(impl.function, "__code__")
    }
    found = ""
    while traceback is not None:
        found = codes.get(traceback.tb_frame.f_code, found)
        traceback = traceback.tb_next
    return found


def describe(manager: pluggy.PluginManager) -> list[tuple[str, list[tuple[str, str]]]]:
    """Hooks with their implementations in calling order: ``(hook, [(plugin, file)])``."""
    table = []
    for name in [n for n in vars(hookspecs) if n.startswith("turret_")]:
        implementations = reversed(getattr(manager.hook, name).get_hookimpls())
        rows = []
        for impl in implementations:
            module = sys.modules.get(impl.function.__module__)
            rows.append((impl.plugin_name, getattr(module, "__file__", None) or "?"))
        table.append((name, rows))
    return table
