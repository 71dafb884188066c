"""Options and modes: one frozen, validated value that every stage reads.

Each option is a field of ``Config``; its default may be overridden by the environment variable
``TURRET_<NAME>``, by a mode, and by ``options=`` of one ``turret.compile`` (the later wins).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from typing import Any

import attrs

from turret.errors import OptionError


def _option(default: Any, doc: str, *, choices: tuple = (), low: float | None = None, high: float | None = None) -> Any:
    return attrs.field(default=default, metadata={"doc": doc, "choices": choices, "low": low, "high": high})


@attrs.frozen
class Config:
    """All options, with what they mean in ``list_options()``."""

    on_error: str = _option(
        "fallback",
        "what to do when a stage fails on a program: run it eagerly and warn once, or raise",
        choices=("fallback", "raise"),
    )
    capture: str = _option(
        "turret", "who captures graphs: torch._dynamo through a bridge, or Turret itself", choices=("dynamo", "turret")
    )
    capture_scalar_outputs: bool = _option(
        False, "numbers read from tensors (item, int, float, tolist) stay in the graph as symbols; fullgraph implies it"
    )
    capture_dynamic_output_shape_ops: bool = _option(
        False,
        "results whose size depends on data (nonzero, masks, unique) stay in the graph, their sizes as symbols; "
        "fullgraph implies it",
    )
    recompile_limit: int = _option(8, "captures of one function, after which it runs eagerly (Turret's capture)", low=1)
    partitioner: str = _option(
        "min_cut", "how the joint graph is cut into forward and backward", choices=("min_cut", "save_all")
    )
    memory_budget: float = _option(
        1.0, "share of the saved activations to keep: 1 is the min-cut's choice, 0 recomputes all it can", low=0, high=1
    )
    fallback_random: bool = _option(False, "draw random numbers with eager's own kernels, in eager's order")
    emulate_precision_casts: bool = _option(False, "round half-precision intermediates inside a kernel as eager does")
    max_fusion_size: int = _option(64, "most definitions fused into one kernel", low=1)
    cpp_compiler: str = _option("", "C++ compiler to use; empty tries $CXX, g++, clang++")
    cpp_flags: str = _option("", "further flags for the C++ compiler")
    cache: bool = _option(True, "keep compiled artifacts on disk and use them again")
    cache_dir: str = _option("", "folder of the artifact cache; empty is ~/.cache/turret")
    cache_size_limit: int = _option(
        10 << 30,
        "bytes that the artifact cache may hold; past that, what was longest unused goes; 0: any",
        low=0,
    )
    debug_dir: str = _option("", "folder that receives every product of every stage as text; empty writes none")
    check_bounds: bool = _option(
        False, "check every memory access of generated C++ kernels, and raise OutOfBoundsError for one outside (slow)"
    )
    cudagraphs: bool = _option(False, "replay kernels as CUDA graphs (GPU only)")
    max_autotune: bool = _option(False, "time alternative kernels on the device and keep the fastest (GPU only)")
    compile_workers: int = _option(0, "processes that compile GPU kernels; 0 is one for each core", low=0)

    def updated(self, options: Mapping[str, Any]) -> Config:
        """This configuration with some options replaced; raises ``OptionError`` for a name or value it lacks."""
        if not isinstance(options, Mapping):
            raise OptionError(f"options are {options!r}, expected a dictionary of option names and values")
        changes = {}
        for name, value in options.items():
            key = str(name).replace("-", "_").replace(".", "_")
            if key not in _FIELDS:
                near = nearest(key, [*_FIELDS, *CALLABLE_OPTIONS])
                raise OptionError(f"unknown option {name!r} (given {value!r}){near}; turret.list_options() names all")
            changes[key] = _checked(_FIELDS[key], value)
        return attrs.evolve(self, **changes)


_FIELDS = {field.name: field for field in attrs.fields(Config)}

CALLABLE_OPTIONS: dict[str, str] = {
    "guard_filter_fn": "function of a sequence of guards that gives one bool each: keep it or drop it (default None); "
    "a dropped guard is never checked, so what it guards must not change",
}
"""Options that are functions: they hold for one callable, and become plugins of it."""

MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"cudagraphs": True, "max_autotune": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}


def nearest(name: str, known: Any) -> str:
    """``"; did you mean 'x'?"`` for the known name nearest to ``name``, or nothing."""
    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.4)
    return f"; did you mean {found[0]!r}?" if found else ""


def _checked(field: Any, value: Any) -> Any:
    """``value`` as the option's type, or ``OptionError``."""
    kind, rules = type(field.default), field.metadata
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise OptionError(f"option {field.name!r} is {value!r}, expected a {kind.__name__}: {rules['doc']}")
    if rules["choices"] and value not in rules["choices"]:
        known = ", ".join(map(repr, rules["choices"]))
        raise OptionError(
            f"option {field.name!r} is {value!r}, expected one of {known}{nearest(value, rules['choices'])}"
        )
    low, high = rules["low"], rules["high"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        expected = f"at least {low}" if high is None else f"{low} to {high}"
        raise OptionError(f"option {field.name!r} is {value!r}, expected {expected}: {rules['doc']}")
    return value


_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _from_text(field: Any, text: str) -> Any:
    """The value of an environment variable, or ``OptionError`` that names the variable."""
    kind = type(field.default)
    try:
        value = _SWITCHES[text.lower()] if kind is bool else kind(text)
        return _checked(field, value)
    except (KeyError, ValueError) as error:
        reason = error if isinstance(error, OptionError) else f"expected a {kind.__name__}: {field.metadata['doc']}"
        raise OptionError(f"TURRET_{field.name.upper()} is {text!r}: {reason}") from error


def from_environment() -> Config:
    """Defaults, with ``TURRET_<OPTION>`` variables applied."""
    found = {n: f for n, f in _FIELDS.items() if f"TURRET_{n.upper()}" in os.environ}
    return attrs.evolve(Config(), **{n: _from_text(f, os.environ[f"TURRET_{n.upper()}"]) for n, f in found.items()})


def resolve(mode: str | None, options: Mapping[str, Any] | None) -> Config:
    """The configuration of one ``turret.compile`` call."""
    return from_environment().updated(_mode("default" if mode is None else mode)).updated(options or {})


def _mode(name: str) -> dict[str, Any]:
    """What a mode sets, or ``OptionError``."""
    if name not in MODES:
        raise OptionError(f"unknown mode {name!r}{nearest(str(name), MODES)}; known: {', '.join(MODES)}")
    return MODES[name]


def list_options() -> dict[str, str]:
    """Every option with its default and meaning."""
    listed = {name: f"{field.metadata['doc']} (default {field.default!r})" for name, field in _FIELDS.items()}
    return {**listed, **CALLABLE_OPTIONS}


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """Options that a mode sets; without a mode, those of every mode by name."""
    if mode is None:
        return {name: dict(options) for name, options in MODES.items()}
    return dict(_mode(mode))
