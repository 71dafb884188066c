"""Options and modes: one frozen, validated value that every stage reads.

Core's own options are fields of ``Config``; plugins declare theirs by ``turret_options``, and they are read in the same
way (``context.config.memory_budget``).  An option's default may be overridden by its environment variable
(``TURRET_<NAME>``, where a plugin names no other), by a mode, and by ``options=`` of one ``turret.compile`` (the later
wins).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

import attrs

from turret.errors import OptionError


@attrs.frozen(kw_only=True)
class Option:
    """One option: what ``turret_options`` returns a sequence of.

    ``name`` is a lower-case identifier.  Values have exactly the type ``kind`` (that of ``default``, unless given), are
    among ``choices`` where there are any, and lie between ``low`` and ``high``.  A tuple's elements are of type
    ``item``; it may be given as a list, too, and as text with commas.  ``environment`` is the variable that overrides
    the default (``TURRET_<NAME>``, unless given).  ``plugin`` is filled in: who declared it.
    """

    name: str
    default: Any
    doc: str
    kind: type[Any] = attrs.field(default=attrs.Factory(lambda self: type(self.default), takes_self=True))
    choices: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None
    item: type = str
    environment: str = attrs.field(
        default=attrs.Factory(lambda self: f"TURRET_{str(self.name).upper()}", takes_self=True)
    )
    plugin: str = ""

    def checked(self, value: Any) -> Any:
        """``value`` as the option's type, or ``OptionError``."""
        kind, low, high = self.kind, self.low, self.high
        if kind is float and type(value) is int:
            value = float(value)
        if kind is tuple:
            return self._elements(value)
        if type(value) is not kind:
            raise self._error(value, f"a {kind.__name__}")
        if self.choices and value not in self.choices:
            raise self._error(value, f"one of {', '.join(map(repr, self.choices))}{nearest(value, self.choices)}")
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            raise self._error(value, f"at least {low}" if high is None else f"{low} to {high}")
        return value

    def _elements(self, value: Any) -> tuple[Any, ...]:
        """A tuple of an option that is one."""
        expected = f"a tuple of {self.item.__name__}, or text with commas between them"
        if type(value) is str:
            try:
                return tuple(self.item(part.strip()) for part in value.split(",") if part.strip())
            except ValueError:
                raise self._error(value, expected) from None
        if type(value) not in (tuple, list) or any(type(element) is not self.item for element in value):
            raise self._error(value, expected)
        return tuple(value)

    def _error(self, value: Any, expected: str) -> OptionError:
        return OptionError(f"option {self.name!r} is {value!r}, expected {expected}: {self.doc}{self._owner}")

    def from_text(self, text: str) -> Any:
        """The value of the environment variable, or ``OptionError`` that names the variable."""
        try:
            kind = str if self.kind is tuple else self.kind
            return self.checked(_SWITCHES[text.lower()] if kind is bool else kind(text))
        except (KeyError, ValueError) as error:
            expected = f"expected a {self.kind.__name__}: {self.doc}{self._owner}"
            reason = error if isinstance(error, OptionError) else expected
            raise OptionError(f"{self.environment} is {text!r}: {reason}") from error

    @property
    def _owner(self) -> str:
        return f" (an option of plugin {self.plugin})" if self.plugin else ""

    def __str__(self) -> str:
        usual = f"TURRET_{self.name.upper()}"
        variable = "" if self.environment == usual else f", environment variable {self.environment}"
        return f"{self.doc} (default {self.default!r}{variable})"


_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _option(default: Any, doc: str, **rules: Any) -> Any:
    return attrs.field(default=default, metadata={"doc": doc, **rules})


