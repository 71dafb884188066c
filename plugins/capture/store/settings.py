"""What one ``turret.compile`` asked for, and the units of its frames."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import attrs
from torch import nn

from turret.errors import warn
from turret.frames import frame_hook, stances
from turret.frames.filtering.few_guards import few_guards
from turret.frames.filtering.guard_audit import GuardAudit
from turret.frames.guard_tree import check_of
from turret.frames.torch_settings import dynamo_setting
from turret.hooks import plugin_manager
from turret.hooks.context import CompileContext
from turret.hooks.products import CapturedGraph
from turret.pipeline.stage_calls import create_context
from turret.plugins.capture.facts.policy import History
from turret.plugins.capture.options import RECOMPILE_LIMIT
from turret.plugins.capture.python.by_identity import ByIdentity
from turret.plugins.capture.store.alike import Alike, find_alike, find_alike_functions
from turret.plugins.capture.store.unit import CompileUnit

MOST_DROPPED = 64
"""Units of one function that make room for others when what they hold for is gone."""


@attrs.define(eq=False)
class FrameCache:
    """The units of one function (of one module, where it is a module's method), most recently used first."""

    units: list[CompileUnit] = attrs.field(factory=list)
    history: History = attrs.field(factory=History)
    given_up: bool = False
    captures: int = 0
    postponed: int = 0
    shared: list[CompileUnit] | None = None
    """Of a module's method: the latest units of any module of its, some of which hold for modules made later."""
    taken: set[str] = attrs.field(factory=set)
    """Entries of the artifact cache whose units are here."""
    dropped: int = 0
    delayed: bool = False
    """Whether a call ran otherwise first, as the stance asks, so that the next is compiled."""

    few: tuple[stances.Stance, list[CompileUnit]] = attrs.field(factory=lambda: (stances.DEFAULT, []))
    """The units with the guards alone that tell them apart, and the stance under which they were made."""

    def units_under(self, asked: stances.Stance) -> list[CompileUnit]:
        """The units, with the guards that the stance has checked."""
        if not asked.skips_guards:
            return self.units
        if self.few[0] is not asked:
            kept = few_guards([u.checked_guards() for u in self.units], (g for u in self.units for g in u.failed()))
            fewer = zip(self.units, kept, strict=True)
            self.few = asked, [attrs.evolve(u, guards=guards, check=check_of(guards)) for u, guards in fewer]
        return self.few[1]

    def drop_dead(self) -> None:
        """Drop units that hold for no call any more, for a module or parameter of theirs is gone.

        They leave room for as many captures; not for ever, for a program may make a module for each call."""
        alive = [unit for unit in self.units if unit.may_hold()]
        dropped = len(self.units) - len(alive)
        if dropped:
            self.units[:] = alive
            self.dropped += dropped
            if self.dropped <= MOST_DROPPED:
                self.captures -= dropped


@runtime_checkable
class StoringCompiler(Protocol):
    """A compiler of graphs that finds what it made again in another process."""

    def with_key(self, captured: CapturedGraph) -> tuple[Callable[..., Any], str | None]:
        """The callable of a graph, and the key that it is stored under; None where it is not."""

    def stored(self, key: str, name: str) -> Callable[..., Any] | None:
        """The callable that is stored under a key, if all parts of it are."""

    def settings(self) -> str | None:
        """Text of all that decides what a graph compiles to; None where nothing is stored."""


@attrs.define(eq=False, weakref_slot=True)
class Settings:
    """What one ``turret.compile`` asked for, and where its frames are kept."""

    context: CompileContext
    compile_graph: Callable
    fullgraph: bool
    dynamic: bool | None
    reuse_blocks: bool = True
    root: FrameCache = attrs.field(factory=FrameCache)
    frames: dict[Any, FrameCache] = attrs.field(factory=dict)
    graphs: int = 0
    """Graphs that there are for it, compiled or taken from the artifact cache."""
    obstacle: str = ""
    """The first reason why something was not captured, and the line of the program; empty while there is none."""
    waits: bool = False
    """Whether something ran as Python that is captured at the next call."""
    asked: bool = False
    """Whether a frame of the callable itself was looked at."""
    modules: ByIdentity[dict[types.CodeType, FrameCache]] = attrs.field(factory=ByIdentity)
    is_bound: bool = False
    """Whether the callable's first argument is an object that it is bound to."""
    alike: Alike | None = None
    """What it shares with modules that are compiled in the same way; None where it shares nothing."""

    def share(self, module: nn.Module, root: types.CodeType) -> None:
        """Share units of the root, the frame of this code, with modules that are alike, where there may be any."""
        self.alike = find_alike(self, self.context, (self.fullgraph, self.dynamic), module, root)
        self._share()

    def share_code(self, function: types.FunctionType) -> None:
        """Share units with functions of the same code: a program may make, and compile, a new one in each call."""
        self.alike = find_alike_functions(self.context, (self.fullgraph, self.dynamic), function)
        self._share()

    def _share(self) -> None:
        if self.alike is not None:
            self.root = FrameCache(shared=self.alike.units, history=self.alike.history)
            self.frames = self.frames if self.alike.frames is None else self.alike.frames

    def binds(self, history: History) -> bool:
        """Whether the first argument of frames with this history is what the callable is bound to."""
        return self.is_bound and history is self.root.history

    @functools.cached_property
    def stored_under(self) -> str | None:
        """Text of all that decides what a graph compiles to, part of the key of stored units; None: none are kept."""
        return self.storing.settings() if self.context.config.cache and self.storing is not None else None

    @property
    def storing(self) -> StoringCompiler | None:
        """``compile_graph``, where it can store what it makes."""
        return self.compile_graph if isinstance(self.compile_graph, StoringCompiler) else None

    def __attrs_post_init__(self) -> None:
        frame_hook.captures.add(self)

    @functools.cached_property
    def audit(self) -> GuardAudit | None:
        """The audits of guards that filters drop; None where none are asked for."""
        share = self.context.config.guard_audit
        return GuardAudit(share, self._report_violation) if share else None

    def _report_violation(self, message: str) -> None:
        self.context.emit("guard_audit", stage="guards", message=message)
        warn(message)

    @property
    def data_dependent(self) -> tuple[bool, bool]:
        """Whether numbers, and sizes, that depend on data are symbols of the graph: a full graph needs them to be."""
        config = self.context.config
        return (
            self.fullgraph or config.capture_scalar_outputs or bool(dynamo_setting("capture_scalar_outputs")),
            self.fullgraph
            or config.capture_dynamic_output_shape_ops
            or bool(dynamo_setting("capture_dynamic_output_shape_ops")),
        )

    @property
    def recompile_limit(self) -> int:
        """Captures of one function: torch's setting where the option is at its default and the setting is not."""
        given: int = self.context.config.recompile_limit
        theirs = dynamo_setting("recompile_limit")
        return theirs if theirs is not None and given == RECOMPILE_LIMIT else given

    def call_by_call(self) -> Settings:
        """The same with graphs that are traced and run operation by operation; what it learns of sizes is shared."""
        from turret.api import backends
        from turret.pipeline.driver import Compiler

        config = self.context.config
        manager = plugin_manager.create((backends.named("aot_eager"),))
        compiler = Compiler(manager, config)
        made = Settings(create_context(config, manager), compiler, self.fullgraph, self.dynamic, self.reuse_blocks)
        made.root.history = self.root.history
        return made

    def forget(self) -> None:
        """Drop all units and what was learned of sizes."""
        self.root = FrameCache()
        if self.alike is not None:
            self.alike.forget()
            self._share()
        self.frames.clear()
        self.modules.clear()
