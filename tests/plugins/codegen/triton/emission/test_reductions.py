"""Reductions and scans: every kind and dtype, in one block and in passes, along and across memory, and split."""

from __future__ import annotations

import math

import attrs
import pytest
import sympy
import torch

from tests.plugins.codegen.cpp.kernel_lab import Case, declare, element
from tests.plugins.codegen.triton.triton_lab import check, compile_offline, run, waits_before_it_touches_memory
from turret.ir import Expr, Kernel, Store, call, cast, constant, index_value, load, part, reduce, scan
from turret.ir.index import Var
from turret.plugins.codegen.triton import DeviceProperties, emit

F32 = torch.float32
KINDS = ("sum", "prod", "min", "max", "argmin", "argmax")
SHAPES = [(5, 7), (40, 17), (3, 333), (700, 40), (2, 9001), (300, 3), (0, 5)]
WHOLE = {"properties": DeviceProperties(multiprocessors=0)}
"""No device is too large for any row: nothing is split."""


def data(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-100 if dtype != torch.uint8 else 0, 100, shape, generator=generator).to(dtype)


def row_case(kind: str, x: torch.Tensor, dim: int) -> Case:
    """A reduction of a matrix over one dimension; softmax and the like store what they make of the row, too."""
    loops = tuple(Var(n, e) for n, e in zip("ij", x.shape, strict=True))
    inner, outer = loops[dim], loops[1 - dim]
    value = element("x", x, *loops)
    rows = {"x": x}
    stores = []

    def store(name: str, expr: Expr, along: bool = False) -> None:
        over = loops if along else (outer,)
        rows[name] = torch.zeros([v.extent for v in over], dtype=expr.dtype)
        stores.append(Store(name, tuple(v.index for v in over), expr))

    if kind.startswith("arg"):
        store("out", reduce(kind, (inner,), value, index_value(inner)))
    elif kind == "welford":
        moments = reduce(kind, (inner,), cast(value, F32) if x.dtype == torch.bfloat16 else value)
        store("mean", part(moments, "mean"))
        store("m2", part(moments, "m2"))
    elif kind in ("softmax", "logsumexp"):
        best = reduce("max", (inner,), value)
        power = call("exp", call("sub", value, best))
        total = reduce("sum", (inner,), power)
        if kind == "softmax":
            store("out", call("div", power, total), along=True)
        else:
            store("out", call("add", best, call("log", total)))
    elif kind == "normalised":
        total = reduce("sum", (inner,), call("square", value))
        store("total", total)
        store("out", call("mul", value, call("rsqrt", total)), along=True)
    else:
        if kind == "prod" and x.dtype.is_floating_point:
            value = call("add", constant(1.0, x.dtype), call("mul", value, constant(1e-3, x.dtype)))
        store("out", reduce(kind, (inner,), value))
    return Case(Kernel(f"{kind}{dim}", (outer,), (inner,), tuple(stores)), rows)


def tolerance(kind: str) -> dict[str, float]:
    if kind in ("min", "max", "argmin", "argmax", "any", "all"):
        return {"rtol": 0.0}
    return {"rtol": 3e-5, "atol": 2e-4}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("kind", [*KINDS, "welford", "softmax", "logsumexp", "normalised"])
@pytest.mark.thorough
def test_float_rows_of_any_length(kind: str, dim: int) -> None:
    for shape in SHAPES:
        if shape[dim]:
            check([row_case(kind, data(shape, F32), dim)], picks=(0, 3), options=WHOLE, **tolerance(kind))


@pytest.mark.parametrize("kind", [*KINDS, "welford", "softmax", "logsumexp", "normalised"])
def test_long_rows_are_walked_in_passes(kind: str) -> None:
    case = row_case(kind, data((2, 33001), F32), 1)
    (kernel,) = emit(case.kernel, case.declarations, **WHOLE)
    assert "for roffset0 in range" in kernel.source
    check([case], options=WHOLE, **tolerance(kind))


def test_a_softmax_walks_a_long_row_twice() -> None:
    case = row_case("softmax", data((2, 33001), F32), 1)
    (kernel,) = emit(case.kernel, case.declarations, **WHOLE)
    assert kernel.source.count("for roffset") == 2 and "roffset2" not in kernel.source


@pytest.mark.parametrize("length", [50, 33001])
def test_softmax_of_infinite_and_undefined_rows(length: int) -> None:
    x = data((5, length), F32)
    x[0, 3], x[1, :], x[2, 7], x[3, 5:9] = math.inf, -math.inf, math.nan, -math.inf
    for kind in ("softmax", "max", "argmax", "min", "argmin"):
        check([row_case(kind, x, 1)], options=WHOLE, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool], ids=str
)
def test_reductions_of_other_dtypes(dtype: torch.dtype) -> None:
    kinds = ("min", "max", "any", "all") if dtype == torch.bool else KINDS
    for kind in kinds:
        for shape, dim in (((40, 17), 1), ((333, 9), 0), ((2, 9001), 1)):
            check([row_case(kind, data(shape, dtype), dim)], options=WHOLE, **tolerance(kind))


