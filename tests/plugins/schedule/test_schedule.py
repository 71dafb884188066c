"""Fusion, order and memory keep a program's meaning, and the printed schedule says what was decided and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy
import torch
from hypothesis import given, settings

import turret
from tests.plugins import loop_lab
from tests.plugins.loop_lab import (
    CPU,
    I64,
    arguments,
    at,
    declare,
    loops_of,
    number,
    pointwise,
    program,
    programs,
    row_sum,
    run_program,
    run_schedule,
    schedule,
)
from turret.hooks.hookspecs import hookimpl
from turret.ir import (
    Binding,
    CopyInto,
    Definition,
    Expr,
    Extern,
    FusionCandidate,
    Index,
    LoopProgram,
    Number,
    Ref,
    Scatter,
    Schedule,
    StridedView,
    TensorDecl,
    Var,
    call,
    cast,
    check_index,
    constant,
    index_value,
    load,
    reduce,
    scan,
    size,
    size_value,
    verify,
)
from turret.plugins.schedule.fusion import fuse
from turret.testing.loops.interpreter import run_program as interpret

NEG = torch.ops.aten.neg.default
F32 = torch.float32


def extern(name: str, source: str, shape: tuple[int, ...]) -> Extern:
    return Extern(NEG, (Ref(source),), {}, (declare(name, shape),))


def negative_sums(names: str, shape: tuple[int, int], value: Callable[..., Expr]) -> list[Definition | Extern]:
    """Three tensors with names of one letter: values, their negatives by a call, and the sums of those along rows."""
    made, negative, sums = names
    return [pointwise(made, shape, value), extern(negative, made, shape), row_sum(sums, negative, shape)]


def check(program: LoopProgram, **options: int) -> Schedule:
    """The verified schedule, which computes what the program says."""
    verify(program)
    made = schedule(program, **options)
    verify(made)
    inputs = arguments(program)
    for got, want in zip(run_schedule(made, inputs), run_program(program, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    return made


def stored(made: Schedule) -> list[list[str]]:
    """Names of the stored tensors, a list a kernel."""
    return [[store.tensor for store in kernel.stores] for kernel in made.kernels]


# ---------------------------------------------------------------- meaning


@settings(max_examples=150, deadline=None)
@given(programs())
def test_any_program_gives_the_same_results_fused_and_one_kernel_a_definition(source: LoopProgram) -> None:
    check(source)
    check(source, max_fusion_size=1)


@settings(max_examples=40, deadline=None)
@given(programs())
def test_the_same_program_gives_the_same_text(source: LoopProgram) -> None:
    assert str(schedule(source)) == str(schedule(source))


@settings(max_examples=60, deadline=None)
@given(programs(most=14))
def test_steps_come_after_what_they_read(source: LoopProgram) -> None:
    made = schedule(source)
    ready = {decl.name for decl in source.inputs}
    for step in made.steps:
        text = str(step)
        names = [d for d in source.declarations() if f"{d}[" in text or f"%{d}" in text]
        makes = {s.tensor for s in step.stores} if step in made.kernels else {step.outputs[0].name}
        assert {n for n in names if n not in makes} <= ready
        ready |= makes


# ---------------------------------------------------------------- what fuses


def test_a_chain_of_pointwise_definitions_is_one_kernel_with_one_store() -> None:
    chain = [pointwise("a", (8, 8), lambda i, j: call("abs", at("x", i, j)))]
    for before, name in zip("abc", "bcd", strict=True):
        chain.append(pointwise(name, (8, 8), lambda i, j, b=before: call("add", at(b, i, j), number(1))))
    assert stored(check(program([declare("x", (8, 8))], chain, ["d"]))) == [["d"]]


def test_pointwise_goes_into_a_reduction_and_after_it() -> None:
    square = pointwise("sq", (4, 8), lambda i, j: call("mod", at("x", i, j), number(5)))
    total = row_sum("s", "sq", (4, 8))
    after = pointwise("y", (4, 8), lambda i, j: call("sub", at("sq", i, j), at("s", i)))
    made = check(program([declare("x", (4, 8))], [square, total, after], ["y"]))
    assert stored(made) == [["y"]]
    assert len(made.kernels[0].inner) == 1


def test_two_reductions_over_one_row_in_turn_are_one_kernel() -> None:
    first = row_sum("s", "x", (4, 8))
    centred = pointwise("c", (4, 8), lambda i, j: call("abs", call("sub", at("x", i, j), at("s", i))))
    second = row_sum("q", "c", (4, 8))
    assert stored(check(program([declare("x", (4, 8))], [first, centred, second], ["q"]))) == [["q"]]


def test_readers_of_one_tensor_are_fused_side_by_side() -> None:
    both = [
        pointwise("a", (16,), lambda i: call("mod", at("x", i), number(5))),
        pointwise("b", (16,), lambda i: call("mod", at("x", i), number(7))),
    ]
    made = check(program([declare("x", (16,))], both, ["a", "b"]))
    assert stored(made) == [["a", "b"]]
    assert [d for d in made.decisions if d.made and d.reason == "horizontal" and d.saved_bytes == 16 * 8]


def test_unrelated_definitions_stay_apart() -> None:
    both = [
        pointwise("a", (16,), lambda i: call("mod", at("x", i), number(5))),
        pointwise("b", (16,), lambda i: call("mod", at("y", i), number(7))),
    ]
    assert len(check(program([declare("x", (16,)), declare("y", (16,))], both, ["a", "b"])).kernels) == 2


def test_a_value_taken_at_another_place_is_not_fused() -> None:
    made = pointwise("a", (4, 4), lambda i, j: call("mod", at("x", i, j), number(5)))
    turned = pointwise("b", (4, 4), lambda i, j: call("add", at("a", i, j), at("a", j, i)))
    result = check(program([declare("x", (4, 4))], [made, turned], ["b"]))
    assert stored(result) == [["a"], ["b"]]
    assert [d.reason for d in result.decisions] == ["loops do not line up"]


def test_rows_and_columns_of_one_tensor_are_two_kernels() -> None:
    rows = row_sum("s", "x", (4, 6))
    column = Definition(
        declare("c", (6,)), loops_of((6,)), reduce("sum", (Var("r0", 4),), at("x", Var("r0", 4), Var("i0", 6)))
    )
    assert len(check(program([declare("x", (4, 6))], [rows, column], ["s", "c"])).kernels) == 2


def test_a_call_between_keeps_two_kernels_apart() -> None:
    statements = [
        pointwise("a", (8,), lambda i: call("mod", at("x", i), number(5))),
        extern("e", "a", (8,)),
        pointwise("b", (8,), lambda i: call("add", at("e", i), at("a", i))),
    ]
    made = check(program([declare("x", (8,))], statements, ["b"]))
    assert stored(made) == [["a"], ["b"]]
    assert "apart a + b: 64 bytes, another step lies between" in str(made)


def test_reshapes_do_not_stop_fusion() -> None:
    made = pointwise("a", (4, 6), lambda i, j: call("mod", at("x", i, j), number(5)))
    flat = pointwise("f", (24,), lambda i: call("add", at("a", i.index // 6, i.index % 6), number(1)))
    result = check(program([declare("x", (4, 6))], [made, flat], ["a", "f"]))
    assert stored(result) == [["a", "f"]]


def test_no_kernel_has_more_definitions_than_allowed() -> None:
    readers = [pointwise(f"t{k}", (16,), lambda i, k=k: call("mod", at("x", i), number(k + 3))) for k in range(6)]
    made = check(program([declare("x", (16,))], readers, [f"t{k}" for k in range(6)]), max_fusion_size=2)
    assert max(map(len, stored(made))) == 2
    assert any("more than 2 definitions" in str(d) for d in made.decisions)


def test_a_branch_of_cat_is_computed_in_place_although_the_whole_has_more_elements() -> None:
    small = pointwise("a", (4,), lambda i: call("add", call("mod", at("x", i), number(3)), number(1)))

    def joined(i: Var):
        low = call("lt", index_value(i), number(4))
        high = at("x", i.index % 4)
        return call("where", low, at("a", i.index % 4), high)

    assert stored(check(program([declare("x", (4,))], [small, pointwise("y", (8,), joined)], ["y"]))) == [["y"]]


def test_a_cheap_value_with_two_users_is_computed_twice_rather_than_stored() -> None:
    shape = (8, 8)
    statements = [
        pointwise("d", shape, lambda i, j: call("sub", at("x", i, j), at("m", i))),
        pointwise("a", shape, lambda i, j: call("abs", at("d", i, j))),
        extern("e", "a", shape),
        pointwise("b", shape, lambda i, j: call("add", at("d", i, j), at("e", i, j))),
    ]
    made = check(program([declare("x", shape), declare("m", (8,))], statements, ["b"]))
    assert stored(made) == [["a"], ["b"]]


def test_a_checked_index_is_checked_where_it_was_although_its_user_has_fewer_elements() -> None:
    source = pointwise("g", (8,), lambda i: at("x", check_at("k", i)))
    part_of = pointwise("y", (4,), lambda i: at("g", i))
    inputs = [declare("x", (5,)), declare("k", (8,))]
    made = schedule(program(inputs, [source, part_of], ["y"]))
    verify(made)
    assert stored(made)[0] == ["g"]


def check_at(name: str, variable: Var):
    from turret.ir import Index

    return Index.of_value(check_index(at(name, variable), 5))


# ---------------------------------------------------------------- the score is a hook


class Never:
    @hookimpl
    def turret_fusion_score(self, candidate: FusionCandidate) -> float:
        assert candidate.first.stores
        assert candidate.second.stores
        assert candidate.saved_bytes
        assert "x" in candidate.shared
        return 0.0


def test_a_plugin_that_scores_nothing_leaves_all_apart_and_sees_both_kernels() -> None:
    both = [pointwise(n, (16,), lambda i, k=k: call("mod", at("x", i), number(k))) for n, k in (("a", 5), ("b", 7))]
    made = schedule(program([declare("x", (16,))], both, ["a", "b"]), Never())
    assert sorted(stored(made)) == [["a"], ["b"]]
    assert "score 0.0" in str(made)


# ---------------------------------------------------------------- order and effects


def test_a_write_to_an_input_comes_after_reads_of_the_old_value_and_before_reads_of_the_new() -> None:
    statements = [
        pointwise("a", (8,), lambda i: call("mod", at("x", i), number(5))),
        CopyInto("x", "a"),
        pointwise("b", (8,), lambda i: call("add", at("x", i), number(1))),
    ]
    verify(made := schedule(program([declare("x", (8,))], statements, ["b"])))
    kinds = [type(step).__name__ for step in made.steps]
    assert kinds == ["Kernel", "CopyInto", "Kernel"]
    inputs = {"x": torch.arange(8)}
    torch.testing.assert_close(run_schedule(made, inputs)[0], torch.arange(8) % 5 + 1, rtol=0, atol=0)


def test_random_calls_keep_their_order() -> None:
    rand = torch.ops.aten.rand.default
    f32 = torch.float32
    calls = [Extern(rand, ([4],), {}, (TensorDecl(f"r{k}", (4,), (1,), f32, CPU),)) for k in range(4)]
    made = schedule(program([], calls, ["r3", "r1", "r2", "r0"]))
    assert [step.outputs[0].name for step in made.externs] == ["r0", "r1", "r2", "r3"]


def test_what_is_used_late_is_made_late_if_that_lowers_the_peak() -> None:
    wide = pointwise("w", (64, 64), lambda i, j: call("mod", at("x", i), number(5)))
    big = pointwise("b", (64, 64), lambda i, j: call("mod", at("y", j), number(7)))
    statements = [wide, big, extern("e", "b", (64, 64)), row_sum("s", "e", (64, 64)), extern("f", "w", (64, 64))]
    made = check(
        program([declare("x", (64,)), declare("y", (64,))], [*statements, row_sum("u", "f", (64, 64))], ["s", "u"])
    )
    one = 64 * 64 * 8
    assert made.memory.peak_bytes < 3 * one
    assert [s[0] for s in stored(made)].index("w") > [s[0] for s in stored(made)].index("b")


# ---------------------------------------------------------------- memory


def test_a_pointwise_result_takes_over_memory_that_dies_in_its_kernel() -> None:
    shape = (32, 64)
    statements = [
        pointwise("a", shape, lambda i, j: call("mod", at("x", i, j), number(5))),
        extern("e", "a", shape),
        pointwise("b", shape, lambda i, j: call("abs", at("e", i, j))),
        extern("f", "b", shape),
        row_sum("s", "f", shape),
    ]
    made = check(program([declare("x", shape)], statements, ["s"]))
    assert made.memory.buffers["b"].reuses == "e"


def test_arena_memory_is_handed_on_between_kernels() -> None:
    shape = (8, 8)
    statements = [
        pointwise("a", shape, lambda i, j: call("mod", at("x", i, j), number(5))),
        row_sum("s", "a", shape),
        extern("e", "s", (8,)),
        pointwise("b", shape, lambda i, j: call("sub", at("a", i, j), at("e", i))),
        extern("f", "b", shape),
    ]
    made = check(program([declare("x", shape)], statements, ["f"]))
    assert made.memory.buffers["b"].reuses == "a"
    assert made.memory.buffers["b"].arena_offset == made.memory.buffers["a"].arena_offset


def test_a_gpu_s_arena_is_no_larger_than_what_is_in_use_at_the_peak(monkeypatch) -> None:
    monkeypatch.setattr(loop_lab, "CPU", torch.device("cuda"))
    small, large = (256, 256), (1024, 512)
    statements = [
        *negative_sums("aes", small, lambda i, j: call("mod", at("x", i), number(5))),
        extern("v", "s", (256,)),
        *negative_sums("bft", large, lambda i, j: call("mod", at("y", i), at("s", 3))),
        extern("n", "t", (1024,)),
        pointwise("u", (256,), lambda i: call("add", at("s", i), at("n", i))),
    ]
    made = schedule(program([declare("x", (256,)), declare("y", (1024,))], statements, ["u", "v"]))
    one = 1024 * 512 * 8
    assert made.memory.buffers["s"].arena_offset is not None, "it lives through the peak"
    assert made.memory.buffers["a"].arena_offset is None
    assert made.memory.peak_bytes < 2 * one + (1 << 15)


def test_a_gpu_s_arena_is_not_there_at_a_peak_at_which_it_lies_idle(monkeypatch) -> None:
    monkeypatch.setattr(loop_lab, "CPU", torch.device("cuda"))
    monkeypatch.setattr(fuse, "_launch_bytes", lambda group: 0)
    small, large = (64, 64), (1024, 1024)
    statements = [
        *negative_sums("aes", small, lambda i, j: call("mod", at("x", i), number(5))),
        *negative_sums("bft", large, lambda i, j: call("mod", at("y", i), number(7))),
        *negative_sums("cgu", small, lambda i, j: call("mod", at("z", i), number(3))),
    ]
    inputs = [declare("x", (64,)), declare("y", (1024,)), declare("z", (64,))]
    made = schedule(program(inputs, statements, ["s", "t", "u"]))
    verify(made)
    memory = made.memory
    assert memory.buffers["a"].arena_offset is not None and memory.buffers["c"].arena_offset is not None
    assert memory.peak_bytes == 2 * 1024 * 1024 * 8 + 64 * 8, "the large one, its negative, and the sums before"
    (_, first), (second, _) = memory.arena_spans
    peak = next(n for n, step in enumerate(made.steps) if isinstance(step, Extern) and step.outputs[0].name == "f")
    assert first < peak < second


@pytest.mark.parametrize(
    "value",
    [
        lambda i, j: call("add", at("a", i, j), at("a", j, i)),
        lambda i, j: at("a", j, i),
        lambda i, j: at("a", i, 7 - j.index),
    ],
    ids=["also transposed", "transposed", "reversed"],
)
def test_memory_read_at_another_place_is_not_taken_over(value) -> None:
    shape = (8, 8)
    statements = [
        pointwise("a", shape, lambda i, j: call("mod", at("x", i, j), number(5))),
        extern("n", "a", shape),
        pointwise("b", shape, lambda i, j: call("add", value(i, j), at("n", i, j))),
        extern("e", "b", shape),
    ]
    assert check(program([declare("x", shape)], statements, ["e"])).memory.buffers["b"].reuses != "a"


def test_memory_that_a_view_still_shows_is_not_taken_over() -> None:
    shape = (8, 8)
    view = StridedView(TensorDecl("v", (64,), (1,), I64, CPU), "a", 0)
    statements = [
        pointwise("a", shape, lambda i, j: call("mod", at("x", i, j), number(5))),
        view,
        extern("p", "a", shape),
        pointwise("b", shape, lambda i, j: call("sub", at("a", i, j), at("p", i, j))),
        extern("e", "v", (64,)),
        extern("f", "b", shape),
    ]
    made = check(program([declare("x", shape)], statements, ["e", "f"]))
    assert made.memory.buffers["b"].reuses != "a"


def test_outputs_and_inputs_are_never_taken_over_nor_put_in_the_arena() -> None:
    shape = (8, 8)
    statements = [
        pointwise("a", shape, lambda i, j: call("mod", at("x", i, j), number(5))),
        extern("n", "a", shape),
        pointwise("b", shape, lambda i, j: call("add", at("a", i, j), at("n", i, j))),
    ]
    buffers = check(program([declare("x", shape)], statements, ["a", "b"])).memory.buffers
    assert all(buffers[n].arena_offset is None and buffers[n].reuses is None for n in "ab")


def test_zeros_that_a_scatter_starts_from_are_not_stored() -> None:
    zeros = pointwise("z", (6,), lambda i: number(0))
    loop = Var("i0", 4)
    scatter = Scatter(declare("s", (6,)), "z", (loop,), (loop.index + 1,), at("x", loop), "add")
    made = check(program([declare("x", (4,))], [zeros, scatter], ["s"]))
    assert stored(made) == [["s"], ["s"]]


def test_zeros_that_are_scattered_into_themselves_are_stored() -> None:
    zeros = pointwise("z", (6,), lambda i: number(0))
    loop = Var("i0", 4)
    scatter = Scatter(declare("s", (6,)), "z", (loop,), (loop.index + 1,), at("z", loop), "add")
    made = check(program([], [zeros, scatter], ["s"]))
    assert stored(made) == [["z"], ["s"], ["s"]]


# ---------------------------------------------------------------- rows of more than one loop, roundings


def test_a_scan_does_not_join_rows_of_two_loops() -> None:
    first, second, along = Var("r0", 3), Var("r1", 4), Var("i0", 12)
    whole = reduce("prod", (first, second), load("x", (first, second), torch.float32))
    total = Definition(declare("p", (), torch.float32), (), whole)
    (row, column) = (along.index // 4, along.index % 4)
    running = Definition(
        declare("c", (12,), torch.float32), (along,), scan("prod", along, load("x", (row, column), torch.float32))
    )
    made = schedule(program([declare("x", (3, 4), torch.float32)], [total, running], ["p", "c"]))
    verify(made)
    assert sorted(stored(made)) == [["c"], ["p"]]


@pytest.mark.parametrize("op", ["lt", "floordiv", "max"])
def test_what_a_jump_reads_is_rounded_as_the_program_rounds_it(op: str) -> None:
    half, single = torch.float16, torch.float32

    def wide(name: str, i: Index) -> Expr:
        return cast(load(name, (i,), half), single)

    square = pointwise("s", (4,), lambda i: cast(call("mul", wide("x", i), wide("x", i)), half), half)
    zero = constant(0, single)
    jump = pointwise("j", (4,), lambda i: cast(call(op, zero, wide("s", i)), half), half)
    made = schedule(program([declare("x", (4,), half)], [square, jump], ["j"]))
    (store,) = made.kernels[0].stores
    assert ("float16(mul" in str(store.expr)) == (op != "max")


# ---------------------------------------------------------------- dynamic sizes, text


def test_dynamic_sizes_fuse_as_static_ones_do() -> None:
    import sympy

    s0 = sympy.Symbol("s0", integer=True, positive=True)
    i, j, r = Var("i0", s0), Var("i1", 8), Var("r0", 8)

    def decl(name: str, *shape) -> TensorDecl:
        return TensorDecl(name, shape, (8, 1)[-len(shape) :], I64, CPU)

    total = Definition(decl("s", s0), (i,), reduce("sum", (r,), load("x", (i, r), I64)))
    after = Definition(decl("y", s0, 8), (i, j), call("sub", load("x", (i, j), I64), load("s", (i,), I64)))
    made = schedule(LoopProgram("dynamic", (decl("x", s0, 8),), (total, after), (Ref("y"),)))
    verify(made)
    assert stored(made) == [["y"]]
    assert made.memory.arena_bytes == 0
    assert made.memory.buffers["y"].bytes is None
    assert size(s0 * 8) == made.kernels[0].outer[0].extent * 8


def test_the_text_names_every_decision_with_bytes_and_reason() -> None:
    statements = [
        pointwise("a", (8,), lambda i: call("mod", at("x", i), number(5))),
        extern("e", "a", (8,)),
        pointwise("b", (8,), lambda i: call("add", at("e", i), at("a", i))),
        pointwise("c", (8,), lambda i: call("mod", at("b", i), number(5))),
    ]
    made = schedule(program([declare("x", (8,))], statements, ["b", "c"]))
    text = str(made)
    assert len(made.decisions) == 2
    assert all(str(decision) in text for decision in made.decisions)
    assert "fused b + c: 64 bytes, vertical" in text
    assert "apart a + b: 64 bytes, another step lies between" in text
    assert f"arena {made.memory.arena_bytes} bytes, peak {made.memory.peak_bytes}" in text


def test_an_unused_constant_is_not_computed() -> None:
    zeros = pointwise("z", (6,), lambda i: constant(0, I64))
    y = pointwise("y", (6,), lambda i: call("abs", at("x", i)))
    assert stored(check(program([declare("x", (6,))], [zeros, y], ["y"]))) == [["y"]]


def test_loops_of_equal_count_and_other_extents_are_not_taken_for_each_other():
    def function(x, y):
        there = x.any(0)
        return torch.hstack((there[None, :, :, None], y)), torch.stack((there, there), -2)

    x, y = torch.randint(0, 2, (1, 6, 3)), torch.randint(0, 2, (1, 6, 3, 1)).bool()
    compiled = turret.compile(function, options={"on_error": "raise"})
    for got, want in zip(compiled(x, y), function(x, y), strict=True):
        assert torch.equal(got, want)


def test_what_mentions_a_number_that_depends_on_data_comes_after_its_call_and_its_checks():
    n = sympy.Symbol("u0", integer=True, nonnegative=True)
    half = sympy.Symbol("number_half", real=True)
    x, mask = TensorDecl("x", (6,), (1,), F32, CPU), TensorDecl("m", (6,), (1,), torch.bool, CPU)
    y = TensorDecl("y", (n,), (1,), F32, CPU)
    loops = loops_of((n,))
    select = Extern(
        torch.ops.aten.masked_select.default, (Ref("x"), Ref("m")), {}, (y,), symbol_bindings=(Binding("u0", 0, 0),)
    )
    check = Extern(torch.ops.aten._assert_scalar.default, (n < 5, "few"), {}, (), returns_sequence=True)
    fresh = Definition(TensorDecl("fresh", (n,), (1,), F32, CPU), loops, size_value(n, F32))
    scaled = Definition(
        TensorDecl("scaled", (n,), (1,), F32, CPU),
        loops,
        call("mul", load("y", loops, F32), size_value(half, F32)),
    )
    statements = (select, check, Number("number_half", n * sympy.Float(0.5), True), fresh, scaled)
    made = LoopProgram("numbers", (x, mask), statements, (Ref("scaled"), Ref("fresh"), n, half))
    found = schedule(made)
    verify(found)
    kinds = [type(s).__name__ if not isinstance(s, Extern) else str(s.op) for s in found.steps]
    first = kinds.index("Kernel")
    assert kinds.index("aten.masked_select.default") < kinds.index("aten._assert_scalar.default") < first
    assert kinds.index("Number") < kinds.index("Kernel")
    x, mask = torch.arange(6.0), torch.tensor([0, 1, 0, 1, 1, 0]).bool()
    results = interpret(made, [x, mask])
    torch.testing.assert_close(results[0], x[mask] * 1.5)
    assert results[2:] == [3, 1.5]
    with pytest.raises(RuntimeError, match="few"):
        interpret(made, [x, x < 9])
