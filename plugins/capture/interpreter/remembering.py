"""Calls of functions under ``functools.lru_cache``, whose results outlive the call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from turret.frames.sources import BoundSource, CallOfSeveralSource, CallSource, ItemSource
from turret.plugins.capture.branches.watched import counting_changes
from turret.plugins.capture.errors import Raised, Unsupported
from turret.plugins.capture.python import lookups
from turret.plugins.capture.python.bytecode import decode
from turret.plugins.capture.record.effects import LaterCall
from turret.plugins.capture.values.base import Constant, Tracer, Value
from turret.plugins.capture.values.functions import LocalFunction
from turret.plugins.capture.values.modules import Module
from turret.plugins.capture.values.objects import Instance
from turret.plugins.capture.values.sequences import NamedTuple, Tuple
from turret.plugins.capture.values.symbols import Symbolic
from turret.plugins.capture.values.tensors import Tensor
from turret.torch_compat.fakes import unset_fake_temporarily


def call_remembering(
    t: Tracer, object: functools._lru_cache_wrapper, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A call of a function under ``functools.lru_cache``.

    Of what may have been an earlier call's arguments it is called for real, as in plain execution, and a guard calls
    it again: whoever clears the cache gets another result.  Of anything else it is followed, once in a frame for the
    same arguments.  Of tensors it is left to Python, if that may be, so that what it computes of them is compiled.
    """
    if (object, _COUNTED) in t.remembered or _is_cleared(t, object):
        raise Unsupported(f"a call of {object.__qualname__} after its counts were read, or its cache was cleared")
    t.remembered[object, _CALLED] = Constant(None)
    given = [v.realize() for v in (*args, *kwargs.values())]
    outside = [v for v in given if not v.is_constant()]
    if not outside and t.trusted(object):
        return _called(t, object, *t.folded_arguments(object, args, kwargs))
    key = (object, len(args), *kwargs, *(v if isinstance(v, Symbolic) else v.key(t) for v in given))
    if key not in t.remembered:
        existed = all(isinstance(v, _OBJECTS) and v.source is not None for v in outside)
        make = _recalled if existed else _followed
        t.remembered[key] = make(t, object, args, kwargs, outside if existed else given)
    return t.remembered[key]


_COUNTED, _CALLED = "counts were read", "was called"


def _is_cleared(t: Tracer, object: functools._lru_cache_wrapper) -> bool:
    clears = (call for call in t.effects.later if call.function is lookups.clear_cache)
    return any(call.args[0].realize().constant() is object for call in clears)


def call_of_cache(t: Tracer, object: functools._lru_cache_wrapper, name: str) -> Value | None:
    """A call of a method of the function's own: ``cache_info()`` or ``cache_clear()``; None for others.

    Counts are those in front of the call, and the cache is cleared behind it.  What a frame calls of the function is
    counted by guards, too, and so neither is known beside it.
    """
    if name not in ("cache_info", "cache_clear"):
        return None
    if name == "cache_info":
        if t.trusted(object) or (object, _CALLED) in t.remembered or _is_cleared(t, object):
            raise Unsupported(f"{object.__qualname__}.cache_info() beside calls of the function")
        counted = object, _COUNTED
        if counted not in t.remembered:
            found = object.cache_info()
            source = CallSource(BoundSource(object.__qualname__, object), lookups.counts_of_cache)
            hits, misses, current = (
                t.recorder.int_input(number, ItemSource(source, place), is_int=True)
                for place, number in ((0, found.hits), (1, found.misses), (3, found.currsize))
            )
            t.remembered[counted] = NamedTuple([hits, misses, Constant(found.maxsize), current], type(found))
            t.blocks.refuse("what the cache of a function counted")
        return t.remembered[counted]
    t.effects.later.append(LaterCall(lookups.clear_cache, [t.wrap_known(object)]))
    t.effects.count += 1
    return Constant(None)


