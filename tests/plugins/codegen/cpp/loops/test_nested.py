"""Loop forms: layouts, blocks, tails, tiles, reshapes, masks, symbolic sizes, scatters."""

from __future__ import annotations

import pytest
import sympy
import torch

from tests.plugins.codegen.cpp.kernel_lab import (
    Case,
    at_sizes,
    build_cases,
    check,
    declare,
    element,
    evaluate,
    pointwise,
    run,
)
from turret.ir import (
    Kernel,
    Store,
    call,
    cast,
    check_index,
    constant,
    flatten,
    index_value,
    load,
    part,
    reduce,
    unflatten,
    wrap_index,
)
from turret.ir.index import Index, Var

F32 = torch.float32


def doubled(expr):
    return call("add", expr, expr)


def test_shapes_with_tails_ones_and_nothing() -> None:
    cases = []
    for shape in [
        (),
        (1,),
        (7,),
        (64,),
        (1000,),
        (3, 5),
        (0, 4),
        (4, 0),
        (1, 9, 1),
        (33, 65),
        (2, 3, 4, 5),
        (40000,),
        (3, 20011),
    ]:
        loops = tuple(Var(f"i{k}", n) for k, n in enumerate(shape))
        x = torch.randn(shape)
        cases.append(pointwise(doubled(element("x", x, *loops)), loops, {"x": x}))
    check(cases)


def test_branches_that_load_the_same_element_of_an_expanded_tensor() -> None:
    i, j = Var("i", 5), Var("j", 7)
    row, mask = torch.randn(7).expand(5, 7), torch.rand(5, 7) > 0.5
    flipped = element("x", row, Index.constant(4) - i.index, j)
    chosen = call("where", element("m", mask, i, j), element("x", row, i, j), flipped)
    check([pointwise(chosen, (i, j), {"x": row, "m": mask})])


def test_a_mean_of_one_half_element_is_that_element() -> None:
    i, j = Var("i", 5), Var("j", 7)
    x = torch.randn(5, 7, 1).half()
    mean = part(reduce("welford", (), cast(element("x", x, i, j, 0), torch.float32)), "mean")
    check([pointwise(cast(mean, torch.float16), (i, j), {"x": x})])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
def test_transposed_strided_broadcast_and_flipped_loads(dtype: torch.dtype) -> None:
    cases = []
    for rows, columns in [(64, 96), (33, 70), (9, 100), (5, 5), (100, 3)]:
        i, j = Var("i", rows), Var("j", columns)
        make = lambda *shape: (torch.randn(*shape) * 9).abs().to(dtype)  # noqa: E731
        x, t, b, c = make(rows, columns), make(columns, rows), make(columns), make(rows, 1)
        s, f = make(rows, columns * 2)[:, ::2], make(rows, columns)
        reversed_j = Index.constant(columns - 1) - j.index
        loads = [
            element("x", x, i, j),
            element("t", t, j, i),
            element("b", b, j),
            element("c", c, i, 0),
            element("s", s, i, j),
            element("f", f, i, reversed_j),
        ]
        total = loads[0]
        for other in loads[1:]:
            total = call("max", total, other)
        cases.append(pointwise(total, (i, j), {"x": x, "t": t, "b": b, "c": c, "s": s, "f": f}))
        out = torch.zeros(columns, rows, dtype=dtype).t()
        cases.append(
            Case(Kernel("k", (i, j), (), (Store("out", (i.index, j.index), total),)), {**cases[-1].tensors, "out": out})
        )
    check(cases)


