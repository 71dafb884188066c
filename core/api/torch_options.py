"""What programs already say to ``torch.compile``: options of its usual backend, and variables of the environment."""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turret.errors import warn

_MEANINGS: dict[str, str] = {"triton.cudagraphs": "cudagraphs", "triton.cudagraph_trees": "cudagraph_trees"}
"""Names of torch's options that have another name here; ``max_autotune``, ``fallback_random`` and others have the same.
"""

_USUAL: dict[str, Any] = {"epilogue_fusion": True, "pattern_matcher": True}
"""Options of torch's that ask for what is always done here, where they have these values."""


def translated(options: Mapping[str, Any] | None, known: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Options by Turret's names; those of torch's that mean nothing here are left out, and named in one warning.

    ``known``: what Turret and its plugins declare.  Names that neither knows stay, for whoever checks them.
    """
    if not isinstance(options, Mapping):
        return options
    found: dict[str, Any] = {}
    left_out = []
    for name, value in options.items():
        plain = str(name).replace("-", "_")
        if plain.replace(".", "_") in known:
            found[name] = value
        elif _MEANINGS.get(plain) in known:
            found.setdefault(_MEANINGS[plain], value)
        elif plain not in _torchs_options():
            found[name] = value
        elif _USUAL.get(plain) != value:
            left_out.append(f"{name}={value!r}")
    if left_out:
        warn(
            f"options of torch.compile's own backend that mean nothing to Turret are left out: {', '.join(left_out)}; "
            "turret.list_options() names Turret's"
        )
    return found


@functools.cache
def _torchs_options() -> frozenset[str]:
    """Names of the options of torch's usual backend, as its settings' source has them: it is not imported."""
    folder = importlib.util.find_spec("torch")
    places = [] if folder is None else folder.submodule_search_locations or []
    names: set[str] = set()
    for place in places:
        source = Path(place) / "_inductor" / "config.py"
        if source.is_file():
            names |= _assigned(ast.parse(source.read_text()).body, "")
    return frozenset(names)


def _assigned(body: list[ast.stmt], prefix: str) -> set[str]:
    """Variables of a module and of the classes in it, with the class's name and a dot before."""
    names: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            names |= _assigned(statement.body, f"{prefix}{statement.name}.")
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(prefix + statement.target.id)
        elif isinstance(statement, ast.Assign):
            names |= {prefix + target.id for target in statement.targets if isinstance(target, ast.Name)}
    return names


def is_compiling_off() -> bool:
    """Whether the environment, or a setting of torch's compiler that is loaded, says that nothing is to be compiled."""
    if any(os.environ.get(name) == "1" for name in ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")):
        return True
    settings = sys.modules.get("torch._dynamo.config")
    return getattr(settings, "disable", False) is True
