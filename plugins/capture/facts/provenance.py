"""What a capture took for what it is beside the guards of the values that it looked at: facts.

Facts speak of what programs seldom change: members of classes, attributes of modules, code of functions, builtins,
answers of torch about itself.  ``guards_of`` makes guards of them, from the objects as they are, for the process that
captured and for each that takes the unit from disk; the latter compares what it has with the description of the former
first.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any, Literal

import attrs
import torch

from turret.frames.class_members import class_member, member_owner
from turret.frames.descriptions import name_of
from turret.frames.guards import Guard
from turret.frames.sources import AttrSource, BoundSource, DictSource, ItemSource, Source
from turret.plugins.capture.facts.fingerprints import HEAP_TYPE, PLAIN
from turret.torch_compat.modes import (
    cudnn_attention_enabled,
    dispatch_mode_count,
    flash_attention_enabled,
    function_mode_at,
    function_mode_count,
    functorch_level,
    math_attention_enabled,
    memory_efficient_attention_enabled,
)

FactKind = Literal[
    "attribute",
    "item",
    "absent",
    "lacks",
    "call",
    "refers",
    "member",
    "owner",
    "undefined",
    "bases",
    "code",
    "defaults",
    "operator",
]


@attrs.frozen(eq=False)
class Fact:
    """Something that was so.

    ``owner.name`` (attribute) or ``owner[name]`` (item) was ``found``, or there was none (absent, lacks);
    ``owner(*name)`` gave it (call); ``owner``, a weak reference, refers to it (refers).  A class has ``found`` under a
    name (member), or its base ``found`` has something there (owner), or it has nothing itself (undefined); a class
    inherits, a function consists of the code, or has the defaults, that it does (bases, code, defaults).  The code
    registered for an operator of the program's own was run (operator).
    """

    kind: FactKind
    owner: Any
    name: Any
    found: Any = None


OF_CLASSES = frozenset({"member", "owner", "undefined", "bases", "code", "defaults"})
"""Facts that the fingerprints of classes and functions tell of."""


class Provenance:
    """The record of one capture."""

    def __init__(self) -> None:
        self.codes: set[types.CodeType] = set()
        """Code objects that were followed."""
        self.facts: dict[tuple, Fact] = {}
        self.seen: set[Any] = set()
        """Functions whose names were resolved."""
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

    def lacks(self, owner: dict, name: str) -> None:
        """A namespace had nothing under a name."""
        self.facts.setdefault(("lacks", id(owner), name), Fact("lacks", owner, name))

    def call(self, function: Callable, arguments: tuple, found: Any) -> None:
        """A question about torch's state was answered."""
        self.facts.setdefault(("call", id(function), repr(arguments)), Fact("call", function, arguments, found))

    def refers(self, reference: Callable, found: Any) -> None:
        """A weak reference led to an object."""
        self.facts.setdefault(("refers", id(reference)), Fact("refers", reference, None, found))

    def operator(self, op: Any) -> None:
        """Code that was registered for an operator was run."""
        self.facts.setdefault(("operator", id(op)), Fact("operator", op, ""))

    def member(self, kind: type, name: str, owner: type | None, raw: Any, *, by_value: bool = False) -> None:
        """A class has ``raw`` of ``owner`` under a name (None: nothing).

        ``by_value``: another guard speaks of what lies there.
        """
        key = ("owner" if by_value else "member", id(kind), name)
        if key not in self.facts and any(base.__flags__ & HEAP_TYPE for base in kind.__mro__):
            self.facts[key] = Fact(key[0], kind, name, owner if by_value else raw)  # type: ignore[arg-type]

    def undefined(self, kind: type, name: str) -> None:
        """A class itself does not define a name, whatever its bases do."""
        if kind.__flags__ & HEAP_TYPE:
            self.facts.setdefault(("undefined", id(kind), name), Fact("undefined", kind, name))

    def bases(self, kind: type) -> None:
        """A class inherits from what it does."""
        if kind.__flags__ & HEAP_TYPE:
            self.facts.setdefault(("bases", id(kind)), Fact("bases", kind, None, kind.__mro__))

    def code(self, function: types.FunctionType) -> None:
        """A function consists of the code that it does; Turret's own stays what it is."""
        if not str(function.__module__).startswith("turret."):
            self.facts.setdefault(("code", id(function)), Fact("code", function, None, function.__code__))

    def defaults(self, function: types.FunctionType) -> None:
        """Parameters took the defaults of a function."""
        if not str(function.__module__).startswith("turret."):
            self.facts.setdefault(("defaults", id(function)), Fact("defaults", function, None, function.__defaults__))

    def make(self, function: Callable, *arguments: Any) -> Any:
        """What a function of Turret's or torch's makes of known objects; another process makes its own."""
        value = function(*arguments)
        self.made[id(value)] = (value, function, arguments)
        return value

    def bound_to_process(self, reason: str) -> None:
        """The result holds in this process alone."""
        self.obstacles.append(reason)


