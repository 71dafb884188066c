"""Finding, registering and validating plugins."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import reprlib
import sys
import types
from collections.abc import Mapping
from typing import Any

import attrs
import pluggy

from turret.errors import OptionError, PluginError
from turret.hooks import hookspecs
from turret.hooks.config import CALLABLE_OPTIONS, CORE, Config, Option, nearest, resolve
from turret.hooks.registration.blame import blamed, blaming, claimant
from turret.hooks.registration.covered_ops import register_namespaces
from turret.hooks.registration.plugin_order import arrange, in_order

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
    "turret.plugins.cudagraphs",
    "turret.plugins.observers.logs",
    "turret.plugins.observers.debug_folder",
    "turret.plugins.observers.progress",
)
"""Built-in plugins, in order of registration; a later registration is asked first."""


class Manager(pluggy.PluginManager):
    """A plugin manager that runs no property of a plugin while it looks for hooks, as pluggy up to 1.6 does.

    ``options`` are core's and those that its plugins declare, by name.  ``given``: the objects that were given beside
    built-in and installed plugins, where these are all that tells it from other managers; else nothing.
    """

    options: Mapping[str, Option] = CORE
    given: tuple[Any, ...] = ()

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if name in _OF_ANY_OBJECT:
            return None
        if isinstance(plugin, types.ModuleType):  # Looking names up as for an object took 20 ms a manager.
            found = vars(plugin).get(name)
        else:
            found = inspect.getattr_static(plugin, name, None)
        if not isinstance(found, _FUNCTIONS) or not hasattr(getattr(found, "__func__", found), _MARK):
            return None
        return super().parse_hookimpl_opts(plugin, name)

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        return super().parse_hookspec_opts(module_or_class, name) if name.startswith("turret_") else None


_HOOKS = frozenset(name for name in vars(hookspecs) if name.startswith("turret_"))
_FUNCTIONS = (types.FunctionType, types.MethodType, staticmethod, classmethod)
_OF_ANY_OBJECT = frozenset({*dir(type("", (), {})), *dir(types.ModuleType)})
"""No hooks, and most of the names that an object of one hook has."""
_MARK = "turret_impl"
"""The attribute by which pluggy's markers tell functions that implement hooks of the project ``turret``."""


def create(extra: tuple[Any, ...] = ()) -> Manager:
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
    if not any(isinstance(plugin, (str, type)) for plugin in extra):
        manager.given = extra
    arrange(manager)
    register_namespaces(manager)
    manager.options = _declared_options(manager)
    return manager


