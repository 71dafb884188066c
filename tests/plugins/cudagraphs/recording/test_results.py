"""Results that library calls allocate are handed out as they are where that is sound, and else copied."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.cudagraphs.recording_machine import (
    ARITY,
    CALLS,
    GRANULE,
    WRITES,
    GrowingPool,
    Machine,
    Program,
    Step,
)
from tests.plugins.devices.acme_world import World, on_acme, rand
from turret.api import cudagraphs
from turret.plugins.cudagraphs.pools.fresh import FreshGraphs
from turret.plugins.cudagraphs.pools.graphed import Graphed, Settings

LENGTH = 3 * GRANULE // 8
"""Elements of a vector that fills blocks."""


def graphed(program: Program) -> Graphed:
    place = program.machine.recording_device()
    manager = FreshGraphs(place, 0)
    return Graphed(program, program.run, place, Settings(), lambda stream: manager, lambda *told: None)


def replayed(program: Program, calls: int = 5, lengths: tuple[int, ...] = (LENGTH,)) -> Graphed:
    """What calls of a program gave is eager's when all have been made; the function that was called."""
    function, kept = graphed(program), []
    for call in range(calls):
        inputs = [torch.arange(lengths[call % len(lengths)]) * (n + 2) - call for n in range(program.inputs)]
        others = [x.clone() for x in inputs]
        kept.append((inputs, others, function(list(inputs)), program.eagerly(others)))
    for inputs, others, found, expected in kept:
        assert all(torch.equal(a, b) for a, b in zip([*found, *inputs], [*expected, *others], strict=True)), (
            program.steps
        )
    return function


def decisions(function: Graphed) -> list[str]:
    """Of outputs: whether the recording copies it, and why."""
    (node,) = function.nodes
    assert all(d.kind == "fresh" for d in node.decisions if d.value == "output"), node.decisions
    return [d.reason for d in node.decisions if d.value == "output"]


def copies(function: Graphed) -> int:
    (node,) = function.nodes
    return [n.name for n in node.recorded.recording.nodes].count("copy out")


WRITTEN = "its library call writes to it"


@pytest.mark.parametrize("op", ["fresh", "dead", "two", "worked"])
def test_a_result_is_handed_out_where_its_call_puts_it(op: str) -> None:
    steps = [Step(op, "t0", ("i0",)), Step("sum", "t1", ("t0", "i0")), Step("add_", "t0", ("t1",))]
    outputs = ["t0", "t1", "t0b"] if op == "two" else ["t0", "t1"]
    function = replayed(Program(Machine(), 1, steps, outputs))
    assert copies(function) == 0
    assert [WRITTEN in reason for reason in decisions(function)] == [output != "t1" for output in outputs]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Step("large", "t0", ("i0",)), "its library call works in 576 bytes more, and it has 192"),
        (Step("slice", "t0", ("i0",)), "it is a part of a larger storage"),
        (Step("alias", "t0", ("i0",)), "it is no fresh memory of its library call"),
        (Step("end", "t0", ("i0",)), "moved with it and lie outside of it"),
        (Step("fresh", "t0", ("i0",), hidden=True), "no addresses of the pool"),
    ],
)
def test_a_result_that_is_not_understood_is_copied_and_the_reason_is_on_record(step: Step, reason: str) -> None:
    steps = [step, Step("fresh", "t1", ("i0",)), Step("sum", "t2", ("t0", "t1"))]
    function = replayed(Program(Machine(), 1, steps, ["t0", "t1", "t2"]))
    found = decisions(function)
    assert copies(function) == 1 and reason in found[0] and WRITTEN in found[1], found


