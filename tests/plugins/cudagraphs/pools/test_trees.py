"""Nodes, paths and generations one by one, on the machine in Python."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.plugins.cudagraphs.recording_machine import GRANULE, Machine, Program, Step, is_overwritten
from turret.api import cudagraphs
from turret.plugins.cudagraphs.plans.generator_states import GeneratorStates
from turret.plugins.cudagraphs.pools.fresh import FreshGraphs, LegacyGraphs
from turret.plugins.cudagraphs.pools.graphed import Graphed, Settings
from turret.plugins.cudagraphs.pools.trees import GraphTrees

KINDS = ["fresh", "pool", "legacy"]
PATH = os.pathsep.join([str(Path(__file__).parents[4]), *filter(None, sys.path)])


class Bench:
    """A machine, what keeps recordings on it, and functions recorded there."""

    def __init__(self, outputs: str = "fresh") -> None:
        self.machine, self.outputs = Machine(), outputs
        self.recording_device = self.machine.recording_device()
        self.calls, self.marks = 0, 0
        self.said: list[str] = []
        self.manager = self.manager_of_kind()

    def manager_of_kind(self) -> Any:
        if self.outputs == "pool":
            return GraphTrees(self.recording_device, 0, lambda: self.calls, lambda: self.marks)
        return {"fresh": FreshGraphs, "legacy": LegacyGraphs}[self.outputs](self.recording_device, 0)

    def hear(self, message: str, decisions: Any = None) -> None:
        self.said.append(message)

    def program(self, inputs: int, *steps: tuple, outputs: list[str], **facts: Any) -> Program:
        made = [Step(*step[:3], hidden=len(step) > 3) for step in steps]
        return Program(self.machine, inputs, made, outputs, **facts)

    def graphed(self, program: Program, **options: Any) -> Graphed:
        settings = Settings(self.outputs, **options)
        return Graphed(program, program.run, self.recording_device, settings, lambda stream: self.manager, self.hear)

    def agree(self, function: Graphed, *args: torch.Tensor) -> list:
        """One call from outside; what it gives is what eager gives, and so are inputs after it."""
        self.calls += 1
        copies = [a.clone() for a in args]
        found, expected = function(list(args)), function.work.eagerly(copies)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(args, copies, strict=True))
        return found


def vector(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def decided(function: Graphed) -> dict[tuple[str, int], str]:
    return {(d.value, d.number): d.kind for d in function.latest.decisions}


SCALED = (("scale", "t0", ("i0",)), ("plus", "t1", ("t0",)))


@pytest.mark.parametrize("outputs", KINDS)
def test_the_first_call_warms_up_the_second_is_recorded_and_later_ones_run_no_code(outputs):
    bench = Bench(outputs)
    program = bench.program(1, *SCALED, outputs=["t1"])
    function = bench.graphed(program)
    bench.agree(function, vector(1, 2))
    assert (function.reported().warm_ups, function.reported().recordings) == (1, 0)
    bench.agree(function, vector(3, 4))
    runs = program.runs
    for n in range(4):
        bench.agree(function, vector(n, n))
    assert program.runs == runs
    assert (function.reported().recordings, function.reported().replays) == (1, 5)


def test_what_nobody_asked_to_record_is_recorded_after_some_calls_of_its_sizes():
    bench = Bench()
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]), unasked=True, after_calls=3)
    for n in range(3):
        bench.agree(function, vector(n, 1))
        bench.agree(function, vector(n, 1, 2))
        assert (function.reported().warm_ups, function.reported().recordings) == (2 * n + 2, 0)
    for n in range(4):
        bench.agree(function, vector(n, 1))
    assert (function.reported().recordings, function.reported().replays) == (1, 4)


@pytest.mark.parametrize("outputs", KINDS)
def test_a_call_is_padded_to_a_size_that_is_named_and_gives_its_own_part(outputs):
    bench = Bench(outputs)
    program = bench.program(1, *SCALED, outputs=["t1", "t0[1:]", "i0"])
    function = bench.graphed(program, capture_sizes=(4, 8))
    for length in (3, 2, 4, 1, 7, 5, 8, 3, 0):
        x = torch.arange(length)
        found = bench.agree(function, x)
        assert [f.shape[0] for f in found] == [length, max(0, length - 1), length] and found[2] is x
    told = function.reported()
    assert (told.recordings, told.sizes, told.padded_calls) == (2, 2, 6)
    assert told.plain_calls == {"sizes (0,) are not among cudagraph_capture_sizes": 1}
    assert "6 calls were padded to a size that is recorded" in str(told)


def test_what_writes_to_its_inputs_is_not_padded():
    bench = Bench()
    function = bench.graphed(bench.program(1, ("add_", "i0", ("i0",)), outputs=["i0"]), capture_sizes=(4,))
    for length in (3, 3, 4, 4, 3):
        bench.agree(function, vector(*range(length)))
    assert (function.reported().recordings, function.reported().padded_calls) == (1, 0)


def test_sizes_that_seldom_come_again_are_not_recorded_and_others_are():
    bench = Bench()
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    for _ in range(2):
        for length in range(1, 41):
            bench.agree(function, vector(*range(length)))
    assert (function.reported().recordings, function.reported().sizes) == (2, 2)
    for _ in range(8):
        bench.agree(function, vector(*range(30)))
    assert (function.reported().recordings, function.reported().sizes) == (3, 3)


@pytest.mark.filterwarnings("error")
def test_what_nobody_asked_to_record_runs_as_it_is_where_a_replay_would_copy():
    bench = Bench()
    program = bench.program(1, ("scale", "t0", ("i0",), True), outputs=["t0"])
    program.key = lambda args: ()
    function = bench.graphed(program, unasked=True)
    program.shapes = lambda key: Program.shapes(program, (2,))
    for n in range(5):
        bench.agree(function, vector(n, 1))
    report = function.reported()
    assert (report.recordings, report.replays, function.is_off) == (0, 0, True)
    ((reason, count),) = report.plain_calls.items()
    assert count == 1 and "a replay would copy 32 bytes (bytes " in reason
    assert bench.manager.reserved_bytes() == 0


def test_a_fresh_replay_copies_nothing_and_keeps_nothing():
    bench = Bench()
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    kept = [bench.agree(function, vector(n, n + 1))[0] for n in range(6)]
    assert [k.tolist() for k in kept] == [[3 * n + 5, 3 * n + 8] for n in range(6)]
    assert decided(function) == {("input", 0): "patched", ("output", 0): "fresh"}
    assert function.reported().bytes_copied == 0
    assert not bench.manager._pool.used


def test_addresses_that_cannot_be_found_mean_a_copy_and_each_is_on_record():
    bench = Bench()
    function = bench.graphed(
        bench.program(2, ("sum", "t0", ("i0", "i1"), True), ("plus", "t1", ("i0",)), outputs=["t0", "t1"])
    )
    for n in range(5):
        bench.agree(function, vector(n, 1), vector(2, n))
    found = decided(function)
    assert found[("input", 1)] == "copied" and found[("output", 0)] == "copied out"
    assert function.reported().bytes_copied > 0
    assert all(d.reason for d in function.latest.decisions)


def test_what_is_written_to_through_a_copy_is_copied_back():
    bench = Bench()
    function = bench.graphed(bench.program(2, ("add_", "i0", ("i1",), True), ("plus", "t0", ("i0",)), outputs=["t0"]))
    for n in range(5):
        x = vector(n, 1)
        bench.agree(function, x, vector(2, n))
        assert x.tolist() == [n + 2, n + 1]
    assert decided(function)[("input", 0)] == "copied"


def test_inputs_that_share_memory_are_not_parted_by_copies():
    bench = Bench()
    function = bench.graphed(bench.program(2, ("add_", "i0", ("i1",), True), ("plus", "t0", ("i1",)), outputs=["t0"]))
    for n in range(3):
        bench.agree(function, vector(n, 1), vector(2, n))
    x = vector(1, 2)
    with pytest.warns(match="share memory"):
        found = function([x, x])
    assert x.tolist() == [2, 4] and found[0].tolist() == [7, 9]


@pytest.mark.parametrize("outputs", ["fresh", "pool"])
def test_one_tensor_given_twice_and_apart_are_served_by_one_recording(outputs):
    bench = Bench(outputs)
    function = bench.graphed(bench.program(2, ("product", "t0", ("i0", "i1")), ("add_", "i0", ("t0",)), outputs=["t0"]))
    for n in range(3):
        bench.agree(function, vector(n, 1), vector(2, n))
    x = vector(3, 4)
    bench.calls += 1
    assert function([x, x])[0].tolist() == [9, 16] and x.tolist() == [12, 20]
    assert function.reported().recordings == 1


def test_inputs_that_are_aligned_otherwise_have_another_recording():
    bench = Bench()
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    for n in range(6):
        x = vector(0, n, 1)[1:] if n % 2 else vector(n, 1)
        bench.agree(function, x)
    told = function.reported()
    (why,) = told.rerecordings
    assert told.recordings == 2 and "input 0 is aligned otherwise" in why


def test_a_parameter_that_moved_is_patched_from_then_on():
    bench = Bench()
    function = bench.graphed(bench.program(2, ("product", "t0", ("i0", "i1")), outputs=["t0"], static=[1]))
    weight = vector(1, 2)
    for n in range(3):
        bench.agree(function, vector(n, 1), weight)
    assert decided(function)[("input", 1)] == "static"
    kept = []
    for n in range(5):
        kept.append(vector(n, n))
        bench.agree(function, vector(n, 1), kept[-1])
    assert decided(function)[("input", 1)] == "patched" and function.reported().recordings == 2


@pytest.mark.parametrize("outputs", KINDS)
def test_empty_tensors_are_no_obstacle(outputs):
    bench = Bench(outputs)
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1", "i0"]))
    for _ in range(4):
        assert bench.agree(function, torch.empty(0, dtype=torch.int64))[0].shape == (0,)
    assert function.reported().replays == 3


@pytest.mark.parametrize("outputs", KINDS)
def test_outputs_that_are_inputs_or_views_are_so_after_a_replay(outputs):
    bench = Bench(outputs)
    function = bench.graphed(bench.program(1, *SCALED, outputs=["i0", "i0[1:]", "t1", "t1[1:]", "t1"]))
    for n in range(4):
        x = vector(n, 1, 2)
        same, view, made, part, again = bench.agree(function, x)
        assert same is x and view.data_ptr() == x.data_ptr() + 8
        assert part.data_ptr() == made.data_ptr() + 8 and part.untyped_storage()._cdata == made.untyped_storage()._cdata
        made.fill_(7)
        assert part.tolist() == [7, 7] and again.tolist() == [7, 7, 7]


@pytest.mark.parametrize("outputs", KINDS)
def test_an_error_in_a_warm_up_is_the_caller_s_and_leaves_all_as_it_was(outputs):
    bench, failing = Bench(outputs), [True]
    program = bench.program(1, ("fail", "", ()), *SCALED, outputs=["t1"], fails=lambda: failing[0])
    function = bench.graphed(program)
    for _ in range(2):
        with pytest.raises(ValueError, match="fails here"):
            function([vector(1, 2)])
    failing[0] = False
    for n in range(4):
        bench.agree(function, vector(n, 1))
    assert function.reported().replays == 3


@pytest.mark.parametrize("outputs", KINDS)
@pytest.mark.parametrize("role", ["inference", "backward"])
def test_an_error_that_the_program_keeps_keeps_no_memory_of_the_pool(outputs, role):
    bench, kept, failing = Bench(outputs), [], [False]
    steps = (SCALED[0], ("fail", "", ()), SCALED[1])
    program = bench.program(1, *steps, outputs=["t1"], fails=lambda: failing[0], role=role)
    function, other = bench.graphed(program), bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    for step in range(6):
        failing[0] = step % 2 == 0
        try:
            function([vector(step, 1)])
        except ValueError as error:
            kept.append(error)
        bench.agree(other, vector(step, 2))
    assert kept and kept[0].__traceback__ and other.reported().replays == 5


@pytest.mark.parametrize("outputs", KINDS)
def test_a_call_that_cannot_be_recorded_runs_as_it_is_with_one_warning(outputs):
    bench = Bench(outputs)
    program = bench.program(
        1, ("fail", "", ()), *SCALED, outputs=["t1"], fails=lambda: bench.machine.local.recording is not None
    )
    function = bench.graphed(program)
    bench.agree(function, vector(1, 2))
    with pytest.warns(match="fails here"):
        bench.agree(function, vector(1, 2))
    for n in range(3):
        bench.agree(function, vector(n, 1))
    told = function.reported()
    assert sum(told.plain_calls.values()) == 4 and all("fails here" in reason for reason in told.plain_calls)


@pytest.mark.parametrize("outputs", KINDS)
def test_a_function_of_which_no_size_can_be_recorded_is_given_up_after_three(outputs):
    bench = Bench(outputs)
    is_recorded = lambda: bench.machine.local.recording is not None  # noqa: E731
    program = bench.program(1, ("fail", "", ()), *SCALED, outputs=["t1"], fails=is_recorded)
    function = bench.graphed(program)
    made = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for length in (1, 2, 3, 4, 5):
            for _ in range(3):
                bench.agree(function, torch.arange(length))
            made.append(bench.machine.made + program.runs)
    assert len(caught) == 3 and function.is_off and function.reported().recordings == 0
    assert made[4] - made[3] == 3  # calls, and no tries


@pytest.mark.parametrize("outputs", KINDS)
def test_a_replay_that_raises_is_dropped_and_the_next_call_records_again(outputs):
    bench = Bench(outputs)
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    for n in range(3):
        bench.agree(function, vector(n, 1))
    function.latest.recorded.recording.fails = True
    with pytest.raises(OSError, match="lost"):
        function([vector(1, 2)])
    for n in range(3):
        bench.agree(function, vector(n, 1))
    assert function.reported().recordings == 2


@pytest.mark.parametrize("outputs", KINDS)
def test_recordings_go_with_their_function_without_the_garbage_collector(outputs):
    bench = Bench(outputs)
    other = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t0", "t1"]))
    for n in range(3):
        (x,) = bench.agree(other, vector(n, 1))
        found = function([x])
    gc.collect()
    gc.disable()
    try:
        recording = weakref.ref(function.latest.recorded.recording)
        node = weakref.ref(function.latest)
        del function, found, x
        bench.agree(other, vector(1, 2))
        assert node() is None and recording() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("outputs", ["pool", "legacy"])
def test_memory_in_the_pool_lives_as_long_as_somebody_holds_it(outputs):
    bench = Bench(outputs)
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    for n in range(3):
        (x,) = bench.agree(function, vector(n, 1))
    pool = weakref.ref(function.latest.recorded.recording.pool)
    function.forget()
    bench.manager.forget()
    del function, bench
    gc.collect()
    assert x.tolist() == [11, 8] and pool() is not None
    del x
    gc.collect()
    assert pool() is None


def test_a_call_from_outside_begins_a_generation_and_overwrites():
    bench = Bench("pool")
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    for n in range(4):
        (x,) = bench.agree(function, vector(n, 1))
        bench.agree(function, vector(n, 2))
        assert is_overwritten(x)


def test_a_forward_that_waits_for_its_backward_keeps_its_generation():
    bench = Bench("pool")
    forward = bench.graphed(bench.program(1, *SCALED, outputs=["t0", "t1"], role="forward"))
    backward = bench.graphed(bench.program(1, ("scale", "t0", ("i0",)), outputs=["t0"], role="backward"))
    for n in range(5):
        saved, loss = bench.agree(forward, vector(n, 1))
        again, _ = bench.agree(forward, vector(n, 2))
        assert not is_overwritten(saved) and not is_overwritten(loss)
        (gradient,) = backward([saved])
        (further,) = backward([again])
        assert gradient.tolist() == [9 * n, 9] and further.tolist() == [9 * n, 18]
        del again, saved
    bench.agree(forward, vector(1, 2))
    assert is_overwritten(loss) and not is_overwritten(gradient) and gradient.tolist() == [36, 9]


def test_marks_alone_begin_generations_once_there_are_any():
    bench = Bench("pool")
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"], role="forward"))
    for n in range(4):
        bench.marks += 1
        (x,) = bench.agree(function, vector(n, 1))
        (y,) = bench.agree(function, vector(n, 2))
        assert not is_overwritten(x) and x.tolist() == [3 * n + 5, 8]
        bench.marks += 1
        bench.agree(function, vector(n, 3))
        assert is_overwritten(x) and is_overwritten(y)


def test_a_warm_up_works_in_the_pool_and_its_outputs_lie_there():
    bench = Bench("pool")
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    (made,) = bench.agree(function, vector(1, 2))
    pool = bench.manager._pool
    assert function.reported().warm_ups == 1 and not function.reported().recordings
    assert pool.allocated == 2 * GRANULE and made.data_ptr() in pool.segments()[0]
    taken = pool.reserved_bytes
    del made
    bench.agree(function, vector(3, 4))
    assert function.reported().recordings == 1 and pool.reserved_bytes == taken  # where the warm-up's lay


def test_an_output_that_lived_at_recording_and_is_dead_at_a_replay_needs_no_other_recording():
    bench = Bench("pool")
    bench.marks = 1
    first = bench.graphed(bench.program(1, *SCALED, outputs=["t0", "t1"]))
    second = bench.graphed(bench.program(1, ("scale", "t0", ("i0",)), ("plus", "t1", ("t0",)), outputs=["t1"]))
    for step in range(6):
        bench.marks += 1
        one, other = bench.agree(first, vector(step, 2))
        before = other.clone()
        if step > 2:
            del other  # it lived when the second was recorded
        bench.agree(second, one)
        assert step > 2 or torch.equal(other, before)
    told = second.reported()
    assert (told.recordings, told.rerecordings, told.replays) == (1, (), 5)


TORCHS_MARK = """
import torch
from tests.plugins.cudagraphs.pools.test_trees import Bench, SCALED, vector
from tests.plugins.cudagraphs.recording_machine import is_overwritten
from turret.plugins.cudagraphs.pools.trees import GraphTrees

