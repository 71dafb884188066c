"""Captures functions with graphs run as they are, and compares what the program sees with plain execution."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import numpy
import torch

from turret.frames.eager_graphs import eagerly
from turret.hooks import plugin_manager
from turret.hooks.events import Event
from turret.hooks.hookspecs import hookimpl
from turret.hooks.products import CapturedGraph
from turret.pipeline.stage_calls import create_context
from turret.plugins.capture.dispatching.entry import turret_capture
from turret.testing.corpus.seeding import seed_generators


class Observed:
    """A captured callable with everything that was reported about it."""

    def __init__(self, target: Callable, *, fullgraph: bool = False, dynamic: bool | None = None) -> None:
        self.graphs: list[CapturedGraph] = []
        self.breaks: list[str] = []
        self.recompiles: list[str] = []
        self.fallbacks: list[str] = []
        self.reuses: list[str] = []
        observer = self

        class Observer:
            @hookimpl
            def turret_event(self, event: Event) -> None:
                kinds = {
                    "graph_break": observer.breaks, "recompile": observer.recompiles, "fallback": observer.fallbacks,
                    "reuse": observer.reuses,
                }  # fmt: skip
                if event.kind in kinds:
                    kinds[event.kind].append(event.message)

        manager = plugin_manager.create((Observer(),))
        options = {"on_error": "raise"}
        context = create_context(plugin_manager.configure(manager, None, options), manager)
        self.call = turret_capture(
            context=context, target=target, compile_graph=self.keep, fullgraph=fullgraph, dynamic=dynamic
        )
        self.settings = self.call.turret_settings

    def keep(self, captured: CapturedGraph) -> Callable:
        """Stand for the compiler: the graph itself, run eagerly."""
        self.graphs.append(captured)
        return eagerly(captured.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    @property
    def units(self) -> list[Any]:
        return self.settings.root.units


def outcome(function: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[str, Any]:
    """What a call gives: its result, or the exception."""
    try:
        return "returned", function(*args, **kwargs)
    except Exception as error:
        return "raised", error


def assert_same(found: Any, expected: Any, where: str = "result") -> None:
    """Deep equality of types and values, tensors included."""
    assert type(found) is type(expected), f"{where}: {type(found)} is not {type(expected)}"
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, equal_nan=True, msg=lambda m: f"{where}: {m}")
        assert found.requires_grad == expected.requires_grad, f"{where}: requires_grad"
    elif isinstance(expected, numpy.ndarray):
        numpy.testing.assert_array_equal(found, expected, err_msg=where)
    elif isinstance(expected, (list, tuple, collections.deque)):
        assert len(found) == len(expected), f"{where}: {found} is not {expected}"
        for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
            assert_same(mine, theirs, f"{where}[{number}]")
    elif isinstance(expected, dict):
        assert list(found) == list(expected), f"{where}: keys {list(found)} are not {list(expected)}"
        for key in expected:
            assert_same(found[key], expected[key], f"{where}[{key!r}]")
    elif isinstance(expected, BaseException):
        assert str(found) == str(expected), f"{where}: {found!r} is not {expected!r}"
    elif type(expected).__module__ not in ("builtins", "collections") and hasattr(expected, "__dict__"):
        if not callable(expected):
            assert_same(vars(found), vars(expected), f"{where}.__dict__")
    elif not callable(expected) and not type(expected).__name__.endswith("iterator"):
        assert found == expected or (found != found and expected != expected), f"{where}: {found} is not {expected}"


def assert_captured(observed: Observed, *, raises: bool = False) -> None:
    """No frame ran as Python, but for those that raise where the program does."""
    found = [m for m in observed.fallbacks if not raises or " runs as Python: it raises " not in m]
    assert not found, found


def check(
    function: Callable,
    *args: Any,
    breaks: int | None = 0,
    graphs: int | None = None,
    calls: int = 2,
    dynamic: bool | None = None,
    **kwargs: Any,
) -> Observed:
    """Run plain and captured on copies of the arguments, several times; results and arguments must stay equal."""
    observed = Observed(function, dynamic=dynamic)
    mine, theirs = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
    for number in range(calls):
        seed_generators(number)
        expected = outcome(function, *theirs)
        seed_generators(number)
        found = outcome(observed, *mine)
        assert found[0] == expected[0], f"call {number}: {found} is not {expected}"
        assert_same(found[1], expected[1], f"call {number}")
        assert_same(mine[0], theirs[0], f"arguments after call {number}")
        assert_same(mine[1], theirs[1], f"arguments after call {number}")
    assert_captured(observed, raises=expected[0] == "raised")
    if breaks is not None:
        assert len(observed.breaks) == breaks, observed.breaks
    if graphs is not None:
        assert len(observed.graphs) == graphs
    return observed
