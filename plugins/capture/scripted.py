"""Functions of TorchScript as calls of the graph: nothing looks inside."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.define(eq=False)
class Scripted:
    """The function of a node that calls a scripted function."""

    function: Any
    __name__: str = "scripted"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)
