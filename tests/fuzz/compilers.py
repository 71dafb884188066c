"""The systems that ``run.py`` can put under test, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

NAMES = ("turret", "inductor", "aot_eager", "eager")


def compiler_of(name: str, options: dict[str, Any]) -> Callable[[Callable], Callable]:
    """A compile function; ``options`` go to it as they are.  Raises ``KeyError`` for an unknown name."""
    if name == "turret":
        import turret

        chosen = {"on_error": "raise", **options}
        return lambda function: turret.compile(function, options=chosen)
    if name == "eager":
        return lambda function: function
    if name not in NAMES:
        raise KeyError(f"no compiler {name!r}; known: {', '.join(NAMES)}")
    return lambda function: torch.compile(function, backend=name, dynamic=False, options=options or None)
