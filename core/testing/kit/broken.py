"""Plugins broken on purpose: copies of one that raise, hang, crash or return garbage where a hook is asked."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import time
import types
from collections.abc import Callable
from typing import Any

import attrs

from turret.hooks.devices import Device, PlanLibrary, Segment
from turret.plan import Launch
from turret.testing.kit.subject import hooks_of

HANG = 3600.0
"""Seconds that a hook hangs for."""


class Broken(RuntimeError):
    """What a hook raises that is broken on purpose."""


def _raises(result: Any = None) -> Any:
    raise Broken("broken on purpose")


def _hangs(result: Any = None) -> Any:
    time.sleep(HANG)
    return result


def _crashes(result: Any = None) -> Any:
    os.abort()


def _garbage(result: Any = None) -> Any:
    return Garbage()


class Garbage:
    """What no hook may return."""


def _without_launches(plan: Any) -> Any:
    return attrs.evolve(plan, steps=tuple(step for step in plan.steps if not isinstance(step, Launch)))


FAULTS: dict[str, Callable[..., Any]] = {
    "raises": _raises,
    "returns garbage": _garbage,
    "hangs": _hangs,
    "crashes": _crashes,
}
"""What a hook does in place of its work."""


def broken_hook(plugin: Any, hook: str, fault: Callable[..., Any], after: bool = False) -> tuple[Any, list[str]]:
    """A copy of a plugin with one hook broken, and a list that grows when it is asked.

    ``after``: the hook does its work, and ``fault`` gets its result.
    """
    asked: list[str] = []
    real = getattr(plugin, hook)
    options = _options(real)

    def work(*args: Any, **kwargs: Any) -> Any:
        asked.append(hook)
        if not after:
            return fault()
        result = real(*args, **kwargs)
        return result if result is None else fault(result)

    def wrapping(*args: Any, **kwargs: Any) -> Any:
        asked.append(hook)
        result = yield from real(*args, **kwargs)
        return result if result is None else fault(result)

    made = wrapping if options.get("wrapper") or options.get("hookwrapper") else work
    functools.update_wrapper(made, real)
    made.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
    return _with(plugin, hook, made), asked


def broken_device(plugin: Any, change: Callable[[Device], None]) -> tuple[Any, list[str]]:
    """A copy of a plugin whose devices are copies that ``change`` has changed, and a list that grows with each."""
    asked: list[str] = []

    def changed(device: Any) -> Any:
        asked.append("turret_device")
        other = copy.copy(device)
        change(other)
        return other

    return broken_hook(plugin, "turret_device", changed, after=True)[0], asked


def load_raises(device: Device) -> None:
    """Break a device: plans cannot be loaded."""
    _with_method(device, "load", lambda self, plan, store: _raises())


def launch_fails(device: Device) -> None:
    """Break a device: every launch ends with a status that says failure."""
    _with_launches(device, lambda *arguments: 1)


def launch_does_nothing(device: Device) -> None:
    """Break a device: launches report success and write nothing."""
    _with_launches(device, lambda *arguments: 0)


class _Library(PlanLibrary):
    """A plan's library that runs ``run`` in place of its functions."""

    def __init__(self, real: PlanLibrary, run: Callable[..., int]) -> None:
        self._real, self._run = real, run

    def segment(self, launch: Launch) -> Segment:
        return Segment(self._run, self._real.segment(launch).recover)


def _with_launches(device: Device, run: Callable[..., int]) -> None:
    load = type(device).load
    _with_method(device, "load", lambda self, plan, store: _Library(load(self, plan, store), run))


def _with_method(device: Device, name: str, method: Callable[..., Any]) -> None:
    """Give a device a method that its class does not have."""
    kind = type(device)
    device.__class__ = type(kind.__name__, (kind,), {name: method, "__module__": kind.__module__})


def drop_launches(plugin: Any) -> tuple[Any, list[str]]:
    """A copy of a code generator whose plans run no kernels, and a list that grows when it is asked."""
    return broken_hook(plugin, "turret_codegen", _without_launches, after=True)


def _options(function: Any) -> dict[str, Any]:
    """How a hook was marked."""
    return getattr(function, "turret_impl", None) or {}


def _with(plugin: Any, hook: str, function: Callable) -> Any:
    """A plugin of the same name that hands on to another, but for one hook."""
    if isinstance(plugin, types.ModuleType):
        made: Any = types.ModuleType(plugin.__name__)
    else:
        kind = type(plugin)
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        made = type(kind.__name__, (), names)()
    if hasattr(plugin, "cache_key"):
        made.cache_key = plugin.cache_key
    for name in hooks_of(plugin):
        setattr(made, name, getattr(plugin, name))
    setattr(made, hook, function)
    return made
