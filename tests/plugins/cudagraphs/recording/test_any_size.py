"""Recordings that serve calls of any sizes, on a device in Python and on a device that records plans."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.cudagraphs.recording_machine import Machine, Program, Step
from tests.plugins.devices.acme_world import World, on_acme, rand
from turret.api import cudagraphs
from turret.plugins.cudagraphs.pools.fresh import FreshGraphs
from turret.plugins.cudagraphs.pools.graphed import ANY_SIZE_RECORDINGS, Graphed, Settings
from turret.plugins.cudagraphs.recording.recorder import NotRecordable

STEPS = (
    Step("scale", "t0", ("i0",)),
    Step("plus", "t1", ("t0",), hidden=True),
    Step("product", "t2", ("t1", "i0")),
    Step("sum", "t3", ("t2", "t1")),
    Step("copy", "t4", ("t3",)),
    Step("clear", "t5", ("t4",)),
    Step("add_", "t5", ("t4",)),
    Step("copy_", "t5", ("t2",)),
    Step("add_", "i0", ("t3",)),
)


def graphed(machine: Machine, **options: object) -> tuple[Program, Graphed]:
    program = Program(machine, 1, STEPS, ["t3", "t3[1:]", "i0", "t5", "t4[2:]"], launches_only=True)
    place = machine.recording_device()
    manager = FreshGraphs(place, 0)
    made = Graphed(program, program.run, place, Settings(**options), lambda stream: manager, lambda *told: None)
    return program, made


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(lengths=st.lists(st.integers(1, 50), min_size=3, max_size=12))
def test_one_recording_serves_all_sizes_and_overwrites_nothing(lengths: list[int]) -> None:
    machine = Machine()
    program, function = graphed(machine)
    kept = []
    for length in lengths:
        x = torch.arange(length) - 3
        kept.append((x.clone(), x.clone()))
        kept[-1] += (function([kept[-1][0]]), program.eagerly([kept[-1][1]]))
    for real, expected, found, right in kept:
        assert torch.equal(real, expected) and all(torch.equal(a, b) for a, b in zip(found, right, strict=True))
    told = function.reported()
    assert (told.warm_ups, told.recordings, told.replays, machine.made) == (1, 1, len(lengths) - 1, 1)
    assert told.any_size and not told.one_size and "one recording serves calls of all sizes" in str(told)
    assert told.patched_nodes == told.nodes == len(STEPS)


def test_a_size_of_zero_is_served_by_a_recording_of_its_own() -> None:
    program, function = graphed(Machine())
    for length in (4, 4, 0, 0, 5, 0):
        x = torch.arange(length)
        expected = program.eagerly([x.clone()])
        assert all(torch.equal(a, b) for a, b in zip(function([x.clone()]), expected, strict=True))
    assert function.reported().recordings == 2 and function.reported().sizes == 1


def test_tensors_that_kernels_do_not_take_are_recorded_otherwise_until_it_is_given_up() -> None:
    class Picky(Program):
        def launch(self, args, buffers, memory, stream):
            if args[0].data_ptr() % 16:
                raise NotRecordable("these kernels want aligned tensors")
            super().launch(args, buffers, memory, stream)

    def called(function: Graphed, aligned: bool) -> None:
        values = torch.arange(9)
        x = values.clone() if aligned else torch.cat([values[:1], values])[1:]
        (expected,) = program.eagerly([values.clone()])
        assert torch.equal(function([x])[0], expected)

    machine = Machine()
    program = Picky(machine, 1, STEPS, ["t3"], launches_only=True)
    for turns, served in (((True, False, True, False), True), ((True, False, False, False, False, True), False)):
        manager = FreshGraphs(machine.recording_device(), 0)
        function = Graphed(
            program, program.run, machine.recording_device(), Settings(), lambda _, m=manager: m, lambda *told: None
        )
        for aligned in turns:
            called(function, aligned)
        told = function.reported()
        assert told.any_size == served and ("want aligned tensors" in told.one_size) != served, str(told)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"outputs": "pool"}, "outputs lie in the pool"), ({"capture_sizes": (4,)}, "cudagraph_capture_sizes names")],
)
def test_what_keeps_a_recording_to_its_sizes_is_on_record(options: dict, reason: str) -> None:
    told = graphed(Machine(), **options)[1].reported()
    assert not told.any_size and told.one_size.startswith(reason) and told.one_size in str(told)


class Specialised(Program):
    """Kernels of other names at sizes that are multiples of 4, of 16, of 64, in turn: ``kinds`` of them."""

    kinds = 1

    def launch(self, args, buffers, memory, stream):
        real, count = self.machine.launch, itertools.count()

        def named(name, function, *tensors, hidden=()):
            length, turn = tensors[0].shape[0], next(count) % self.kinds
            real(f"{name} of {length // 4**turn % 4 == 0}", function, *tensors, hidden=hidden)

        self.machine.launch = named
        try:
            super().launch(args, buffers, memory, stream)
        finally:
            del self.machine.launch


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(lengths=st.lists(st.integers(1, 60), min_size=3, max_size=30), kinds=st.integers(1, 3))
def test_sizes_that_have_other_kernels_have_another_recording_for_all_of_them(lengths: list[int], kinds: int) -> None:
    machine = Machine()
    program = Specialised(machine, 1, STEPS, ["t3"], launches_only=True)
    program.kinds = kinds
    manager = FreshGraphs(machine.recording_device(), 0)
    function = Graphed(
        program, program.run, machine.recording_device(), Settings(), lambda _: manager, lambda *told: None
    )
    kept = []
    for length in lengths:
        x = torch.arange(length)
        kept.append((program.eagerly([x.clone()]), function([x.clone()])))
    assert all(torch.equal(found, expected) for (expected,), (found,) in kept)
    sets = list(dict.fromkeys(tuple(n // 4**turn % 4 == 0 for turn in range(kinds)) for n in lengths[1:]))
    told = function.reported()
    assert told.any_size == min(len(sets), ANY_SIZE_RECORDINGS)
    assert len(told.rerecordings) == told.any_size - 1
    assert told.any_size == 1 or f"{told.any_size} recordings serve calls of all sizes" in str(told)
    if len(sets) <= ANY_SIZE_RECORDINGS:
        assert (told.warm_ups, told.replays, told.sizes) == (1, len(lengths) - 1, 0)
        assert told.recordings == machine.made == len(sets)


def test_a_recording_that_failed_is_made_again_beside_those_for_other_kernels() -> None:
    machine = Machine()
    program = Specialised(machine, 1, STEPS, ["t3"], launches_only=True)
    manager = FreshGraphs(machine.recording_device(), 0)
    function = Graphed(
        program, program.run, machine.recording_device(), Settings(), lambda _: manager, lambda *told: None
    )

    def call(length: int) -> None:
        x = torch.arange(length)
        (expected,) = program.eagerly([x.clone()])
        assert torch.equal(function([x])[0], expected)

    for length in (4, 8, 5, 12, 7):
        call(length)
    broken = next(n for n in function.nodes if n.recorded.recording.kernels[0].name == "scale of True")
    broken.recorded.recording.fails = True
    with pytest.raises(OSError, match="the device is lost"):
        call(16)
    for length in (20, 9, 24):
        call(length)
    assert broken not in function.nodes and function.reported().any_size == 2 and function.recordings == 3


PARTS = (
    lambda x, y, a: torch.softmax(torch.relu(x) * a + y, -1),
    lambda x, y, a: x - x.sum(0, keepdim=True),
    lambda x, y, a: torch.cumsum(x, 1) + y.amax(),
    lambda x, y, a: (x.t().contiguous() * a).t() + y,
    lambda x, y, a: x.flip(0) * y.mean(),
)


def served_by_one(
    world: World, chosen: list, sizes: list[tuple[int, int]], r: random.Random, *further: object
) -> list[Graphed]:
    """A program of these parts gives eager's results at all sizes, by one recording a graph; gives what was recorded.

    What is counted is what this program's calls did.  The report has what lives: also graphs of programs before it that
    no garbage collection has taken, and not those of this one that were dropped.
    """
    others, mine = set(cudagraphs.functions), set()

    def program(x, y, a):
        for part in chosen:
            x = part(x, y, a)
        return x, x.amax(1), x[1:]

    options = {"on_error": "raise", "cache": False, "cudagraphs": True}
    compiled = turret.compile(program, dynamic=True, plugins=[world.plugin, *further], options=options)
    kept = []
    for n, m in sizes:
        x, y, a = rand(n, m), rand(m), r.choice((0.5, -2.0, 3.25))
        kept.append((compiled(x, y, a), program(x, y, a)))
        mine |= set(cudagraphs.functions) - others
    for found, expected in kept:
        torch.testing.assert_close([t.cpu() for t in found], [t.cpu() for t in expected], rtol=1e-4, atol=1e-5)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
    calls = 0
    graphs = [f for f in mine if isinstance(f, Graphed)]  # one for all sizes that guards do not tell apart
    for graph in graphs:
        replays = sum(node.tally.replays for node in graph.nodes)
        assert (graph.warm_ups, len(graph.nodes)) == (1, min(replays, 1)) and not graph.plain_calls, graph.reported()
        assert all(node.any_size for node in graph.nodes)
        calls += graph.warm_ups + replays
    assert calls == len(sizes)
    assert all(pool.reserved_bytes == 0 for pool in cudagraphs.report().pools)
    return graphs


@on_acme
def test_a_plan_of_kernels_is_recorded_once_for_all_sizes(world: World) -> None:
    sizes = [(3, 5), (3, 5), (7, 4), (2, 12), (9, 5)]
    graphs = served_by_one(world, list(PARTS), sizes, random.Random(0))
    assert max(node.tally.replays for graph in graphs for node in graph.nodes) > 1, "of several sizes"


@pytest.mark.thorough
@on_acme
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 1 << 30))
def test_any_plan_of_kernels_is_recorded_once_for_all_sizes(world: World, seed: int) -> None:
    turret.reset()
    r = random.Random(seed)
    chosen = [r.choice(PARTS) for _ in range(r.randint(1, 4))]
    sizes = [(n := r.randint(2, 9), r.choice([m for m in range(2, 12) if m != n])) for _ in range(7)]
    served_by_one(world, chosen, sizes, r)


@on_acme
def test_a_graph_with_a_library_call_says_why_it_is_recorded_a_size(world: World) -> None:
    options = {"on_error": "raise", "cache": False, "cudagraphs": True}
    compiled = turret.compile(lambda x, w: torch.relu(x @ w), dynamic=True, plugins=[world.plugin], options=options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (3, 3, 5, 5):
            x, w = rand(n, 4), rand(4, 6)
            torch.testing.assert_close(compiled(x, w).cpu(), torch.relu(x @ w).cpu())
    (told,) = (f for f in cudagraphs.report().functions if f.recordings)
    assert told.recordings == 2 and not told.any_size
    reason = "grids and arguments of aten::mm.default are not known ahead of a call"
    assert told.one_size == reason, told.one_size
    given = {"plugins": [world.plugin], "options": options, "dynamic": True}
    explained = turret.explain(lambda x, w: torch.relu(x @ w) + 1, **given)(rand(3, 4), rand(4, 6))
    assert any("is recorded for each of its sizes" in text and reason in text for text in explained.not_recorded)


@on_acme
def test_inputs_that_alias_or_are_written_to_are_as_in_a_call(world: World) -> None:
    def program(x, y):
        x.mul_(2)
        return x.sum(0) + y, x[1:]

    options = {"on_error": "raise", "cache": False, "cudagraphs": True}
    compiled = turret.compile(program, dynamic=True, plugins=[world.plugin], options=options)
    for n in (4, 4, 7, 3, 9, 9):
        x, y = rand(n, 5), rand(5)
        other = x.clone()
        found, expected = compiled(x, y), program(other, y)
        torch.testing.assert_close([t.cpu() for t in (*found, x)], [t.cpu() for t in (*expected, other)])
        assert found[1].data_ptr() == x[1:].data_ptr()


class Copies:
    """A pass that has a graph write to its first input: its own last result of that layout, or ``what(input)``."""

    def __init__(self, what: Callable[..., torch.fx.Node] | None = None) -> None:
        self.what, self.cache_key = what, "copies"

    @turret.hookimpl
    def turret_graph_pass(self, phase: str, module: torch.fx.GraphModule) -> None:
        if phase != "forward":
            return
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        target = next(n for n in module.graph.nodes if n.op == "placeholder" and n.meta["val"].dim() == 2)
        with module.graph.inserting_before(output):
            source = self.what(module.graph, target) if self.what else next(self.results(output, target))
            copy = module.graph.call_function(torch.ops.aten.copy_.default, (target, source))
            copy.meta["val"] = target.meta["val"]

    @staticmethod
    def results(output: torch.fx.Node, target: torch.fx.Node) -> Iterator[torch.fx.Node]:
        wanted = target.meta["val"]
        for node in output.args[0]:
            if node.meta["val"].shape == wanted.shape and node.meta["val"].stride() == wanted.stride():
                yield node


@on_acme
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(sizes=st.lists(st.tuples(st.integers(2, 9), st.integers(10, 15)), min_size=3, max_size=7))
def test_copies_of_bytes_are_served_at_any_size(world: World, sizes: list[tuple[int, int]]) -> None:
    turret.reset()
    cudagraphs.functions.clear()

    def program(x, y):
        z = torch.softmax(x + y, -1)
        return z, z.sum(0) - y

    options = {"on_error": "raise", "cache": False, "cudagraphs": True}
    compiled = turret.compile(program, dynamic=True, plugins=[world.plugin, Copies()], options=options)
    kept = []
    for n, m in sizes:
        x, y = rand(n, m), rand(m)
        expected, version = program(x.clone(), y), x._version
        kept.append((compiled(x, y), expected, x))
        assert x._version == version + 1
    for found, expected, x in kept:
        torch.testing.assert_close([t.cpu() for t in (*found, x)], [t.cpu() for t in (*expected, expected[0])])
    (told,) = (f for f in cudagraphs.report().functions if f.recordings)
    assert (told.recordings, told.any_size, told.replays) == (1, 1, len(sizes) - 1) and not told.one_size, str(told)
    (node,) = (n for f in cudagraphs.functions if isinstance(f, Graphed) for n in f.nodes)
    assert [n.kind for n in node.recorded.recording.nodes].count("copy") == 1


@on_acme
def test_a_copy_to_another_layout_is_recorded_a_size(world: World) -> None:
    def transposed(graph: torch.fx.Graph, target: torch.fx.Node) -> torch.fx.Node:
        turned, rows = torch.ops.aten.t.default, {"memory_format": torch.contiguous_format}
        node = target
        for op, options in ((turned, {}), (torch.ops.aten.clone.default, rows), (turned, {})):
            node = graph.call_function(op, (node,), options)
            node.meta["val"] = op(node.args[0].meta["val"], **options)
        return node

    options = {"on_error": "raise", "cache": False, "cudagraphs": True}
    compiled = turret.compile(
        lambda x: x + 1, dynamic=True, plugins=[world.plugin, Copies(transposed)], options=options
    )
    for n in (3, 3, 5, 5):
        x = rand(n, 4)
        torch.testing.assert_close(compiled(x).cpu(), x.cpu() + 1)
    (told,) = (f for f in cudagraphs.report().functions if f.recordings)
    assert told.recordings == 2 and "to another layout is chosen by torch" in told.one_size, str(told)
