"""What calls that graphs hold whole reach by name in torch: its functions of Python run when the graph is compiled.

A node calls ``torch.nn.functional.relu``; that is Python code, which looks ``torch.relu`` up.  An operator on tensors
is a method of their class.  Programs may put others in their places, so each of these names is a fact.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import TYPE_CHECKING, Any

import torch

from turret.frames.class_members import ABSENT, find_in_mro

if TYPE_CHECKING:
    from turret.plugins.capture.facts.provenance import Provenance

_FOLLOWED = frozenset({"torch", "torch.nn.functional", "torch.functional", "torch._jit_internal", "torch._tensor"})
"""Modules whose functions are looked into."""
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def note_call(provenance: Provenance, target: Any, kinds: set[type]) -> None:
    """Take for facts what a call of ``target`` reaches; ``kinds``: the classes of the tensors among its arguments."""
    if isinstance(target, str):
        names: tuple[str, ...] = (target,)
    elif isinstance(target, types.FunctionType):
        note_function(provenance, target)
        return
    elif getattr(target, "__module__", None) == "_operator":
        name = target.__name__.strip("_")
        names = (f"__{name}__", f"__{name.removeprefix('i')}__", f"__r{name}__")
    else:
        return
    for kind in kinds:
        for name in names:
            note_method(provenance, kind, name)


def note_method(provenance: Provenance, kind: type, name: str) -> Any:
    """A method of a class of tensors, and what it reaches; returns it as it lies in the class."""
    owner, raw = find_in_mro(kind, name)
    provenance.member(kind, name, owner, ABSENT if owner is None else raw)
    if isinstance(raw, types.FunctionType):
        note_function(provenance, raw)
    return raw


def note_function(provenance: Provenance, function: types.FunctionType) -> None:
    """A Python function that runs whole, and what it reaches."""
    if function in provenance.seen:
        return
    provenance.seen.add(function)
    provenance.code(function)
    if function.__module__ not in _FOLLOWED:
        return
    for cell in function.__closure__ or ():
        _look_into(provenance, cell.cell_contents)
    for chain in _chains(function.__code__):
        _look_into(provenance, _resolve(provenance, function.__globals__, chain))
    for name in _methods(function.__code__):
        note_method(provenance, torch.Tensor, name)


def _look_into(provenance: Provenance, found: Any) -> None:
    if isinstance(found, types.FunctionType):
        note_function(provenance, found)


def _resolve(provenance: Provenance, scope: dict[str, Any], chain: tuple[str, ...]) -> Any:
    """What a global, and attributes of modules and classes from there, lead to."""
    first, *rest = chain
    if first not in scope:
        return None  # a builtin, or nothing
    found = scope[first]
    provenance.item(scope, first, found)
    for name in rest:
        if not isinstance(found, types.ModuleType | type) or not hasattr(found, name):
            return None
        owner, found = found, getattr(found, name)
        provenance.attribute(owner, name, found)
    return found


@functools.lru_cache(maxsize=2048)
def _methods(code: types.CodeType) -> tuple[str, ...]:
    """Attributes that code asks of anything, and operators that it uses, by the names that tensors have for them."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        if instruction.opname in _ATTRIBUTES:
            names.add(instruction.argval)
        elif instruction.opname == "BINARY_OP":
            operation = _OPERATORS[instruction.argrepr.rstrip("=")]
            names |= {f"__{operation}__", f"__r{operation}__", f"__i{operation}__"}
    return tuple(sorted(names & _names_of_tensors()))


@functools.cache
def _names_of_tensors() -> frozenset[str]:
    return frozenset(dir(torch.Tensor))


_OPERATORS = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor",
}  # fmt: skip


@functools.lru_cache(maxsize=2048)
def _chains(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Names that code loads from its globals, each with the attributes that it asks of it at once."""
    chains: dict[tuple[str, ...], None] = {}
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if chain and instruction.opname in _ATTRIBUTES:
            chain.append(instruction.argval)
            continue
        if chain:
            chains[tuple(chain)] = None
        chain = [instruction.argval] if instruction.opname == "LOAD_GLOBAL" else []
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            chains.update(dict.fromkeys(_chains(constant)))
    return tuple(chains)
