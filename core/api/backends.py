"""Backends of ``turret.compile`` that are no plugins: a function of a graph, or eager's own calls.

Each becomes a plugin that takes graphs (``turret_compile_graph``), so capture and guards are Turret's.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from turret.errors import PluginError
from turret.frames.eager_graphs import with_ifs
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import Scope


class Eager:
    """``backend="eager"``: graphs run as they were captured."""

    @hookimpl
    def turret_compile_graph(self, module: fx.GraphModule, scope: Scope) -> Callable[..., Any] | None:
        """The graph itself, before autograd is traced."""
        return with_ifs(module).forward if scope == "captured" else None


class AotEager:
    """``backend="aot_eager"``: forward and backward are traced and cut, and run call by call."""

    @hookimpl
    def turret_compile_graph(self, module: fx.GraphModule, scope: Scope) -> Callable[..., Any] | None:
        """A traced graph as it is."""
        return module.forward if scope == "graph" else None


class FunctionBackend:
    """``backend=function``: it is given each captured graph and the inputs of the call, and returns a callable.

    ``given`` are the keywords that it gets besides: ``mode`` and ``options`` where ``turret.compile`` was given some.
    """

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
        self.function, self.given = function, dict(given)
        self.plugin_name = name_of(function)

    @hookimpl
    def turret_compile_graph(
        self, module: fx.GraphModule, example_inputs: Sequence[Any], scope: Scope
    ) -> Callable[..., Any] | None:
        """What the function makes of a captured graph."""
        if scope != "captured":
            return None
        made: Callable[..., Any] | None = self.function(module, list(example_inputs), **self.given)
        if made is None:
            raise PluginError("the backend returned None; expected a callable over the graph's inputs")
        return made


_of_functions: weakref.WeakValueDictionary[int, FunctionBackend] = weakref.WeakValueDictionary()


def of_function(function: Callable[..., Any], given: Mapping[str, Any]) -> FunctionBackend:
    """The plugin of a function; without keywords one for all callables, so that those that are alike share code."""
    known = None if given else _of_functions.get(id(function))
    if known is not None and known.function is function:
        return known
    made = FunctionBackend(function, given)
    if not given:
        _of_functions[id(function)] = made
    return made


_NAMED = {"eager": Eager, "aot_eager": AotEager}


@functools.cache
def named(name: str) -> Any | None:
    """The plugin of a backend's name; None for a name that is not Turret's."""
    kind = _NAMED.get(name)
    return None if kind is None else kind()


def name_of(function: Callable[..., Any]) -> str:
    """A function's name for messages."""
    inner = function.func if isinstance(function, functools.partial) else function
    module = getattr(inner, "__module__", None) or type(inner).__module__
    return f"backend {module}.{getattr(inner, '__qualname__', type(inner).__qualname__)}"
