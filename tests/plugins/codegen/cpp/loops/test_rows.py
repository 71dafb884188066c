"""Reductions and scans: every kind, along and across memory, in several phases, short and long, any dtype."""

from __future__ import annotations

import itertools
import math

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import turret
from tests.plugins.codegen.cpp.kernel_lab import Case, build_cases, check, declare, element, evaluate, run
from turret.errors import UnsupportedError
from turret.ir import Expr, Kernel, Store, call, cast, constant, index_value, load, part, reduce, rewrite, scan
from turret.ir.index import Index, Var
from turret.plugins.codegen.cpp import emit
from turret.plugins.codegen.cpp.loops.rows import row_form
from turret.plugins.codegen.cpp.normalise import normalise

F32 = torch.float32
KINDS = ("sum", "prod", "min", "max", "argmin", "argmax")
SHAPES = [
    (5, 7),
    (3, 16),
    (40, 17),
    (10, 64),
    (6, 333),
    (70, 1000),
    (600, 40),
    (1, 50000),
    (3, 40001),
    (2000, 3),
    (0, 5),
]


def data(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-100 if dtype != torch.uint8 else 0, 100, shape, generator=generator).to(dtype)


def reduction(kind: str, variables: tuple[Var, ...], value: Expr) -> Expr:
    if not kind.startswith("arg"):
        return reduce(kind, variables, value)
    number = variables[0].index
    for variable in variables[1:]:
        number = number * variable.extent + variable
    return reduce(kind, variables, value, index_value(number))


def row_case(kind: str, x: torch.Tensor, dim: int, scale: float = 1.0) -> Case:
    """A reduction of ``x`` over its last or first dimension."""
    loops = tuple(Var(n, e) for n, e in zip("ij", x.shape, strict=True))
    inner, outer = loops[dim], loops[1 - dim]
    value = element("x", x, *loops)
    if kind == "prod" and x.dtype.is_floating_point:
        value = call("add", constant(1.0, x.dtype), call("mul", value, constant(scale, x.dtype)))
    expr = reduction(kind, (inner,), value)
    out = torch.zeros(outer.extent, dtype=expr.dtype)
    return Case(Kernel(f"{kind}{dim}", (outer,), (inner,), (Store("out", (outer.index,), expr),)), {"x": x, "out": out})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.thorough
