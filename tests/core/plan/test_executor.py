"""Plans made from schedules run as their steps say, from JSON as from memory."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs
import pytest
import torch

from turret.errors import FakeImplementationError, TurretError
from turret.ir import (
    Binding,
    BufferPlan,
    Extern,
    Kernel,
    LoopProgram,
    MemoryPlan,
    Ref,
    Schedule,
    SizeSource,
    Store,
    StridedView,
    TensorDecl,
    Var,
    call,
    constant,
    size,
    verify,
)
from turret.ir import load as load_expr
from turret.plan import Call, Compute, Copy, Launch, Plan, SizeRef, Slot, SlotRef
from turret.plan.builder import PlanDraft, draft_plan
from turret.plan.executor import load
from turret.storage import codec
from turret.storage.artifact_cache import process_cache
from turret.storage.libraries import Library, keep_library

CPU, F32 = torch.device("cpu"), torch.float32
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def linear_schedule() -> Schedule:
    """``2 * ((x + 1) @ w.t())``: a kernel, a view of an input, an extern into the arena, a kernel."""
    x, w = TensorDecl("x", (4, 8), (8, 1), F32, CPU), TensorDecl("w", (16, 8), (8, 1), F32, CPU)
    wt, h = TensorDecl("wt", (8, 16), (1, 8), F32, CPU), TensorDecl("h", (4, 8), (8, 1), F32, CPU)
    y, o = TensorDecl("y", (4, 16), (16, 1), F32, CPU), TensorDecl("o", (4, 16), (16, 1), F32, CPU)
    rows, columns, wide = Var("i0", 4), Var("i1", 8), Var("i1", 16)
    view = StridedView(wt, "w", 0)
    product = Extern(torch.ops.aten.mm.default, (Ref("h"), Ref("wt")), {}, (y,))
    first = Store("h", (rows.index, columns.index), call("add", load_expr("x", (rows, columns), F32), constant(1, F32)))
    second = Store("o", (rows.index, wide.index), call("mul", load_expr("y", (rows, wide), F32), constant(2, F32)))
    kernels = Kernel("k0", (rows, columns), (), (first,)), Kernel("k1", (rows, wide), (), (second,))
    memory = MemoryPlan(
        {"h": BufferPlan(h, 128, 0), "y": BufferPlan(y, 256, 128), "o": BufferPlan(o, 256)}, 384, 640, {2: ("h",)}
    )
    inputs = (x, w)
    program = LoopProgram("linear", inputs, (view, product), (Ref("o"),))
    declared = attrs.evolve(
        program, statements=(_definition(h, first, kernels[0]), view, product, _definition(o, second, kernels[1]))
    )
    schedule = Schedule(declared, (kernels[0], view, product, kernels[1]), memory)
    verify(schedule)
    return schedule


def _definition(tensor: TensorDecl, store: Store, kernel: Kernel):
    from turret.ir import Definition

    return Definition(tensor, kernel.outer, store.expr)


def linear_plan(folder: Path) -> Plan:
    draft = draft_plan(linear_schedule(), "cpu")
    source = f"""
    extern "C" long segment0(void** b, const long*, int) {{
        float *x = (float*)b[{draft.slot_of["x"]}], *h = (float*)b[{draft.slot_of["h"]}];
        for (int i = 0; i < 32; i++) h[i] = x[i] + 1;
        return 0;
    }}
    extern "C" long segment1(void** b, const long*, int) {{
        float *y = (float*)b[{draft.slot_of["y"]}], *o = (float*)b[{draft.slot_of["o"]}];
        for (int i = 0; i < 64; i++) o[i] = y[i] * 2;
        return 0;
    }}
    """
    return with_library(draft, source, folder)


def with_library(draft: PlanDraft, source: str, folder: Path) -> Plan:
    path = folder / "kernels.so"
    key = hashlib.sha256(source.encode()).hexdigest()
    subprocess.run(
        ["g++", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", path], input=source, text=True, check=True
    )
    keep_library(process_cache, key, {path.name: path.read_bytes()})
    return attrs.evolve(draft.plan, library=Library(key, path.name))


def test_a_plan_runs_its_kernels_and_extern_calls(tmp_path: Path) -> None:
    run = load(linear_plan(tmp_path))
    x, w = torch.randn(4, 8), torch.randn(16, 8)
    torch.testing.assert_close(run([x, w])[0], 2 * ((x + 1) @ w.t()))


def test_a_plan_survives_json(tmp_path: Path) -> None:
    plan = linear_plan(tmp_path)
    again = codec.loads(codec.dumps(plan))
    assert str(again) == str(plan)
    x, w = torch.randn(4, 8), torch.randn(16, 8)
    torch.testing.assert_close(load(again)([x, w])[0], 2 * ((x + 1) @ w.t()))


def test_the_list_of_arguments_is_emptied(tmp_path: Path) -> None:
    args = [torch.randn(4, 8), torch.randn(16, 8)]
    load(linear_plan(tmp_path))(args)
    assert args == []


def test_threads_in_the_same_plan_do_not_share_memory(tmp_path: Path) -> None:
    run = load(linear_plan(tmp_path))

    def once(seed: int) -> bool:
        generator = torch.Generator().manual_seed(seed)
        x, w = torch.randn(4, 8, generator=generator), torch.randn(16, 8, generator=generator)
        return torch.allclose(run([x, w])[0], 2 * ((x + 1) @ w.t()), atol=1e-5)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(once, range(400)))


def test_arena_memory_is_kept_between_calls_and_results_are_not_in_it(tmp_path: Path) -> None:
    run = load(linear_plan(tmp_path))
    w = torch.randn(16, 8)
    first = run([torch.zeros(4, 8), w])[0]
    before = first.clone()
    run([torch.ones(4, 8), w])
    torch.testing.assert_close(first, before, rtol=0, atol=0)


@pytest.mark.parametrize(("status", "error"), [(1, IndexError), (2, RuntimeError)])
def test_a_status_of_a_kernel_becomes_the_error_that_eager_raises(tmp_path: Path, status: int, error: type) -> None:
    draft = draft_plan(linear_schedule(), "cpu")
    bodies = "".join(f'extern "C" long segment{i}(void**, const long*, int) {{ return {status}; }}' for i in (0, 1))
    run = load(with_library(draft, bodies, tmp_path))
    with pytest.raises(error):
        run([torch.randn(4, 8), torch.randn(16, 8)])


def test_sizes_are_read_from_inputs_and_used_in_calls() -> None:
    import sympy

    s0 = sympy.Symbol("s0", integer=True, positive=True)
    x, y = TensorDecl("x", (s0, 3), (3, 1), F32, CPU), TensorDecl("y", (size(s0 * 3),), (1,), F32, CPU)
    reshape = Extern(torch.ops.aten.reshape.default, (Ref("x"), [size(s0 * 3)]), {}, (y,))
    program = LoopProgram("dynamic", (x,), (reshape,), (Ref("y"), s0), symbols={"s0": SizeSource(0, 0)})
    run = load(draft_plan(Schedule(program, (reshape,), MemoryPlan({})), "cpu").plan)
    for rows in (2, 5):
        value = torch.randn(rows, 3)
        flat, count = run([value])
        assert count == rows
        torch.testing.assert_close(flat, value.reshape(-1), rtol=0, atol=0)


def call_plan(shape: tuple[int, ...], stride: tuple[int, ...]) -> Plan:
    """``x.t()`` whose result is declared with a shape and stride of the caller's choosing."""
    return Plan(
        name="transpose",
        device="cpu",
        slots=(
            Slot("x", (2, 3), (3, 1), "float32", "cpu", "input"),
            Slot("y", shape, stride, "float32", "cpu", "call"),
        ),
        inputs=(0,),
        steps=(Call("aten::t.default", (SlotRef(0),), {}, (1,)),),
        outputs=(SlotRef(1),),
    )