@attrs.frozen
class Config:
    """The options of one compilation; ``of_plugins`` are those that plugins declared, by name and in its order."""

    on_error: str = _option(
        "fallback",
        "what to do when a stage fails on a program: run it eagerly and warn once, or raise",
        choices=("fallback", "raise"),
    )
    cache: bool = _option(True, "keep compiled artifacts on disk and use them again")
    cache_dir: str = _option("", "folder of the artifact cache; empty is ~/.cache/turret")
    cache_size_limit: int = _option(
        10 << 30,
        "bytes that the artifact cache may hold; past that, what was longest unused goes; 0: any",
        low=0,
    )
    debug_dir: str = _option("", "folder that receives every product of every stage as text; empty writes none")
    of_plugins: tuple[tuple[str, Any], ...] = ()

    def __getattr__(self, name: str) -> Any:
        """The value of a plugin's option."""
        if not name.startswith("_") and name != "of_plugins":
            for known, value in self.of_plugins:
                if known == name:
                    return value
        raise AttributeError(f"no option {name!r}: no plugin of this compilation declares it")


CORE: dict[str, Option] = {
    field.name: Option(name=field.name, default=field.default, **field.metadata)
    for field in attrs.fields(Config)
    if field.name != "of_plugins"
}
"""Core's own options by name."""

Declared = Mapping[str, Option]
"""Options by name: core's, and those of the plugins that hold."""


def defaults(declared: Declared = CORE) -> Config:
    """The configuration where nobody asks for anything."""
    others = sorted((o.name, o.default) for o in declared.values() if o.name not in CORE)
    return Config(of_plugins=tuple(others))


def updated(config: Config, options: Mapping[str, Any], declared: Declared = CORE) -> Config:
    """A configuration with some options replaced; raises ``OptionError`` for a name or value that is not declared."""
    if not isinstance(options, Mapping):
        raise OptionError(f"options are {options!r}, expected a dictionary of option names and values")
    changes = {}
    for name, value in options.items():
        key = str(name).replace("-", "_").replace(".", "_")
        if key not in declared:
            near = nearest(key, [*declared, *CALLABLE_OPTIONS])
            raise OptionError(f"unknown option {name!r} (given {value!r}){near}; turret.list_options() names all")
        changes[key] = declared[key].checked(value)
    return _with(config, changes)


def _with(config: Config, changes: Mapping[str, Any]) -> Config:
    """``config`` with other values, which are right."""
    if not changes:
        return config
    core = {name: value for name, value in changes.items() if name in CORE}
    others = {**dict(config.of_plugins), **{n: v for n, v in changes.items() if n not in CORE}}
    return attrs.evolve(config, **core, of_plugins=tuple(sorted(others.items())))


CALLABLE_OPTIONS: dict[str, str] = {
    "guard_filter_fn": "function of a sequence of guards that gives one bool each: keep it or drop it (default None); "
    "a dropped guard is never checked, so what it guards must not change",
}
"""Options that are functions: they hold for one callable, and become plugins of it."""

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"cudagraphs": True, "max_autotune": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True, "cudagraph_after_calls": 0, "cudagraph_min_kernels": 0},
}


def nearest(name: str, known: Any) -> str:
    """``"; did you mean 'x'?"`` for the known name nearest to ``name``, or nothing."""
    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.4)
    return f"; did you mean {found[0]!r}?" if found else ""


def from_environment(declared: Declared = CORE) -> Config:
    """Defaults, with environment variables applied."""
    found = {o.name: o.from_text(os.environ[o.environment]) for o in declared.values() if o.environment in os.environ}
    return _with(defaults(declared), found)


def resolve(mode: str | None, options: Mapping[str, Any] | None, declared: Declared = CORE) -> Config:
    """The configuration of one ``turret.compile`` call; of a mode, what nobody declares is left out."""
    named = _mode("default" if mode is None else mode)
    config = updated(from_environment(declared), {k: v for k, v in named.items() if k in declared}, declared)
    return updated(config, {} if options is None else options, declared)


def _mode(name: str) -> dict[str, Any]:
    """What a mode sets, or ``OptionError``."""
    if name not in MODES:
        raise OptionError(f"unknown mode {name!r}{nearest(str(name), MODES)}; known: {', '.join(MODES)}")
    return MODES[name]


def list_options(declared: Declared = CORE) -> dict[str, str]:
    """Every option with its default and meaning."""
    return {**{name: str(option) for name, option in declared.items()}, **CALLABLE_OPTIONS}


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """Options that a mode sets; without a mode, those of every mode by name."""
    if mode is None:
        return {name: dict(options) for name, options in MODES.items()}
    return dict(_mode(mode))
