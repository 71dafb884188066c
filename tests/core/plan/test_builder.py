"""Plans laid out from schedules: slots, launches, and memory taken over."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

import attrs
import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins import loop_lab
from tests.plugins.loop_lab import at, declare, pointwise, program, programs, row_sum, run_program, schedule
from turret.ir import Extern, Kernel, Ref, Schedule, Store, StridedView, TensorDecl, Var, call, constant, verify
from turret.ir import load as load_expr
from turret.plan import Allocate, Call, Copy, Free, Launch, Plan, SlotRef, Step, View
from turret.plan.builder import draft_plan, kernel_symbols, kernel_tensors
from turret.plan.executor import load
from turret.plugins.schedule import memory
from turret.storage.artifact_cache import process_cache
from turret.storage.libraries import Library, keep_library

NEG = torch.ops.aten.neg.default
SHAPE = (64, 64)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def taking_over() -> Schedule:
    """``abs(neg(x + 1))`` and its row sums: the middle is the result of a call, whose memory a kernel takes over."""
    one = constant(1, torch.int64)
    statements = [
        pointwise("a", SHAPE, lambda i, j: call("add", at("x", i, j), one)),
        Extern(NEG, (Ref("a"),), {}, (declare("e", SHAPE),)),
        pointwise("b", SHAPE, lambda i, j: call("abs", at("e", i, j))),
        Extern(NEG, (Ref("b"),), {}, (declare("f", SHAPE),)),
        row_sum("s", "f", SHAPE),
    ]
    made = schedule(program([declare("x", SHAPE)], statements, ["s"]))
    verify(made)
    return made


def test_kernels_in_a_row_are_one_launch() -> None:
    statements = [
        pointwise("a", (8,), lambda i: call("mod", at("x", i), constant(3, torch.int64))),
        pointwise("b", (6,), lambda i: call("mod", at("y", i), constant(3, torch.int64))),
    ]
    draft = draft_plan(schedule(program([declare("x", (8,)), declare("y", (6,))], statements, ["a", "b"])), "cpu")
    (launch,) = [step for step in draft.plan.steps if isinstance(step, Launch)]
    (segment,) = draft.segments
    assert launch.function == segment.name
    assert len(segment.kernels) == 2
    assert {draft.plan.slots[s].name for s in launch.slots} == {"x", "y", "a", "b"}


def test_a_tensor_is_freed_after_its_last_use_and_an_output_never() -> None:
    plan = draft_plan(taking_over(), "cpu").plan
    freed = [plan.slots[s].name for step in plan.steps if isinstance(step, Free) for s in step.slots]
    assert len(freed) == len(set(freed))
    assert "s" not in freed
    assert {"x", "e", "f"} <= set(freed)


@given(st.data(), st.sampled_from((16, 64, 1 << 22)))
@settings(deadline=None)
def test_a_gpu_s_arena_is_there_in_every_step_that_uses_it(data: st.DataObject, separate: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_lab, "CPU", torch.device("cuda"))
        patch.setattr(memory, "SEPARATE_BYTES", separate)
        made = schedule(data.draw(programs()))
        verify(made)
    plan = draft_plan(made, "cuda").plan
    for number, step in enumerate(plan.steps):
        if any(plan.slots[slot].storage == "arena" for slot in used_slots(step)):
            spans = plan.arena_spans
            assert not spans or any(first <= number <= last for first, last in spans), (number, str(plan))


def used_slots(step: Step) -> list[int]:
    match step:
        case Launch():
            return list(step.slots)
        case Call():
            return [a.slot for a in step.args if isinstance(a, SlotRef)] + [step.into or 0]
        case View():
            return [step.base]
        case Copy():
            return [step.target, step.source]
    return []


def test_memory_of_a_call_is_taken_over_by_a_view_of_it() -> None:
    made = taking_over()
    assert made.memory.buffers["b"].reuses == "e"
    draft = draft_plan(made, "cpu")
    views = [
        (draft.plan.slots[v.slot].name, draft.plan.slots[v.base].name) for v in draft.plan.steps if isinstance(v, View)
    ]
    assert ("b", "e") in views
    assert "b" not in [draft.plan.slots[a.slot].name for a in draft.plan.steps if isinstance(a, Allocate)]


@needs_compiler
def test_a_kernel_that_writes_over_what_it_reads_gives_the_same_result(tmp_path: Path) -> None:
    made = taking_over()
    draft = draft_plan(made, "cpu")
    slot = {name: draft.slot_of[name] for name in ("x", "a", "e", "b", "f", "s")}
    bodies = {
        "a": f"for (int i = 0; i < 4096; i++) at({slot['a']})[i] = at({slot['x']})[i] + 1;",
        "b": f"for (int i = 0; i < 4096; i++) at({slot['b']})[i] = labs(at({slot['e']})[i]);",
        "s": f"for (int i = 0; i < 64; i++) {{ long t = 0; for (int j = 0; j < 64; j++) t += at({slot['f']})[64*i+j]; "
        f"at({slot['s']})[i] = t; }}",
    }
    source = "#include <stdlib.h>\n#define at(n) ((long*)b[n])\n"
    for segment in draft.segments:
        lines = " ".join(bodies[kernel.stores[0].tensor] for kernel in segment.kernels)
        source += f'extern "C" long {segment.name}(void** b, const long*, int) {{ {lines} return 0; }}\n'
    run = load(with_library(draft.plan, source, tmp_path))
    x = torch.randint(-50, 50, SHAPE)
    for _ in range(2):
        torch.testing.assert_close(run([x])[0], run_program(made.program, {"x": x})[0], rtol=0, atol=0)
    assert run([x])[0].data_ptr() != x.data_ptr()


def with_library(plan: Plan, source: str, folder: Path) -> Plan:
    path = folder / "kernels.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", path], input=source, text=True, check=True)
    key = hashlib.sha256(source.encode()).hexdigest()
    keep_library(process_cache, key, {path.name: path.read_bytes()})
    return attrs.evolve(plan, library=Library(key, path.name))


@pytest.mark.parametrize(("shape", "stride"), [((3, 2), (1, 3)), ((3,), (1,)), ((2, 3), (3, 1))])
def test_views_of_inputs_show_the_same_memory(shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    view = StridedView(TensorDecl("v", shape, stride, torch.int64, torch.device("cpu")), "x", 0)
    made = schedule(program([declare("x", (2, 3))], [view], ["v"]))
    run = load(draft_plan(made, "cpu").plan)
    block = torch.arange(20)
    x = block[5:11].view(2, 3)  # not at the start of its storage
    (got,) = run([x])
    torch.testing.assert_close(got, x.as_strided(shape, stride, 5), rtol=0, atol=0)
    assert got.data_ptr() == x.data_ptr()


def test_tensors_and_symbols_of_a_kernel_are_found_once_in_a_fixed_order() -> None:
    s0 = sympy.Symbol("s0", integer=True, positive=True)
    loop = Var("i0", s0)
    value = call("add", load_expr("x", (loop,), torch.int64), load_expr("x", (loop,), torch.int64))
    kernel = Kernel("k", (loop,), (), (Store("y", (loop.index,), value),))
    decl = {n: TensorDecl(n, (s0,), (1,), torch.int64, torch.device("cpu")) for n in "xy"}
    assert kernel_tensors(kernel) == ("x", "y")
    assert kernel_symbols(kernel, decl) == ("s0",)


def test_symbols_of_indices_are_symbols_of_the_kernel() -> None:
    s0, s1, s2 = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1", "s2"))
    loop, row = Var("i0", 4), Var("r0", s2)
    moved = load_expr("x", (loop.index + s0,), torch.int64)
    kernel = Kernel("k", (loop,), (row,), (Store("y", (loop.index + s1,), moved),))
    decl = {n: TensorDecl(n, (9,), (1,), torch.int64, torch.device("cpu")) for n in "xy"}
    assert kernel_symbols(kernel, decl) == ("s0", "s1", "s2")
