"""Values of the running program whose end can be seen: letting go of them runs code of the program.

A generator that waits in a ``try`` or ``with`` block is closed when nothing holds it any more, classes may have a
``__del__``, and an exception holds the variables of every frame that it went through.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import types
from collections.abc import Iterator

from turret.frames.class_members import find_in_mro
from turret.plugins.capture.python.bytecode import decode, waiting_at


def has_observable_finalizer(value: object) -> bool:
    """Whether a value is one whose end would be noticed, or holds one: as a container or an iterator does.

    Objects of the program's classes, and its functions, are not looked into: they have many holders as a rule.
    """
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if has_finalizer(type(found)):
            return True
        if id(found) in seen or not (_is_container(type(found)) or is_built_in_iterator(type(found))):
            continue
        if isinstance(found, types.GeneratorType):
            if found.gi_frame is None:
                continue
            if _ends_visibly(found):
                return True
        seen.add(id(found))
        waiting += _held_by(found)
    return False


def has_finalizer(kind: type) -> bool:
    """Whether a class has a ``__del__`` that is written in Python."""
    return isinstance(find_in_mro(kind, "__del__")[1], types.FunctionType)


def is_built_in_iterator(kind: type) -> bool:
    """Whether objects of a class are Python's own iterators, generators among them."""
    # A metaclass of the program's is not asked: it may run code, and its classes need not be hashable.
    return type(kind) is type and kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__")


def _is_container(kind: type) -> bool:
    return type(kind) is type and kind in _CONTAINERS


LETS_GO = "a value that is let go here: its end runs code of the program"
_CONTAINERS = frozenset(
    {
        list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict, collections.defaultdict,
        functools.partial, types.MethodType, types.BuiltinMethodType, types.MethodWrapperType, types.CellType,
    }
)  # fmt: skip


def _ends_visibly(generator: types.GeneratorType) -> bool:
    frame = generator.gi_frame
    if frame is None or frame.f_lasti < 0:
        return False
    if generator.gi_yieldfrom is not None:
        return True
    return decode(generator.gi_code).guards(waiting_at(generator), frame.f_globals)


def keeps_waiting(error: BaseException) -> bool:
    """Whether an exception, or one that it came from, went through a frame that holds such a generator."""
    return any(has_observable_finalizer(value) for frame in _frames(error) for value in _held_by(frame))


def clear_frames(error: BaseException) -> None:
    """Have the frames of Turret's that an exception, or one that it came from, left behind let go of what they hold.

    One that keeps an error of its own keeps the arguments of the program, whose own frames stay as they are.
    """
    for frame in _frames(error):
        if str(frame.f_globals.get("__name__")).startswith("turret."):
            with contextlib.suppress(RuntimeError):  # of one that is running
                frame.clear()


def _held_by(holder: object) -> Iterator[object]:
    """What a generator, a container or a frame that has ended holds.

    Not through ``f_locals``, which would make the frame hold it twice.
    """
    for value in gc.get_referents(holder):
        if isinstance(value, types.CellType):
            yield from gc.get_referents(value)
        else:
            yield value


def _frames(error: BaseException) -> Iterator[types.FrameType]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        waiting += [found.__cause__, found.__context__]
        trace = found.__traceback__
        while trace is not None:
            yield trace.tb_frame
            trace = trace.tb_next
