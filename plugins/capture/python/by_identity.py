"""Values kept for objects of the program, which are told apart by identity."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class ByIdentity(Generic[Value]):
    """A value for each of some objects, kept as long as the object is and no reason for it to be.

    ``weakref.WeakKeyDictionary`` asks objects for their ``__hash__`` and ``__eq__``, which classes of the program may
    define as they like (a module that is compared by its settings, tensors that come out of ``==``).
    ``torch.utils.weak.WeakIdKeyDictionary`` asks for neither and takes 3.4 us a lookup (0.2 us here), which each call
    of a frame behind a graph break would pay.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def get(self, key: Any, make: Callable[[], Value]) -> Value:
        """What is kept for an object, made where there is none."""
        number = id(key)
        found = self._kept.get(number)
        if found is not None and found[0]() is key:
            return found[1]
        kept = self._kept

        def drop(reference: weakref.ref[Any]) -> None:
            last = kept.get(number)
            if last is not None and last[0] is reference:  # the number may stand for another object by now
                del kept[number]

        made = make()
        kept[number] = weakref.ref(key, drop), made
        return made

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Keep nothing more."""
        self._kept.clear()
