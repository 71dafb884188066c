"""What programs say of their functions to whoever captures graphs; also what they said to torch's own compiler.

Marks that ``torch.compiler`` leaves are read from where it keeps them, without loading that compiler.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch

from turret.errors import OptionError

_in_graph: dict[int, Callable[..., Any]] = {}
_applied: dict[type, Callable[..., Any]] = {}
_substitutes: dict[int, tuple[Callable[..., Any], Callable[..., Any]]] = {}


def allow_in_graph(fn: Any) -> Any:
    """Make calls of ``fn`` single calls of the graph: capture does not look inside, the joint trace does.

    ``fn`` (or each function of a list) must compute with tensors alone: the same operations on every call, no side
    effects, and all tensors that it needs as arguments.
    """
    for item in fn if isinstance(fn, (list, tuple)) else [fn]:
        if not callable(item):
            raise OptionError(f"allow_in_graph was given {item!r}, expected a function")
        _in_graph[id(item)] = item
    return fn


def is_in_graph(fn: Any) -> bool:
    """Whether ``fn`` was marked by ``allow_in_graph``, Turret's or torch's."""
    if id(fn) in _in_graph:
        return True
    rules = sys.modules.get("torch._dynamo.trace_rules")
    theirs = getattr(getattr(rules, "_allowed_callable_ids", None), "function_ids", None)
    return theirs is not None and id(fn) in theirs


def applied(cls: Any) -> Callable[..., Any]:
    """A call of an ``autograd.Function`` as a function of its own, which graphs can name."""
    if cls not in _applied:

        def apply(*args: Any, **kwargs: Any) -> Any:
            return cls.apply(*args, **kwargs)

        apply.__name__, apply.__qualname__, apply.__module__ = cls.__name__, cls.__qualname__, cls.__module__
        _applied[cls] = apply
    return _applied[cls]


def nested_compile_region(fn: Any) -> Any:
    """Mark a function, or a module, that a program calls again and again (a layer, say): capture follows one call, and
    records the same for calls of which all that it assumed holds; others it follows anew.

    Nothing else changes: results are those of the unmarked program.  Works as a decorator.  Modules with siblings of
    their kind need no mark.
    """
    if isinstance(fn, torch.nn.Module):
        object.__setattr__(fn, _REGION, True)
    elif inspect.isfunction(fn):
        setattr(fn, _REGION, True)
    else:
        raise OptionError(f"nested_compile_region was given {fn!r}, expected a function or a module")
    return fn


def region_of(fn: Any) -> Callable[..., Any] | None:
    """The function, or module, that ``nested_compile_region`` marked, Turret's or torch's; None for one without."""
    held = vars(fn)
    found: Callable[..., Any] | None = fn
    if _REGION in held:
        return found
    found = held.get(REGION_FUNCTION)
    while REGION_FUNCTION in getattr(found, "__dict__", ()):
        found = vars(found)[REGION_FUNCTION]
    return found


def is_region(module: torch.nn.Module) -> bool:
    """Whether a module was marked by ``nested_compile_region``."""
    return _REGION in vars(module)


REGION_FUNCTION = "__marked_compile_region_fn__"
"""Attribute of what torch's ``nested_compile_region`` makes: the function or the module that it was given."""
_REGION = "_turret_region"


def substitute_in_graph(
    original: Callable[..., Any], *, skip_signature_check: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: what it decorates is captured in place of calls of ``original``, and must do the same.

    Raises ``OptionError`` where ``original`` has a substitute already or takes other parameters
    (``skip_signature_check`` leaves that unchecked).
    """
    if not callable(original):
        raise OptionError(f"substitute_in_graph was given {original!r}, expected a function")

    def decorate(substitute: Callable[..., Any]) -> Callable[..., Any]:
        if id(original) in _substitutes:
            raise OptionError(f"{original!r} has a substitute already: {_substitutes[id(original)][1]!r}")
        if not skip_signature_check and not _same_parameters(original, substitute):
            raise OptionError(f"{substitute!r} takes other parameters than {original!r}, which it is to stand for")
        _substitutes[id(original)] = original, substitute
        return substitute

    return decorate


def substitute_of(fn: Any) -> Callable[..., Any] | None:
    """What to capture in place of ``fn``: said to Turret or to ``torch.compiler``; None for ``fn`` itself."""
    found = _substitutes.get(id(fn))
    if found is not None:
        return found[1]
    theirs = getattr(fn, "__torch_dynamo_polyfill__", None)
    if theirs is None:
        theirs = _torchs_substitutes().get(id(fn))
    module = getattr(theirs, "__module__", None) or ""
    return None if module.startswith("torch.") else theirs


def _torchs_substitutes() -> dict[int, Callable[..., Any]]:
    variables = sys.modules.get("torch._dynamo.variables.functions")
    registry = getattr(getattr(variables, "PolyfilledFunctionVariable", None), "_get_polyfill_handlers", None)
    if registry is None:
        return {}
    known = registry()
    if len(known) != _seen.get("count"):
        _seen["count"] = len(known)
        _seen["by_id"] = {id(k): v.__torch_dynamo_polyfill__ for k, v in known.items()}
    known_by_id: dict[int, Callable[..., Any]] = _seen["by_id"]
    return known_by_id


_seen: dict[str, Any] = {}


def graph_break(reason: str = "") -> None:
    """End the graph here and begin another; nothing where no capture is under way.  ``reason`` is kept on record."""


graph_break._torchdynamo_disable = True  # type: ignore[attr-defined]


def _same_parameters(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    try:
        mine, theirs = inspect.signature(one), inspect.signature(other)
    except (TypeError, ValueError):
        return True
    found = [[(p.name, p.kind, p.default) for p in s.parameters.values()] for s in (mine, theirs)]
    anything = [p.kind for p in theirs.parameters.values()] == [
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    ]
    return anything or found[0] == found[1]
