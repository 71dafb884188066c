"""Plans for a GPU run as their steps say: on a driver that does the kernels' work on the CPU's memory."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch

from tests.core.plan.launch.driver_lab import FakeDriver, kernel
from turret.errors import CodegenError
from turret.hooks.devices import device_for
from turret.ir import Binding, SizeSource
from turret.plan import Allocate, Call, Free, Launch, Plan, SizeRef, Slot, SlotRef, View, workspaces
from turret.plan.executor import load
from turret.plan.launch import driver_library
from turret.plan.launch.lazy_kernels import compiles
from turret.plan.launch.table import (
    ArenaPointer,
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

STREAM = 4242
ONE = (0, 1)


def run_kernel(number: int, source: Any, target: Any, *, narrow: bool = False, aligned: tuple[int, ...] = ()) -> Any:
    grid = expression("cdiv(s0, 128)", {"s0": 0}, {})
    return KernelLaunch(number, (source, target, SizeValue(0, narrow=narrow)), (grid, ONE, ONE), aligned)


@pytest.fixture
def on_cpu_memory(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The recording driver under every plan, and arenas in the CPU's memory."""

    def empty(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        return torch.empty(*args, **kwargs)

    monkeypatch.setattr(driver_library, "_loaded", {driver_library.LAUNCHER.file: fake.launcher})
    monkeypatch.setattr(type(device_for("cuda")), "stream_getter", lambda self, index: lambda: STREAM + index)
    fake_torch = SimpleNamespace(empty=empty, device=torch.device, uint8=torch.uint8)
    monkeypatch.setattr(workspaces, "torch", fake_torch)
    return fake


def chain(fake: FakeDriver) -> Plan:
    """``twice(x + 1) @ w``: two kernels through an arena slot, an extern into the arena, a kernel to the output."""
    vector = (("s0",), (1,), "float32", "cpu")
    slots = (
        Slot("x", *vector, "input", 0),
        Slot("h", *vector, "arena", 64),
        Slot("w", (16,), (1,), "float32", "cpu", "constant"),
        Slot("g", (16,), (1,), "float32", "cpu", "arena", 128),
        Slot("d", (), (), "float32", "cpu", "arena", 0),
        Slot("y", (16,), (1,), "float32", "cpu", "own"),
        Slot("v", (8,), (1,), "float32", "cpu", "view"),
    )
    first = (
        run_kernel(0, SlotPointer(0), ArenaPointer((0, 64)), aligned=(0,)),
        run_kernel(1, ArenaPointer((0, 64)), ArenaPointer((0, 128)), narrow=True),
    )
    segments = {
        "segment0": segment_words(len(slots), first),
        "segment1": segment_words(len(slots), (run_kernel(0, ArenaPointer((0, 128)), SlotPointer(5)),)),
    }
    table = LaunchTable((kernel("add_one"), kernel("twice")), segments, {"segment0": (1, 3), "segment1": (5,)})
    library = fake.write(table, {"add_one.cubin": b"fake 3\0", "twice.cubin": b"fake 3\0"})
    steps = (
        Launch("segment0", (0, 1, 3), ("add", "mul")),
        Call("aten::dot.out", (SlotRef(3), SlotRef(2)), {}, into=4),
        Allocate(5),
        Launch("segment1", (3, 5), ("add",)),
        View(6, 5, 8),
        Free((0,)),
    )
    return Plan(
        "chain",
        "cuda:1",
        slots,
        (0,),
        steps,
        (SlotRef(5), SlotRef(6), SlotRef(4)),
        ("s0",),
        {"s0": SizeSource(0, 0)},
        {"w": torch.ones(16)},
        arena_bytes=256,
        library=library,
    )


def test_kernels_calls_and_views_share_the_arena_on_the_current_stream(on_cpu_memory: FakeDriver) -> None:
    run = load(codec.loads(codec.dumps(chain(on_cpu_memory))))
    x = torch.arange(16.0)
    on_cpu_memory.clear()
    args = [x]
    y, v, _ = run(args)
    assert args == []
    assert torch.equal(y, 2 * (x + 1) + 1) and torch.equal(v, y[8:])
    launches = [line for line in on_cpu_memory.log() if line.startswith("launch")]
    assert [line.split()[1] for line in launches] == ["add_one", "twice", "add_one"]
    assert all(f"stream {STREAM + 1}" in line for line in launches)


def test_calls_write_to_the_arena(on_cpu_memory: FakeDriver) -> None:
    plan = chain(on_cpu_memory)
    doubled = attrs.evolve(
        plan,
        steps=(*plan.steps[:2], Call("aten::clone.default", (SlotRef(4),), {}, (6,)), *plan.steps[2:4]),
        slots=(*plan.slots[:6], Slot("v", (), (), "float32", "cpu", "call")),
        outputs=(SlotRef(6),),
    )
    x = torch.arange(16.0)
    assert load(doubled)([x])[0].item() == (2 * (x + 1)).sum().item()


def test_a_workspace_holds_no_memory_between_calls(on_cpu_memory: FakeDriver) -> None:
    run = load(chain(on_cpu_memory))
    run([torch.arange(16.0)])
    (workspace,) = run.pool._idle
    assert all(t.untyped_storage().nbytes() == 0 for t in workspace.tensors)
    run([torch.arange(16.0)])
    assert run.pool._idle == [workspace]


def test_the_arena_is_there_in_its_spans_alone(on_cpu_memory: FakeDriver) -> None:
    plan = chain(on_cpu_memory)
    again = (
        Call("aten::dot.out", (SlotRef(2), SlotRef(2)), {}, into=4),
        Call("aten::clone.default", (SlotRef(4),), {}, (6,)),
    )
    plan = attrs.evolve(
        plan,
        slots=(*plan.slots[:6], Slot("z", (), (), "float32", "cpu", "call")),
        steps=(*plan.steps[:4], Free((0,)), *again),
        outputs=(SlotRef(5), SlotRef(6)),
        arena_spans=((0, 3), (5, 6)),
    )
    run = load(codec.loads(codec.dumps(plan)))
    marks = re.findall(r"workspace.open|workspace.close|t0 = None|give", run.source)
    assert marks == ["workspace.open", "workspace.close", "t0 = None", "workspace.open", "workspace.close", "give"]
    assert "take the arena\n  launch segment0" in str(plan) and str(plan).count("return the arena") == 2
    x = torch.arange(16.0)
    for _ in range(2):
        y, z = run([x])
        assert torch.equal(y, 2 * (x + 1) + 1) and z.item() == 16


def test_a_prepared_plan_loads_nothing_when_it_runs(on_cpu_memory: FakeDriver) -> None:
    run = load(chain(on_cpu_memory))
    run.prepare()
    on_cpu_memory.clear()
    run([torch.arange(16.0)])
    assert not any(line.startswith("load") for line in on_cpu_memory.log())


def test_a_plan_compiles_a_kernel_in_the_call_that_asks_for_it_and_an_error_leaves_it_usable(
    on_cpu_memory: FakeDriver,
) -> None:
    asked: list[str] = []

    @compiles("of this test")
    def compile_later(wanted: LazyKernel, store: Store | None) -> tuple[KernelBinary, bytes]:
        asked.append(wanted.request)
        if len(asked) == 1:
            raise CodegenError(f"kernel {wanted.function} did not compile")
        return kernel(wanted.function), b"fake 3\0"

    plan = chain(on_cpu_memory)
    first, general = (run_kernel(n, SlotPointer(0), SlotPointer(5), narrow=n == 1) for n in (0, 1))
    step = attrs.evolve(first, assumes=(expression("s0 - 20", {"s0": 0}, {}),), otherwise=general)
    table = LaunchTable(
        (kernel("add_one"), LazyKernel("twice", "of this test", "the general one", 3)),
        {"segment0": segment_words(len(plan.slots), (step,))},
        {"segment0": (5,)},
    )
    library = on_cpu_memory.write(table, {"add_one.cubin": b"fake 3\0"})
    slots = (*plan.slots[:5], attrs.evolve(plan.slots[5], shape=("s0",)), *plan.slots[6:])
    steps = (Allocate(5), Launch("segment0", (0, 5), ("add",)))
    plan = attrs.evolve(plan, slots=slots, steps=steps, outputs=(SlotRef(5),), library=library, arena_bytes=0)
    run = load(codec.loads(codec.dumps(plan)))
    short, long = torch.arange(16.0), torch.arange(40.0)
    run.prepare()
    assert torch.equal(run([short])[0], short + 1) and asked == []
    with pytest.raises(CodegenError, match="kernel twice did not compile"):
        run([long])
    for _ in range(2):
        assert torch.equal(run([short])[0], short + 1) and torch.equal(run([long])[0], long * 2)
    assert asked == ["the general one"] * 2


def test_threads_do_not_share_a_workspace(on_cpu_memory: FakeDriver) -> None:
    run = load(chain(on_cpu_memory))
    inputs = [torch.full((16,), float(n)) for n in range(64)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda x: run([x])[0], inputs))
    assert all(torch.equal(y, 2 * (x + 1) + 1) for x, y in zip(inputs, results, strict=True))


