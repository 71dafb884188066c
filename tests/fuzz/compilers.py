"""The systems that ``run.py`` can put under test, by name."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

MAKE_KERNELS = ("turret", "turret_placed", "turret_graph_compilers", "turret_sections")
TURRET = (*MAKE_KERNELS, "turret_aot_eager")
"""Turret by itself, and with what ``outsiders`` puts into it."""
NAMES = (*TURRET, "inductor", "aot_eager", "aot_eager_decomp_partition", "eager")


def compiler_of(name: str, options: dict[str, Any]) -> Callable[[Callable], Callable]:
    """A compile function; ``options`` go to it as they are.  Raises ``KeyError`` for an unknown name.

    Turret's kernels check their accesses unless the options say otherwise.
    """
    if name in TURRET:
        import turret

        # A graph that is refused by name runs eagerly and is right; any other failure of a stage is a failure here.
        known = "UnsupportedError|DataDependentOutputException|DynamicOutputShapeException"
        warnings.filterwarnings("ignore", message="Turret runs a graph eagerly")
        warnings.filterwarnings("error", message=rf"(?s)Turret runs a graph eagerly(?!.*({known}))")
        warnings.filterwarnings("error", message=rf"(?s).* runs as Python: stage (?!.*({known}))")
        chosen = {"on_error": "fallback", "check_bounds": True, **options}
        if name == "turret":
            return lambda function: turret.compile(function, options=chosen)
        from tests.fuzz.outsiders import WAYS

        return functools.partial(WAYS[name.removeprefix("turret_")], chosen)
    if name == "eager":
        return lambda function: function
    if name not in NAMES:
        raise KeyError(f"no compiler {name!r}; known: {', '.join(NAMES)}")
    return lambda function: torch.compile(function, backend=name, dynamic=False, options=options or None)
