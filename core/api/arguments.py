"""Arguments of ``turret.compile`` of the wrong type: an error that says what was given and expected, and what to do."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from turret.errors import OptionError

_SWITCHES = {
    "fullgraph": "True to have an error where the program cannot be captured as one graph, else False",
    "dynamic": "True for dynamic sizes from the start, False for none, None to find out which sizes change",
    "disable": "True to have the callable back as it is, else False",
}


def check_arguments(
    *, fullgraph: Any, dynamic: Any, disable: Any, backend: Any, mode: Any, options: Any, plugins: Any
) -> None:
    """Raise ``OptionError`` for the first argument of a type that it does not take."""
    for name, value in (("fullgraph", fullgraph), ("dynamic", dynamic), ("disable", disable)):
        if not isinstance(value, bool) and not (name == "dynamic" and value is None):
            raise OptionError(f"{name} is {_shown(value)}; expected {_SWITCHES[name]}")
    if backend is not None and not isinstance(backend, str) and not callable(backend):
        raise OptionError(
            f"backend is {_shown(backend)}; expected a name or a function of a graph and example inputs; leave it out "
            "to compile with Turret"
        )
    if mode is not None and not isinstance(mode, str):
        raise OptionError(f"mode is {_shown(mode)}; expected a name; turret.list_mode_options() lists them")
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(
            f"options are {_shown(options)}; expected a dictionary of option names and values; turret.list_options() "
            "names all"
        )
    if isinstance(plugins, (str, bytes)) or not isinstance(plugins, Sequence):
        raise OptionError(
            f"plugins are {_shown(plugins)}; expected a list of objects, modules or dotted names: put one in brackets"
        )


def check_model(model: Any) -> None:
    """Raise ``OptionError`` for what cannot be called."""
    if not callable(model):
        raise OptionError(
            f"turret.compile was given {_shown(model)}; expected a function, a method or a module; other arguments go "
            "by name"
        )


def _shown(value: Any) -> str:
    return f"{reprlib.repr(value)} (of type {type(value).__qualname__})"