bench = Bench("pool")
bench.manager = GraphTrees(bench.recording_device, 0, lambda: bench.calls)
function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
for step in range(4):
    torch.compiler.cudagraph_mark_step_begin()
    (one,), (other,) = (bench.agree(function, vector(step, n)) for n in (1, 2))
    assert not is_overwritten(one) and not is_overwritten(other), step
    torch.compiler.cudagraph_mark_step_begin()
    bench.agree(function, vector(step, 3))
    assert is_overwritten(one) and is_overwritten(other), step
assert function.reported().replays
"""


def test_torch_s_own_mark_begins_a_generation():
    command = [sys.executable, "-c", TORCHS_MARK]  # it imports a compiler that no other test's process has to have
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env={**os.environ, "PYTHONPATH": PATH})
    assert done.returncode == 0, done.stderr


def test_memory_is_that_of_the_longest_path_and_not_of_all():
    bench = Bench("pool")
    first = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    branches = [
        bench.graphed(bench.program(1, *SCALED, ("plus", "t2", ("t1",)), outputs=["t1", "t2"])) for _ in range(4)
    ]
    alone = 0
    for branch in branches:
        for n in range(3):
            (x,) = bench.agree(first, vector(n, 1))
            branch([x])
        alone = alone or bench.manager._pool.peak
    assert bench.manager._pool.peak == alone
    told = bench.manager.reported()
    assert [path.graphs[0] for path in told.paths] == [0] * len(branches) and len(told.paths[0].graphs) == 2
    assert {path.bytes_kept for path in told.paths} == {3 * GRANULE}, "an output of the first, two of the branch"
    assert str(told.paths[0]) in str(told)


def test_the_report_has_the_memory_of_each_path():
    bench = Bench("fresh")
    functions = [bench.graphed(bench.program(1, *SCALED, outputs=["t1"], name=name)) for name in ("f", "g")]
    for function in functions:
        for n in range(3):
            bench.agree(function, vector(n, 1))
    told = bench.manager.reported()
    assert [(path.names, path.bytes_kept, path.bytes_taken) for path in told.paths] == [
        (("f",), 0, GRANULE),
        (("g",), 0, 0),
    ], "both work in the same memory, and their outputs are not of the pool"
    assert told.reserved_bytes == GRANULE and "Graph[0] f(): 0 bytes kept, 64 taken" in str(told)


def test_recording_again_has_a_limit_past_which_calls_run_as_they_are():
    bench = Bench("pool")
    first = bench.graphed(bench.program(1, *SCALED, outputs=["t0", "t1"]))
    second = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]), rerecord_limit=0)
    for n in range(6):
        kept = bench.agree(first, vector(n, 1))
        if n == 1:
            kept[0] = None
        assert torch.equal(second([kept[1]])[0], kept[1] * 3 + 5)
    told = second.reported()
    assert told.recordings == 1 and any("rerecord_limit" in reason for reason in told.plain_calls)


def test_threads_that_call_at_once_see_nothing_of_one_another():
    bench = Bench()
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        for n in range(60):
            x = vector(seed, n)
            if function([x])[0].tolist() != [3 * seed + 5, 3 * n + 5]:
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and function.reported().recordings == 1


def test_each_stream_has_its_own_recordings():
    bench = Bench()
    program = bench.program(1, *SCALED, outputs=["t1"])
    managers = {stream: FreshGraphs(bench.recording_device, stream) for stream in (0, 7)}
    function = Graphed(program, program.run, bench.recording_device, Settings(), managers.__getitem__, bench.hear)
    for n in range(8):
        bench.machine.stream = 7 * (n % 2)
        bench.agree(function, vector(n, 1))
    assert function.reported().recordings == 2 and function.reported().replays == 6
    assert managers[0]._pool is not managers[7]._pool


def test_an_input_on_another_device_is_not_recorded():
    bench = Bench()
    program = bench.program(1, *SCALED, outputs=["t1"])
    function = bench.graphed(program)
    bench.agree(function, vector(1, 2))
    program.run = lambda args: ["plain"]
    function.plain = program.run
    with pytest.warns(match="input 0 is a tensor on meta"):
        assert function([torch.empty(2, dtype=torch.int64, device="meta")]) == ["plain"]


def test_an_input_that_nothing_reads_may_lie_anywhere():
    bench = Bench()
    program = bench.program(2, *SCALED, outputs=["t1"])
    program.states = GeneratorStates(unread=frozenset({1}))
    function = bench.graphed(program)
    for n in range(4):
        (found,) = function([vector(n, 1), torch.empty((), device="meta" if n % 2 else "cpu")])
        assert found.tolist() == [3 * n + 5, 8]
    assert (function.reported().recordings, function.reported().replays) == (1, 3)
    assert ("input", 1) not in decided(function)


def test_the_report_names_each_decision_and_prints():
    bench = Bench("pool")
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"], name="score"))
    for n in range(3):
        bench.agree(function, vector(n, 1))
    text = str(cudagraphs.report())
    assert "score (score) on cpu, outputs pool: 1 warm-ups, 1 recordings of 1 sizes, 2 replays" in text
    assert "input 0 patched: its address is 1 words of the recording" in text
    assert "└── Graph[0] score() outputs=1" in text
    assert any(said.startswith("score recorded: ") for said in bench.said)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_goes_on_with_what_its_parent_recorded():
    bench = Bench()
    function = bench.graphed(bench.program(1, *SCALED, outputs=["t1"]))
    for n in range(3):
        bench.agree(function, vector(n, 1))
    held, freed = threading.Event(), threading.Event()

    def hold() -> None:
        with bench.manager.lock:
            held.set()
            freed.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if function([vector(1, 2)])[0].tolist() == [8, 11] else 1)
    freed.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
