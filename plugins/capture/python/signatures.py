"""Whether a function takes the arguments of a call, told without calling it."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Collection
from typing import Any

import attrs


@attrs.frozen
class Parameters:
    """The parameters of a function.

    ``positional``: names in order, of which the first ``unnamed`` are given by position alone and the first
    ``required`` have no default; ``keywords``: names of the others, ``needed`` of which have no default; ``rest`` and
    ``others``: whether it takes more by position, and by name.
    """

    positional: tuple[str, ...]
    unnamed: int
    required: int
    keywords: frozenset[str]
    needed: frozenset[str]
    rest: bool
    others: bool

    def take(self, count: int, names: Collection[str]) -> bool:
        """Whether they can be bound to ``count`` arguments by position and others by these names."""
        if count > len(self.positional) and not self.rest:
            return False
        if not names:
            return count >= self.required and not self.needed
        by_name = self.positional[self.unnamed :]
        left = frozenset(self.positional[max(count, self.unnamed) :])
        known = left | self.keywords
        if any(n not in known and (n in by_name or not self.others) for n in names):
            return False
        return self.needed.issubset(names) and all(
            number >= self.unnamed and self.positional[number] in names for number in range(count, self.required)
        )


@functools.cache
def parameters_of(function: Callable) -> Parameters:
    """The parameters of a function; raises ``ValueError`` for one in C that does not tell."""
    if isinstance(function, types.FunctionType):
        return _of_code(function)
    found = inspect.signature(function).parameters.values()
    positional = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    keywords = [p for p in found if p.kind is p.KEYWORD_ONLY]
    return Parameters(
        tuple(p.name for p in positional),
        sum(p.kind is p.POSITIONAL_ONLY for p in positional),
        sum(p.default is p.empty for p in positional),
        frozenset(p.name for p in keywords),
        frozenset(p.name for p in keywords if p.default is p.empty),
        any(p.kind is p.VAR_POSITIONAL for p in found),
        any(p.kind is p.VAR_KEYWORD for p in found),
    )


def _of_code(function: types.FunctionType) -> Parameters:
    """Of a function of Python, for a fraction of what ``inspect`` takes."""
    code = function.__code__
    count = code.co_argcount
    keywords = frozenset(code.co_varnames[count : count + code.co_kwonlyargcount])
    return Parameters(
        code.co_varnames[:count],
        code.co_posonlyargcount,
        count - len(function.__defaults__ or ()),
        keywords,
        keywords.difference(function.__kwdefaults__ or ()),
        bool(code.co_flags & inspect.CO_VARARGS),
        bool(code.co_flags & inspect.CO_VARKEYWORDS),
    )


def takes(function: Callable, count: int, names: Collection[str] = ()) -> bool:
    """Whether a function takes ``count`` arguments by position and others by these names."""
    return parameters_of(function).take(count, names)


def by_place(function: Callable, args: list[Any], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call with as many by position as the parameters of ``function`` allow."""
    try:
        parameters = parameters_of(function)
    except (ValueError, TypeError):  # written in C, and tells nothing
        return args, named
    placed, left = list(args), dict(named)
    if len(args) >= parameters.unnamed:
        for name in parameters.positional[len(args) :]:
            if name not in left:
                break
            placed.append(left.pop(name))
    return placed, left
