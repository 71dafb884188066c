"""Pointwise kernels: tilings by access pattern, masks, masks, gathers, scatters, sizes, 64-bit offsets."""

from __future__ import annotations

import itertools

import pytest
import sympy
import torch

from tests.plugins.codegen.cpp.kernel_lab import CPU, Case, compare, declare, element, evaluate, pointwise
from tests.plugins.codegen.triton.triton_lab import (
    InterpretedFailure,
    check,
    compile_offline,
    run,
    waits_before_it_touches_memory,
)
from turret.ir import (
    Index,
    Kernel,
    Store,
    TensorDecl,
    call,
    cast,
    check_index,
    constant,
    index_value,
    load,
    reduce,
    wrap_index,
)
from turret.ir.index import Var, flatten, unflatten
from turret.plugins.codegen.triton import DeviceProperties, emit

F32 = torch.float32


def transposed(shape: tuple[int, ...], order: tuple[int, ...], dtype: torch.dtype = F32) -> Case:
    x = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    loops = tuple(Var(f"i{k}", shape[k]) for k in order)
    at = [next(v for v in loops if v.name == f"i{k}") for k in range(len(shape))]
    return pointwise(call("add", element("x", x, *at), constant(1, dtype)), loops, {"x": x})


def tiles_of(case: Case) -> int:
    (kernel,) = emit(case.kernel, case.declarations)
    return len(kernel.configs[0].constants)


@pytest.mark.parametrize("shape", [(37, 53), (64, 128), (5, 30, 41), (2, 9, 8, 33)])
def test_every_permutation_of_dimensions(shape: tuple[int, ...]) -> None:
    for order in itertools.permutations(range(len(shape))):
        check([transposed(shape, order)], picks=(0, 1))


def test_tiles_have_a_dimension_for_each_contiguous_direction() -> None:
    assert tiles_of(transposed((64, 128), (0, 1))) == 1
    assert tiles_of(transposed((64, 128), (1, 0))) == 2
    x, y = torch.zeros(32, 48, 64), torch.zeros(64, 32, 48)
    i, j, k = Var("i", 32), Var("j", 48), Var("k", 64)
    out = call("add", element("x", x, i, j, k), element("y", y, k, i, j))
    assert tiles_of(pointwise(out, (j, k, i), {"x": x, "y": y})) == 3
    check([pointwise(out, (j, k, i), {"x": torch.randn(32, 48, 64), "y": torch.randn(64, 32, 48)})])


def test_a_contiguous_chain_reads_one_flat_offset() -> None:
    x, loops = torch.zeros(8, 16, 32), (Var("a", 8), Var("b", 16), Var("c", 32))
    (kernel,) = emit(*_parts(pointwise(call("neg", element("x", x, *loops)), loops, {"x": x})))
    assert "tl.load(p0 + x)" in kernel.source and "//" not in kernel.source and "mask" not in kernel.source


def _parts(case: Case):
    return case.kernel, case.declarations


def test_masks_only_where_a_block_reaches_beyond_the_end() -> None:
    for count, masked in ((4096, False), (4097, True)):
        loop, x = Var("i", count), torch.randn(count)
        case = pointwise(call("neg", element("x", x, loop)), (loop,), {"x": x})
        (kernel,) = emit(*_parts(case))
        assert ("mask" in kernel.source) is masked
        check([case], picks=range(len(kernel.configs)))


def test_no_dimensions_is_one_scalar() -> None:
    x = torch.tensor(2.5)
    check([pointwise(call("exp", element("x", x)), (), {"x": x})], rtol=1e-6)


def test_reshapes_that_do_not_fold_are_divided() -> None:
    x = torch.randn(6, 35)
    loops = (Var("a", 14), Var("b", 15))
    coords = unflatten(flatten([v.index for v in loops], (14, 15)), (6, 35))
    check([pointwise(load("x", coords, F32), loops, {"x": x})])


