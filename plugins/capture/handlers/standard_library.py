"""Functions of the standard library that are pure, or that do nothing: paths, JSON, messages that no log takes."""

from __future__ import annotations

import functools
import json
import logging
import operator
import os.path
import re
import sys
import typing
from typing import Any

from turret.frames.sources import BoundSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.classes import METHODS_IN_C
from turret.plugins.capture.values.objects import Instance

_OF_PATHS = (
    os.path.join, os.path.basename, os.path.dirname, os.path.split, os.path.splitext, os.path.splitdrive, os.path.isabs,
    os.path.normpath, os.path.normcase, os.path.commonprefix,
    *([os.path.splitroot] if hasattr(os.path, "splitroot") else []),
)  # fmt: skip


def _of_path(function: Any, t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """A function of texts that reads neither the disk nor the environment; of an object it asks for the text."""
    return t.fold(function, [_text_of_path(t, v) for v in args], {k: _text_of_path(t, v) for k, v in kwargs.items()})


def _text_of_path(t: Tracer, path: Value) -> Value:
    return t.call(t.wrap_known(os.fspath), [path], {}) if isinstance(path.realize(), Instance) else path


@registry.function(os.path.commonpath)
def common_path(t: Tracer, paths: Value) -> Value:
    return t.fold(os.path.commonpath, [paths], {})


for _function in _OF_PATHS:
    registry.function(_function)(functools.partial(_of_path, _function))


_OF_FORMAT = frozenset({"skipkeys", "ensure_ascii", "check_circular", "allow_nan", "indent", "separators", "sort_keys"})


@registry.function(json.dumps)
def dumps(t: Tracer, /, obj: Value, **kwargs: Value) -> Value:
    """``json.dumps`` of constants and containers of them; sizes are assumed to be what they are."""
    if not kwargs.keys() <= _OF_FORMAT:
        raise Unsupported("json.dumps with code of the program's")
    return t.text(json.dumps, [obj], kwargs)


@registry.function(json.loads)
def loads(t: Tracer, /, s: Value, **kwargs: Value) -> Value:
    if kwargs:
        raise Unsupported("json.loads with code of the program's")
    return t.fold(json.loads, [s], {})


@registry.function(sys.getrecursionlimit)
def recursion_limit(t: Tracer) -> Value:
    """The program's, which is lower than the one that capture sets for itself."""
    found = lookups.recursion_limit(sys)
    t.guards.take("CALL", BoundSource("sys", sys), (lookups.recursion_limit, found))
    return Constant(found)


# Getters from before; those that compiled code makes are functions of Python (``python.polyfills``).


def _call_getter(t: Tracer, getter: Value, value: Value) -> Value:
    assert isinstance(getter, Instance)
    if getter.object is None or getter.source is None:
        raise Unsupported(f"a call of {getter.describe()}")
    reduced = getter.object.__reduce__()
    if reduced[0] is not type(getter.object):
        raise Unsupported("a methodcaller with arguments by name")
    if all(type(v) in (bool, int, str) for v in reduced[1]):
        t.guards.take("CALL", getter.source, (lookups.parts_of_getter, lookups.parts_of_getter(getter.object)))
    else:
        t.guards.take("ID", getter.source, getter.object)
    made = t.call(t.wrap_known(reduced[0]), [t.wrap_known(v) for v in reduced[1]], {})
    return t.call(made, [value], {})


for _getter in (operator.attrgetter, operator.itemgetter, operator.methodcaller):
    METHODS_IN_C[_getter] = {"__call__": _call_getter}


# Regular expressions.


@registry.function(typing.NewType.__call__)
def as_new_type(t: Tracer, value: Value) -> Value:
    """A call of what ``typing.NewType`` made: nothing happens."""
    return value


@registry.function(re.sub)
def sub(
    t: Tracer, pattern: Value, repl: Value, string: Value, count: Value | None = None, flags: Value | None = None
) -> Value:
    compiled = t.fold(re.compile, [pattern, *([] if flags is None else [flags])], {})
    return substituted(t, compiled, repl, string, count)


@registry.function(re.Pattern.sub)
def substituted(t: Tracer, pattern: Value, repl: Value, string: Value, count: Value | None = None) -> Value:
    """The text with each match replaced by a text, or by what a function of the program's makes of the match."""
    found, text = t.constant_of(pattern), t.constant_of(string)
    most = 0 if count is None else t.int_of(count)
    if repl.realize().is_constant() and isinstance(repl.realize().constant(), (str, bytes)):
        return t.fold(re.Pattern.sub, [pattern, repl, string, Constant(most)], {})
    matches: list[re.Match] = []

    def note(match: re.Match) -> Any:
        matches.append(match)
        return text[:0]

    found.sub(note, text, most)
    texts = iter([t.constant_of(t.call(repl, [t.wrap_known(match)], {})) for match in matches])
    return t.fold(lambda: found.sub(lambda match: next(texts), text, most), [], {})


@registry.function(re.finditer)
def find_each(t: Tracer, pattern: Value, string: Value, flags: Value | None = None) -> Value:
    compiled = t.fold(re.compile, [pattern, *([] if flags is None else [flags])], {})
    return find_each_of_pattern(t, compiled, string)


@registry.function(re.Pattern.finditer)
def find_each_of_pattern(t: Tracer, pattern: Value, string: Value, *bounds: Value) -> Value:
    matches = t.constant_of(pattern).finditer(t.constant_of(string), *map(t.int_of, bounds))
    return t.items_iterator([t.wrap_known(match) for match in matches])


# Logs.


_LEVELS = {
    logging.Logger.debug: logging.DEBUG, logging.Logger.info: logging.INFO, logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR, logging.Logger.critical: logging.CRITICAL,
    logging.Logger.exception: logging.ERROR,
}  # fmt: skip


def _is_enabled(t: Tracer, logger: Value, level: int) -> bool:
    """Whether a logger takes messages of a level, assumed to stay so."""
    held = logger.realize()
    if not isinstance(held, Instance) or held.source is None or not isinstance(held.object, logging.Logger):
        raise Unsupported(f"a message for {held.describe()}")
    if held.mutated or type(held.object).isEnabledFor is not logging.Logger.isEnabledFor:
        raise Unsupported("a message for a logger that says itself what it takes")
    asked = functools.partial(lookups.is_logged, level)
    found = asked(held.object)
    t.guards.take("CALL", held.source, (asked, found))
    return found


def _message(level: int, t: Tracer, /, logger: Value, *args: Value, **kwargs: Value) -> Value:
    if _is_enabled(t, logger, level):
        raise Unsupported("a message for a log")
    return Constant(None)


for _method, _level in _LEVELS.items():
    registry.function(_method)(functools.partial(_message, _level))


def _message_of_root(level: int, t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """``logging.info`` and its kin, which make a handler where there is none."""
    root = BoundSource("the root logger", logging.root)
    t.guards.take("CALL", root, (lookups.has_handlers, found := lookups.has_handlers(logging.root)))
    if not found:
        raise Unsupported("a message for the root logger, which has no handler yet")
    return _message(level, t, t.wrap(logging.root, root), *args, **kwargs)


for _name, _level in (("debug", 10), ("info", 20), ("warning", 30), ("error", 40), ("exception", 40), ("critical", 50)):
    registry.function(getattr(logging, _name))(functools.partial(_message_of_root, _level))


@registry.function(logging.Logger.log)
def log(t: Tracer, /, logger: Value, level: Value, *args: Value, **kwargs: Value) -> Value:
    return _message(t.int_of(level), t, logger, *args, **kwargs)


@registry.function(logging.Logger.isEnabledFor)
def is_enabled_for(t: Tracer, logger: Value, level: Value) -> Value:
    return Constant(_is_enabled(t, logger, t.int_of(level)))


@registry.function(logging.Logger.getEffectiveLevel)
def effective_level(t: Tracer, logger: Value) -> Value:
    held = logger.realize()
    if not isinstance(held, Instance) or held.source is None or held.mutated:
        raise Unsupported(f"the level of {held.describe()}")
    found = lookups.effective_level(held.object)
    t.guards.take("CALL", held.source, (lookups.effective_level, found))
    return Constant(found)


registry.followed |= {
    f"LoggerAdapter.{name}"
    for name in ("debug", "info", "warning", "error", "exception", "critical", "log", "isEnabledFor", "process")
}


@registry.function(logging.getLogger)
def get_logger(t: Tracer, name: Value | None = None) -> Value:
    """A logger that there is by now: one of a name is there for good."""
    wanted = None if name is None else t.constant_of(name)
    found = logging.Logger.manager.loggerDict.get(wanted) if isinstance(wanted, str) else None
    if not isinstance(found, logging.Logger):
        raise Unsupported("a logger that is not there yet")
    t.provenance.bound_to_process(f"the logger {wanted}")
    return t.wrap(found, BoundSource(f"the logger {wanted}", found))
