"""Segments launch what their tables say: parameters, grids, memory, streams, contexts, errors."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from tests.core.plan.launch.driver_lab import FakeDriver, kernel
from turret.errors import CodegenError, TurretError
from turret.plan.launch.driver_library import LAUNCHER
from turret.plan.launch.enums import Status
from turret.plan.launch.table import (
    ArenaPointer,
    Clear,
    KernelLaunch,
    LaunchTable,
    Number,
    SizeValue,
    SlotPointer,
    expression,
    segment_words,
)
from turret.storage import prebuilt
from turret.storage.artifact_cache import ArtifactCache
from turret.storage.libraries import open_anew

ONE = (0, 1)
STREAM = 77
IMAGES = {"add_one.cubin": b"fake 3\0", "twice.cubin": b"fake 3\0", "wide.cubin": b"fake 4\0"}


def run(segment: Any, slots: list[int], sizes: list[int]) -> int:
    table, values = (ctypes.c_void_p * len(slots))(*slots), (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
    return segment.run(segment.handle, table, values, STREAM)


def launch(parameters: tuple[Any, ...], grid: str = "1", aligned: tuple[int, ...] = ()) -> KernelLaunch:
    return KernelLaunch(0, parameters, (expression(grid, {"n": 0, "m": 1}, {"B": 128}), ONE, ONE), aligned)


def test_parameters_come_from_slots_sizes_and_the_arena(fake: FakeDriver) -> None:
    parameters = (SlotPointer(1), SizeValue(0), ArenaPointer(expression("n * 8 + 256", {"n": 0}, {})), Number(0))
    table = LaunchTable((kernel("wide", shared=512),), {"s": segment_words(2, (launch(parameters, "cdiv(n, B)"),))}, {})
    segment = fake.library(table, IMAGES).function("s")
    fake.clear()
    assert run(segment, [0, 4096, 65536], [300]) == 0
    assert fake.log()[-1] == f"launch wide 3 1 1 x 128 1 1 shared 512 stream {STREAM} (4096, 300, {65536 + 2656}, 0)"


def test_what_a_launch_assumes_is_asked_in_each_run(fake: FakeDriver) -> None:
    general = launch((SizeValue(0),), "m")
    assumes = tuple(expression(text, {"n": 0, "m": 1}, {}) for text in ("n % 16", "n * m - 4096"))
    fast = attrs.evolve(launch((SizeValue(0, narrow=True),)), kernel=1, assumes=assumes, otherwise=general)
    table = LaunchTable((kernel("general"), kernel("fast")), {"s": segment_words(0, (fast, general))}, {})
    segment = fake.library(table, dict.fromkeys(("general.cubin", "fast.cubin"), b"fake 1\0")).function("s")
    for n, m, name in ((32, 5, "fast"), (31, 5, "general"), (4096, 1, "fast"), (4096, 2, "general")):
        fake.clear()
        assert run(segment, [0], [n, m]) == 0
        launched = [line.split()[1] for line in fake.log() if line.startswith("launch")]
        assert launched == [name, "general"], (n, m)
    assert run(segment, [0], [1 << 40, 1]) == 0, "sizes beyond 32 bits go to the kernel that takes them"


def chain(*assumed: str) -> KernelLaunch:
    """Launches of kernels 0, 1 and so on, each for sizes of which the one before it assumes too much."""
    step = attrs.evolve(launch((SizeValue(0),)), kernel=len(assumed))
    for number, text in reversed(list(enumerate(assumed))):
        assumes = (expression(text, {"n": 0, "m": 1}, {}),)
        step = attrs.evolve(
            launch((SizeValue(0, narrow=True),)), kernel=number, aligned=(number,), assumes=assumes, otherwise=step
        )
    return step


def test_the_first_of_several_kernels_whose_assumptions_hold_is_launched(fake: FakeDriver) -> None:
    step = chain("n % 16", "n - 4096", "n - 65536")
    assert [each.kernel for each in step.alternatives] == [0, 1, 2, 3]
    words = segment_words(0, (step,))
    assert words[:6] == (0, 3, 0, 1, 2, 0), "slots that one of them wants aligned; no size must fit 32 bits"
    names = ("aligned", "short", "longer", "general")
    table = LaunchTable(tuple(map(kernel, names)), {"s": words}, {})
    segment = fake.library(table, dict.fromkeys((f"{name}.cubin" for name in names), b"fake 1\0")).function("s")
    for n, name in ((1 << 20, "aligned"), (4095, "short"), (4097, "longer"), (1 << 40 | 1, "general")):
        fake.clear()
        assert run(segment, [0, 0, 0], [n, 1]) == 0
        assert [line.split()[1] for line in fake.log() if line.startswith("launch")] == [name], n


def test_a_chain_of_kernels_without_end_is_refused(fake: FakeDriver) -> None:
    def made(length: int) -> LaunchTable:
        return LaunchTable((kernel("add_one"),), {"s": segment_words(0, (step_of(length),))}, {})

    def step_of(length: int) -> KernelLaunch:
        step = launch((SizeValue(0),))
        for _ in range(length - 1):
            step = attrs.evolve(step, assumes=(expression("n - 1", {"n": 0}, {}),), otherwise=step)
        return step

    assert fake.library(made(8), IMAGES).function("s").handle
    with pytest.raises(CodegenError, match="not well formed"):
        fake.library(made(9), IMAGES)


@pytest.mark.parametrize(
    ("text", "sizes", "value"),
    [
        ("cdiv(n, B)", {"n": 0}, 0),
        ("cdiv(n, B) * m", {"n": 129, "m": 5}, 10),
        ("(n + 7) // 8 - m % 3", {"n": 9, "m": 5}, 0),
        ("floor_div(n - 20, 8) + 3", {"n": 5}, 1),
        ("floor_mod(n - 20, 7) + floor_div(m, -2)", {"n": 5, "m": 3}, 4),
        ("max(n, m, 3) + min(n, m)", {"n": 1, "m": 2}, 4),
        ("n + (m - n) * (m > n)", {"n": 4, "m": 9}, 9),
        ("-n + m ** 2", {"n": 4, "m": 3}, 5),
    ],
)
def test_grids_follow_sizes_as_python_does(fake: FakeDriver, text: str, sizes: dict[str, int], value: int) -> None:
    host = {"cdiv": lambda a, b: -(-a // b), "floor_div": int.__floordiv__, "floor_mod": int.__mod__}
    names = {**sizes, "B": 128, **host}
    assert eval(text, names) == value
    table = LaunchTable((kernel("add_one"),), {"s": segment_words(0, (launch((), f"7 + ({text})"),))}, {})
    library = fake.library(table, {"add_one.cubin": b"fake 0\0"})
    assert run(library.function("s"), [0], [sizes.get("n", 0), sizes.get("m", 0)]) == 0
    assert fake.log()[-1].startswith(f"launch add_one {7 + value} 1 1")


def test_no_program_means_no_launch(fake: FakeDriver) -> None:
    table = LaunchTable((kernel("add_one"),), {"s": segment_words(0, (launch((), "n"),))}, {})
    segment = fake.library(table, IMAGES).function("s")
    assert run(segment, [0], [0]) == 0
    assert not any(line.startswith("launch") for line in fake.log())


def test_what_the_launcher_cannot_compute_is_named() -> None:
    for text, what in (("n / 2", "n / 2"), ("log(n)", "log"), ("k + 1", "the name k"), ("n // 0", "zero")):
        with pytest.raises(TurretError, match=what):
            expression(text, {"n": 0}, {})


def test_memory_is_cleared_before_the_kernel_that_needs_zeros(fake: FakeDriver) -> None:
    target = torch.ones(8)
    steps = (Clear(SlotPointer(0), expression("n * 4", {"n": 0}, {})), launch((SlotPointer(0),)))
    segment = fake.library(
        LaunchTable((kernel("add_none"),), {"s": segment_words(1, steps)}, {}), {"add_none.cubin": b"fake 1\0"}
    ).function("s")
    assert run(segment, [target.data_ptr(), 0], [6]) == 0
    assert target.tolist() == [0, 0, 0, 0, 0, 0, 1, 1]
    assert [line.split()[0] for line in fake.log()][-2:] == ["clear", "launch"]


def test_kernels_work_in_the_context_of_their_device_and_leave_the_thread_as_it_was(fake: FakeDriver) -> None:
    table = LaunchTable((kernel("add_one"),), {"s": segment_words(0, (launch(()),))}, {})
    segment = fake.library(table, {"add_one.cubin": b"fake 0\0"}, index=2).function("s")
    fake.driver.fake_current.restype = ctypes.c_void_p
    fake.driver.fake_set_current(ctypes.c_void_p(5))
    assert run(segment, [0], []) == 0
    assert "load in context 1002" in fake.log()
    assert fake.driver.fake_current() == 5


def test_equal_binaries_are_loaded_once_for_all_plans_and_when_first_run(fake: FakeDriver) -> None:
    table = LaunchTable((kernel("add_one"),), {"s": segment_words(0, (launch(()),))}, {})
    segments = [fake.library(table, {"add_one.cubin": b"fake 0 once\0"}).function("s") for _ in range(2)]
    assert not any(line.startswith("load") for line in fake.log())
    for segment in segments * 2:
        assert run(segment, [0], []) == 0
    assert sum(line.startswith("load") for line in fake.log()) == 1


def test_prepare_loads_without_running(fake: FakeDriver) -> None:
    table = LaunchTable((kernel("add_one"),), {"s": segment_words(0, (launch(()),))}, {})
    fake.library(table, {"add_one.cubin": b"fake 0 prepared\0"}).prepare()
    assert [line.split()[0] for line in fake.log()].count("load") == 1
    assert not any(line.startswith("launch") for line in fake.log())


def test_large_shared_memory_is_asked_for(fake: FakeDriver) -> None:
    table = LaunchTable((kernel("add_one", shared=65536),), {"s": segment_words(0, (launch(()),))}, {})
    assert run(fake.library(table, {"add_one.cubin": b"fake 0\0"}).function("s"), [0], []) == 0
    assert "attribute 8 of add_one = 65536" in fake.log()


def test_clusters_and_cooperative_kernels_are_launched_with_attributes(fake: FakeDriver) -> None:
    binary = kernel("add_one", cluster=(2, 1, 1), cooperative=True)
    table = LaunchTable((binary,), {"s": segment_words(0, (launch((), "n"),))}, {})
    assert run(fake.library(table, {"add_one.cubin": b"fake 0\0"}).function("s"), [0], [3]) == 0
    assert fake.log()[-3:-1] == ["attribute 4 = 2", "attribute 2 = 1"]
    assert fake.log()[-1].startswith("launch_ex add_one 6 1 1")


def test_kernels_that_wait_by_themselves_are_launched_before_the_one_ahead_has_ended(fake: FakeDriver) -> None:
    table = LaunchTable((kernel("add_one", programmatic=True),), {"s": segment_words(0, (launch((), "n"),))}, {})
    assert run(fake.library(table, {"add_one.cubin": b"fake 0 waits\0"}).function("s"), [0], [3]) == 0
    assert fake.log()[-2:-1] == ["attribute 6 = 1"]
    assert fake.log()[-1].startswith("launch_ex add_one 3 1 1")


def test_a_driver_error_names_kernel_grid_and_cause(fake: FakeDriver) -> None:
    table = LaunchTable((kernel("add_one"),), {"s": segment_words(0, (launch((), "9"),))}, {})
    segment = fake.library(table, {"add_one.cubin": b"fake 0\0"}).function("s")
    fake.driver.fake_fail(1)
    status = run(segment, [0], [])
    with pytest.raises(RuntimeError, match=r"kernel add_one with grid \(9, 1, 1\).*invalid argument.*in relu"):
        segment.recover(status, [], [], STREAM, {}, "relu")


def test_a_binary_that_is_none_is_refused_by_name(fake: FakeDriver) -> None:
    table = LaunchTable((kernel("add_one"),), {"s": segment_words(0, (launch(()),))}, {})
    library = fake.library(table, {"add_one.cubin": b"no kernel"})
    with pytest.raises(CodegenError, match="loading kernel add_one: device kernel image is invalid"):
        library.prepare()


def test_a_size_beyond_32_bits_is_refused_where_kernels_count_in_32(fake: FakeDriver) -> None:
    table = LaunchTable((kernel("twice"),), {"s": segment_words(0, (launch((SizeValue(0, narrow=True),)),))}, {})
    segment = fake.library(table, {"twice.cubin": b"fake 1\0"}).function("s")
    sizes = (ctypes.c_int64 * 1)(1 << 31)
    status = segment.run(segment.handle, (ctypes.c_void_p * 1)(), sizes, STREAM)
    with pytest.raises(TurretError, match="2147483648 does not fit"):
        segment.recover(status, [], sizes, STREAM, {}, "mul")
    assert not any(line.startswith("launch") for line in fake.log())


def test_tensors_that_are_not_aligned_are_copied_in_and_written_back(fake: FakeDriver) -> None:
    base, result = torch.arange(9.0), torch.zeros(9)
    source, target = base[1:], result[1:]
    assert source.data_ptr() % 16 and target.data_ptr() % 16
    step = launch((SlotPointer(0), SlotPointer(1), SizeValue(0)), aligned=(0, 1))
    table = LaunchTable((kernel("add_one"),), {"s": segment_words(2, (step,))}, {"s": (1,)})
    segment = fake.library(table, IMAGES).function("s")
    slots = (ctypes.c_void_p * 3)(source.data_ptr(), target.data_ptr(), 0)
    sizes = (ctypes.c_int64 * 1)(8)
    status = segment.run(segment.handle, slots, sizes, STREAM)
    assert status & 0xFF == Status.MISALIGNED
    segment.recover(status, slots, sizes, STREAM, {0: source, 1: target}, "add")
    assert torch.equal(result, torch.tensor([0.0, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert torch.equal(base, torch.arange(9.0))
    assert list(slots)[:2] == [source.data_ptr(), target.data_ptr()]


@pytest.mark.parametrize(
    "words", [(), (0,), (0, 0, 0, 1), (0, 0, 0, 1, 9, 0), (0, 0, 0, 1, 1, 0, 1, 2), (0, 0, 0, 0, 5)]
)
def test_a_damaged_table_is_refused(fake: FakeDriver, words: tuple[int, ...]) -> None:
    with pytest.raises(CodegenError, match="not well formed"):
        fake.library(LaunchTable((kernel("add_one"),), {"s": words}, {}), IMAGES)


@pytest.mark.parametrize("words", [(3, 0, 0, 0), (0, 1, 3, 0, 0), (0, 0, 1, 2, 0), (0, 0, 0, 1, 1, 1, 0, 3)])
def test_a_table_that_reads_behind_the_slots_or_sizes_is_refused(fake: FakeDriver, words: tuple[int, ...]) -> None:
    with pytest.raises(CodegenError, match="not well formed"):
        fake.library(LaunchTable((kernel("add_one"),), {"s": words}, {}), IMAGES, slots=3, sizes=2)


@pytest.mark.parametrize("seed", range(2))
def test_no_table_crashes_the_launcher_and_good_ones_do_what_they_say(
    built_driver: tuple[bytes, Path], tmp_path: Path, seed: int
) -> None:
    launcher = tmp_path / "launcher.so"
    launcher.write_bytes(built_driver[0])
    script = Path(__file__).with_name("fuzz_launcher.py")
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        str(script),
        str(launcher),
        str(built_driver[1]),
        str(seed),
        "4000",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("refused", "ran with status 0", "status 1", "status 2", "compared"))


def test_without_a_driver_the_error_says_so(built_driver: tuple[bytes, Path]) -> None:
    with pytest.raises(CodegenError, match=r"the CUDA driver cannot be opened: .*libnone"):
        LAUNCHER.open(open_anew(built_driver[0]), "libnone.so.1")


def test_without_a_compiler_the_error_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(prebuilt, "folder", lambda: tmp_path / "prebuilt")
    with pytest.raises(CodegenError, match=r"tried g\+\+, clang\+\+, c\+\+; install one"):
        LAUNCHER.build(ArtifactCache(tmp_path / "cache"))