def test_what_is_masked_off_is_not_loaded() -> None:
    x, loop = torch.randn(10), Var("i", 25)
    inside = call("logical_and", call("ge", index_value(loop), constant(5, torch.int64)),
                  call("lt", index_value(loop), constant(15, torch.int64)))  # fmt: skip
    body = call("masked", inside, load("x", (loop.index - 5,), F32), constant(7.0, F32))
    check([pointwise(body, (loop,), {"x": x})])


def test_a_guard_over_other_loops_than_the_load() -> None:
    x = torch.randn(64, 1)
    row, column = Var("i", 30), Var("j", 64)
    inside = call("lt", index_value(row), constant(20, torch.int64))
    body = call("masked", inside, load("x", (column.index - 3, 0), F32), constant(0.0, F32))
    inside = call("logical_and", inside, call("ge", index_value(column), constant(3, torch.int64)))
    body = call("masked", inside, load("x", (column.index - 3, 0), F32), constant(0.0, F32))
    total = reduce("sum", (column,), body)
    check([pointwise(body, (row, column), {"x": x})])
    case = Case(Kernel("k", (row,), (column,), (Store("o", (row.index,), total),)), {"x": x, "o": torch.zeros(30)})
    check([case], rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- gather and scatter


def gather_case(index: torch.Tensor, source: torch.Tensor, wrap: bool = True) -> Case:
    loops = (Var("i", len(index)), Var("j", source.shape[1]))
    at = element("index", index, loops[0])
    at = check_index(wrap_index(at, source.shape[0]) if wrap else at, source.shape[0])
    return pointwise(load("x", (Index.of_value(at), loops[1]), F32), loops, {"x": source, "index": index})


def test_gathers_rows_by_index_from_either_end() -> None:
    source = torch.randn(7, 33)
    check([gather_case(torch.tensor([0, 6, -1, -7, 3]), source)])


@pytest.mark.parametrize("bad", [7, -8])
def test_an_index_out_of_range_is_asserted(bad: int) -> None:
    case = gather_case(torch.tensor([0, bad, 2]), torch.randn(7, 3))
    (kernel,) = emit(*_parts(case))
    assert kernel.options["debug"]
    with pytest.raises(InterpretedFailure, match="index out of range"):
        run(case)


def scatter_case(mode: str, dtype: torch.dtype, conditional: bool = False, places: int = 17) -> Case:
    i, j = Var("i", 150), Var("j", 5)
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(-places, places, (150,), generator=generator)
    x = (torch.randn(150, 5, generator=generator) * 3).to(dtype)
    if mode == "mul":
        x = (torch.rand(150, 5, generator=generator) * 0.1 + 0.95).to(dtype) if dtype.is_floating_point else x % 3
    at = check_index(wrap_index(load("index", (i,), torch.int64), places), places)
    condition = call("gt", index_value(i), constant(30, torch.int64)) if conditional else None
    store = Store("out", (Index.of_value(at), j.index), load("x", (i, j), dtype), mode, condition)
    return Case(
        Kernel(f"scatter_{mode}", (i, j), (), (store,)),
        {"x": x, "index": index, "out": torch.ones(places, 5).to(dtype)},
    )


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.bfloat16, torch.int64, torch.int8], ids=str)
@pytest.mark.parametrize("mode", ["set", "add", "mul", "min", "max"])
def test_scatters_where_elements_meet(mode: str, dtype: torch.dtype, conditional: bool) -> None:
    case = scatter_case(mode, dtype, conditional)
    half = dtype == torch.bfloat16 and mode in ("add", "mul")  # every step rounds, and atomics have no order
    check([case], rtol=0.05 if half else 1e-5, atol=0.6 if half else 1e-5)


def test_the_last_write_to_an_element_wins() -> None:
    case = scatter_case("set", F32)
    assert len(emit(*_parts(case))) == 2
    check([case], picks=(0, 3), rtol=0.0)