def live_fact(kind: FactKind, owner: Any, name: Any) -> Fact:
    """The fact of a kind about objects as they are now."""
    match kind:
        case "attribute":
            return Fact(kind, owner, name, getattr(owner, name))
        case "item":
            return Fact(kind, owner, name, owner[name])
        case "call":
            return Fact(kind, owner, name, owner(*name))
        case "member":
            return Fact(kind, owner, name, class_member(owner, name))
        case "owner":
            return Fact(kind, owner, name, member_owner(owner, name))
        case "bases":
            return Fact(kind, owner, name, owner.__mro__)
        case "code":
            return Fact(kind, owner, name, owner.__code__)
        case "defaults":
            return Fact(kind, owner, name, owner.__defaults__)
    return Fact(kind, owner, name)


def guards_of(facts: Iterable[Fact]) -> list[Guard]:
    """Guards that notice where a fact is one no longer."""
    return [guard for fact in facts if (guard := _guard(fact)) is not None]


def _guard(fact: Fact) -> Guard | None:
    owner = BoundSource(_name(fact.owner), fact.owner)
    match fact.kind:
        case "attribute":
            return _attribute(fact, owner)
        case "item":
            return _same(ItemSource(owner, fact.name), fact.found)
        case "absent":
            return Guard("NO_KEY", DictSource(owner), fact.name) if hasattr(fact.owner, "__dict__") else None
        case "lacks":
            return Guard("NO_KEY", owner, fact.name)
        case "call":
            asked_anew = isinstance(fact.owner, types.BuiltinFunctionType) and fact.owner not in _GUARDED_ANSWERS
            return Guard("ANSWER", owner, (fact.name, fact.found)) if asked_anew else None
        case "member":
            return Guard("MEMBER", owner, (fact.name, fact.found))
        case "owner":
            return Guard("OWNER", owner, (fact.name, fact.found))
        case "undefined":
            return Guard("NO_KEY", AttrSource(owner, "__dict__"), fact.name)
        case "bases":
            return Guard("MRO", owner, fact.found)
        case "code":
            return Guard("ID", AttrSource(owner, "__code__"), fact.found)
        case "defaults":
            return Guard("ID", AttrSource(owner, "__defaults__"), fact.found)
    return None


def _attribute(fact: Fact, owner: BoundSource) -> Guard | None:
    """Of a module or function: what lies in its dict; of a class what the class has.  C code computes the rest."""
    held = fact.owner.__dict__ if hasattr(fact.owner, "__dict__") else {}
    if isinstance(fact.owner, type):
        return Guard("MEMBER", owner, (fact.name, class_member(fact.owner, fact.name)))
    if fact.name in held:
        return _same(ItemSource(DictSource(owner), fact.name), held[fact.name])
    if isinstance(fact.owner, types.ModuleType):
        return Guard("NO_KEY", DictSource(owner), fact.name)
    return None


def _same(source: Source, found: Any) -> Guard:
    return Guard("EQUALS" if type(found) in PLAIN else "ID", source, found)


def _name(value: Any) -> str:
    is_module = type(value) is dict and isinstance(value.get("__name__"), str)
    return f"G[{value['__name__']}]" if is_module else name_of(value)


_GUARDED_ANSWERS = frozenset(
    {
        torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype, torch.is_autocast_enabled,
        torch.get_autocast_dtype, torch.is_autocast_cache_enabled, torch.are_deterministic_algorithms_enabled,
        flash_attention_enabled, memory_efficient_attention_enabled, math_attention_enabled,
        cudnn_attention_enabled, function_mode_count, dispatch_mode_count,
        function_mode_at, functorch_level,
    }
)  # fmt: skip
"""Questions about modes that a guard on torch's state covers, and that captured code may change."""
