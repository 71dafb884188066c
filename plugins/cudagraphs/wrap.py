"""Executables of plans on devices that can record become functions that are recorded and replayed."""

from __future__ import annotations

import contextvars
import functools
import sys
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import attrs
import torch

from turret.api import cudagraphs
from turret.api.cudagraphs import FunctionReport
from turret.hooks.context import CompileContext
from turret.hooks.devices import device_for
from turret.hooks.products import BoxedCallable, Role
from turret.plan import Plan
from turret.plan.capture import capture_obstacles
from turret.plan.executor import load
from turret.plan.sections import PlanSection, joined, sections_of, written_inputs
from turret.plugins.cudagraphs.direct.diversion import Diversion
from turret.plugins.cudagraphs.plans.generator_states import GeneratorStates
from turret.plugins.cudagraphs.plans.plan_work import PlanWork
from turret.plugins.cudagraphs.pools.fresh import FreshGraphs, LegacyGraphs
from turret.plugins.cudagraphs.pools.graphed import Graphed, Settings
from turret.plugins.cudagraphs.pools.trees import GraphTrees
from turret.plugins.cudagraphs.recording.recorder import NotRecordable
from turret.plugins.cudagraphs.work import RecordingDevice
from turret.storage.fork_safety import Lock

_KINDS: dict[str, Any] = {"fresh": FreshGraphs, "pool": GraphTrees, "legacy": LegacyGraphs}
_managers: WeakValueDictionary[tuple, Any] = WeakValueDictionary()
_lock = Lock()


def wrapped(context: CompileContext, function: BoxedCallable, role: Role) -> BoxedCallable | None:
    """An executable that is recorded and replayed; None, on record, where something stands in the way."""
    plan = getattr(function, "plan", None)
    if not isinstance(plan, Plan):
        return None
    config = context.config
    obstacles = capture_obstacles(plan, config.cudagraph_skip_dynamic_graphs, config.cudagraph_collectives)
    if obstacles or not plan.sections:
        Diversion.where_wanted(context, function)
    if obstacles:
        _skip(context, function, plan, role, "; ".join(obstacles))
        plain = _plain(function, plan)
        return None if plain is function else plain
    if not plan.sections:
        return _graphed(context, function, plan, role, written_inputs(plan))
    sections = sections_of(plan)
    functions = [_section(context, section, role) for section in sections]
    return joined(plan, sections, functions)


def _section(context: CompileContext, section: PlanSection, role: Role) -> BoxedCallable:
    """The function of one section."""
    function = load(section.plan, context.store("load"))
    Diversion.where_wanted(context, function)
    reasons = list(map(str, section.obstacles)) or capture_obstacles(
        section.plan, collectives=context.config.cudagraph_collectives
    )
    if not reasons:
        return _graphed(context, function, section.plan, role, section.written)
    _skip(context, function, section.plan, role, "; ".join(reasons))
    return _plain(function, section.plan)


def _plain(function: BoxedCallable, plan: Plan) -> BoxedCallable:
    """A plan's function, beside which others are recorded."""
    where = torch.device(plan.device)
    device = device_for(where.type)
    if device.graphs is None:
        return function
    index = where.index if where.index is not None else device.current_index()
    return GeneratorStates.of(plan).on_host(function, functools.partial(device.graphs.is_recording, index))


