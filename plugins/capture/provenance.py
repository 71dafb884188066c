"""What a capture took from its process without a guard: needed to tell whether another process may use the result.

Within the process these things stay as they are (code, the functions of torch, answers of torch's own modes); in
another one the program may have been edited, or torch patched.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Literal

import attrs

FactKind = Literal["attribute", "item", "absent", "call", "refers", "operator"]


@attrs.frozen(eq=False)
class Fact:
    """Something that was so: ``owner.name`` (or ``owner[name]``) was ``found``, or absent; ``owner(*name)`` gave it.

    For a weak reference: ``owner`` refers to ``found`` itself.  For an operator of the program's own: its code was run.
    """

    kind: FactKind
    owner: Any
    name: Any
    found: Any = None


class Provenance:
    """The record of one capture."""

    def __init__(self) -> None:
        self.codes: set[types.CodeType] = set()
        """Code objects that were followed."""
        self.facts: dict[tuple, Fact] = {}
        self.made: dict[int, tuple[Any, Callable, tuple]] = {}
        """Objects that capture made, by their ids: the object, and the function and arguments that make it again."""
        self.obstacles: list[str] = []
        """Why no other process may use the result."""

    def attribute(self, owner: Any, name: str, found: Any) -> None:
        """``owner.name`` was taken for what it is."""
        self.facts.setdefault(("attribute", id(owner), name), Fact("attribute", owner, name, found))

    def item(self, owner: dict, name: str, found: Any) -> None:
        """``owner[name]`` of a namespace was taken for what it is."""
        self.facts.setdefault(("item", id(owner), name), Fact("item", owner, name, found))

    def absent(self, owner: Any, name: str) -> None:
        """``owner`` had no attribute ``name``."""
        self.facts.setdefault(("absent", id(owner), name), Fact("absent", owner, name))

    def call(self, function: Callable, arguments: tuple, found: Any) -> None:
        """A question about torch's state was answered."""
        self.facts.setdefault(("call", id(function), repr(arguments)), Fact("call", function, arguments, found))

    def refers(self, reference: Callable, found: Any) -> None:
        """A weak reference led to an object."""
        self.facts.setdefault(("refers", id(reference)), Fact("refers", reference, None, found))

    def operator(self, op: Any) -> None:
        """Code that was registered for an operator was run."""
        self.facts.setdefault(("operator", id(op)), Fact("operator", op, ""))

    def make(self, function: Callable, *arguments: Any) -> Any:
        """What a function of Turret's or torch's makes of known objects; another process makes its own."""
        value = function(*arguments)
        self.made[id(value)] = (value, function, arguments)
        return value

    def bound_to_process(self, reason: str) -> None:
        """The result holds in this process alone."""
        self.obstacles.append(reason)