def test_reshapes_divide_indices() -> None:
    cases = []
    for old, new in [
        ((6, 8), (48,)),
        ((48,), (6, 8)),
        ((4, 6, 10), (8, 30)),
        ((12, 64, 5), (12, 5, 64)),
        ((7, 9), (9, 7)),
        ((10,), (5, 2)),
    ]:
        loops = tuple(Var(f"i{k}", n) for k, n in enumerate(new))
        x = torch.randn(old)
        coords = unflatten(flatten([v.index for v in loops], new), old)
        cases.append(pointwise(doubled(load("x", coords, F32)), loops, {"x": x}))
    i = Var("i", 10)
    x = torch.randn(4)
    cases.append(pointwise(load("x", (i.index // 3,), F32), (i,), {"x": x}))
    cases.append(pointwise(load("x", ((i.index * 7 - 5) % 4,), F32), (i,), {"x": x}))
    check(cases)


def test_attention_head_permutation_is_vectorised_along_the_head() -> None:
    b, s, h, d = (Var(n, e) for n, e in zip("bshd", (2, 12, 4, 16), strict=True))
    x = torch.randn(2, 12, 64)
    source = load("x", (b.index, s.index, h.index * 16 + d), F32)
    check([pointwise(doubled(source), (b, h, s, d), {"x": x})])


@pytest.mark.parametrize("width", [16, 33])
def test_masked_loads_never_leave_the_tensor(width: int) -> None:
    """A padded load right at a page's edge would fault if it were made; the values tell that it is masked."""
    i, j = Var("i", 9), Var("j", width + 4)
    x = torch.randn(5, width)
    inside = call(
        "logical_and",
        call("ge", index_value(j.index - 2), constant(0, torch.int64)),
        call("lt", index_value(j.index - 2), constant(width, torch.int64)),
    )
    rows = call(
        "logical_and",
        call("ge", index_value(i.index - 2), constant(0, torch.int64)),
        call("lt", index_value(i.index - 2), constant(5, torch.int64)),
    )
    padded = call(
        "masked", call("logical_and", rows, inside), load("x", (i.index - 2, j.index - 2), F32), constant(1.5, F32)
    )
    nested = call(
        "masked",
        rows,
        call("exp", call("masked", inside, load("x", (i.index - 2, j.index - 2), F32), constant(0.5, F32))),
        constant(-1.0, F32),
    )
    check([pointwise(padded, (i, j), {"x": x}), pointwise(call("mul", nested, padded), (i, j), {"x": x})])


def test_two_stores_of_different_shape_and_dtype() -> None:
    i, j = Var("i", 50), Var("j", 40)
    x = torch.randn(50, 40)
    value = element("x", x, i, j)
    stores = (
        Store("a", (i.index, j.index), call("exp", value)),
        Store("b", (j.index, i.index), call("lt", value, constant(0.0, F32))),
    )
    check(
        [
            Case(
                Kernel("k", (i, j), (), stores),
                {"x": x, "a": torch.zeros(50, 40), "b": torch.zeros(40, 50, dtype=torch.bool)},
            )
        ]
    )


def test_stores_under_a_condition() -> None:
    i = Var("i", 100)
    x = torch.randn(100)
    store = Store("a", (i.index,), element("x", x, i), condition=call("gt", element("x", x, i), constant(0.0, F32)))
    check([Case(Kernel("k", (i,), (), (store,)), {"x": x, "a": torch.full((100,), 7.0)})])


def test_in_place_update_reads_the_old_elements() -> None:
    i, j = Var("i", 64), Var("j", 64)
    x, t = torch.randn(64, 64), torch.randn(64, 64)
    expr = call("add", call("exp", element("x", x, i, j)), element("t", t, j, i))
    case = Case(
        Kernel("k", (i, j), (), (Store("out", (i.index, j.index), expr),)), {"x": x, "t": t, "out": torch.zeros(64, 64)}
    )
    library = build_cases([case])
    want = evaluate(case)["out"]
    case.tensors["out"] = x
    assert run(library, case, 2) == 0
    torch.testing.assert_close(x, want)


# ---------------------------------------------------------------- symbolic sizes


@pytest.mark.parametrize(
    "sizes", [{"s0": 1, "s1": 1}, {"s0": 3, "s1": 70}, {"s0": 65, "s1": 64}, {"s0": 200, "s1": 333}]
)
def test_one_binary_for_all_sizes(sizes: dict[str, int]) -> None:
    s0, s1 = (sympy.Symbol(n, integer=True, positive=True) for n in ("s0", "s1"))
    n, m = sizes["s0"], sizes["s1"]
    i, j, k = Var("i", s0), Var("j", s1), Var("k", s0 * s1)
    x, t, b = torch.randn(n, m), torch.randn(m, n), torch.randn(m)
    tensors = {"x": x, "t": t, "b": b}
    shapes = {"x": (s0, s1), "t": (s1, s0), "b": (s1,)}
    value = call("add", load("x", (i, j), F32), call("mul", load("t", (j, i), F32), load("b", (j,), F32)))
    value = call("add", value, index_value(i.index * s1 + j, F32))
    flat = load("x", unflatten(k.index, (s0, s1)), F32)
    cases = []
    for name, loops, shape, expr in [("two", (i, j), (s0, s1), value), ("flat", (k,), (s0 * s1,), doubled(flat))]:
        out = torch.zeros([at_sizes(e, sizes) for e in shape])
        store = Store("out", tuple(v.index for v in loops), expr)
        declarations = {name: declare(name, value, shapes[name]) for name, value in tensors.items()}
        declarations["out"] = declare("out", out, shape)
        cases.append(Case(Kernel(name, loops, (), (store,)), {**tensors, "out": out}, declarations, sizes))
    check(cases)


# ---------------------------------------------------------------- indices that the program computes


def gather_case(indices: torch.Tensor, count: int, width: int = 40) -> Case:
    i, j = Var("i", indices.numel()), Var("j", width)
    table = torch.randn(count, width)
    row = check_index(wrap_index(element("at", indices, i), count), count)
    return pointwise(
        doubled(load("table", (Index.of_value(row), j.index), F32)), (i, j), {"at": indices, "table": table}
    )


def test_gather_counts_from_the_end_and_checks_bounds() -> None:
    good = gather_case(torch.tensor([0, 5, -1, 3, -6]), 6)
    small = gather_case(torch.tensor([0, 1, -1], dtype=torch.int32), 2, 3)
    check([good, small])
    for at in (6, -7, 2**40, -(2**62)):
        bad = gather_case(torch.tensor([0, at, 1]), 6)
        library = build_cases([bad])
        assert bad.emitted.reports_errors
        assert run(library, bad, 1) == 1 and run(library, bad, 2) == 1


def test_gather_from_an_empty_table_reports_instead_of_reading() -> None:
    case = gather_case(torch.tensor([0]), 0)
    assert run(build_cases([case]), case) == 1


def test_check_under_a_mask_reports_only_where_the_mask_holds() -> None:
    i = Var("i", 4)
    at, table = torch.tensor([0, 99, 1, -50]), torch.randn(2)
    row = check_index(element("at", at, i), 2)
    wanted = torch.tensor([True, False, True, False])
    expr = call("masked", element("ok", wanted, i), load("table", (Index.of_value(row),), F32), constant(3.0, F32))
    case = pointwise(expr, (i,), {"at": at, "table": table, "ok": wanted})
    library = build_cases([case])
    assert run(library, case) == 0
    torch.testing.assert_close(
        case.tensors["out"], torch.stack([table[0], torch.tensor(3.0), table[1], torch.tensor(3.0)])
    )
    case.tensors["ok"].fill_(True)
    assert run(library, case) == 1


@pytest.mark.parametrize("op", ["floordiv", "truncdiv", "mod", "fmod"])
def test_integer_division_by_zero_is_reported(op: str) -> None:
    i = Var("i", 3)
    a, b = torch.tensor([5, 6, -(2**63)]), torch.tensor([1, 2, -1])
    case = pointwise(call(op, element("a", a, i), element("b", b, i)), (i,), {"a": a, "b": b})
    library = build_cases([case])
    assert run(library, case) == 0
    b[1] = 0
    assert run(library, case) == 2


@pytest.mark.parametrize("mode", ["set", "add", "mul", "min", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_scatters_go_in_order(mode: str, dtype: torch.dtype) -> None:
    rows, width = 30, 17
    i, j = Var("i", rows), Var("j", width)
    at = torch.randint(0, 5, (rows,), generator=torch.Generator().manual_seed(1))
    x = (torch.randn(rows, width) * 3).to(dtype)
    row = Index.of_value(check_index(element("at", at, i), 5))
    tensors = {"at": at, "x": x, "out": torch.ones(5, width, dtype=dtype)}
    by_row = Kernel("rows", (i, j), (), (Store("out", (row, j.index), element("x", x, i, j), mode),))
    flat_at = torch.randint(0, 5, (rows, width), generator=torch.Generator().manual_seed(2))
    element_at = Index.of_value(check_index(element("at", flat_at, i, j), 5))
    alone = Kernel("alone", (i, j), (), (Store("out", (element_at,), element("x", x, i, j), mode),))
    some = call("lt", element("at", at, i), constant(3, torch.int64))
    masked = Kernel("masked", (i, j), (), (Store("out", (row, j.index), element("x", x, i, j), mode, some),))
    check(
        [
            Case(by_row, tensors),
            Case(masked, dict(tensors)),
            Case(alone, {"at": flat_at, "x": x, "out": torch.ones(5, dtype=dtype)}),
        ],
        rtol=1e-5 if dtype == F32 else None,
    )


def test_large_scatter_add_is_the_same_with_any_number_of_threads() -> None:
    i, j = Var("i", 4000), Var("j", 256)
    at = torch.randint(0, 50, (4000,))
    x = torch.randn(4000, 256)
    row = Index.of_value(check_index(element("at", at, i), 50))
    case = Case(
        Kernel("k", (i, j), (), (Store("out", (row, j.index), element("x", x, i, j), "add"),)),
        {"at": at, "x": x, "out": torch.zeros(50, 256)},
    )
    library = build_cases([case])
    results = []
    for threads in (1, 2, 5):
        case.tensors["out"].zero_()
        assert run(library, case, threads) == 0
        results.append(case.tensors["out"].clone())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    torch.testing.assert_close(results[0], torch.zeros(50, 256).index_add(0, at, x), rtol=1e-4, atol=1e-4)