def _called(t: Tracer, function: Any, args: list[Any], kwargs: dict[str, Any]) -> Value:
    """What a call gives now and always."""
    try:
        with unset_fake_temporarily():
            return t.wrap_known(function(*args, **kwargs))
    except (RecursionError, MemoryError):
        raise
    except Exception as error:
        inner = None if error.__traceback__ is None else error.__traceback__.tb_next
        raise t.raised_from(error, inner) from None


_OBJECTS = (Instance, Module, LocalFunction, Tensor)
"""Values that are objects from before the call where they have a source."""


def _recalled(
    t: Tracer, object: functools._lru_cache_wrapper, args: list[Value], kwargs: dict[str, Value], outside: list[Value]
) -> Value:
    """What a call gives now, found again by the same call."""
    name = object.__qualname__
    held: list[Any] = sorted({id(v): v for v in outside}.values(), key=lambda v: isinstance(v, Tensor))
    reason = _why_not_now(t, object) or _why_not_of(t, object, held)
    if reason:
        raise Unsupported(f"{name}, which remembers its results{reason}")
    if any(isinstance(v, Tensor) for v in held):
        _try(t, object, args, kwargs, held)
    t.provenance.bound_to_process(f"{name} remembers its results")
    recall = _recall(t, object, args, kwargs, held)
    with unset_fake_temporarily(), t.state.drawing():
        try:
            found = recall(*(v.real if isinstance(v, Tensor) else v.object for v in held)) if held else recall(object)
        except Exception:  # which is not remembered
            return t.call(t.wrap_known(object.__wrapped__), args, kwargs)
    return t.wrap(found, _source_of_call(t, object, recall, held))


def _source_of_call(
    t: Tracer, object: functools._lru_cache_wrapper, recall: lookups.Recall, held: list[Any]
) -> CallSource:
    """Where the result of a call of some objects is found."""
    base, *others = (v.source for v in held) if held else (BoundSource(object.__qualname__, object),)
    if not others:
        return CallSource(base, recall)
    t.blocks.refuse("a function that remembers its results, of several objects")
    return CallOfSeveralSource(base, recall, tuple(others))


def _why_not_of(t: Tracer, object: functools._lru_cache_wrapper, held: list[Any]) -> str:
    """Why the function is not to be called of some objects, ahead of the graph; empty where it may be."""
    tensors: list[Any] = [v for v in held if isinstance(v, Tensor)]
    if len(held) - len(tensors) > 1:
        return " of several objects"
    if not tensors:
        return ", and is about to forget some" if _is_about_to_forget(object) else ""
    made = any(v.real is None or any(isinstance(s, CallSource) for s in v.source.steps()) for v in tensors)
    if made or t.recorder.open_regions or not t.policy.whole:
        return ", of a tensor from before"
    # A cache is full of tensors in the end.  What the frame calls it of is remembered as long as guards are checked.
    most, calls = object.cache_info().maxsize, sum(known[0] is object for known in t.remembered)
    return f", of which it remembers {most}" if most is not None and calls > most else ""


def _try(
    t: Tracer, object: functools._lru_cache_wrapper, args: list[Value], kwargs: dict[str, Value], held: list[Any]
) -> None:
    """Follow a call into a graph that is left aside; raises ``Unsupported`` where that changes or draws anything.

    Guards, which call for real what may be there to be remembered, are checked in another order than the program runs.
    """
    recorder = t.recorder
    remembered, calls = dict(t.remembered), recorder.calls
    around = [recorder.root_graph, *(region.graph for region in recorder.open_regions)]
    tensors = [v for v in recorder.by_fake.values() if v.node.graph in around]
    before = [recorder.versions.of(v.fake) for v in tensors]
    try:
        with counting_changes(t, *held) as changed, recorder.region():
            t.call(t.wrap_known(object.__wrapped__), args, kwargs)
    except Raised:
        raise Unsupported(f"{object.__qualname__}, which raises where it would remember its result") from None
    if changed() or before != [recorder.versions.of(v.fake) for v in tensors] or recorder.fake_mode.asked_generators:
        raise Unsupported(f"{object.__qualname__}, which remembers its results and has side effects")
    t.remembered, recorder.calls = remembered, calls