def test_float_reductions_over_either_dimension(kind: str) -> None:
    cases = [
        row_case(kind, data(shape, F32), dim, 1e-3)
        for shape in SHAPES
        for dim in (0, 1)
        if shape[dim] or kind in ("sum", "prod")
    ]
    check(cases, rtol=3e-5 if kind == "prod" else 2e-6, atol=3e-5 if kind == "sum" else 0.0)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool], ids=str
)
@pytest.mark.thorough
def test_reductions_of_other_dtypes(dtype: torch.dtype) -> None:
    kinds = ("min", "max", "any", "all") if dtype == torch.bool else KINDS
    cases = [
        row_case(kind, data(shape, dtype, 3), dim) for kind in kinds for shape in [(5, 7), (70, 333)] for dim in (0, 1)
    ]
    check(cases, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_extrema(dtype: torch.dtype) -> None:
    check([row_case(kind, data((30, 100), dtype), dim) for kind in ("min", "max", "argmax") for dim in (0, 1)])


@pytest.mark.parametrize("kind", ["min", "max", "argmin", "argmax"])
def test_nan_wins_and_the_first_of_equals_is_taken(kind: str) -> None:
    cases = []
    for shape in [(4, 9), (6, 100), (200, 70)]:
        x = torch.randint(-3, 3, shape, generator=torch.Generator().manual_seed(2)).float()
        x[0, shape[1] // 2] = math.nan
        x[0, -1] = math.nan
        x[1] = math.inf
        x[2] = -math.inf
        cases += [row_case(kind, x, dim) for dim in (0, 1)]
    check(cases)


def test_long_float_sums_are_more_accurate_than_eager() -> None:
    x = torch.rand(1, 3_000_000, generator=torch.Generator().manual_seed(0)) + 1
    cases = [row_case("sum", x, 1), row_case("sum", x.reshape(-1, 4).contiguous(), 0)]
    library = build_cases(cases)
    for case in cases:
        exact = case.tensors["x"].double().sum(1 if case.kernel.name.endswith("1") else 0)
        results = []
        for threads in (1, 2, 3):
            assert run(library, case, threads) == 0
            results.append(case.tensors["out"].clone())
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
        assert ((results[0].double() - exact) / exact).abs().max() < 2e-7


def softmax(x: Expr, row: tuple[Var, ...]) -> Expr:
    powers = call("exp", call("sub", x, reduce("max", row, x)))
    return call("div", powers, reduce("sum", row, powers))


@pytest.mark.parametrize("shape", [(30, 5), (9, 16), (40, 100), (7, 1024), (3, 33000), (2, 80000), (500, 64)])
def test_softmax_along_and_across(shape: tuple[int, int]) -> None:
    i, j = (Var(n, e) for n, e in zip("ij", shape, strict=True))
    x = data(shape, F32)
    value = element("x", x, i, j)
    cases = []
    for outer, inner in ((i, j), (j, i)):
        expr = softmax(call("mul", value, constant(2.0, F32)), (inner,))
        out = torch.zeros(shape)
        cases.append(
            Case(Kernel("softmax", (outer,), (inner,), (Store("out", (i.index, j.index), expr),)), {"x": x, "out": out})
        )
    check(cases, rtol=4e-6, atol=1e-12)


@pytest.mark.parametrize("shape", [(30, 5), (9, 16), (40, 768), (3, 5000), (700, 64)])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.thorough
def test_layer_norm_with_saved_statistics(shape: tuple[int, int], dim: int) -> None:
    i, j = (Var(n, e) for n, e in zip("ij", shape, strict=True))
    outer, inner = ((i, j), (j, i))[1 - dim]
    x, y = data(shape, F32), data(shape, F32, 1)
    w = data((inner.extent,), F32, 2)
    value = call("add", element("x", x, i, j), element("y", y, i, j))
    moments = reduce("welford", (inner,), value)
    mean = part(moments, "mean")
    variance = call("div", part(moments, "m2"), constant(inner.extent, F32))
    scale = call("rsqrt", call("add", variance, constant(1e-5, F32)))
    normal = call("mul", call("mul", call("sub", value, mean), scale), element("w", w, inner))
    stores = (
        Store("out", (i.index, j.index), normal),
        Store("sum", (i.index, j.index), value),
        Store("mean", (outer.index,), mean),
        Store("scale", (outer.index,), scale),
    )
    tensors = {
        "x": x,
        "y": y,
        "w": w,
        "out": torch.zeros(shape),
        "sum": torch.zeros(shape),
        "mean": torch.zeros(outer.extent),
        "scale": torch.zeros(outer.extent),
    }
    check([Case(Kernel("norm", (outer,), (inner,), stores), tensors)], rtol=2e-5, atol=2e-6)


def test_variance_of_large_offsets_does_not_cancel() -> None:
    x = data((4, 100_000), F32) + 10_000
    i, j = Var("i", 4), Var("j", 100_000)
    expr = part(reduce("welford", (j,), element("x", x, i, j)), "m2")
    check(
        [Case(Kernel("var", (i,), (j,), (Store("out", (i.index,), expr),)), {"x": x, "out": torch.zeros(4)})], rtol=1e-4
    )


@settings(max_examples=5)
@given(st.data())
def test_equal_elements_have_their_value_as_mean_and_no_variance(drawn: st.DataObject) -> None:
    cases = []
    for number in range(12):
        dtype = drawn.draw(st.sampled_from([F32, torch.float64, torch.bfloat16]))
        wide = dtype if dtype == torch.float64 else F32
        shape = drawn.draw(st.tuples(st.integers(1, 9), st.sampled_from([1, 2, 3, 7, 31, 100, 231, 1003, 9001])))
        dim = drawn.draw(st.integers(0, 1))
        shape = shape if dim else shape[::-1]
        values = torch.tensor(drawn.draw(st.floats(-1e6, 1e6, width=32)), dtype=dtype) / 3
        x = values.expand(shape).contiguous()
        i, j = (Var(n, e) for n, e in zip("ij", shape, strict=True))
        outer, inner = ((j, i), (i, j))[dim]
        value = cast(element("x", x, i, j), wide)
        value = value if drawn.draw(st.booleans()) else call("sin", value)
        moments = reduce("welford", (inner,), value)
        stores = tuple(Store(which, (outer.index,), part(moments, which)) for which in ("mean", "m2"))
        tensors = {"x": x, **{which: torch.full((outer.extent,), -1.0, dtype=wide) for which in ("mean", "m2")}}
        first = Store("one", (outer.index,), rewrite(value, {i: Index.constant(0), j: Index.constant(0)}))
        tensors["one"] = torch.zeros(outer.extent, dtype=wide)
        cases.append(Case(Kernel(f"equal{number}", (outer,), (inner,), (*stores, first)), tensors))
    library = build_cases(cases)
    for case in cases:
        assert run(library, case) == 0
        assert (case.tensors["m2"] == 0).all() and torch.equal(case.tensors["mean"], case.tensors["one"]), case.kernel


def test_rows_of_several_loops_and_kept_order() -> None:
    """Channels of an image reduced over batch, height and width; batch is not next to the others in memory."""
    n, c, h, w = (Var(k, e) for k, e in zip("nchw", (3, 5, 6, 8), strict=True))
    x = data((3, 5, 6, 8), F32)
    value = element("x", x, n, c, h, w)
    cases = []
    for kind in KINDS:
        expr = reduction(kind, (n, h, w), value)
        cases.append(
            Case(
                Kernel(kind, (c,), (n, h, w), (Store("out", (c.index,), expr),)),
                {"x": x, "out": torch.zeros(5, dtype=expr.dtype)},
            )
        )
    last = data((3, 6, 8, 40), F32).permute(0, 3, 1, 2)
    c40 = Var("c", 40)
    expr = reduce("sum", (n, h, w), element("x", last, n, c40, h, w))
    cases.append(
        Case(
            Kernel("last", (c40,), (n, h, w), (Store("out", (c40.index,), expr),)), {"x": last, "out": torch.zeros(40)}
        )
    )
    check(cases, rtol=1e-5, atol=1e-5)


def test_reductions_over_everything() -> None:
    cases = []
    for shape in [(1, 1), (3, 4), (100, 90), (500, 400)]:
        i, j = (Var(k, e) for k, e in zip("ij", shape, strict=True))
        x = data(shape, F32)
        for kind in KINDS:
            value = element("x", x, i, j)
            if kind == "prod":
                value = call("add", constant(1.0, F32), call("mul", value, constant(1e-3, F32)))
            expr = reduction(kind, (i, j), value)
            cases.append(
                Case(
                    Kernel(kind, (), (i, j), (Store("out", (), expr),)),
                    {"x": x, "out": torch.zeros((), dtype=expr.dtype)},
                )
            )
        normal = softmax(element("x", x, i, j), (i, j))
        cases.append(
            Case(
                Kernel("all", (), (i, j), (Store("out", (i.index, j.index), normal),)),
                {"x": x, "out": torch.zeros(shape)},
            )
        )
    check(cases, rtol=1e-5, atol=2e-5)


def test_pooling_windows_are_reductions_of_their_own() -> None:
    i, j, a, b = (Var(k, e) for k, e in zip("ijab", (10, 20, 3, 2), strict=True))
    x = data((30, 40), F32)
    value = load("x", (i.index * 3 + a, j.index * 2 + b), F32)
    cases = []
    for kind in ("sum", "max", "argmax"):
        expr = reduction(kind, (a, b), value)
        cases.append(
            Case(
                Kernel(kind, (i, j), (), (Store("out", (i.index, j.index), expr),)),
                {"x": x, "out": torch.zeros(10, 20, dtype=expr.dtype)},
            )
        )
        cases.append(
            Case(
                Kernel(kind, (i, j), (a, b), (Store("out", (i.index, j.index), expr),)),
                {"x": x, "out": torch.zeros(10, 20, dtype=expr.dtype)},
            )
        )
    check(cases, rtol=1e-6, atol=1e-6)


def test_a_reduction_inside_the_terms_of_another() -> None:
    """sum over j of (sum over k of a[i, k] * b[k, j]) squared: the inner one is a loop at its place."""
    i, j, k = (Var(n, e) for n, e in zip("ijk", (6, 50, 70), strict=True))
    a, b = data((6, 70), F32), data((70, 50), F32)
    inside = reduce("sum", (k,), call("mul", element("a", a, i, k), element("b", b, k, j)))
    expr = reduce("sum", (j,), call("square", inside))
    check(
        [Case(Kernel("k", (i,), (j,), (Store("out", (i.index,), expr),)), {"a": a, "b": b, "out": torch.zeros(6)})],
        rtol=1e-5,
    )


def test_a_condition_on_the_outer_loop_reaches_the_loads_of_a_reduction() -> None:
    i, j = Var("i", 10), Var("j", 100)
    x = data((6, 100), F32)
    inside = call("lt", index_value(i.index), constant(6, torch.int64))
    expr = call("masked", inside, reduce("sum", (j,), load("x", (i, j), F32)), constant(-1.0, F32))
    check(
        [Case(Kernel("k", (i,), (j,), (Store("out", (i.index,), expr),)), {"x": x, "out": torch.zeros(10)})],
        rtol=1e-5,
        atol=1e-5,
    )


@pytest.mark.parametrize("sizes", [{"n": 1, "m": 1}, {"n": 5, "m": 100}, {"n": 130, "m": 17}, {"n": 3, "m": 70000}])
def test_symbolic_rows(sizes: dict[str, int]) -> None:
    n, m = (sympy.Symbol(k, integer=True, positive=True) for k in ("n", "m"))
    i, j = Var("i", n), Var("j", m)
    shape = (sizes["n"], sizes["m"])
    x = data(shape, F32)
    value = load("x", (i, j), F32)
    cases = []
    for outer, inner in ((i, j), (j, i)):
        symbol = inner.extent
        moments = reduce("welford", (inner,), value)
        for name, expr, row in [
            ("softmax", softmax(value, (inner,)), True),
            ("sum", reduce("sum", (inner,), value), False),
            ("m2", part(moments, "m2"), False),
            ("arg", reduction("argmax", (inner,), value), False),
        ]:
            coords = (i.index, j.index) if row else (outer.index,)
            declared = (n, m) if row else (outer.extent,)
            out = torch.zeros(shape if row else (sizes[outer.extent.name],), dtype=expr.dtype)
            declarations = {"x": declare("x", x, (n, m)), "out": declare("out", out, declared)}
            kernel = Kernel(f"{name} over {symbol}", (outer,), (inner,), (Store("out", coords, expr),))
            cases.append(Case(kernel, {"x": x, "out": out}, declarations, sizes))
    total = torch.zeros(())
    declarations = {"x": declare("x", x, (n, m)), "out": declare("out", total)}
    full = Kernel("full", (), (i, j), (Store("out", (), reduce("sum", (i, j), value)),))
    cases.append(Case(full, {"x": x, "out": total}, declarations, sizes))
    check(cases, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["sum", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=str)
def test_scans_over_any_dimension(kind: str, dtype: torch.dtype) -> None:
    cases = []
    for shape in [(7,), (5, 9), (3, 40, 70), (300, 64)]:
        x = data(shape, dtype)
        loops = tuple(Var(f"i{k}", e) for k, e in enumerate(shape))
        for dim in range(len(shape)):
            others = tuple(v for v in loops if v is not loops[dim])
            expr = scan(kind, loops[dim], element("x", x, *loops))
            for outer, inner in ((loops, ()), (others, (loops[dim],))):
                out = torch.zeros(shape, dtype=dtype)
                cases.append(
                    Case(
                        Kernel("scan", outer, inner, (Store("out", tuple(v.index for v in loops), expr),)),
                        {"x": x, "out": out},
                    )
                )
    check(cases, rtol=1e-6, atol=1e-6)


def test_scan_of_a_softmax_and_sum_of_a_scan() -> None:
    i, j = Var("i", 20), Var("j", 90)
    x = data((20, 90), F32)
    value = element("x", x, i, j)
    running = scan("sum", j, softmax(value, (j,)))
    cases = [
        Case(
            Kernel("a", (i,), (j,), (Store("out", (i.index, j.index), running),)), {"x": x, "out": torch.zeros(20, 90)}
        )
    ]
    total = call("sub", scan("sum", j, value), reduce("max", (j,), scan("sum", j, value)))
    cases.append(
        Case(Kernel("b", (i,), (j,), (Store("out", (i.index, j.index), total),)), {"x": x, "out": torch.zeros(20, 90)})
    )
    across = scan("sum", i, softmax(value, (i,)))
    cases.append(
        Case(Kernel("c", (j,), (i,), (Store("out", (i.index, j.index), across),)), {"x": x, "out": torch.zeros(20, 90)})
    )
    check(cases, rtol=1e-5, atol=1e-5)


def test_scans_over_two_variables_are_refused() -> None:
    i, j = Var("i", 4), Var("j", 5)
    x = torch.randn(4, 5)
    expr = call("add", scan("sum", i, element("x", x, i, j)), scan("sum", j, element("x", x, i, j)))
    case = Case(Kernel("k", (i, j), (), (Store("out", (i.index, j.index), expr),)), {"x": x, "out": torch.zeros(4, 5)})
    with pytest.raises(UnsupportedError, match="several variables"):
        emit(case.kernel, case.declarations)


def test_in_place_softmax() -> None:
    x = data((50, 300), F32)
    want = torch.softmax(x, 1)
    i, j = Var("i", 50), Var("j", 300)
    case = Case(
        Kernel("k", (i,), (j,), (Store("out", (i.index, j.index), softmax(element("x", x, i, j), (j,))),)),
        {"x": x, "out": torch.zeros(50, 300)},
    )
    library = build_cases([case])
    case.tensors["out"] = x
    assert run(library, case, 2) == 0
    torch.testing.assert_close(x, want)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_store_over_a_tensor_that_later_phases_read_waits_for_them(dim: int) -> None:
    x = data((60, 90), F32)
    i, j = Var("i", 60), Var("j", 90)
    outer, inner = ((j, i), (i, j))[dim]
    value = element("x", x, i, j)
    changed, centred = call("add", value, constant(1.0, F32)), call("sub", value, reduce("max", (inner,), value))
    stores = (
        Store("a", (i.index, j.index), changed),
        Store("b", (i.index, j.index), centred),
        Store("c", (outer.index,), reduce("sum", (inner,), value)),
    )
    tensors = {"x": x, "a": torch.zeros(60, 90), "b": torch.zeros(60, 90), "c": torch.zeros(outer.extent)}
    case = Case(Kernel("k", (outer,), (inner,), stores), tensors)
    library = build_cases([case])
    want = evaluate(case)
    case.tensors["a"] = x
    assert run(library, case, 2) == 0
    for name in "abc":
        torch.testing.assert_close(case.tensors[name], want[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(40, 30), (600, 64), (3, 50000)])
def test_sums_beside_the_stores_that_they_are_sums_of(shape: tuple[int, int]) -> None:
    x, y = data(shape, F32), data(shape, F32, 1)
    i, j = (Var(n, e) for n, e in zip("ij", shape, strict=True))
    product = call("mul", element("x", x, i, j), element("y", y, i, j))
    cases = []
    for outer, inner in ((i, j), (j, i)):
        stores = (
            Store("out", (i.index, j.index), product),
            Store("sum", (outer.index,), reduce("sum", (inner,), product)),
        )
        tensors = {"x": x, "y": y, "out": torch.zeros(shape), "sum": torch.zeros(outer.extent)}
        cases.append(Case(Kernel("k", (outer,), (inner,), stores), tensors))
    check(cases, rtol=2e-5, atol=2e-4)


def test_columns_are_summed_across_memory_whatever_else_varies_by_row_alone() -> None:
    """Column sums of a normalised tensor read two values a row and write one a column; the elements decide."""
    i, j = Var("i", 2048), Var("j", 768)
    x, mean, scale = (torch.zeros(shape) for shape in ((2048, 768), (2048,), (2048,)))
    value = call("mul", call("sub", element("x", x, i, j), element("mean", mean, i)), element("scale", scale, i))
    names = ("a", "b", "c")
    stores = tuple(Store(n, (j.index,), reduce("sum", (i,), call("mul", value, value))) for n in names)
    kernel = Kernel("k", (j,), (i,), stores)
    tensors = {"x": x, "mean": mean, "scale": scale, **{n: torch.zeros(768) for n in names}}
    assert row_form(normalise(kernel, {n: declare(n, t) for n, t in tensors.items()})).vertical


@pytest.mark.parametrize("columns", [2, 3, 4, 5, 6, 7])
def test_conditions_on_the_row_number_hold_in_rows_of_any_short_length(columns: int) -> None:
    x, y = data((3, columns), F32), data((61, columns), F32, 1)
    i, j = Var("i", 64), Var("j", columns)
    early, late = (call(op, index_value(i.index), constant(3, torch.int64)) for op in ("lt", "ge"))
    first = call("masked", early, element("x", x, i, j), constant(0.0, F32))
    rest = call("masked", late, load("y", (i.index - 3, j.index), F32), constant(0.0, F32))
    joined = call("where", early, first, rest)
    total = call("add", reduce("sum", (j,), call("mul", joined, joined)), constant(1.0, F32))
    store = Store("out", (i.index, j.index), call("mul", joined, call("rsqrt", total)))
    tensors = {"x": x, "y": y, "out": torch.zeros(64, columns)}
    check([Case(Kernel("k", (i,), (j,), (store,)), tensors)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["min", "max"])
def test_of_two_zeros_an_extremum_of_a_row_is_the_first(kind: str) -> None:
    rows = torch.tensor([[0.0, -0.0] * 20, [-0.0, 0.0] * 20])
    cases = [row_case(kind, rows[:, :n].clone(), 1) for n in (2, 3, 5, 40)]
    cases += [row_case(kind, rows[:, :n].t().contiguous(), 0) for n in (2, 3, 5, 40)]
    library = build_cases(cases)
    for case in cases:
        assert run(library, case) == 0
        assert case.tensors["out"].signbit().tolist() == [False, True]


DECISIONS = {
    "some": lambda x, mask, row: reduce("max", (row,), mask),
    "all": lambda x, mask, row: reduce("min", (row,), mask),
    "large": lambda x, mask, row: call("gt", reduce("max", (row,), x), constant(1.0, x.dtype)),
    "equal": lambda x, mask, row: call("eq", reduce("max", (row,), x), reduce("min", (row,), x)),
}
"""What is decided of a row ``x`` and of truth values as many."""


@pytest.mark.parametrize("dtype", [F32, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("columns", [2, 4, 8])
@pytest.mark.thorough
def test_what_a_short_row_decides_holds_for_each_of_its_elements(columns: int, dtype: torch.dtype) -> None:
    x, mask = data((61, columns), dtype), data((61, columns), torch.bool, 1)
    i, j = Var("i", 61), Var("j", columns)
    here, ours = element("x", x, i, j), element("mask", mask, i, j)
    total = reduce("sum", (j,), here)
    values = {"zero": constant(0, dtype), "share": call("mul", here, total), "total": total, "here": here}
    cases = []
    for decision, (one, other) in itertools.product(DECISIONS, itertools.permutations(values, 2)):
        value = call("where", DECISIONS[decision](here, ours, j), values[one], values[other])
        kernel = Kernel(f"k_{decision}_{one}_{other}", (i,), (j,), (Store("out", (i.index, j.index), value),))
        cases.append(Case(kernel, {"x": x, "mask": mask, "out": torch.zeros(61, columns, dtype=dtype)}))
    check(cases, rtol=1e-5, atol=1e-5)


def test_columns_without_elements_have_a_form() -> None:
    x = data((0, 4), F32)
    i, j = Var("i", 0), Var("j", 4)
    store = Store("out", (j.index,), reduce("sum", (i,), element("x", x, i, j)))
    check([Case(Kernel("k", (j,), (i,), (store,)), {"x": x, "out": torch.ones(4)})])


def test_welford_of_one_element_and_reductions_over_nothing() -> None:
    i, j, none = Var("i", 3), Var("j", 1), Var("z", 0)
    x, empty = data((3, 1), F32), torch.zeros(3, 0)
    cases = [
        Case(
            Kernel(
                "one",
                (i,),
                (j,),
                (Store("out", (i.index,), part(reduce("welford", (j,), load("x", (i, j), F32)), what)),),
            ),
            {"x": x, "out": torch.zeros(3)},
        )
        for what in ("mean", "m2")
    ]
    for kind, dtype in itertools.chain(
        itertools.product(("sum", "prod"), (F32, torch.int64)), [("any", torch.bool), ("all", torch.bool)]
    ):
        expr = reduce(kind, (none,), load("x", (i, none), dtype))
        cases.append(
            Case(
                Kernel(kind, (i,), (none,), (Store("out", (i.index,), expr),)),
                {"x": empty.to(dtype), "out": torch.ones(3, dtype=dtype)},
            )
        )
    check(cases)


EMPTY = {"sum": 0.0, "prod": 1.0, "min": math.inf, "max": -math.inf}
"""What a reduction of nothing gives."""


@pytest.mark.parametrize("kind", EMPTY)
@pytest.mark.parametrize("across", [False, True])
def test_a_reduction_over_a_size_that_turns_out_to_be_zero_gives_its_identity(kind: str, across: bool) -> None:
    n, m = (sympy.Symbol(k, integer=True, nonnegative=True) for k in ("u0", "u1"))
    i, r = Var("i0", m), Var("r0", n)
    coords, symbols = ((r, i), (n, m)) if across else ((i, r), (m, n))
    kernel = Kernel("k", (i,), (r,), (Store("y", (i.index,), reduction(kind, (r,), load("x", coords, F32))),))
    cases = []
    for rows, columns in itertools.product((0, 1, 5, 3000), (0, 1, 70)):
        x, y = data((rows, columns) if across else (columns, rows), F32), torch.full((columns,), math.nan)
        declarations = {"x": declare("x", x, symbols), "y": declare("y", y, (m,))}
        cases.append(Case(kernel, {"x": x, "y": y}, declarations, {"u0": rows, "u1": columns}))
    library = build_cases(cases)
    for threads, case in itertools.product((1, 2), cases):
        assert run(library, case, threads) == 0
        x, dim = case.tensors["x"], 0 if across else 1
        expected = torch.full_like(case.tensors["y"], EMPTY[kind])
        if x.shape[dim]:
            expected = getattr(x, {"min": "amin", "max": "amax"}.get(kind, kind))(dim)
        torch.testing.assert_close(case.tensors["y"], expected, rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["sin", "atan", "log1p", "tan", "exp", "erfc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.thorough
def test_the_position_of_the_best_of_values_of_the_c_library_is_found_whatever_vector_they_lie_in(name, dtype):
    function = getattr(torch, name)

    def program(x):
        values = function(x) * x.cos()
        return values.argmax(), values.argmin(0), values.argmax(1)

    compiled = turret.compile(program, dynamic=True, options={"on_error": "raise", "cache": False})
    for rows, columns in ((9, 9), (40, 41), (7, 33)):
        x = torch.rand(rows, columns, dtype=dtype, generator=torch.Generator().manual_seed(rows))
        values = function(x) * x.cos()
        for found, dim in zip(compiled(x), (None, 0, 1), strict=True):
            index = found.reshape(1) if dim is None else found.unsqueeze(dim)
            assert ((index >= 0) & (index < values.numel())).all()
            best = values.reshape(-1)[index] if dim is None else values.gather(dim, index)
            expected = values.amin(dim) if dim == 0 else values.amax() if dim is None else values.amax(dim)
            torch.testing.assert_close(best.reshape(expected.shape), expected)
