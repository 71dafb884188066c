"""Whose fault a failure is: functions that plugins hand over know their plugin, and mark what they raise."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import attrs

_MARK = "__turret_plugin__"


def blame(error: BaseException, plugin: str) -> None:
    """Note that an error is a plugin's (of "": nobody's), unless one that was called by it is to blame already."""
    if plugin and not hasattr(error, _MARK):
        with contextlib.suppress(AttributeError):  # an exception with slots of its own
            setattr(error, _MARK, plugin)


def blamed(error: BaseException | None) -> str:
    """The plugin that an error, or one that it comes from, is marked with; empty where there is none."""
    while error is not None:
        if found := getattr(error, _MARK, ""):
            return found
        error = error.__cause__
    return ""


@contextlib.contextmanager
def blaming(plugin: str) -> Iterator[None]:
    """Mark what is raised inside as a plugin's fault; as nobody's where the name is empty."""
    try:
        yield
    except Exception as error:
        blame(error, plugin)
        raise


_claimed: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def claim(value: Any, plugin: str) -> None:
    """Note that an object is a plugin's: what its methods raise is that plugin's fault."""
    _claimed[value] = plugin


def claimant(value: Any) -> str:
    """The plugin that an object is noted for; empty where there is none."""
    try:
        return _claimed.get(value, "")
    except TypeError:  # no weak reference to it, or no hash
        return ""


@attrs.frozen(eq=False)
class Owned:
    """A function of a plugin's table, a decomposition or a lowering."""

    function: Callable[..., Any]
    plugin: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with blaming(self.plugin):
            return self.function(*args, **kwargs)


def owner(function: Any) -> str:
    """The plugin that a function of a merged table belongs to; empty for a built-in one's."""
    return function.plugin if isinstance(function, Owned) else ""
