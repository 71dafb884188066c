"""Every scalar op, for every dtype that torch has it for, gives eager's values, special ones included."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.plugins.codegen.cpp.kernel_lab import Case, build_cases, check, element, pointwise, run
from tests.plugins.codegen.cpp.operator_values import DTYPES, FLOATS, INTEGERS, LOOSE, operands, ops_of, special_values
from turret.ir import OPS, bitcast, call, cast, constant
from turret.ir.index import Var
from turret.ir.schedule import Kernel, Store


def of_two(op: str, x: torch.Tensor, y: torch.Tensor, name: str) -> Case:
    i = Var("i", x.numel())
    return pointwise(call(op, element("x", x, i), element("y", y, i)), (i,), {"x": x, "y": y}, name)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether all elements are equal, or both NaN."""
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def case_of(op: str, dtype: torch.dtype) -> Case:
    inputs = dict(zip("xy", operands(op, dtype), strict=False))
    i = Var("i", inputs["x"].numel())
    return pointwise(call(op, *(element(name, value, i) for name, value in inputs.items())), (i,), inputs, op)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_op_gives_eagers_values(dtype: torch.dtype) -> None:
    exact = [op for op in ops_of(dtype) if op not in LOOSE]
    least = 2e-38 if dtype in (torch.float32, torch.bfloat16) else 0.0
    check([case_of(op, dtype) for op in exact], threads=(1,), atol=least)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_inexact_functions_are_within_some_units_in_the_last_place(dtype: torch.dtype) -> None:
    worst = max(LOOSE.values()) * torch.finfo(torch.float32 if dtype != torch.float64 else dtype).eps
    rtol = max(worst, 2 * torch.finfo(dtype).eps)
    check([case_of(op, dtype) for op in LOOSE], threads=(1,), rtol=rtol, atol=1e-38)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_an_element_gives_does_not_depend_on_where_it_lies(dtype: torch.dtype) -> None:
    """In whole vectors, in what is left over of a row, in a vector of fewer lanes, and by itself."""
    ops = [op for op in ops_of(dtype) if OPS[op].cost != "cheap"]
    i = Var("i", 40)
    numbers = torch.cat([torch.rand(23, generator=torch.Generator().manual_seed(0)) * 3, torch.tensor([0.5] * 17)])
    cases: list[Case] = []
    for op in ops:
        for length in (37, 8, 4, 1):
            j = Var("j", length)
            columns = [(numbers + k)[:, None].expand(40, 40).to(dtype).contiguous() for k in range(OPS[op].arity)]
            inputs = dict(zip("xy", (column[:, :length] for column in columns), strict=False))
            value = call(op, *(element(name, x, i, j) for name, x in inputs.items()))
            cases.append(pointwise(value, (i, j), inputs, f"{op}{length}"))
    library = build_cases(cases)
    for case in cases:
        assert run(library, case) == 0
    for op, (first, *others) in zip(ops, zip(*[iter(cases)] * 4, strict=True), strict=True):
        by_value = first.tensors["out"][:, :1]
        for case in (first, *others):
            same = (case.tensors["out"] == by_value) | (case.tensors["out"].isnan() & by_value.isnan())
            assert same.all(), f"{op} in rows of {case.tensors['out'].shape[1]}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_results_that_the_dtype_holds_exactly_are_exact(dtype: torch.dtype) -> None:
    """Programs take the next integer above or below them."""
    ints, tens = torch.arange(-126.0, 128.0, dtype=dtype), 10.0 ** torch.arange(0, 11, dtype=torch.float64)
    powers = torch.exp2(ints.double()).to(dtype)
    drawn = {
        "log2": (powers, ints),
        "exp2": (ints, powers),
        "log10": (tens.to(dtype), torch.arange(0, 11, dtype=dtype)),
        "log": (torch.ones(1, dtype=dtype), torch.zeros(1, dtype=dtype)),
        "sqrt": (torch.arange(0, 4096, dtype=dtype).square(), torch.arange(0, 4096, dtype=dtype)),
    }
    cases = {}
    for op, (x, _) in drawn.items():
        i = Var("i", x.numel())
        cases[op] = pointwise(call(op, element("x", x, i)), (i,), {"x": x}, op)
    library = build_cases(list(cases.values()))
    for op, (_, exact) in drawn.items():
        assert run(library, cases[op]) == 0
        assert torch.equal(cases[op].tensors["out"], exact), op


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_bounded_functions_keep_their_bounds(dtype: torch.dtype) -> None:
    quarter = torch.tensor(math.pi / 2, dtype=dtype).item()
    bounds = {
        "sin": (-1, 1), "cos": (-1, 1), "tanh": (-1, 1), "erf": (-1, 1), "sigmoid": (0, 1), "erfc": (0, 2),
        "cosh": (1, math.inf), "expm1": (-1, math.inf), "exp": (0, math.inf), "exp2": (0, math.inf),
        "atan": (-quarter, quarter), "asin": (-quarter, quarter), "acos": (0, 2 * quarter),
    }  # fmt: skip
    bits = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    near = torch.arange(-5000, 5000, dtype=torch.float64) * (math.pi / 4)
    x = torch.cat([bits.view(torch.float32).to(dtype), near.to(dtype), torch.linspace(-1, 1, 50_001, dtype=dtype)])
    x = torch.cat([x, torch.linspace(-40, 40, 2_000_001, dtype=dtype)])
    i = Var("i", x.numel())
    cases = {op: pointwise(call(op, element("x", x, i)), (i,), {"x": x}, op) for op in bounds}
    library = build_cases(list(cases.values()))
    for op, (least, most) in bounds.items():
        assert run(library, cases[op]) == 0
        out = cases[op].tensors["out"]
        assert not ((out < least) | (out > most)).any(), op


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_hypotenuse_is_no_shorter_than_a_side_and_of_one_side_that_side(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400_000, generator=generator, dtype=dtype)
    y = x * torch.logspace(-12, 0, x.numel(), dtype=torch.float64).to(dtype)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 3.0], dtype=dtype)
    x = torch.cat([x, x, special.repeat(7)])
    y = torch.cat([y, torch.zeros(400_000, dtype=dtype), special.repeat_interleave(7)])
    (case,) = cases = [of_two("hypot", x, y, "hypot")]
    assert run(build_cases(cases), case) == 0
    out, sides = case.tensors["out"], torch.stack([x, y]).abs()
    assert not (out < sides.nan_to_num(0.0).amax(0)).any()
    alone = y == 0
    assert same(out[alone], x.abs()[alone])
    torch.testing.assert_close(out[-49:], torch.hypot(x, y)[-49:], equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_of_negative_numbers_are_those_of_positive_ones(dtype: torch.dtype) -> None:
    """To the bit: (-x) ** 4 - x ** 4 is 0."""
    size = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=dtype).abs()
    for exponent in (4.0, 5.0, -3.0, 7.0, 2.5, 0.0, 2.0**40):
        by = torch.full_like(size, exponent)
        cases = [of_two("pow", x, by, name) for name, x in (("positive", size), ("negative", -size))]
        library = build_cases(cases)
        assert [run(library, case) for case in cases] == [0, 0]
        positive, negative = (case.tensors["out"] for case in cases)
        odd = exponent % 2 == 1
        wanted = -positive if odd else positive if exponent % 1 == 0 else torch.full_like(size, math.nan)
        assert same(negative, wanted), exponent


