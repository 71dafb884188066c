"""Functions of the standard library that are pure, or that do nothing: paths, JSON, messages that no log takes."""

from __future__ import annotations

import functools
import json
import logging
import os.path
from typing import Any

from turret.frames.sources import BoundSource
from turret.plugins.capture.errors import Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.registry import registry
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.objects import Instance

_OF_PATHS = (
    os.path.join, os.path.basename, os.path.dirname, os.path.split, os.path.splitext, os.path.isabs, os.path.normpath,
    os.path.normcase, os.path.commonprefix,
)  # fmt: skip


def _of_path(function: Any, t: Tracer, /, *args: Value, **kwargs: Value) -> Value:
    """A function of texts that reads neither the disk nor the environment."""
    return t.fold(function, list(args), kwargs)


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


# Logs.


_LEVELS = {
    logging.Logger.debug: logging.DEBUG, logging.Logger.info: logging.INFO, logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR, logging.Logger.critical: logging.CRITICAL,
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


@registry.function(logging.Logger.log)
def log(t: Tracer, /, logger: Value, level: Value, *args: Value, **kwargs: Value) -> Value:
    return _message(t.int_of(level), t, logger, *args, **kwargs)


@registry.function(logging.Logger.isEnabledFor)
def is_enabled_for(t: Tracer, logger: Value, level: Value) -> Value:
    return Constant(_is_enabled(t, logger, t.int_of(level)))


@registry.function(logging.getLogger)
def get_logger(t: Tracer, name: Value | None = None) -> Value:
    """A logger that there is by now: one of a name is there for good."""
    wanted = None if name is None else t.constant_of(name)
    found = logging.Logger.manager.loggerDict.get(wanted) if isinstance(wanted, str) else None
    if not isinstance(found, logging.Logger):
        raise Unsupported("a logger that is not there yet")
    t.provenance.bound_to_process(f"the logger {wanted}")
    return t.wrap(found, BoundSource(f"the logger {wanted}", found))