def test_an_input_cut_out_of_a_larger_tensor_is_aligned(on_cpu_memory: FakeDriver) -> None:
    run = load(chain(on_cpu_memory))
    x = torch.arange(17.0)[1:]
    assert x.data_ptr() % 16
    assert torch.equal(run([x])[0], 2 * (x + 1) + 1)


def test_scratch_memory_grows_with_sizes(on_cpu_memory: FakeDriver) -> None:
    """A kernel writes scratch behind the arena, whose bytes are a function of the input's size."""
    slots = (
        Slot("x", ("s0",), (1,), "float32", "cpu", "input", 0),
        Slot("y", ("s0",), (1,), "float32", "cpu", "own"),
    )
    scratch = ArenaPointer((0, 0))
    steps = (run_kernel(0, SlotPointer(0), scratch), run_kernel(1, scratch, SlotPointer(1), narrow=True))
    table = LaunchTable((kernel("add_one"), kernel("twice")), {"segment0": segment_words(2, steps)}, {})
    library = on_cpu_memory.write(table, {"add_one.cubin": b"fake 3\0", "twice.cubin": b"fake 3\0"})
    plan = Plan(
        "scratch",
        "cuda:0",
        slots,
        (0,),
        (Allocate(1), Launch("segment0", (0, 1))),
        (SlotRef(1),),
        ("s0",),
        {"s0": SizeSource(0, 0)},
        library=library,
        scratch_bytes="max(0, cdiv((s0) * 4, 256) * 256)",
    )
    run = load(plan)
    for length in (3, 100_000, 1):
        x = torch.randn(length)
        assert torch.equal(run([x])[0], 2 * (x + 1))