def configure(
    manager: pluggy.PluginManager, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Config:
    """The configuration of a compilation with these plugins: the environment's, then the mode's, then ``options``."""
    return resolve(mode, options, getattr(manager, "options", CORE))


def _declared_options(manager: pluggy.PluginManager) -> dict[str, Option]:
    """Core's options and those of the plugins, in order of registration; ``PluginError`` for what does not fit."""
    declared = dict(CORE)
    for impl in manager.hook.turret_options.get_hookimpls():
        name = impl.plugin_name
        try:
            given: Any = impl.function()
            options = tuple(given or ())
        except Exception as error:
            raise PluginError(
                f"plugin {name!r} fails to declare its options: {type(error).__name__}: {error}"
            ) from error
        for option in options:
            if not isinstance(option, Option):
                raise PluginError(f"plugin {name!r} declares {option!r}; expected options as turret.Option")
            if option.name in declared:
                owner = declared[option.name].plugin or "Turret itself"
                raise PluginError(f"plugin {name!r} declares the option {option.name!r}, which is one of {owner}")
            declared[option.name] = _owned(option, name)
    return declared


def _owned(option: Option, plugin: str) -> Option:
    """An option with the plugin that declares it; ``PluginError`` where it cannot be one."""
    name = option.name
    if not isinstance(name, str) or not name.isidentifier() or name != name.lower() or name.startswith("_"):
        raise PluginError(f"plugin {plugin!r} declares the option {name!r}; expected a lower-case identifier")
    if name in CALLABLE_OPTIONS or hasattr(Config, name):
        raise PluginError(f"plugin {plugin!r} declares the option {name!r}, a name that Turret has taken")
    try:
        return attrs.evolve(option, plugin=plugin, default=option.checked(option.default))
    except OptionError as error:
        raise PluginError(f"plugin {plugin!r} declares a default that its option does not take: {error}") from error


def _readable_name(manager: pluggy.PluginManager, plugin: Any) -> str:
    """What a plugin calls itself (``plugin_name``), its module, or module and class; numbered where it is taken."""
    kind = type(plugin)
    name = plugin.__name__ if isinstance(plugin, types.ModuleType) else f"{kind.__module__}.{kind.__qualname__}"
    name = getattr(plugin, "plugin_name", "") or name
    number = 2
    unique = name
    while manager.has_plugin(unique):
        unique, number = f"{name} {number}", number + 1
    return unique


@functools.cache
def default_manager() -> Manager:
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
    for attribute in dir(plugin):
        unknown = attribute.startswith("turret_") and attribute not in _HOOKS
        if unknown and manager.parse_hookimpl_opts(plugin, attribute) is not None:
            raise PluginError(f"plugin {name!r} implements {attribute}, no such hook{nearest(attribute, _HOOKS)}")


def is_foreign(manager: pluggy.PluginManager, hook: str) -> bool:
    """Whether a plugin that is not built in implements a hook."""
    return any(impl.plugin_name not in BUILTINS for impl in getattr(manager.hook, hook).get_hookimpls())


def first_result(manager: pluggy.PluginManager, hook: str, arguments: Mapping[str, Any]) -> tuple[Any, str]:
    """What the first plugin that takes a first-result hook returns, and its name; None where nobody does.

    Where plugins wrap the hook, the name is that of all of them: each may have put its own in the place of another's.
    """
    implementations = getattr(manager.hook, hook).get_hookimpls()
    wrappers = [impl.plugin_name for impl in implementations if impl.wrapper or impl.hookwrapper]
    if wrappers:
        return getattr(manager.hook, hook)(**arguments), ", ".join(impl.plugin_name for impl in implementations)
    for impl in reversed(implementations):
        result = impl.function(*(arguments[name] for name in impl.argnames))
        if result is not None:
            return result, impl.plugin_name
    return None, ", ".join(impl.plugin_name for impl in implementations) or "none registered"


def all_results(manager: pluggy.PluginManager, hook: str, arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What each plugin returns for a merged hook, with its name, in the order asked; None is left out.

    Where plugins wrap the hook, everything is in their names: each may have changed it.
    """
    implementations = in_order(manager, hook)
    wrappers = [impl.plugin_name for impl in implementations if impl.wrapper or impl.hookwrapper]
    if wrappers:
        return [(", ".join(wrappers), result) for result in getattr(manager.hook, hook)(**arguments)]
    found = []
    for impl in implementations:
        with blaming(impl.plugin_name):
            result = impl.function(*(arguments[name] for name in impl.argnames))
        if result is not None:
            found.append((impl.plugin_name, result))
    return found


def plugin_of(manager: pluggy.PluginManager, hook: str, error: BaseException) -> str:
    """Name of the plugin at fault where calling ``hook`` failed, for error messages: those that implement it, at least.

    A plugin's hook may call smaller ones (a partitioner asks for costs): then the fault is that of the innermost.
    """
    implementations = getattr(manager.hook, hook).get_hookimpls()
    fault = plugin_at_fault(manager.hook, error)
    return fault or ", ".join(impl.plugin_name for impl in implementations) or "none registered"


def plugin_at_fault(hooks: Any, error: BaseException) -> str:
    """Name of the plugin that an error is marked with, else of the innermost one that its traceback passed through.

    That is known by the implementations of ``hooks``, by objects that plugins gave (devices), and of built-in plugins
    by their files.
    """
    if marked := blamed(error):
        return marked
    codes = {
        impl.function.__code__: impl.plugin_name
        for caller in vars(hooks).values()
        if isinstance(caller, pluggy.HookCaller)
        for impl in caller.get_hookimpls()
        if hasattr(impl.function, "__code__")
    }
    found, traceback = "", error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        named = codes.get(frame.f_code) or claimant(_receiver(frame))
        found = named or _builtin_of(frame.f_code.co_filename) or found
        traceback = traceback.tb_next
    return found


def _receiver(frame: types.FrameType) -> Any:
    """The ``self`` of a frame, or None.

    Up to Python 3.12 what ``f_locals`` gives is a copy that the frame keeps: of one that handles an error, with it, so
    that both, and all that the frames of the error hold, would live until the next collection of cycles.
    """
    if "self" not in frame.f_code.co_varnames:
        return None
    shown = frame.f_locals
    found = shown.get("self")
    if isinstance(shown, dict):
        shown.clear()
    return found


def _builtin_of(file: str) -> str:
    """The built-in stage that a source file is of, or nothing."""
    for name in BUILTINS:
        module = sys.modules.get(name)
        inside = any(file.startswith(os.path.join(folder, "")) for folder in getattr(module, "__path__", ()))
        if name.startswith("turret.plugins.") and (inside or file == getattr(module, "__file__", None)):
            return name
    return ""


def describe(manager: pluggy.PluginManager) -> list[tuple[str, list[tuple[str, str]]]]:
    """Hooks with their implementations in the order that they are asked, or run, in: ``(hook, [(plugin, file)])``."""
    table = []
    for name in [n for n in vars(hookspecs) if n.startswith("turret_")]:
        rows = []
        for impl in in_order(manager, name):
            module = sys.modules.get(impl.function.__module__)
            rows.append((impl.plugin_name, getattr(module, "__file__", None) or "?"))
        table.append((name, rows))
    return table