def test_a_result_that_one_size_has_copied_is_not_tried_again_at_others(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [0]
    record = Machine.record

    def counted(*arguments: Any, **named: Any) -> Any:
        made[0] += 1
        return record(*arguments, **named)

    monkeypatch.setattr(Machine, "record", counted)
    steps = [Step("end", "t0", ("i0",)), Step("fresh", "t1", ("i0",)), Step("sum", "t2", ("t0", "t1"))]
    function = graphed(Program(Machine(), 1, steps, ["t0", "t1", "t2"]))
    recorded = []
    for length in (LENGTH, LENGTH, 2 * LENGTH, 2 * LENGTH):
        inputs = [torch.arange(length)]
        before = made[0]
        assert all(map(torch.equal, function(list(inputs)), function.work.eagerly(inputs)))  # type: ignore[attr-defined]
        recorded.append(made[0] - before)
    assert recorded[0] == recorded[2] == 0 and recorded[1] > recorded[3] == 6
    for node in function.nodes:
        reasons = [d.reason for d in node.decisions if d.value == "output"]
        assert "moved with it and lie outside of it" in reasons[0] and WRITTEN in reasons[1]


def test_a_result_that_one_size_has_copied_for_want_of_memory_is_tried_again_at_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = Machine.record
    short = [True]

    def failing(*arguments: Any, **named: Any) -> Any:
        if "held_back" in named and short[0]:
            raise MemoryError("there is none to hold back")
        return record(*arguments, **named)

    monkeypatch.setattr(Machine, "record", failing)
    function = graphed(Program(Machine(), 1, [Step("fresh", "t0", ("i0",))], ["t0"]))
    for length in (LENGTH, LENGTH, 2 * LENGTH, 2 * LENGTH):
        function([torch.arange(length)])
        short[0] = length == LENGTH and not function.nodes
    assert [WRITTEN in d.reason for n in function.nodes for d in n.decisions if d.value == "output"] == [False, True]


def test_an_intermediate_that_a_call_gives_back_is_copied() -> None:
    steps = [Step("fresh", "t0", ("i0",)), Step("scale", "t1", ("t0",)), Step("alias", "t2", ("t1",))]
    function = replayed(Program(Machine(), 1, [*steps, Step("add_", "t1", ("t0",))], ["t2", "t0"]))
    assert copies(function) == 1 and [WRITTEN in reason for reason in decisions(function)] == [False, True]


def test_nothing_is_handed_out_where_nobody_is_told_of_library_calls() -> None:
    machine = Machine()
    machine.observer = lambda: None
    function = replayed(Program(machine, 1, [Step("fresh", "t0", ("i0",))], ["t0"]))
    assert copies(function) == 1


def test_a_result_whose_later_reader_is_handed_it_hidden_is_copied() -> None:
    steps = [Step("fresh", "t0", ("i0",)), Step("fresh", "t1", ("t0",), hidden=True)]
    function = replayed(Program(Machine(), 1, steps, ["t0", "t1"]))
    assert copies(function) == 2


def test_memory_that_was_free_before_the_call_is_another_s() -> None:
    """Earlier values lay where the result lies: their words stay, and so do those of later ones."""
    steps = [Step("scale", "t0", ("i0",)), Step("plus", "t1", ("t0",)), Step("scale", "t2", ("i0",)),
             Step("fresh", "t3", ("t2",)), Step("plus", "t4", ("t3",)), Step("scale", "t5", ("t4",)),
             Step("sum", "t6", ("t5", "t3"))]  # fmt: skip
    function = replayed(Program(Machine(), 1, steps, ["t3", "t6"]))
    assert copies(function) == 0 and WRITTEN in decisions(function)[0]


@pytest.mark.parametrize("growths", [3, 16, 1000])
def test_results_are_handed_out_though_the_pool_grew_while_they_were_recorded(monkeypatch, growths: int) -> None:
    monkeypatch.setattr(Machine, "pool", lambda machine, index: GrowingPool(machine))
    monkeypatch.setattr(GrowingPool, "growths", growths)
    steps = [Step("fresh", "t0", ("i0",)), Step("sum", "t1", ("t0", "i0")), Step("fresh", "t2", ("t1",))]
    function = replayed(Program(Machine(), 1, steps, ["t0", "t1", "t2"]))
    grows_for_ever = growths == 1000
    assert copies(function) == (2 if grows_for_ever else 0)
    assert [WRITTEN in reason for reason in decisions(function)] == [not grows_for_ever, False, not grows_for_ever]


def draw(r: random.Random) -> Program:
    """A program whose values are mostly results of library calls."""
    inputs = r.randint(1, 2)
    names, steps = [f"i{n}" for n in range(inputs)], []
    for number in range(r.randint(1, 8)):
        op = r.choice((*CALLS, *CALLS, "sum", "plus", "add_", "copy", "copy_", "clear"))
        target = r.choice(names) if op in WRITES else f"t{number}"
        sources = tuple(r.choice(names) for _ in range(ARITY[op]))
        steps.append(Step(op, target, sources, hidden=r.random() < 0.25))
        names += [] if op in WRITES else [target]
        names += [f"{target}b"] if op == "two" else []
    made = [n for n in names if n[0] == "t"] or ["i0"]
    outputs = [r.choice(made) for _ in range(r.randint(1, 4))]
    return Program(Machine(), inputs, steps, [f"{o}[1:]" if r.random() < 0.2 else o for o in outputs])


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 40), lengths=st.lists(st.sampled_from([0, 3, 8, 24, 40]), min_size=1, max_size=3))
def test_any_program_of_library_calls_gives_what_eager_gives(seed: int, lengths: list[int]) -> None:
    replayed(draw(random.Random(seed)), 9, tuple(lengths))