def test_writes_that_cannot_meet_are_plain() -> None:
    i, j = Var("i", 30), Var("j", 20)
    x = torch.randn(30, 20)
    store = Store("out", (j.index, i.index), element("x", x, i, j), "set")
    case = Case(Kernel("k", (i, j), (), (store,)), {"x": x, "out": torch.zeros(20, 30)})
    assert len(emit(*_parts(case))) == 1
    check([case])


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("count", [1, 31, 1024, 3000])
def test_one_source_serves_every_size(count: int) -> None:
    s0 = sympy.Symbol("s0", integer=True, positive=True)
    x, bias = torch.randn(count, 6), torch.randn(6)
    i, j = Var("i", s0), Var("j", 6)
    expr = call("add", load("x", (i, j), F32), load("bias", (j,), F32))
    out = torch.zeros(6, count)
    case = Case(
        Kernel("k", (j, i), (), (Store("out", (j.index, i.index), expr),)),
        {"x": x, "bias": bias, "out": out},
        {"x": declare("x", x, (s0, 6)), "out": declare("out", out, (6, s0))},
        {"s0": count},
    )
    check([case])


def test_offsets_beyond_31_bits_are_wide() -> None:
    far = 3_000_000_000
    for stride, wide in ((far, True), (1, False)):
        i = Var("i", 8)
        tensors = {
            "x": TensorDecl("x", (8,), (stride,), F32, CPU),
            "out": TensorDecl("out", (8,), (1,), F32, CPU),
        }
        (kernel,) = emit(Kernel("k", (i,), (), (Store("out", (i.index,), load("x", (i,), F32)),)), tensors)
        assert ("tl.int64" in kernel.source) is wide


def test_two_stores_take_their_values_before_either_is_written() -> None:
    x, loop = torch.randn(100), Var("i", 100)
    value = element("x", x, loop)
    stores = (Store("x", (loop.index,), call("neg", value)), Store("out", (loop.index,), call("square", value)))
    case = Case(Kernel("k", (loop,), (), stores), {"x": x.clone(), "out": torch.zeros(100)})
    want = evaluate(Case(case.kernel, {**case.tensors, "x": x}))
    (kernel,) = run(case)
    assert kernel.inplace == ("x",)
    for name in ("x", "out"):
        compare(case.tensors[name], want[name], kernel.source)


@pytest.mark.parametrize("capability", [80, 90])
def test_pointwise_kernels_compile_for_devices(capability: int) -> None:
    cases = [
        transposed((37, 53), (1, 0), torch.bfloat16),
        transposed((64, 128, 8), (2, 1, 0)),
        gather_case(torch.tensor([0, 6]), torch.randn(7, 33)),
        *(scatter_case(mode, dtype) for mode in ("set", "add", "mul", "max") for dtype in (F32, torch.int64)),
        pointwise(cast(constant(1, torch.int64), torch.bool), (Var("i", 9),), {}),
    ]
    for case in cases:
        for kernel in emit(*_parts(case), DeviceProperties((capability // 10, 0))):
            for config in kernel.configs[:2]:
                compiled = compile_offline(kernel, config, capability)
                assert compiled.asm["cubin"]
                assert waits_before_it_touches_memory(compiled) == (capability >= 90)


def test_equal_text_for_other_dtypes_is_another_kernel() -> None:
    """A fill with zeros says nothing of its dtype, which the pointer carries."""
    i = Var("i", 64)
    names = set()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        tensors = {"out": declare("out", torch.empty(64, dtype=dtype))}
        (kernel,) = emit(Kernel("k", (i,), (), (Store("out", (i.index,), constant(0.0, dtype)),)), tensors)
        names.add(kernel.name)
    assert len(names) == 3


def test_products_that_cancel_are_rounded_each() -> None:
    i = Var("i", 1024)
    tensors = {name: torch.rand(1024) for name in ("a", "b")}
    a, b = (element(name, x, i) for name, x in tensors.items())
    value = call("sub", call("mul", a, b), call("square", b))
    case = pointwise(value, (i,), tensors, "cancelling")
    (kernel,) = emit(case.kernel, case.declarations)
    ptx = compile_offline(kernel).asm["ptx"]
    assert "mul" in ptx and "sub" in ptx and "fma" not in ptx
