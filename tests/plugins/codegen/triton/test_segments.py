"""Kernels of a draft plan become launch tables: slots, arena, scratch memory, sizes, alignment."""

from __future__ import annotations

import json

import attrs
import pytest

from tests.plugins.codegen.triton.kernel_samples import scale
from turret.errors import UnsupportedError
from turret.plan import Launch, Plan, Slot
from turret.plan.builder import PlanDraft
from turret.plan.launch.table import (
    ArenaPointer,
    Clear,
    KernelLaunch,
    LazyKernel,
    Number,
    SizeValue,
    SlotPointer,
    expression,
    segment_words,
)
from turret.plugins.codegen.triton import CompiledKernel, Scratch, TritonKernel, alternatives, pack, with_alignment
from turret.plugins.codegen.triton.compilation.compile import DeferredKernel, request_of
from turret.plugins.codegen.triton.segments import wanted

SIZES = {"s0": 0, "s1": 1}
ONE = (0, 1)


def draft(arena_bytes: int = 192, offset: int = 64) -> PlanDraft:
    """``a`` is an input, ``b`` lies in the arena, ``c`` is allocated in the call."""
    vector = (("s0",), (1,), "float32", "cuda:0")
    slots = (Slot("a", *vector, "input"), Slot("b", *vector, "arena", offset), Slot("c", *vector, "own"))
    plan = Plan("p", "cuda:0", slots, (0,), (), (), ("s0", "s1"), arena_bytes=arena_bytes)
    return PlanDraft(plan, (), {"a": 0, "b": 1, "c": 2}, SIZES)


def chosen(kernel: TritonKernel) -> tuple:
    compiled = CompiledKernel(f"key of {kernel.name}", b"\x7fELF", kernel.name, kernel.configs[0].num_warps, 0)
    return (kernel, kernel.configs[0]), compiled


def grid(text: str, **constants: int) -> tuple:
    return (expression(text, SIZES, constants), ONE, ONE)


def test_tensors_lie_in_slots_or_the_arena_and_the_grid_is_of_the_chosen_configuration() -> None:
    packed = pack(draft(), {"segment0": [(scale(),)]}, chosen)
    step = KernelLaunch(
        0,
        (SlotPointer(0), ArenaPointer((0, 64)), SizeValue(0, narrow=True), Number(0), Number(0)),
        grid("cdiv(s0, B)", B=1024),
        aligned=(0,),
    )
    assert packed.table.segments == {"segment0": segment_words(3, (step,))}
    assert packed.table.stored == {"segment0": (1,)}
    assert packed.scratch_bytes == 0


def test_each_distinct_kernel_is_in_the_table_once() -> None:
    groups = [(scale(),), (scale(buffers=("b", "c")),), (scale(3.0, name="other"),)]
    packed = pack(draft(), {"segment0": groups, "segment1": groups[:1]}, chosen)
    assert [k.function for k in packed.table.kernels] == ["scale", "other"]


def test_the_runtime_checks_alignment_of_what_it_did_not_allocate() -> None:
    own = pack(draft(), {"s": [(scale(buffers=("c", "b")),)]}, chosen).table.segments["s"]
    given = pack(draft(), {"s": [(scale(buffers=("a", "b")),)]}, chosen).table.segments["s"]
    assert own[1] == 0 and given[1:3] == (1, 0)


def test_every_pointer_is_taken_for_aligned_except_views_that_never_are() -> None:
    plain = scale(divisible=frozenset({"n"}))
    assert with_alignment(plain, draft()).divisible == {"x", "y", "n"}
    assert with_alignment(plain, draft(offset=68)).divisible == {"x", "n"}