@pytest.mark.parametrize("value", [1.1, 1 / 3, -1000.7, 1e-5])
@pytest.mark.parametrize("shape, dim", [((9, 100), 1), ((231, 5), 0), ((2, 9001), 1), ((1, 70000), 1), ((3, 30011), 1)])
def test_equal_elements_have_their_value_as_mean_and_no_variance(
    shape: tuple[int, int], dim: int, value: float
) -> None:
    for dtype in (F32, torch.float64, torch.bfloat16):
        for options in (WHOLE, SPLIT):
            x = torch.full(shape, value, dtype=dtype)
            case = row_case("welford", x, dim)
            run(case, **options)
            assert (case.tensors["m2"] == 0).all()
            assert (case.tensors["mean"] == x.amax()).all()


def test_equal_elements_give_the_first() -> None:
    x = data((4, 300), torch.int32) % 3
    for kind in ("argmin", "argmax"):
        check([row_case(kind, x, dim) for dim in (0, 1)])


def scan_case(kind: str, x: torch.Tensor, dim: int) -> Case:
    loops = tuple(Var(n, e) for n, e in zip("ij", x.shape, strict=True))
    value = element("x", x, *loops)
    if kind == "prod" and x.dtype.is_floating_point:
        value = call("add", constant(1.0, x.dtype), call("mul", value, constant(1e-3, x.dtype)))
    expr = scan(kind, loops[dim], value)
    store = Store("out", tuple(v.index for v in loops), expr)
    return Case(
        Kernel(f"scan{kind}{dim}", (loops[1 - dim],), (loops[dim],), (store,)), {"x": x, "out": torch.zeros_like(x)}
    )


@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize("kind", ["sum", "prod", "min", "max"])
@pytest.mark.thorough
def test_scans_along_either_dimension(kind: str, dtype: torch.dtype) -> None:
    long = 9000 if dtype == F32 else 1030  # interpreted, a scan takes one step of Python after the other
    for shape, dim in (((3, 50), 1), ((50, 3), 0), ((2, long), 1)):
        check([scan_case(kind, data(shape, dtype), dim)], picks=(1,), rtol=1e-4, atol=1e-3)


# ---------------------------------------------------------------- split over programs

SPLIT = {"properties": DeviceProperties(multiprocessors=132)}


@pytest.mark.parametrize("kind", [*KINDS, "welford", "softmax", "logsumexp", "normalised"])
@pytest.mark.parametrize("shape, dim", [((1, 70000), 1), ((3, 30011), 1), ((4096, 40), 0)])
@pytest.mark.thorough
def test_few_long_rows_are_split_over_programs(kind: str, shape: tuple[int, int], dim: int) -> None:
    case = row_case(kind, data(shape, F32), dim)
    kernels = emit(case.kernel, case.declarations, **SPLIT)
    assert len(kernels) >= 2 and kernels[0].scratch
    check([case], options=SPLIT, **tolerance(kind))


def test_rows_that_fill_the_device_are_not_split() -> None:
    case = row_case("sum", torch.zeros(400, 2000), 1)
    assert len(emit(case.kernel, case.declarations, **SPLIT)) == 1


def test_what_needs_no_reduction_is_stored_along_with_the_first_stage() -> None:
    x = data((1, 70000), F32)
    case = row_case("sum", x, 1)
    i, j = case.kernel.outer[0], case.kernel.inner[0]
    square = Store("square", (i.index, j.index), call("square", element("x", x, i, j)))
    case = Case(Kernel("k", (i,), (j,), (*case.kernel.stores, square)), {**case.tensors, "square": torch.zeros_like(x)})
    kernels = emit(case.kernel, case.declarations, **SPLIT)
    assert [("square" in k.stored) for k in kernels] == [True, False]
    check([case], options=SPLIT, rtol=1e-5, atol=1e-3)


def test_a_row_of_several_loops_is_split_as_one() -> None:
    x = data((3, 30, 5000), F32)
    n, c, w = Var("n", 3), Var("c", 30), Var("w", 5000)
    total = reduce("sum", (n, w), element("x", x, n, c, w))
    case = Case(Kernel("k", (c,), (n, w), (Store("out", (c.index,), total),)), {"x": x, "out": torch.zeros(30)})
    assert len(emit(case.kernel, case.declarations, **SPLIT)) == 2
    check([case], options=SPLIT, rtol=1e-5, atol=1e-3)


# ---------------------------------------------------------------- sizes as arguments