def test_table_covers_every_op() -> None:
    covered = {op for dtype in DTYPES for op in ops_of(dtype)} | {"where", "masked"}
    assert covered == set(OPS)


def test_casts_between_all_dtypes() -> None:
    cases = []
    for source, target in itertools.product(DTYPES, DTYPES):
        values = special_values(source)
        i = Var("i", values.numel())
        cases.append(pointwise(cast(element("x", values, i), target), (i,), {"x": values}, f"{source} to {target}"))
    check([case for case in cases if case.tensors["x"].dtype != case.tensors["out"].dtype], threads=(1,))


def test_a_zero_that_an_integer_was_has_no_sign() -> None:
    cases = []
    for source, through, target in itertools.product(FLOATS, INTEGERS, FLOATS):
        values = torch.tensor([-0.5, -0.0, 0.5, -1.5, 0.0, -3.0, 1.0, -0.25] * 8, dtype=source)
        i = Var("i", values.numel())
        whole = cast(cast(element("x", values, i), through), target)
        signed = cast(call("signbit", whole), torch.int32)
        cases.append(pointwise(signed, (i,), {"x": values}, f"{source} by {through} to {target}"))
    check(cases, threads=(1,))


def test_bitcasts_keep_every_bit() -> None:
    cases = []
    for one, other in [
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.int16),
        (torch.float16, torch.int16),
        (torch.float64, torch.int64),
        (torch.bfloat16, torch.float16),
    ]:
        for source, target in ((one, other), (other, one)):
            values = special_values(source)
            values = values[~values.isnan()]
            i = Var("i", values.numel())
            cases.append(pointwise(bitcast(element("x", values, i), target), (i,), {"x": values}))
    check(cases, threads=(1,))