GRAPHS = {"on_error": "raise", "cache": False, "cudagraphs": True}


def on_record(kept: int) -> list[str]:
    """Why outputs lie where they do, of the functions that were recorded; ``kept`` results of each call are held."""
    functions = [f for f in cudagraphs.report().functions if f.recordings]
    assert functions and all(f.replays >= kept - 1 for f in functions), functions
    return [text for f in functions for text in f.decisions if text.startswith("output")]


@on_acme
def test_what_library_calls_of_a_plan_allocate_is_handed_out(world: World) -> None:
    def program(x):
        values, places = torch.topk(torch.relu(x) + 1, 16, -1)
        filtered = torch.sort(x * 2, -1)
        return values, places, filtered.indices, filtered.values.sum()

    compiled = turret.compile(program, plugins=[world.plugin], options=GRAPHS)
    kept = []
    for _ in range(6):
        x = rand(32, 64)
        kept.append((compiled(x), program(x)))
    for found, expected in kept:
        torch.testing.assert_close([t.cpu() for t in found], [t.cpu() for t in expected])
    told = on_record(6)
    assert [WRITTEN in text for text in told] == [True, True, True, False], told
    assert cudagraphs.report().bytes_copied == 0


@on_acme
def test_results_that_are_saved_and_gradients_of_library_calls_are_handed_out(world: World) -> None:
    def program(x, w):
        values, _ = torch.sort(F.conv2d(x, w, padding=1) * 2, -1)
        return values[..., 2:].relu()

    compiled = turret.compile(program, plugins=[world.plugin], options=GRAPHS)
    kept = []
    for _ in range(6):
        inputs = [rand(2, 4, 16, 16, grad=True), rand(4, 4, 3, 3, grad=True)]
        others = [x.detach().clone().requires_grad_() for x in inputs]
        found, expected = compiled(*inputs), program(*others)
        torch.testing.assert_close(found.cpu(), expected.cpu())
        found.square().sum().backward()
        expected.square().sum().backward()
        kept += [(a.grad, b.grad) for a, b in zip(inputs, others, strict=True)]
    for found, expected in kept:
        torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=1e-4, atol=1e-4)
    assert sum(WRITTEN in text for text in on_record(6)) >= 3, on_record(6)


OPS = (
    lambda x: torch.sort(x, -1),
    lambda x: torch.topk(x, 3, -1),
    lambda x: (x, torch.argsort(x, 0)),
    lambda x: torch.linalg.qr(x[:, :5]),
    lambda x: (torch.cumsum(x, 0), torch.median(x, -1).indices),
    lambda x: (x * 2, x[1:]),
)


@pytest.mark.thorough
@on_acme
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 30))
def test_any_plan_of_library_calls_gives_what_eager_gives(world: World, seed: int) -> None:
    turret.reset()
    r = random.Random(seed)
    chosen, again = [r.choice(OPS) for _ in range(r.randint(1, 4))], r.random() < 0.5
    picked, shape = r.choice((1, 2)), (r.choice((6, 16)), r.choice((7, 16, 64)))

    def program(x):
        found = [each for op in chosen for each in op(x)]
        further = [t.sum(0) for t in found] if again else []
        return [*found, *further][::picked]

    compiled = turret.compile(program, plugins=[world.plugin], options=GRAPHS)
    kept = []
    for _ in range(5):
        x = rand(*shape)
        kept.append((compiled(x), program(x)))
    for found, expected in kept:
        torch.testing.assert_close([t.cpu() for t in found], [t.cpu() for t in expected], rtol=1e-3, atol=1e-3)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