def test_a_result_in_another_layout_than_foretold_is_brought_into_it() -> None:
    x = torch.randn(2, 3)
    (y,) = load(call_plan((3, 2), (2, 1)))([x])
    assert y.stride() == (2, 1)
    torch.testing.assert_close(y, x.t(), rtol=0, atol=0)


def test_a_result_of_another_shape_than_foretold_is_an_error() -> None:
    with pytest.raises(TurretError, match="fake implementation"):
        load(call_plan((2, 2), (2, 1)))([torch.randn(2, 3)])


def numbers_plan(folder: Path) -> Plan:
    """``(x[m] * item * n, n)``: a size and a float bound by calls, a number of both, a kernel that reads it."""
    slots = (
        Slot("x", (6,), (1,), "float64", "cpu", "input", 0),
        Slot("m", (6,), (1,), "bool", "cpu", "input", 1),
        Slot("f", (), (), "float64", "cpu", "input", 2),
        Slot("y", ("u0",), (1,), "float64", "cpu", "call"),
        Slot("z", ("u0",), (1,), "float64", "cpu", "call"),
    )
    source = """
    extern "C" long segment0(void** b, const long* sizes, int) {
        double scale; __builtin_memcpy(&scale, &sizes[0], 8);
        double *z = (double*)b[4];
        for (long i = 0; i < sizes[1]; i++) z[i] *= scale;
        return 0;
    }
    """
    path = folder / "numbers.so"
    subprocess.run(
        ["g++", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", path], input=source, text=True, check=True
    )
    keep_library(process_cache, "numbers", {path.name: path.read_bytes()})
    steps = (
        Call(
            "aten::_local_scalar_dense.default",
            (SlotRef(2),),
            {},
            (None,),
            symbol_bindings=(Binding("zuf0", 0, None, True),),
        ),
        Call("aten::masked_select.default", (SlotRef(0), SlotRef(1)), {}, (3,), symbol_bindings=(Binding("u0", 0, 0),)),
        Call("aten::_assert_scalar.default", (SizeRef("u0 <= 5"), "too many"), {}, (), sequence=True),
        Compute("scale", "zuf0*u0"),
        Call("aten::clone.default", (SlotRef(3),), {}, (4,)),
        Launch("segment0", (4,), ("mul",)),
    )
    return Plan(
        "numbers", "cpu", slots, (0, 1, 2), steps, (SlotRef(4), SizeRef("u0"), SizeRef("zuf0")),
        ("scale", "u0", "zuf0"), library=Library("numbers", path.name), float_symbols=("scale", "zuf0"),
    )  # fmt: skip


def test_numbers_are_bound_where_calls_give_them_and_kernels_read_them(tmp_path: Path) -> None:
    plan = numbers_plan(tmp_path)
    assert plan.bound_symbols == ("scale", "u0", "zuf0") and "y, u0 = aten::masked_select" in str(plan)
    run = load(codec.loads(codec.dumps(plan)))
    x = torch.randn(6, dtype=torch.float64)
    for mask in (x > 9, x < x.max(), x == x.max()):
        factor = torch.tensor(0.1, dtype=torch.float64)
        z, count, value = run([x, mask, factor])
        assert (count, value) == (int(mask.sum()), 0.1)
        torch.testing.assert_close(z, x[mask] * 0.1 * count, rtol=1e-15, atol=0)
    with pytest.raises(RuntimeError, match="too many"):
        run([x, x < 99, factor])
    assert run([x, x > 9, factor])[1] == 0


def test_a_call_that_gives_numbers_must_return_the_dtype_that_was_foretold(tmp_path: Path) -> None:
    plan = numbers_plan(tmp_path)
    slots = (*plan.slots[:3], attrs.evolve(plan.slots[3], dtype="float32"), plan.slots[4])
    with pytest.raises(FakeImplementationError):
        load(attrs.evolve(plan, slots=slots))([torch.ones(6, dtype=torch.float64), torch.ones(6) > 2, torch.ones(())])


def test_an_observer_is_told_of_each_library_call_and_copy_with_its_tensors_and_results() -> None:
    plan = Plan(
        name="calls",
        device="cpu",
        slots=(Slot("x", (2,), (1,), "float32", "cpu", "input", 0), Slot("y", (2,), (1,), "float32", "cpu", "call")),
        inputs=(0,),
        steps=(Call("aten::relu.default", (SlotRef(0),), {}, (1,)), Copy(0, 1)),
        outputs=(SlotRef(1),),
    )
    told: list[list[int]] = []

    class Observer:
        def begin(self, tensors: Sequence[torch.Tensor], stays: bool = False) -> None:
            told.append([t.data_ptr() for t in tensors])

        def end(self, results: Sequence[torch.Tensor] = ()) -> None:
            told.append([t.data_ptr() for t in results])

    x = torch.tensor([-1.0, 2.0])
    (y,) = load(plan, observer=Observer())([x])
    assert y.tolist() == x.tolist() == [0, 2]
    assert told == [[x.data_ptr()], [y.data_ptr()], [x.data_ptr(), y.data_ptr()], []]