@pytest.mark.parametrize("count", [1, 100003])
@pytest.mark.parametrize("kind", ["sum", "argmax", "welford", "softmax"])
@pytest.mark.thorough
def test_one_source_serves_every_length_of_a_row(kind: str, count: int) -> None:
    x = data((2, count), F32)
    s0 = sympy.Symbol("s0", integer=True, positive=True)
    static = row_case(kind, x, 1)
    i, j = Var("i", 2), Var("j", s0)
    value = load("x", (i, j), F32)
    best = reduce("max", (j,), value)
    power = call("exp", call("sub", value, best))
    moments = reduce("welford", (j,), value)
    stores = {
        "sum": lambda: [Store("out", (i.index,), reduce("sum", (j,), value))],
        "argmax": lambda: [Store("out", (i.index,), reduce("argmax", (j,), value, index_value(j)))],
        "welford": lambda: [Store(n, (i.index,), part(moments, n)) for n in ("mean", "m2")],
        "softmax": lambda: [Store("out", (i.index, j.index), call("div", power, reduce("sum", (j,), power)))],
    }[kind]()
    declarations = {name: declare(name, t) for name, t in static.tensors.items()}
    declarations["x"] = declare("x", x, (2, s0))
    if kind == "softmax":
        declarations["out"] = declare("out", x, (2, s0))
    kernel = Kernel("k", (i,), (j,), tuple(stores))
    for options in (WHOLE, SPLIT):
        check([Case(kernel, static.tensors, declarations, {"s0": count})], options=options, rtol=1e-4, atol=1e-3)


def test_sources_do_not_depend_on_names() -> None:
    a = row_case("sum", torch.zeros(4, 64), 1)
    i, j = Var("p", 4), Var("q", 64)
    kernel = Kernel("other", (i,), (j,), (Store("o", (i.index,), reduce("sum", (j,), load("y", (i, j), F32))),))
    b = Case(kernel, {"y": torch.zeros(4, 64), "o": torch.zeros(4)})
    first, second = emit(a.kernel, a.declarations)[0], emit(b.kernel, b.declarations)[0]
    assert (first.name, first.source) == (second.name, second.source)
    assert (first.buffers, second.buffers) == (("x", "out"), ("y", "o"))


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("kind", [*KINDS, "welford", "softmax", "normalised"])
@pytest.mark.thorough
def test_rows_compile_for_devices(kind: str, capability: int) -> None:
    for shape, dim in (((40, 17), 1), ((2, 40001), 1)):
        case = row_case(kind, torch.zeros(shape), dim)
        for kernel in emit(case.kernel, case.declarations, DeviceProperties((capability // 10, 0), multiprocessors=0)):
            compiled = compile_offline(kernel, capability=capability)
            assert compiled.asm["cubin"]
            assert waits_before_it_touches_memory(compiled) == (capability >= 90)


@pytest.mark.parametrize("kind", ["sum", "prod", "min", "max"])
def test_scans_compile_for_devices(kind: str) -> None:
    for shape in ((3, 50), (2, 9000)):
        case = scan_case(kind, torch.zeros(shape), 1)
        for kernel in emit(case.kernel, case.declarations):
            assert compile_offline(kernel).asm["cubin"]


def test_half_rows_are_summed_in_float32() -> None:
    x = data((6, 500), torch.bfloat16)
    i, j = Var("i", 6), Var("j", 500)
    total = cast(reduce("sum", (j,), cast(element("x", x, i, j), F32)), torch.bfloat16)
    case = Case(
        Kernel("k", (i,), (j,), (Store("out", (i.index,), total),)), {"x": x, "out": torch.zeros(6, dtype=x.dtype)}
    )
    run(case)
    assert torch.equal(case.tensors["out"], x.double().sum(1).to(torch.bfloat16))


@pytest.mark.parametrize("length", [32000, 31999])
def test_a_softmax_is_rescaled_within_threads_wherever_rows_begin(length: int) -> None:
    x = torch.empty(3000, length, dtype=torch.bfloat16, device="meta")
    i, j = Var("i", 3000), Var("j", length)
    value = cast(element("x", x, i, j), F32)
    best = reduce("max", (j,), value)
    total = reduce("sum", (j,), call("exp", call("sub", value, best)))
    out = torch.empty(3000, device="meta")
    kernel = Kernel("k", (i,), (j,), (Store("out", (i.index,), call("add", best, call("log", total))),))
    (made,) = emit(kernel, {"x": declare("x", x), "out": declare("out", out)})
    loop = made.source[made.source.index("for ") : made.source.index("max1 =")]
    text = compile_offline(attrs.evolve(made, divisible=frozenset(made.parameters))).asm["ptx"]
    assert "RBLOCK // 8" in loop and text.count("shfl.sync") <= 24, "exchanges at the end of the row alone"
