"""The systems that are compared, by name: ``eager``, ``inductor``, ``turret``, with a mode after a colon.

``turret:max-autotune`` and ``inductor:reduce-overhead`` are systems of their own; so is ``backend=NAME``, any
backend that ``torch.compile`` knows.  ``turret+freezing`` and ``inductor+freezing`` have an option switched on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch

Compiler = Callable[[Callable], Callable]


def compiler_of(system: str, turrets: Mapping[str, Any] = MappingProxyType({})) -> Compiler:
    """The compile function of a system, which imports the system when called; raises ``KeyError`` for a wrong name.

    ``turrets``: further options where the system is Turret.
    """
    system, *switched = system.split("+")
    name, _, mode = system.partition(":")
    options: dict[str, Any] = {"mode": mode} if mode else {}
    if switched:
        options["options"] = dict.fromkeys(switched, True)
    if name == "turret" and turrets:
        options["options"] = {**options.get("options", {}), **turrets}
    if name == "eager":
        return lambda function: function
    if name == "inductor":
        return lambda function: torch.compile(function, **options)
    if name == "turret":
        return lambda function: _turret(function, options)
    if name.startswith("backend="):
        return lambda function: torch.compile(function, backend=name.removeprefix("backend="), **options)
    raise KeyError(
        f"no system {system!r}; known: eager, inductor[:MODE], turret[:MODE], backend=NAME; +OPTION switches one on"
    )


def import_of(system: str) -> None:
    """Import what a system needs for its first compile, so that imports and compiling can be timed apart."""
    name = system.partition(":")[0].partition("+")[0]
    if name == "inductor":
        import torch._inductor.compile_fx
    elif name == "turret":
        import turret

        turret.list_options()
    elif name.startswith("backend="):
        import torch._dynamo  # noqa: F401


def _turret(function: Callable, options: dict[str, Any]) -> Callable:
    import turret

    return turret.compile(function, **options)
