"""Kernels that are compiled when sizes ask for them: nothing runs before, each once, failures are said."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.core.plan.launch.driver_lab import FakeDriver, kernel
from tests.core.plan.launch.graph_lab import FakeGraph
from turret.errors import CodegenError
from turret.hooks.segments import Segment as LaunchSegment
from turret.plan.launch.device import DeviceLibrary, Segment
from turret.plan.launch.enums import Status
from turret.plan.launch.lazy_kernels import compile_missing, compiles
from turret.plan.launch.sequences import make_sequence
from turret.plan.launch.table import (
    KernelBinary,
    KernelLaunch,
    LaunchTable,
    LazyKernel,
    SizeValue,
    SlotPointer,
    expression,
    segment_words,
)
from turret.storage import codec
from turret.storage.artifact_cache import Store

STREAM = 77
SIZES = {"n": 0}
ONE = expression(1, {}, {})
_languages = itertools.count()


@attrs.define(eq=False)
class Compiler:
    """Compiles lazy kernels of a language of its own; ``made`` has what it was asked for, in order."""

    language: str = attrs.field(factory=lambda: f"fake {next(_languages)}")
    made: list[str] = attrs.field(factory=list)
    failing: bool = False
    seconds: float = 0.0

    def __attrs_post_init__(self) -> None:
        compiles(self.language)(self.compile)

    def compile(self, wanted: LazyKernel, store: Store | None) -> tuple[KernelBinary, bytes]:
        self.made.append(wanted.request)
        time.sleep(self.seconds)
        if self.failing:
            raise CodegenError(f"kernel {wanted.function} did not compile")
        return KernelBinary(wanted.function, "", 128), b"fake 3\0"

    def lazy(self, function: str, request: str) -> LazyKernel:
        return LazyKernel(function, self.language, request, 3)


@pytest.fixture
def compiler() -> Compiler:
    return Compiler()


def launch(number: int, *assumed: str, otherwise: KernelLaunch | None = None, source: int = 0) -> KernelLaunch:
    parameters = (SlotPointer(source), SlotPointer(source + 1), SizeValue(0))
    grid = (expression("cdiv(n, 8)", SIZES, {}), ONE, ONE)
    assumes = tuple(expression(text, SIZES, {}) for text in assumed)
    return KernelLaunch(number, parameters, grid, (0,) if source == 0 else (), assumes, otherwise)


def chain() -> KernelLaunch:
    """``add_one`` for multiples of 16, ``twice`` for up to 40 elements, ``add_one`` for others."""
    return launch(0, "n % 16", otherwise=launch(1, "n - 40", otherwise=launch(2)))


def library_of(
    fake: FakeDriver, compiler: Compiler, *steps: KernelLaunch, index: int = 0, made: tuple[int, ...] = ()
) -> DeviceLibrary:
    """The kernels of ``chain``, of which those in ``made`` are compiled."""
    functions = ("add_one", "twice", "add_one")
    lazies = [compiler.lazy(name, f"variant {n}") for n, name in enumerate(functions)]
    there = [kernel(name, threads=64) for name in functions]
    kernels = tuple(there[n] if n in made else lazies[n] for n in range(3))
    table = LaunchTable(kernels, {"s": segment_words(3, steps or (chain(),))}, {"s": (1,)})
    assert codec.loads(codec.dumps(table)) == table
    images = {f"{name}.cubin": b"fake 3\0" for name in functions}
    library = fake.library(table, images, index=index, slots=4, sizes=1)
    fake.clear()
    return library


def call(segment: Segment, x: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
    """A run as an executor makes it, whose result holds -1 where nothing was written."""
    y = torch.full_like(x, -1) if into is None else into
    slots = (ctypes.c_void_p * 4)(x.data_ptr(), y.data_ptr(), 0, 0)
    sizes = (ctypes.c_int64 * 1)(x.numel())
    status = segment.run(segment.handle, slots, sizes, STREAM)
    if status:
        segment.recover(status, slots, sizes, STREAM, {0: x, 1: y}, "a norm")
    return y


def launched(fake: FakeDriver) -> list[str]:
    return [line.split()[1] for line in fake.log() if line.startswith("launch")]


def test_a_run_that_wants_a_kernel_which_is_not_compiled_launches_nothing(fake: FakeDriver, compiler: Compiler) -> None:
    ahead = launch(0)
    segment = library_of(fake, compiler, ahead, chain(), made=(0,)).function("s")
    x, y = torch.ones(7), torch.zeros(7)
    slots = (ctypes.c_void_p * 4)(x.data_ptr(), y.data_ptr(), 0, 0)
    sizes = (ctypes.c_int64 * 1)(7)
    for _ in range(2):
        status = segment.run(segment.handle, slots, sizes, STREAM)
        assert status & 0xFF == Status.NOT_COMPILED
        assert launched(fake) == [] and torch.equal(y, torch.zeros(7))
    assert compile_missing(status) and compiler.made == ["variant 1"]
    assert segment.run(segment.handle, slots, sizes, STREAM) == 0
    assert launched(fake) == ["add_one", "twice"]
    assert not compile_missing(Status.DONE) and not compile_missing(Status.MISALIGNED | 1 << 8)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.sampled_from([0, 1, 7, 16, 32, 33, 40, 41, 48, 63, 200]), min_size=1, max_size=8),
    made=st.sets(st.integers(0, 2)),
    offset=st.integers(0, 1),
)
def test_any_sequence_of_sizes_is_right_and_compiles_each_kernel_once_when_it_is_wanted(
    fake: FakeDriver, sizes: list[int], made: set[int], offset: int
) -> None:
    compiler = Compiler()
    segment = library_of(fake, compiler, made=tuple(made)).function("s")
    expected: list[str] = []
    for size in sizes:
        wanted = 0 if size % 16 == 0 else 1 if size <= 40 else 2
        if size and wanted not in made and f"variant {wanted}" not in expected:
            expected.append(f"variant {wanted}")
        x = torch.randn(size + offset)[offset:]
        fake.clear()
        assert torch.equal(call(segment, x), x * 2 if wanted == 1 else x + 1)
        assert compiler.made == expected
        assert launched(fake) == (["twice" if wanted == 1 else "add_one"] if size else [])


def test_plans_that_have_the_same_kernel_compile_it_once_and_each_device_loads_it(
    fake: FakeDriver, compiler: Compiler
) -> None:
    first, second, elsewhere = (library_of(fake, compiler, index=index).function("s") for index in (1, 1, 2))
    for segment in (first, second, elsewhere, first):
        assert torch.equal(call(segment, torch.ones(9)), torch.full((9,), 2.0))
    assert compiler.made == ["variant 1"]
    assert [line for line in fake.log() if line.startswith("load")] == ["load in context 1001", "load in context 1002"]


def test_preparing_compiles_nothing_and_what_comes_later_runs_all_the_same(
    fake: FakeDriver, compiler: Compiler
) -> None:
    library = library_of(fake, compiler, made=(0,))
    library.prepare()
    assert compiler.made == [] and sum(line.startswith("load") for line in fake.log()) == 1
    assert torch.equal(call(library.function("s"), torch.ones(50)), torch.full((50,), 2.0))
    assert compiler.made == ["variant 2"]


def test_threads_that_want_a_kernel_at_the_same_time_wait_for_one_compilation(
    fake: FakeDriver, compiler: Compiler
) -> None:
    compiler.seconds = 0.05
    segment = library_of(fake, compiler).function("s")
    begin = threading.Barrier(6)

    def run(size: int) -> bool:
        begin.wait()
        return torch.equal(call(segment, torch.ones(size)), torch.full((size,), 2.0))

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(run, (7, 9, 7, 16, 50, 50)))
    assert sorted(compiler.made) == ["variant 0", "variant 1", "variant 2"]


def test_a_compiler_that_fails_is_asked_again_and_other_sizes_run(fake: FakeDriver, compiler: Compiler) -> None:
    segment = library_of(fake, compiler, made=(0,)).function("s")
    compiler.failing = True
    for _ in range(2):
        with pytest.raises(CodegenError, match="kernel twice did not compile"):
            call(segment, torch.ones(7))
        assert torch.equal(call(segment, torch.ones(16)), torch.full((16,), 2.0))
    compiler.failing = False
    assert torch.equal(call(segment, torch.ones(7)), torch.full((7,), 2.0))
    assert compiler.made == ["variant 1"] * 3


def test_a_language_that_nothing_here_compiles_is_named(fake: FakeDriver, compiler: Compiler) -> None:
    table = LaunchTable((LazyKernel("twice", "another", "", 3),), {"s": segment_words(3, (launch(0),))}, {})
    segment = fake.library(table, {}, slots=4, sizes=1).function("s")
    with pytest.raises(CodegenError, match="nothing here compiles kernels of 'another', and twice is wanted"):
        call(segment, torch.ones(3))
    assert launched(fake) == []


def test_a_tensor_that_is_not_aligned_is_copied_once_where_the_kernel_is_compiled_as_well(
    fake: FakeDriver, compiler: Compiler
) -> None:
    segment = library_of(fake, compiler).function("s")
    x = torch.arange(8.0)[1:]
    assert torch.equal(call(segment, x), x * 2)
    assert compiler.made == ["variant 1"] and launched(fake) == ["twice"]


def test_of_a_sequence_nothing_is_launched_before_all_of_it_can_be(fake: FakeDriver, compiler: Compiler) -> None:
    first = library_of(fake, compiler, launch(0), made=(0,)).function("s")
    second = library_of(fake, compiler).function("s")
    made = make_sequence(0, [first.handle, second.handle], 4, (), (1,), (first, second), fake.launcher)
    x, y = torch.ones(7), torch.zeros(7)
    slots = (ctypes.c_void_p * 4)(x.data_ptr(), y.data_ptr(), 0, 0)
    sizes = (ctypes.c_int64 * 1)(7)
    status = made.run(made.handle, slots, sizes, STREAM)
    assert status & 0xFF == Status.NOT_COMPILED and launched(fake) == []
    made.recover(status, slots, sizes, STREAM, {}, "calls")
    assert launched(fake) == ["add_one", "twice"] and torch.equal(y, torch.full((7,), 2.0))


def test_a_kernel_that_is_wanted_while_its_thread_records_is_compiled_and_recorded(
    graph: FakeGraph, compiler: Compiler
) -> None:
    segment = library_of(graph.fake, compiler, index=1).function("s")
    x = torch.ones(7)
    graph.fake.driver.fake_capture(graph.handle)
    y = call(segment, x)
    graph.fake.driver.fake_capture(None)
    assert compiler.made == ["variant 1"] and torch.equal(y, torch.full((7,), -1.0)), "it was recorded, and did not run"
    native = graph.read()
    graph.fake.clear()
    native.replay(STREAM)
    assert graph.log("ran") == ["ran twice"] and torch.equal(y, torch.full((7,), 2.0))


def test_a_recording_takes_over_launches_whose_kernel_was_compiled_meanwhile(
    graph: FakeGraph, compiler: Compiler
) -> None:
    recorded = library_of(graph.fake, compiler, index=1).function("s")
    first, x, y = torch.ones(7), torch.ones(50), torch.full((50,), -1.0)
    graph.fake.driver.fake_capture(graph.handle)
    result = call(recorded, first)
    graph.fake.driver.fake_capture(None)
    native = graph.read()
    refused = native.replay_as(lambda: call(recorded, x, y), STREAM, graph.fake.launcher)
    assert "another kernel is launched than was recorded" in refused
    assert compiler.made == ["variant 1", "variant 2"] and graph.log("launched", "launch") == []
    assert native.replay_as(lambda: call(recorded, x[:9], y[:9]), STREAM, graph.fake.launcher) == ""
    assert y.tolist() == [2.0] * 9 + [-1.0] * 41 and torch.equal(result, torch.full((7,), -1.0))


def test_a_device_without_lazy_kernels_has_none_to_compile() -> None:
    segment = LaunchSegment(lambda *tables: 4, lambda *run: None)
    assert segment.compile_missing(4) is False
