"""The spec check between stages names each kind of broken program and schedule."""

from __future__ import annotations

import attrs
import pytest
import sympy
import torch

from tests.plugins.loop_lab import CPU, I64, at, declare, loops_of, number, pointwise, program, row_sum, schedule
from turret.errors import VerificationError
from turret.hooks.size_source import SizeSource
from turret.ir import (
    CopyInto,
    Definition,
    Expr,
    Extern,
    Ref,
    Scatter,
    Schedule,
    StridedView,
    TensorDecl,
    Var,
    call,
    constant,
    load,
    reduce,
    verify,
)

F32 = torch.float32
X = declare("x", (4, 6))
NEG = torch.ops.aten.neg.default


def defined_as(value: Expr, shape: tuple[int, ...] = (4, 6), dtype: torch.dtype = I64) -> Definition:
    decl = attrs.evolve(declare("y", shape), dtype=dtype)
    return Definition(decl, loops_of(shape), value)


ROW, COLUMN = loops_of((4, 6))
H = load("h", (ROW, COLUMN), torch.float16)

BROKEN_DEFINITIONS = {
    "not defined before": defined_as(at("z", ROW, COLUMN)),
    "does not fit": defined_as(at("x", ROW)),
    "as torch.float32 does not fit": defined_as(load("x", (ROW, COLUMN), F32), dtype=F32),
    "free variables .'q'.": defined_as(at("x", Var("q", 4), COLUMN)),
    "the loops do not match": attrs.evolve(defined_as(at("x", ROW, COLUMN)), variables=(COLUMN, ROW)),
    "value is torch.int64, tensor is torch.float32": defined_as(at("x", ROW, COLUMN), dtype=F32),
    "unknown op 'frobnicate'": defined_as(Expr.make("frobnicate", (at("x", ROW, COLUMN),), I64)),
    "mixed dtypes": defined_as(Expr.make("add", (at("x", ROW, COLUMN), constant(1, F32)), I64)),
    "exp wants float": defined_as(call("exp", at("x", ROW, COLUMN))),
    "logical_not wants bool": defined_as(
        Expr.make("logical_not", (at("x", ROW, COLUMN),), torch.bool), dtype=torch.bool
    ),
    "is not bool": defined_as(call("where", at("x", ROW, COLUMN), at("x", ROW, COLUMN), number(0))),
    "accumulates in torch.float16": Definition(
        attrs.evolve(declare("y", (4,)), dtype=torch.float16), (ROW,), reduce("sum", (COLUMN,), H)
    ),
    "'x' is defined twice": attrs.evolve(defined_as(at("x", ROW, COLUMN)), tensor=X),
}


@pytest.mark.parametrize("message", BROKEN_DEFINITIONS)
def test_a_broken_definition_is_named(message: str) -> None:
    half = attrs.evolve(declare("h", (4, 6)), dtype=torch.float16)
    with pytest.raises(VerificationError, match=message):
        verify(program([X, half], [BROKEN_DEFINITIONS[message]], []))


def scatter(**changes) -> Scatter:
    loop = Var("i0", 4)
    good = Scatter(declare("s", (6,)), "z", (loop,), (loop.index,), at("k", loop), "add")
    return attrs.evolve(good, **changes)


BROKEN_STATEMENTS = {
    "initial .* does not fit": scatter(initial="x"),
    "value is torch.float32": scatter(expr=constant(1, F32)),
    "2 coordinates": scatter(coords=(ROW.index, COLUMN.index)),
    "free variables .'i1'.": scatter(coords=(COLUMN.index,)),
    "use of 'nowhere', .*": scatter(condition=call("lt", at("nowhere", Var("i0", 4)), number(1))),
    "x: .* does not fit z": CopyInto("z", "x"),
    "use of 'nowhere'": Extern(NEG, (Ref("nowhere"),), {}, (declare("e", (4,)),)),
    "use of 'gone'": StridedView(declare("v", (4,)), "gone", 0),
}