def _is_about_to_forget(object: functools._lru_cache_wrapper) -> bool:
    size = object.cache_info()
    return size.currsize == size.maxsize and not (size.maxsize and _takes_nothing(object.__wrapped__))


def _why_not_now(t: Tracer, object: functools._lru_cache_wrapper) -> str:
    """Why the function is not to be called while capturing, and by a guard; empty where it may be."""
    if t.effects or t.recorder.versions.changed(t.recorder.inputs):
        return ", after changes of what was there before, which have not reached it"
    if t.recorder.fake_mode.asked_generators:
        return ", after random numbers were drawn"
    if t.overrides.modes or t.overrides.level != t.overrides.outer_level or t.recorder.devices:
        return ", where modes answer for torch's functions: guards ask none of them"
    if _writes(object.__wrapped__):
        return " and has side effects"
    return ""


def _takes_nothing(function: Any) -> bool:
    """Whether all calls of a function are of the same arguments: there is one result to remember."""
    code = getattr(function, "__code__", None)
    takes = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
    return code is not None and not (code.co_argcount or code.co_kwonlyargcount or code.co_flags & takes)


def _recall(
    t: Tracer, object: functools._lru_cache_wrapper, args: list[Value], kwargs: dict[str, Value], held: list[Any]
) -> lookups.Recall:
    """The call as a function of the objects that it is given beside constants."""
    numbers = {id(v): n for n, v in enumerate(held)}
    given: list[tuple[int | str, Value]] = [*enumerate(args), *kwargs.items()]
    places = {place: numbers[id(v.realize())] for place, v in given if id(v.realize()) in numbers}
    plain, named = t.folded_arguments(
        object,
        [Constant(None) if n in places else v for n, v in enumerate(args)],
        {n: Constant(None) if n in places else v for n, v in kwargs.items()},
    )
    return lookups.Recall(object, plain, named, places, t.state.since_start())


def _writes(function: Any) -> bool:
    """Whether the very code of a function sets attributes or globals."""
    code = getattr(function, "__code__", None)
    return code is not None and any(i.name in _WRITES for i in decode(code).instructions)


_WRITES = frozenset({"STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL"})


def _followed(
    t: Tracer,
    object: functools._lru_cache_wrapper,
    args: list[Value],
    kwargs: dict[str, Value],
    given: Sequence[Value],
) -> Value:
    """The result of such a function's body, where no earlier call can have been of the same arguments."""
    tensors = [v for v in given if isinstance(v, Tensor)]
    if any(v.source is not None for v in tensors):
        raise Unsupported(f"{object.__qualname__} of a tensor for which it may remember a result")
    versions = t.recorder.versions
    before = [versions.of(v.fake) for v in tensors]
    with counting_changes(t, *given) as changed:
        result = t.call(t.wrap_known(object.__wrapped__), args, kwargs)
    known = (v.source is not None or v.is_constant() or isinstance(v, Symbolic) for v in given)
    if all(known):
        if changed() or before != [versions.of(v.fake) for v in tensors]:
            raise Unsupported(f"{object.__qualname__}, which remembers its results and has side effects")
        _keep(t, object, result.realize())
    return result


def _keep(t: Tracer, object: functools._lru_cache_wrapper, result: Value) -> None:
    """Take note of what later calls get, too, so that nothing in the frame changes it."""
    if isinstance(result, Tensor):
        t.recorder.versions.keep(object.__qualname__, result.fake)
    elif isinstance(result, Tuple):
        for item in result.items:
            _keep(t, object, item.realize())
    elif not (isinstance(result, Symbolic) or result.is_constant()):
        raise Unsupported(f"{object.__qualname__}, which remembers its results, of which {result.describe()} is one")
