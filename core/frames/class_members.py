"""What classes define: looking names up along the method resolution order, with nothing bound or called."""

from __future__ import annotations

from typing import Any

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "nothing"})()
"""In place of what a class has under a name, where it has nothing."""


def class_member(kind: type, name: str) -> Any:
    """What a class has under a name, itself or from a base, as it lies there; ``ABSENT`` where there is nothing."""
    owner = member_owner(kind, name)
    return ABSENT if owner is None else owner.__dict__[name]


def find_in_mro(kind: type, name: str) -> tuple[Any, Any]:
    """The class that defines ``name`` and the raw attribute; (None, None) where no class does."""
    owner = member_owner(kind, name)
    return (None, None) if owner is None else (owner, owner.__dict__[name])


def member_owner(kind: type, name: str) -> type | None:
    """The first class along a class's method resolution order that defines a name, or None."""
    return next((base for base in kind.__mro__ if name in base.__dict__), None)


def own_attribute(value: Any, name: str) -> Any:
    """An attribute of an object, None where it has none; no ``__getattr__`` or ``__getattribute__`` is asked."""
    read = type.__getattribute__ if isinstance(value, type) else object.__getattribute__
    try:
        return read(value, name)
    except Exception:  # of a property, too
        return None
