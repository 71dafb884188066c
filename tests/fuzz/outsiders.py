"""What users and vendors put into a compile, drawn for each compiled function: placements, graph compilers, borders.

Draws follow from the function's code, so that a seed of a program stands for them, too.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import turret
from tests.core.plan.section_lab import OPS, Sectioned, compiler
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import NodePlacement, Placement, StageGraph


def drawn_for(function: Callable) -> random.Random:
    """Random choices that are the same for the same function."""
    code = function.__code__
    return random.Random(zlib.crc32(code.co_code + repr((code.co_names, code.co_varnames)).encode()))


class SomeEagerly:
    """Sends a part of the calls that would be compiled to eager kernels."""

    def __init__(self, choices: random.Random) -> None:
        self.choices, self.part = choices, choices.choice((0.1, 0.5, 0.9))

    @hookimpl(wrapper=True)
    def turret_place(self, graph: StageGraph) -> Any:
        placement = yield
        there = {name for name, node in placement.nodes.items() if node.where == "compiled"}
        calls = [n.name for n in graph.module.graph.nodes if n.op == "call_function" and n.name in there]
        chosen = [name for name in calls if self.choices.random() < self.part]
        return Placement({**placement.nodes, **dict.fromkeys(chosen, NodePlacement("eager", "drawn"))})


class SomeGraphs:
    """A graph compiler that takes some of the graphs and clusters that it is offered, and runs them as they are."""

    def __init__(self, choices: random.Random) -> None:
        self.choices = choices

    @hookimpl
    def turret_compile_graph(self, module: Any, scope: str) -> Callable | None:
        return module if scope != "captured" and self.choices.random() < 0.6 else None


def placed(options: dict[str, Any], function: Callable) -> Callable:
    """Compiled with a placement of its own."""
    return turret.compile(function, plugins=[SomeEagerly(drawn_for(function))], options=options)


def graph_compilers(options: dict[str, Any], function: Callable) -> Callable:
    """Compiled with a placement and a graph compiler."""
    choices = drawn_for(function)
    return turret.compile(function, plugins=[SomeEagerly(choices), SomeGraphs(choices)], options=options)


def sections(options: dict[str, Any], function: Callable) -> Callable:
    """As if the host recorded launches, cut at drawn operations; the sections run one after the other."""
    choices = drawn_for(function)
    split = choices.sample(OPS, choices.choice((10, 40, len(OPS) // 2)))
    return compiler(split, Sectioned(), **options)(function)


def aot_eager(options: dict[str, Any], function: Callable) -> Callable:
    """Traced, partitioned and run call by call."""
    return turret.compile(function, backend="aot_eager", options={"on_error": options["on_error"]})


WAYS = {way.__name__: way for way in (placed, graph_compilers, sections, aot_eager)}