def test_scratch_lies_behind_the_arena_is_cleared_and_is_shared_by_kernels_that_run_later() -> None:
    partial = Scratch("part", "s0 * 3", "float32")
    counters = Scratch("count", "10", "int32", zeroed=True)
    first = scale(name="first", buffers=("a", "part"), scratch=(partial, counters))
    second = scale(name="second", buffers=("part", "c"))
    alone = scale(name="alone", buffers=("a", "sums"), scratch=(Scratch("sums", "100", "float64"),))
    packed = pack(draft(), {"segment0": [(first, second), (alone,)]}, chosen)
    count_offset = expression("256 + (cdiv((s0 * 3) * 4, 256) * 256)", SIZES, {})
    size, null = SizeValue(0, narrow=True), Number(0)
    steps = (
        Clear(ArenaPointer(_places(packed)[0]), (0, 40)),
        KernelLaunch(0, (SlotPointer(0), ArenaPointer((0, 256)), size, null, null), grid("cdiv(s0, 1024)"), (0,)),
        KernelLaunch(1, (ArenaPointer((0, 256)), SlotPointer(2), size, null, null), grid("cdiv(s0, 1024)")),
        KernelLaunch(2, (SlotPointer(0), ArenaPointer((0, 256)), size, null, null), grid("cdiv(s0, 1024)"), (0,)),
    )
    assert packed.table.segments["segment0"] == segment_words(3, steps)
    names = {"cdiv": lambda a, b: -(-a // b), "max": max}
    for s0 in (0, 1, 1000):
        assert eval(packed.scratch_bytes, {**names, "s0": s0}) == max(1024, -(-s0 * 12 // 256) * 256 + 256)
        assert _value(_places(packed)[0], s0) == _value(count_offset, s0) == 256 + -(-s0 * 12 // 256) * 256


def _places(packed: object) -> list[tuple[int, ...]]:
    """Arena offsets of the blocks that a table clears (the first step of its one segment)."""
    words = packed.table.segments["segment0"]
    start = 3 + words[1] + words[2 + words[1]]
    assert words[start + 1 : start + 4] == (0, 1, 2)
    length = words[start + 4]
    return [words[start + 5 : start + 5 + length]]


def _value(words: tuple[int, ...], s0: int) -> int:
    """A postfix expression, read independently of the launcher."""
    stack: list[int] = []
    position = 0
    while position < len(words):
        op = words[position]
        if op in (0, 1):
            position += 1
            stack.append(words[position] if op == 0 else s0)
        else:
            b, a = stack.pop(), stack.pop()
            stack.append({2: a + b, 3: a - b, 4: a * b, 5: a // b if b else 0, 6: a % b if b else 0}[op])
        position += 1
    (value,) = stack
    return value


def test_scratch_that_triton_itself_wants_is_given_for_each_program() -> None:
    def greedy(kernel: TritonKernel) -> tuple:
        pair, compiled = chosen(kernel)
        return pair, attrs.evolve(compiled, global_scratch=128, cluster=(2, 1, 1))

    packed = pack(draft(arena_bytes=0), {"s": [(scale(),)]}, greedy)
    assert eval(packed.scratch_bytes, {"cdiv": lambda a, b: -(-a // b), "s0": 5000, "max": max}) == 5 * 256


def test_the_arena_is_there_where_kernels_work_in_scratch_memory() -> None:
    working = scale(name="working", buffers=("a", "sums"), scratch=(Scratch("sums", "100", "float64"),))
    steps = tuple(Launch(f"segment{n}", (0, 1)) for n in range(9))

    def spans(arena_bytes: int, *before: tuple[int, int], among: tuple[int, ...] = (1, 2, 4, 7)) -> tuple:
        segments = {f"segment{n}": [(working if n in among else scale(),)] for n in range(9)}
        made = draft(arena_bytes)
        plan = attrs.evolve(made.plan, steps=steps, arena_spans=before)
        return pack(attrs.evolve(made, plan=plan), segments, chosen).arena_spans

    assert spans(192) == ()
    assert spans(0) == ((1, 1), (2, 2), (4, 4), (7, 7))
    assert spans(192, (3, 3), (5, 6)) == ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 7))
    assert spans(192, (0, 2), among=(3, 4, 5, 7, 8)) == ((0, 2), (3, 8)), "many share one"


def test_a_kernel_for_sizes_like_the_first_comes_with_one_for_others() -> None:
    general = scale(name="general")
    fast = scale(name="fast", assumes=("s0 % 16", "s0 - 4096"), otherwise=general, divisible=frozenset({"x", "y", "n"}))
    segments = {"s": [(with_alignment(fast, draft()),)]}
    assert [k.name for k in alternatives(segments)] == ["fast", "general"]
    packed = pack(draft(), segments, chosen)
    assert [k.function for k in packed.table.kernels] == ["fast", "general"]
    parameters = (SlotPointer(0), ArenaPointer((0, 64)), SizeValue(0, narrow=True), Number(0), Number(0))
    other = KernelLaunch(1, parameters, grid("cdiv(s0, 1024)"), (0,))
    assumed = tuple(expression(text, SIZES, {}) for text in fast.assumes)
    step = attrs.evolve(other, kernel=0, assumes=assumed, otherwise=other)
    assert packed.table.segments["s"] == segment_words(3, (step,))


def test_a_kernel_may_come_with_several_of_which_each_assumes_less() -> None:
    general = scale(name="general")
    narrow = scale(name="narrow", assumes=("s0 - 4096",), otherwise=general)
    fast = scale(name="fast", assumes=("s0 % 16", "s0 - 4096"), otherwise=narrow, divisible=frozenset({"n"}))
    aligned = with_alignment(fast, draft())
    assert [k.name for k in aligned.alternatives] == ["fast", "narrow", "general"]
    assert all("x" in k.divisible for k in aligned.alternatives), "pointers are aligned for all of them"
    assert [aligned.chosen_for({"s0": n}).name for n in (32, 31, 8192)] == ["fast", "narrow", "general"]
    packed = pack(draft(), {"s": [(aligned,)]}, chosen)
    assert [k.function for k in packed.table.kernels] == ["fast", "narrow", "general"]


def test_the_kernel_for_sizes_at_hand_is_wanted_and_all_where_those_are_not_known() -> None:
    general = scale(name="general")
    narrow = scale(name="narrow", assumes=("floor_div(4096, s1) - s0",), otherwise=general)
    fast = scale(name="fast", assumes=("s0 % 16", "s1 % 16"), otherwise=narrow)

    def names(**hints: int) -> list[str]:
        return [kernel.name for kernel in wanted({"s": [(fast,), (general,)]}, hints)]

    assert names(s0=32, s1=48) == ["fast", "general"]
    assert names(s0=4097, s1=1) == ["narrow", "general"] and names(s0=1, s1=1) == ["general", "general"]
    for unknown in ({}, {"s0": 32}, {"s0": 33, "s1": 0}):
        assert names(**unknown) == ["fast", "narrow", "general", "general"]


def test_a_kernel_that_is_not_compiled_is_in_the_table_with_its_request() -> None:
    general = scale(name="general")
    fast = scale(name="fast", assumes=("s0 % 16",), otherwise=general)

    def choose(kernel: TritonKernel) -> tuple:
        variant = kernel, kernel.configs[0]
        request = request_of(variant, "cuda", 90)
        return (variant, DeferredKernel("key", request, 2)) if kernel is general else chosen(kernel)

    there, later = pack(draft(), {"s": [(fast,)]}, choose).table.kernels
    assert there.function == "fast" and later == LazyKernel("general", "triton", later.request, 5)
    assert json.loads(later.request) == request_of((general, general.configs[0]), "cuda", 90)
    alone = pack(draft(), {"s": [(fast,)]}, chosen)
    assert pack(draft(), {"s": [(fast,)]}, choose).table.segments == alone.table.segments


def test_a_grid_beyond_the_launcher_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="sqrt"):
        pack(draft(), {"s": [(scale(grid=("sqrt(s0)",)),)]}, chosen)
