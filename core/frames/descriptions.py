"""Values of programs in messages for people: none of a program's own code runs for one, nor is a tensor asked much.

A ``__repr__`` of the program's may count, print or raise, and that of a tensor waits for its device, and in inference
mode takes the history from a view (``turret.torch_compat.autograd.is_leaf``).
"""

from __future__ import annotations

import enum
import itertools
import reprlib
import types
from collections.abc import Collection, Sequence
from typing import Any

import torch

from turret.frames.class_members import own_attribute

_SHOWN = frozenset(
    [
        *(type(None), bool, float, complex, bytes, range, type(...), type(NotImplemented)),
        *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.CodeType),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    ]
)
"""Types beside texts, integers and containers whose values are shown as Python shows them."""
_MOST_KEYS = 6
"""Keys that a message names."""
_WIDEST = 400
"""Characters of a value in a message."""


class _Short(reprlib.Repr):
    """Nothing but what Python and torch define is asked for its text; no order is asked of what has none."""

    def repr1(self, x: Any, level: int) -> str:
        kind = type(x)
        if isinstance(x, torch.Tensor):
            return f"a tensor of {x.dtype}{list(x.shape)}"
        if kind in (list, tuple, str, int):
            return super().repr1(x, level)
        if kind is dict:
            return self._dict(x, level)
        if kind in (set, frozenset):
            return self._set(x, level)
        if kind in _SHOWN or kind.__module__.startswith("turret."):
            return self.repr_instance(x, level)
        if isinstance(x, type):
            return type.__repr__(x)
        if isinstance(x, enum.Enum):
            return f"{kind.__qualname__}.{x._name_}"
        if isinstance(x, BaseException):
            return f"{kind.__qualname__}{self.repr1(x.args, level)}"
        if isinstance(x, (torch.nn.Module, torch.SymInt)):
            return f"a {kind.__qualname__}"
        return f"<{kind.__qualname__} object>"

    def _set(self, x: set[Any] | frozenset[Any], level: int) -> str:
        shown = f"{{{self._items(x, level)}}}" if x else ""
        return shown if shown and type(x) is set else f"{type(x).__name__}({shown})"

    def _dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{...}"
        shown = (f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}" for k, v in x.items())
        more = ["..."] if len(x) > self.maxdict else []
        return f"{{{', '.join([*itertools.islice(shown, self.maxdict), *more])}}}"

    def _items(self, items: Collection[Any], level: int) -> str:
        if level <= 0:
            return "..."
        more = ["..."] if len(items) > self.maxset else []
        return ", ".join([*(self.repr1(item, level - 1) for item in itertools.islice(items, self.maxset)), *more])


_short = _Short()
_short.maxlevel, _short.maxstring, _short.maxother = 3, 400, 400  # nested containers may be shared: exponentially long


def short(value: Any) -> str:
    """A value in one line; not the whole of a namespace or a module."""
    if isinstance(value, dict) and isinstance(value.get("__name__"), str):
        return f"the namespace of {value['__name__']}"
    text = " ".join(_short.repr(value).split())
    return text if len(text) < _WIDEST else text[: _WIDEST - 3] + "..."


def listed(keys: Sequence[Any]) -> str:
    """The first of some keys, and how many others there are."""
    more = f" and {len(keys) - _MOST_KEYS} others" if len(keys) > _MOST_KEYS else ""
    return ", ".join(map(_short.repr, keys[:_MOST_KEYS])) + more


def name_of(value: Any) -> str:
    """The name that a function or a class has in Python; of another object, that of its class."""
    found = own_attribute(value, "__qualname__") or own_attribute(value, "__name__")
    return found if isinstance(found, str) else type(value).__qualname__
