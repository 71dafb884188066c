"""Counts the calls of a plan, and has them launch its library calls directly once they have come some times."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch

from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for
from turret.plan import Call, Plan
from turret.plan.executor import LoadedPlan
from turret.plan.sizes import Sizes, source_reader
from turret.storage.fork_safety import Lock
from turret.torch_compat.settings import product_settings

_CALLS = 3
"""The call of a plan, with the same sizes, before which its library calls are recorded.  That takes about 0.1 s, of
which programs that make one call or two are spared, and comes while programs still warm up.  The first call may load
kernels, which a recording must not."""

_FIRST_SIZES, _SHARE = 2, 0.1
"""Sizes of a plan that are recorded as soon as they came so often, and the share of a process's time that recordings
may take where others are.

A call of 60 library calls wins half a millisecond, so that a size has to come some hundred times to be worth it; nobody
knows which will.  As a share, what is lost is bounded, and what comes for long is recorded in the end."""

_MOST_SIZES, _MOST_COUNTED = 64, 1024
"""Sizes of a plan for which its library calls are recorded, and of which calls are counted."""

Key = tuple[int, ...]
Launched = Callable[[list[Any]], list[Any] | None]


@attrs.define(eq=False)
class RecordingTime:
    """Seconds that recordings of library calls took in this process, against those since the first was asked for."""

    clock: Callable[[], float] = time.monotonic
    spent: float = 0.0
    began: float | None = None

    def allows_more(self) -> bool:
        """Whether they took no more than ``_SHARE`` of the time."""
        now = self.clock()
        self.began = now if self.began is None else self.began
        return self.spent <= _SHARE * (now - self.began)

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """What happens within it is a recording."""
        start = self.clock()
        try:
            yield
        finally:
            self.spent += self.clock() - start


recording_time = RecordingTime()


class Diversion:
    """What a plan hands its calls to: it gives None, for the plan to run them itself, until it has launches of the
    library calls in calls of these sizes."""

    def __init__(self, context: CompileContext, function: LoadedPlan) -> None:
        self._context, self._plan, self._pool, self._divert = context, function.plan, function.pool, function.divert
        self._now = contextvars.copy_context()  # whose devices these are
        self._readers = _readers(self._plan)
        self._calls: Counter[Key] = Counter()
        self._launched: dict[Key, Launched | None] = {}
        self._begun: set[Key] = set()
        self._lock = Lock()

    @classmethod
    def where_wanted(cls, context: CompileContext, function: Any) -> None:
        """Divert the calls of a loaded plan that has some of a library, on a device that queues its work."""
        plan = getattr(function, "plan", None)
        if plan is None or not context.config.direct_library_calls:
            return
        is_queued = device_for(torch.device(plan.device).type).asynchronous
        if is_queued and any(isinstance(step, Call) for step in plan.steps):
            function.divert(cls(context, function))

    def __call__(self, args: list[Any]) -> list[Any] | None:
        key = self._key(args)
        if key in self._launched:
            return self._run(key, args)
        self._calls[key] += 1
        if len(self._calls) > _MOST_COUNTED:
            self._calls.clear()
        # The time is asked first, so that it begins with the first call.
        elif (recording_time.allows_more() or len(self._launched) < _FIRST_SIZES) and self._calls[key] >= _CALLS:
            with self._lock:
                if key not in self._launched:
                    self._now.copy().run(self._record, key)
        return None

    def _key(self, args: list[Any]) -> Key:
        """The sizes of a call."""
        return tuple(read(args[position]) for _, position, read in self._readers)

    def _run(self, key: Key, args: list[Any]) -> list[Any] | None:
        """A call of sizes for which it is known whether library calls can be launched."""
        launch = self._launched[key]
        if launch is None:
            return None
        if key not in self._begun:
            self._begun.add(key)
            self._pool.clear()  # of memory that devices keep between calls, what is launched has its own
            if not self._readers:
                self._divert(launch)
        return launch(args)

    def _record(self, key: Key) -> None:
        """Find what calls of some sizes launch, unless somebody records on the device: then the next call will do."""
        where = torch.device(self._plan.device)
        device = device_for(where.type)
        launch: Launched | None = None
        if device.graphs is not None:
            index = where.index if where.index is not None else device.current_index()
            is_recording = functools.partial(device.graphs.is_recording, index)
            if is_recording():
                return
            sizes = dict(zip((symbol for symbol, *_ in self._readers), key, strict=True))
            with recording_time.counting():
                launch = self._found(sizes, is_recording)
        self._launched[key] = launch
        if not self._readers and launch is None:
            self._divert(None)
        elif len(self._launched) >= _MOST_SIZES:
            self._calls.clear()
            self._divert(self._of_known_sizes)

    def _of_known_sizes(self, args: list[Any]) -> list[Any] | None:
        """As a call of this, where no further sizes are recorded."""
        key = self._key(args)
        return self._run(key, args) if key in self._launched else None

    def _found(self, sizes: Sizes, is_recording: Callable[[], bool]) -> Launched | None:
        """What runs a call with its library calls launched; None, on record, where none can be."""
        from turret.plugins.cudagraphs.direct.launches import launched  # a program of few calls does without

        try:
            function, message = launched(self._plan, self._context, sizes)
        except Exception as error:  # a plan that runs is none that its recording may break
            function, message = None, f"its library calls cannot be recorded: {type(error).__name__}: {error}"
        at = f" at {', '.join(f'{symbol} = {size}' for symbol, size in sizes.items())}" if sizes else ""
        text = f"{self._plan.name}{at}: {message}"
        self._context.emit("direct_calls", stage="wrap_runtime", name=self._plan.name, message=text)
        if function is None:
            return None
        run, settings = function, product_settings()

        def launch(args: list[Any]) -> list[Any] | None:
            # What somebody records may be replayed beside calls in whose memory its launches work.
            return None if product_settings() != settings or is_recording() else run(args)

        return launch


def _readers(plan: Plan) -> tuple[tuple[str, int, Callable[[Any], int]], ...]:
    """The sizes that calls of a plan come with, with the position of the input that each is read from."""
    known = ((symbol, plan.size_sources.get(symbol)) for symbol in plan.size_symbols)
    return tuple(
        (symbol, source.input, source_reader(source))
        for symbol, source in known
        if source is not None and source.kind != "float"
    )