@pytest.mark.parametrize("message", BROKEN_STATEMENTS)
def test_a_broken_statement_is_named(message: str) -> None:
    with pytest.raises(VerificationError, match=message):
        verify(program([X, declare("z", (6,)), declare("k", (4,))], [BROKEN_STATEMENTS[message]], []))


def test_a_good_scatter_passes() -> None:
    verify(program([declare("z", (6,)), declare("k", (4,))], [scatter()], ["s"]))


def test_an_output_that_nothing_makes_is_named() -> None:
    with pytest.raises(VerificationError, match="%w is not defined"):
        verify(program([X], [], ["w"]))


def test_only_programs_and_schedules_can_be_verified() -> None:
    with pytest.raises(TypeError, match="int"):
        verify(3)


# ---------------------------------------------------------------- schedules


def good() -> Schedule:
    shape = (32, 64)
    statements = [
        pointwise("a", shape, lambda i, j: call("mod", at("x", i, j), number(5))),
        row_sum("s", "a", shape),
        Extern(NEG, (Ref("s"),), {}, (declare("e", (32,)),)),
        pointwise("b", shape, lambda i, j: call("sub", at("a", i, j), at("e", i))),
        Extern(NEG, (Ref("b"),), {}, (declare("f", shape),)),
        pointwise("g", shape, lambda i, j: call("abs", at("f", i, j))),
        Extern(NEG, (Ref("g"),), {}, (declare("out", shape),)),
    ]
    made = schedule(program([declare("x", shape)], statements, ["out"]))
    verify(made)
    return made


def with_buffer(made: Schedule, name: str, **changes) -> Schedule:
    buffers = {**made.memory.buffers, name: attrs.evolve(made.memory.buffers[name], **changes)}
    return attrs.evolve(made, memory=attrs.evolve(made.memory, buffers=buffers))


def test_steps_in_the_wrong_order_are_named() -> None:
    made = good()
    with pytest.raises(VerificationError, match="before any step has made it"):
        verify(attrs.evolve(made, steps=made.steps[::-1]))


def test_a_missing_step_is_named() -> None:
    made = good()
    with pytest.raises(VerificationError, match="output %out is never made"):
        verify(attrs.evolve(made, steps=made.steps[:-1]))


def test_a_store_to_a_tensor_that_the_program_lacks_is_named() -> None:
    made = good()
    kernel = made.kernels[0]
    store = attrs.evolve(kernel.stores[0], tensor="unheard_of")
    broken = attrs.evolve(kernel, stores=(store, *kernel.stores[1:]))
    with pytest.raises(VerificationError, match="'unheard_of'"):
        verify(attrs.evolve(made, steps=(broken, *made.steps[1:])))


def test_a_store_beyond_a_tensor_whatever_its_size_is_named() -> None:
    n = sympy.Symbol("n", integer=True, positive=True)
    for size in (6, n):
        x, y = (TensorDecl(name, (size,), (1,), I64, CPU) for name in ("x", "y"))
        loops = (Var("i0", size),)
        made = program([x], [Definition(y, loops, at("x", *loops), ("y",))], ["y"])
        good = schedule(attrs.evolve(made, symbols={"n": SizeSource(0, 0)} if size is n else {}))
        verify(good)
        (kernel,) = good.kernels
        twice = Var("i0", 2 * size)
        stores = tuple(attrs.evolve(store, coords=(twice.index,), expr=number(1)) for store in kernel.stores)
        broken = attrs.evolve(kernel, outer=(twice,), stores=stores)
        with pytest.raises(VerificationError, match="stores 'y' at i0, which goes from 0 to"):
            verify(attrs.evolve(good, steps=tuple(broken if s is kernel else s for s in good.steps)))


