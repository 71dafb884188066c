"""The option ``guard_filter_fn``: a function of one callable as a plugin of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turret.errors import OptionError
from turret.hooks.hookspecs import hookimpl


class FunctionFilter:
    """Asks one function which guards to keep."""

    def __init__(self, function: Callable[[Sequence[Any]], Sequence[bool]]) -> None:
        self.function = function

    @hookimpl
    def turret_guard_filter(self, guards: tuple[Any, ...]) -> list[bool]:
        return list(self.function(guards))


def taken_from(options: Mapping[str, Any] | None) -> tuple[Mapping[str, Any] | None, tuple[FunctionFilter, ...]]:
    """Options without ``guard_filter_fn``, and the plugin that it makes; ``OptionError`` where it is no function."""
    if not isinstance(options, Mapping) or options.get("guard_filter_fn") is None:
        return options, ()
    function = options["guard_filter_fn"]
    if not callable(function):
        raise OptionError(f"option 'guard_filter_fn' is {function!r}, expected a function of a sequence of guards")
    return {k: v for k, v in options.items() if k != "guard_filter_fn"}, (FunctionFilter(function),)