def test_scratch_memory_grows_when_the_number_that_it_depends_on_is_known(on_cpu_memory: FakeDriver) -> None:
    fake = on_cpu_memory
    slots = (
        Slot("x", (400,), (1,), "float32", "cpu", "input", 0),
        Slot("m", (400,), (1,), "bool", "cpu", "input", 1),
        Slot("h", (16,), (1,), "float32", "cpu", "arena", 0),
        Slot("y", ("u0",), (1,), "float32", "cpu", "call"),
        Slot("z", ("u0",), (1,), "float32", "cpu", "own"),
    )
    scratch = ArenaPointer((0, 256))
    first = (run_kernel(0, SlotPointer(3), scratch), run_kernel(1, scratch, SlotPointer(4)))
    table = LaunchTable(
        (kernel("add_one"), kernel("twice")),
        {"segment0": segment_words(len(slots), first)},
        {"segment0": (4,)},
    )
    library = fake.write(table, {"add_one.cubin": b"fake 3\0", "twice.cubin": b"fake 3\0"})
    steps = (
        Call("aten::masked_select.default", (SlotRef(0), SlotRef(1)), {}, (3,), symbol_bindings=(Binding("u0", 0, 0),)),
        Allocate(4),
        Launch("segment0", (2, 3, 4), ("add", "mul")),
    )
    plan = Plan(
        "grows", "cuda:0", slots, (0, 1), steps, (SlotRef(4), SizeRef("u0")), ("u0",), arena_bytes=64,
        library=library, scratch_bytes="max(64, cdiv(u0 * 4, 256) * 256)",
    )  # fmt: skip
    run = load(codec.loads(codec.dumps(plan)))
    assert run.source.index("u0 = 0") < run.source.index("workspace.open") < run.source.index("u0 = t3.size(0)")
    x = torch.arange(400.0)
    for mask in (x >= 0, x < 0, x == 7, x > 100):
        z, count = run([x, mask])
        assert torch.equal(z, 2 * (x[mask] + 1)) and count == int(mask.sum())