def test_half_values_round_to_nearest_even_everywhere() -> None:
    cases = []
    generator = torch.Generator().manual_seed(5)
    bits = torch.randint(-(2**31), 2**31 - 1, (40000,), generator=generator).to(torch.int32)
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    i, j = Var("i", bits.numel()), Var("j", halves.numel())
    for dtype in (torch.bfloat16, torch.float16):
        values = bits.view(torch.float32)
        cases.append(pointwise(cast(element("x", values, i), dtype), (i,), {"x": values}))
        every = halves.view(dtype)
        cases.append(pointwise(cast(element("x", every, j), torch.float32), (j,), {"x": every}))
    check(cases, threads=(1,), rtol=0.0)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, -0.5, -1.0, -2.0, 2.5])
def test_constant_exponents(exponent: float) -> None:
    values = special_values(torch.float32)
    i = Var("i", values.numel())
    case = pointwise(call("pow", element("x", values, i), constant(exponent, torch.float32)), (i,), {"x": values})
    assert run(build_cases([case]), case) == 0
    want = torch.pow(values, torch.full_like(values, exponent))
    torch.testing.assert_close(case.tensors["out"], want, rtol=1e-6, atol=0, equal_nan=True)


def test_where_and_masked_choose() -> None:
    condition = torch.tensor([True, False] * 20)
    cases = []
    for dtype in DTYPES:
        a, b = (special_values(dtype).repeat(20)[:40] for _ in range(2))
        i = Var("i", 40)
        loads = [element("c", condition, i), element("a", a, i), element("b", b.flip(0), i)]
        cases.append(pointwise(call("where", *loads), (i,), {"c": condition, "a": a, "b": b.flip(0)}))
        fill = constant(1, dtype)
        cases.append(pointwise(call("masked", loads[0], loads[1], fill), (i,), {"c": condition, "a": a}))
    check(cases, threads=(1,))


def test_constants_of_every_dtype() -> None:
    values = {
        torch.float32: [0.1, -0.0, math.inf, -math.inf, math.nan, 1e-45, 3.4e38],
        torch.int64: [-(2**63), 2**63 - 1],
        torch.bfloat16: [0.1, 1e38],
        torch.float16: [0.1, 65504.0],
        torch.int8: [-128, 127],
        torch.bool: [True, False],
    }
    cases = []
    for dtype, numbers in values.items():
        for number in numbers:
            i = Var("i", 3)
            out = torch.zeros(3, dtype=dtype)
            cases.append(
                Case(Kernel("c", (i,), (), (Store("out", (i.index,), constant(number, dtype)),)), {"out": out})
            )
    check(cases, threads=(1,))