def _graphed(
    context: CompileContext, function: BoxedCallable, plan: Plan, role: Role, written: Sequence[int]
) -> BoxedCallable:
    """A function that is recorded and replayed; ``function`` itself, on record, where that cannot be."""
    now = contextvars.copy_context()  # whose devices these are
    device, settings = device_for(torch.device(plan.device).type), settings_of(context.config)
    recording_device = RecordingDevice.of(device, torch.device(plan.device))
    try:
        work = PlanWork(
            plan,
            lambda variant: now.copy().run(load, variant, context.store("load"), recording_device.capture.observer()),
            role,
            static=frozenset(plan.static_inputs),
            written=frozenset(written),
            own_memory=device.keeps_arena,
            reserves_nothing=settings.reserves_nothing,
            byte_copier=functools.partial(device.byte_copier, recording_device.index),
        )
        if settings.reserves_nothing and work.one_size:
            raise NotRecordable(work.one_size)
    except NotRecordable as error:
        _skip(context, function, plan, role, str(error))
        return _plain(function, plan)

    def tell(message: str, decisions: Sequence[Any] | None = None) -> None:
        context.emit("graph_capture", stage="wrap_runtime", name=plan.name, message=message, product=decisions)

    plain, on_stream = _plain(function, plan), lambda stream: manager_of(recording_device, stream, settings.outputs)
    graphed = Graphed(work, plain, recording_device, settings, on_stream, tell)
    if work.has_sizes and graphed.one_size:
        tell(f"{plan.name} is recorded for each of its sizes: {graphed.one_size}")
    graphed.plan, graphed.title = plan, functools.partial(_title, context, role)
    return graphed


_titles: WeakKeyDictionary[CompileContext, str] = WeakKeyDictionary()
"""What the function is called that a graph was captured from, by the compilation of both its forward and backward."""


def _title(context: CompileContext, role: Role, otherwise: str) -> str:
    """The name of the user's function that is running, for people; asked once, in the first call."""
    frame = sys._getframe() if role != "backward" else None
    while frame is not None:
        name = frame.f_globals.get("__unit__", "").rpartition(".")[2]
        if name and name == frame.f_code.co_name:
            _titles[context] = name
            break
        frame = frame.f_back
    title = _titles.get(context)
    if title is None:
        return otherwise
    return f"{title}.backward" if role == "backward" else title


_UNASKED_SIZES, _UNASKED_AGAIN, _UNASKED_CALLS = 8, 4, 8
"""Where nobody asked for graph capture: sizes of a function that are recorded, how often one is recorded again, and the
calls of a chain of kernels before it is: a recording costs about as much as so many calls."""


def settings_of(config: Any) -> Settings:
    """The options of graph capture."""
    sizes, again = config.cudagraph_max_recorded_sizes, config.cudagraph_unexpected_rerecord_limit
    chosen, further = tuple(config.cudagraph_capture_sizes), config.cudagraph_further_sizes_after_calls
    if config.cudagraphs:
        outputs = config.cudagraph_outputs if config.cudagraph_trees else "legacy"
        return Settings(
            outputs,
            further_after_calls=further,
            capture_sizes=chosen,
            max_recorded_sizes=sizes,
            rerecord_limit=again,
        )
    if not config.cudagraph_after_calls:
        return Settings(after_calls=_UNASKED_CALLS, unasked=True, reserves_nothing=True)
    return Settings(
        after_calls=config.cudagraph_after_calls,
        further_after_calls=further,
        unasked=True,
        capture_sizes=chosen,
        max_recorded_sizes=min(sizes, _UNASKED_SIZES),
        rerecord_limit=min(again, _UNASKED_AGAIN),
    )


def manager_of(recording_device: RecordingDevice, stream: int, outputs: str) -> Any:
    """What keeps recordings on a stream, for as long as a function has recordings there."""
    key = (id(recording_device.capture), recording_device.index, stream, outputs)
    with _lock:
        found = _managers.get(key)
        if found is None:
            found = _managers[key] = _KINDS[outputs](recording_device, stream)
        return found


@attrs.define(eq=False)
class _Skipped:
    """A function that is not captured, for the report."""

    report: FunctionReport

    def reported(self) -> FunctionReport:
        return self.report


_REPORT = "graph_capture"
"""The attribute of a function by which its report lives as long as it does."""


def _skip(context: CompileContext, function: BoxedCallable, plan: Plan, role: Role, reason: str) -> None:
    """Leave a function as it is, on record for as long as it is there."""
    message = f"{plan.name} is not captured: {reason}"
    context.emit("graph_capture", stage="wrap_runtime", name=plan.name, message=message)
    skipped = _Skipped(FunctionReport(plan.name, role, plan.device, "", skipped=reason))
    setattr(function, _REPORT, skipped)
    cudagraphs.functions.add(skipped)
