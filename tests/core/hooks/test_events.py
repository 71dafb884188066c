"""Events have the kinds and stages that are declared, whoever emits them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import attrs
import pytest
import torch

import turret
from turret.errors import Stage
from turret.hooks import hookspecs
from turret.hooks.events import Event, EventKind, stage_of

ROOT = Path(__file__).parents[3]
STAGES = {*get_args(Stage), ""}


@attrs.define(eq=False)
class Recorder:
    """Keeps all events."""

    events: list[Event] = attrs.field(factory=list)

    @turret.hookimpl
    def turret_event(self, event: Event) -> None:
        self.events.append(event)


def emitted() -> Iterator[tuple[str, ast.Call]]:
    """Each call of ``context.emit`` in the sources, with its place."""
    for folder in ("core", "plugins", "contrib"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("context.emit"):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def texts(node: ast.AST) -> set[str]:
    """The texts that an argument may be, where it is a text or a choice among some."""
    choices = [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]
    return {c.value for c in choices if isinstance(c, ast.Constant)}


def test_what_the_sources_emit_is_declared():
    found = list(emitted())
    assert len(found) > 20
    for place, call in found:
        assert texts(call.args[0]) <= set(get_args(EventKind)), place
        for keyword in call.keywords:
            if keyword.arg == "stage":
                assert texts(keyword.value) <= STAGES, place


def test_every_kind_that_is_declared_is_emitted():
    named = set().union(*(texts(call.args[0]) for _, call in emitted()))
    written = "".join(path.read_text() for path in (ROOT / "plugins/codegen").rglob("*.py"))
    assert {kind for kind in get_args(EventKind) if kind not in named and f'"{kind}"' not in written} == set()


def test_events_of_a_compile_that_breaks_and_falls_back_are_of_declared_kinds_and_stages(fresh):
    def program(x, w):
        y = torch.relu(x @ w)
        print(end="")
        return torch.softmax(y, -1).sum()

    class Refuses:
        @turret.hookimpl
        def turret_lowerings(self):
            raise RuntimeError("no table today")

    recorder = Recorder()
    x, w = torch.randn(4, 8), torch.randn(8, 4, requires_grad=True)
    turret.compile(program, plugins=[recorder])(x, w).backward()
    with pytest.warns(turret.TurretWarning, match="no table today"):
        options = {"on_error": "fallback"}
        turret.compile(lambda x: x + 1, plugins=[recorder, Refuses()], options=options)(x)
    kinds, stages = {e.kind for e in recorder.events}, {e.stage for e in recorder.events}
    assert kinds <= set(get_args(EventKind))
    assert {"compile_started", "stage_ended", "product", "graph_break", "fallback"} <= kinds
    assert stages <= STAGES
    assert {"capture", "joint", "codegen", "guards", "lowerings"} <= stages


def test_stages_have_the_names_of_their_hooks():
    general = {"turret_options", "turret_event"}
    hooks = {n for n in vars(hookspecs) if n.startswith("turret_")} - general
    smaller = {
        "turret_guard_filter",
        "turret_partition_cost",
        "turret_load_graph",
        "turret_fusion_score",
        "turret_choice_cost",
    }
    assert {stage_of(hook) for hook in hooks - smaller} <= STAGES
    for hook in smaller:
        with pytest.raises(ValueError, match="no hook of a stage"):
            stage_of(hook)
