"""``turret.explain``: what a call compiles to, without running compiled code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from turret.api import cudagraphs
from turret.api.cudagraphs import FunctionTeller, Report
from turret.hooks.events import Event
from turret.hooks.hookspecs import hookimpl


@attrs.frozen
class BreakReason:
    """Why a graph broke: ``reason``, and ``location``, the line of the program."""

    reason: str
    location: str

    @classmethod
    def of(cls, message: str) -> BreakReason:
        """Of the message of a graph break: the location, perhaps the line's text, the reason, calls and a hint."""
        location, *lines = (line.strip() for line in message.splitlines())
        told = [line for line in lines if not line.startswith(("called from", "hint:"))]
        return cls(told[-1] if told else "", location)


@attrs.frozen
class Explanation:
    """What was captured and compiled in one call.

    ``graphs``: captured graphs; ``ops``: calls in them by name; ``kernels``, ``externs``: steps of the schedules;
    ``breaks``: one message for each graph break, the user's line and the reason; ``fallbacks``: graphs that run
    eagerly, and why; ``guards``: how many assumptions are checked in each call; ``reuses``: what capture
    followed and the joint trace traced once and repeated, a line each; ``not_recorded``: what graph capture leaves out,
    and why; ``products``: how matrix products are computed where there was a choice, a line each with what every way
    takes, and how many are so.  A backward is not part of it.
    """

    graphs: int
    ops: dict[str, int]
    kernels: int
    externs: dict[str, int]
    breaks: tuple[str, ...]
    fallbacks: tuple[str, ...]
    guards: int = 0
    reuses: tuple[str, ...] = ()
    not_recorded: tuple[str, ...] = ()
    products: dict[str, int] = attrs.field(factory=dict)

    ops_per_graph: tuple[tuple[Any, ...], ...] = ()
    """Of each graph, what its nodes call: functions, and names of methods."""
    captures: Report | None = None
    """Functions that are recorded, with their recordings, and the pools of those; None where nothing is."""
    launched_calls: tuple[str, ...] = ()
    """For each graph, how many of its library calls are launched by themselves, and why others are not."""

    @property
    def graph_breaks(self) -> int:
        """How often capture left the graph."""
        return len(self.breaks)

    @property
    def graph_count(self) -> int:
        """``graphs``, as ``torch._dynamo.explain`` has it."""
        return self.graphs

    @property
    def graph_break_count(self) -> int:
        """``graph_breaks``, as ``torch._dynamo.explain`` has it."""
        return len(self.breaks)

    @property
    def op_count(self) -> int:
        """Calls in all graphs, as ``torch._dynamo.explain`` has it."""
        return sum(self.ops.values())

    @property
    def break_reasons(self) -> list[BreakReason]:
        """``breaks``, as ``torch._dynamo.explain`` has them."""
        return [BreakReason.of(message) for message in self.breaks]

    def __str__(self) -> str:
        externs = ", ".join(f"{count} {name}" for name, count in self.externs.items())
        lines = [
            f"{self.graphs} graphs, {self.graph_breaks} breaks, {sum(self.ops.values())} calls, {self.guards} guards",
            f"{self.kernels} kernels, {sum(self.externs.values())} extern calls" + (f": {externs}" if externs else ""),
        ]
        lines += [f"break {number}: {message}" for number, message in enumerate(self.breaks)]
        lines += [*self.reuses, *self.not_recorded, *self.launched_calls]
        lines += [f"{count} products {choice}" for choice, count in self.products.items()]
        lines += [str(self.captures)] if self.captures else []
        return "\n".join([*lines, *(f"runs eagerly: {message}" for message in self.fallbacks)])


class _Observer:
    def __init__(self) -> None:
        self.graphs, self.kernels, self.guards = 0, 0, 0
        self.per_graph: list[tuple[Any, ...]] = []
        self.ops: Counter[str] = Counter()
        self.externs: Counter[str] = Counter()
        self.breaks: list[str] = []
        self.fallbacks: list[str] = []
        self.reuses: list[str] = []
        self.not_recorded: list[str] = []
        self.launched_calls: list[str] = []
        self.products: Counter[str] = Counter()

        self._messages = {
            "graph_break": self.breaks,
            "fallback": self.fallbacks,
            "reuse": self.reuses,
            "graph_capture": self.not_recorded,
            "direct_calls": self.launched_calls,
        }

    @hookimpl
    def turret_event(self, event: Event) -> None:
        if event.kind in self._messages:
            if event.kind == "graph_capture" and event.product is not None:
                return  # a recording: it is in the report
            self._messages[event.kind].append(event.message)
        elif event.kind == "product":
            self._product(event)

    def _product(self, event: Event) -> None:
        if event.stage == "capture":
            self.graphs += 1
            calls = [n for n in event.product.module.graph.nodes if n.op.startswith("call")]
            self.per_graph.append(tuple(n.target for n in calls))
            self.ops.update(str(getattr(n.target, "__name__", n.target)) for n in calls)
        elif event.stage == "guards":
            self.guards += len(event.product.guards)
        elif event.stage == "schedule":
            self.kernels += len(event.product.kernels)
            self.externs.update(str(extern.op) for extern in event.product.externs)
            self.products.update(choice.told for choice in event.product.choices)


def explain(model: Callable[..., Any], calls: int = 1, **options: Any) -> Callable[..., Explanation]:
    """``explain(f)(*args)``: compile ``f`` for these arguments, run it, and say what became of it.

    Args:
        model: a function or a module.
        calls: how often it is run. Where graphs are captured, the first call warms up, the second is recorded, and
            later ones are replayed.
        options: arguments of ``turret.compile``, by name.

    Returns:
        A function of the arguments of ``model`` that gives an ``Explanation``.
    """
    from turret.api.compile import compile

    def run(*args: Any, **kwargs: Any) -> Explanation:
        observer = _Observer()
        rest = dict(options)
        settings = {**(rest.pop("options", None) or {}), "cache": False}
        before = set(cudagraphs.functions)
        compiled = compile(model, options=settings, plugins=(*rest.pop("plugins", ()), observer), **rest)
        for _ in range(calls):
            compiled(*args, **kwargs)
        return Explanation(
            observer.graphs,
            dict(observer.ops),
            observer.kernels,
            dict(observer.externs),
            tuple(observer.breaks),
            tuple(observer.fallbacks),
            observer.guards,
            tuple(observer.reuses),
            tuple(observer.not_recorded),
            dict(observer.products),
            tuple(observer.per_graph),
            _captures(set(cudagraphs.functions) - before),
            tuple(observer.launched_calls),
        )

    return run


def _captures(functions: Iterable[FunctionTeller]) -> Report | None:
    """What is known of functions that are recorded, and of pools that hold recordings of theirs."""
    told = sorted((f for f in (f.reported() for f in functions) if not f.skipped), key=lambda f: f.name)
    names = {f.title for f in told if f.recorded}
    pools = [p for p in cudagraphs.report().pools if any(names & {*path.names} for path in p.paths)]
    return Report(tuple(told), tuple(pools)) if told else None