def test_live_buffers_that_overlap_are_named() -> None:
    made = good()
    assert made.memory.buffers["a"].arena_offset is not None
    with pytest.raises(VerificationError, match="overlap in the arena"):
        verify(with_buffer(made, "s", arena_offset=made.memory.buffers["a"].arena_offset))


def test_a_buffer_beyond_the_arena_is_named() -> None:
    made = good()
    with pytest.raises(VerificationError, match="beyond the arena"):
        verify(with_buffer(made, "a", arena_offset=made.memory.arena_bytes, reuses=None))


def test_an_output_in_the_arena_is_named() -> None:
    made = good()
    memory = attrs.evolve(made.memory, arena_bytes=1 << 20)
    with pytest.raises(VerificationError, match="the output out lies in the arena"):
        verify(with_buffer(attrs.evolve(made, memory=memory), "out", arena_offset=1 << 19))


def test_a_buffer_that_outlives_the_arena_is_named() -> None:
    made = good()
    last = len(made.steps) - 1
    verify(attrs.evolve(made, memory=attrs.evolve(made.memory, arena_spans=((0, last),))))
    with pytest.raises(VerificationError, match="outlives the arena"):
        verify(attrs.evolve(made, memory=attrs.evolve(made.memory, arena_spans=((last, last),))))


def test_taking_over_memory_that_is_still_read_is_named() -> None:
    made = good()
    earlier = made.memory.buffers["a"]
    with pytest.raises(VerificationError, match=r"s reuses a, which step . still reads"):
        verify(with_buffer(made, "s", reuses="a", bytes=earlier.bytes, arena_offset=earlier.arena_offset))


def test_taking_over_memory_of_another_size_is_named() -> None:
    with pytest.raises(VerificationError, match="lies elsewhere or has another size"):
        verify(with_buffer(good(), "s", reuses="a"))


def test_taking_over_what_is_no_buffer_is_named() -> None:
    with pytest.raises(VerificationError, match="which the program does not make"):
        verify(with_buffer(good(), "s", reuses="x"))


def test_a_call_cannot_take_over_what_it_reads() -> None:
    made = good()
    earlier = made.memory.buffers["g"]
    with pytest.raises(VerificationError, match="out reuses g"):
        verify(with_buffer(made, "out", reuses="g", bytes=earlier.bytes, arena_offset=earlier.arena_offset))


def test_freeing_what_is_still_used_is_named() -> None:
    made = good()
    memory = attrs.evolve(made.memory, dead_after={0: ("e", "x")})
    last = attrs.evolve(made, memory=memory, steps=made.steps)
    with pytest.raises(VerificationError, match="freed after step 0, but step"):
        verify(last)


def test_a_view_keeps_the_memory_of_its_base_alive() -> None:
    shape = (8, 8)
    statements = [
        pointwise("a", shape, lambda i, j: call("mod", at("x", i, j), number(5))),
        StridedView(TensorDecl("v", (64,), (1,), I64, CPU), "a", 0),
        pointwise("b", shape, lambda i, j: call("mod", at("y", i, j), number(5))),
        Extern(NEG, (Ref("b"),), {}, (declare("e", shape),)),
        Extern(NEG, (Ref("v"),), {}, (declare("f", (64,)),)),
    ]
    made = schedule(program([declare("x", shape), declare("y", shape)], statements, ["e", "f"]))
    verify(made)
    lies = {n: made.memory.buffers[n].arena_offset for n in "ab"}
    assert None not in lies.values()
    steps = [s for s in made.steps if not isinstance(s, StridedView)]
    first = next(s for s in made.steps if isinstance(s, StridedView))
    order = sorted(steps, key=lambda s: 0 if s in made.kernels and s.stores[0].tensor == "a" else 1)
    again = attrs.evolve(made, steps=(order[0], first, *order[1:]))
    with pytest.raises(VerificationError, match="overlap"):
        verify(with_buffer(again, "b", arena_offset=lies["a"]))
