"""The order in which plugins are asked: by registration, moved by ``tryfirst``, ``trylast``, ``before=``, ``after=``.

Of a hook that is asked for a result, or whose tables are merged, the one that was registered last is asked first: yours
come before the built-ins.  Hooks that hand something from one plugin to the next (``IN_TURN``) run in order of
registration: yours see what the built-ins made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pluggy

from turret.errors import PluginError
from turret.hooks.config import nearest

IN_TURN = frozenset({"turret_graph_pass", "turret_ir_pass", "turret_wrap_runtime"})
"""Hooks whose plugins run one after the other, each on what the one before left."""

_marker = pluggy.HookimplMarker("turret")
_ORDER = "turret_order"


def hookimpl(
    function: Callable[..., Any] | None = None,
    *,
    before: str | Iterable[str] = (),
    after: str | Iterable[str] = (),
    **options: Any,
) -> Any:
    """Mark a function of a plugin as the implementation of the hook of the same name.

    ``tryfirst`` and ``trylast`` move it to either end of the plugins of its hook; ``before`` and ``after`` name
    plugins (as ``turret plugins`` lists them) that it is asked, or runs, before or after.  ``wrapper=True`` makes it a
    generator around whoever answers a hook.
    """

    order = _names(before), _names(after)

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        marked = _marker(function, **options)
        setattr(marked, _ORDER, order)
        return marked

    return mark if function is None else mark(function)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) for name in names):
        raise PluginError(f"before= and after= take names of plugins; given {given!r}")
    return names


def arrange(manager: pluggy.PluginManager) -> None:
    """Put the plugins of every hook in the order that they ask for; ``PluginError`` where there is none."""
    for caller in list(vars(manager.hook).values()):
        implementations = caller.get_hookimpls()
        wrappers = [impl for impl in implementations if impl.wrapper or impl.hookwrapper]
        if wrappers and caller.name in IN_TURN:
            raise PluginError(
                f"plugin {wrappers[0].plugin_name!r} wraps {caller.name}, whose plugins run one after the other; give "
                "it no wrapper=True, and an order (tryfirst, trylast, before=, after=)"
            )
        if any(any(_order_of(impl)) for impl in implementations):
            plain = [impl for impl in implementations if impl not in wrappers]
            known = {name for name, _ in manager.list_name_plugin()}
            arranged = [_sorted(_usual(caller.name, group), known) for group in (plain, wrappers)]
            if caller.name not in IN_TURN:
                arranged = [group[::-1] for group in arranged]
            # pluggy asks from the end of this list, and has no other way to an order.
            caller._hookimpls[:] = [impl for group in arranged for impl in group]


def in_order(manager: pluggy.PluginManager, hook: str) -> list[Any]:
    """The implementations of a hook as they are asked, or run, one after the other."""
    implementations: list[Any] = getattr(manager.hook, hook).get_hookimpls()
    if hook in IN_TURN and any(any(_order_of(impl)) for impl in implementations):
        return implementations  # as ``arrange`` left them
    return _usual(hook, implementations)


def _usual(hook: str, implementations: list[Any]) -> list[Any]:
    """By registration, ``tryfirst`` and ``trylast``; pluggy's list has those that it asks last at the front."""
    if hook not in IN_TURN:
        return implementations[::-1]
    first = [impl for impl in implementations if impl.tryfirst]
    last = [impl for impl in implementations if impl.trylast]
    return [*first, *(i for i in implementations if not (i.tryfirst or i.trylast)), *reversed(last)]


def _order_of(implementation: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return getattr(implementation.function, _ORDER, ((), ()))


def _sorted(implementations: list[Any], known: set[str]) -> list[Any]:
    """The usual order, changed as little as ``before`` and ``after`` ask for."""
    earlier: dict[str, set[str]] = {impl.plugin_name: set() for impl in implementations}
    for impl in implementations:
        before, after = (_plugins(impl, names, known) for names in _order_of(impl))
        earlier[impl.plugin_name] |= after & earlier.keys()
        for name in before & earlier.keys():
            earlier[name].add(impl.plugin_name)
    waiting, arranged = list(implementations), []
    while waiting:
        left = {impl.plugin_name for impl in waiting}
        ready = next((impl for impl in waiting if not earlier[impl.plugin_name] & left), None)
        if ready is None:
            raise PluginError(f"the plugins {', '.join(sorted(left))} ask to be before and after each other")
        waiting.remove(ready)
        arranged.append(ready)
    return arranged


def _plugins(implementation: Any, names: tuple[str, ...], known: set[str]) -> set[str]:
    """Registered plugins that go by some names; one that is not there is passed over, unless it is to be Turret's."""
    found = {plugin for plugin in known for name in names if plugin == name or plugin.startswith(f"{name} ")}
    for name in names:
        if name.partition(".")[0] == "turret" and name not in known:
            raise PluginError(
                f"plugin {implementation.plugin_name!r} wants an order relative to {name!r}, no plugin of Turret's"
                f"{nearest(name, known)}"
            )
    return found - {implementation.plugin_name}
