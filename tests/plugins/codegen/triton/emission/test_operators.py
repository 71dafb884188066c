"""Every scalar op of the loop IR, in every dtype that has it, gives what torch gives, NaN and edges included."""

from __future__ import annotations

import math

import attrs
import pytest
import torch

from tests.plugins.codegen.cpp.kernel_lab import Case, element, pointwise
from tests.plugins.codegen.cpp.operator_values import torch_has
from tests.plugins.codegen.triton.triton_lab import check, compile_offline, run
from turret.graph.ops.random_ops import random_reference
from turret.ir import OPS, Expr, Kernel, Store, bitcast, call, cast, constant, index_value, random
from turret.ir.index import Var
from turret.plugins.codegen.triton import emit

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)

EDGES = [0.0, -0.0, 0.5, 1.0, -1.0, -2.5, 3.0, 7.75, math.inf, -math.inf, math.nan, 1e-4, -30.0, 88.0]

TOLERANCE = {"lgamma": 1e-4, "pow": 1e-5, "tan": 1e-5, "rsqrt": 1e-6}


def values(dtype: torch.dtype, positive: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    if dtype == torch.bool:
        return torch.randint(0, 2, (40,), generator=generator).bool()
    if dtype.is_floating_point:
        x = torch.cat([torch.tensor(EDGES), torch.randn(26, generator=generator) * 2]).to(dtype)
        return x.abs() if positive else x
    bounds = torch.iinfo(dtype)
    x = torch.randint(max(bounds.min, -1000), min(bounds.max, 1000), (36,), generator=generator)
    x = torch.cat([torch.tensor([0, 1, bounds.min, bounds.max]), x]).to(dtype)
    return x.abs().clamp(min=1) if positive else x


def is_defined(op: str, dtype: torch.dtype) -> bool:
    if not torch_has(op, dtype):
        return False
    if (op == "nextafter" and dtype.itemsize == 2) or (op == "lgamma" and dtype.itemsize == 2):
        return False
    return not (op == "erfc" and dtype.itemsize == 2)


def operands(op: str, dtype: torch.dtype) -> list[torch.Tensor]:
    first = values(dtype)
    arity = OPS[op].arity
    if arity == 1:
        return [first]
    second = values(dtype).roll(7)
    if op in ("floordiv", "truncdiv", "mod", "fmod") and not dtype.is_floating_point:
        second = torch.where(second == 0, torch.ones((), dtype=dtype), second)
        first = torch.where(first == torch.iinfo(dtype).min, torch.ones((), dtype=dtype), first)
    if op == "pow" and not dtype.is_floating_point:
        second = second.abs() % 9
    if op in ("shl", "shr"):
        second = second.abs() % (dtype.itemsize * 8)
    return [first, second] if arity == 2 else [values(torch.bool).roll(3), first, second]


def case_of(op: str, dtype: torch.dtype) -> Case:
    tensors = operands(op, dtype)
    loop = Var("i", 40)
    names = dict(zip("abc", tensors, strict=False))
    args = [element(name, value, loop) for name, value in names.items()]
    if op == "masked":
        args[2] = constant(1, dtype)
    return pointwise(call(op, *args), (loop,), names, f"{op}_{dtype}".replace("torch.", ""))


@pytest.mark.parametrize("op", sorted(OPS))
def test_op_in_every_dtype(op: str) -> None:
    cases = [case_of(op, dtype) for dtype in DTYPES if is_defined(op, dtype)]
    assert cases
    for case in cases:
        half = case.tensors["a" if op not in ("where", "masked") else "b"].dtype.itemsize == 2
        # What a half is rounded from may differ in its last bit between math libraries.
        loose = 2**-7 if half else TOLERANCE.get(op, 1e-6)
        check([case], rtol=loose, atol=1e-6 if op in ("tan", "lgamma", "sin", "cos") else 0.0)


@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_casts_to_every_dtype(target: torch.dtype) -> None:
    for source in DTYPES:
        x = values(source)
        if source.is_floating_point and not target.is_floating_point and target != torch.bool:
            low = 0 if target == torch.uint8 else -100  # what lies outside is undefined in eager, too
            x = torch.nan_to_num(x.float(), 0.0, 3.0, 2.0).clamp(low, 100).to(source)
        loop = Var("i", 40)
        check([pointwise(cast(element("a", x, loop), target), (loop,), {"a": x})], rtol=0.0)


@pytest.mark.parametrize(
    "pair",
    [
        (torch.float32, torch.int32),
        (torch.bfloat16, torch.int16),
        (torch.float64, torch.int64),
        (torch.float16, torch.int16),
    ],
    ids=str,
)
def test_bits_of_one_dtype_are_read_as_another(pair: tuple[torch.dtype, torch.dtype]) -> None:
    for source, target in (pair, pair[::-1]):
        x = values(source)
        if not source.is_floating_point:
            x = x.abs() % 1000
        loop = Var("i", 40)
        check([pointwise(bitcast(element("a", x, loop), target), (loop,), {"a": x})], rtol=0.0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, 4.0, -0.5, -1.0, -2.0, 2.5])
def test_powers_that_eager_computes_otherwise(dtype: torch.dtype, exponent: float) -> None:
    x, loop = values(dtype, positive=True), Var("i", 40)
    expr = call("pow", element("a", x, loop), constant(exponent, dtype))
    case = pointwise(expr, (loop,), {"a": x})
    check([case], rtol=2**-7 if dtype.itemsize == 2 else 1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_of_two_are_exact_down_to_the_least_number(dtype: torch.dtype) -> None:
    exponents = torch.arange(-149, 128, dtype=dtype)
    loop = Var("i", exponents.numel())
    power = call("pow", constant(2.0, dtype), element("a", exponents, loop))
    for expr in (power, call("exp2", element("a", exponents, loop))):
        check([pointwise(expr, (loop,), {"a": exponents})], rtol=0.0)


def test_powers_of_zeros_infinities_and_numbers_below_zero_are_eagers() -> None:
    numbers = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 1e-45, -1e-45, 3e38, -3e38, 33554432.0]
    ends = torch.tensor([*numbers, torch.inf, -torch.inf, torch.nan])
    base, exponent = ends.repeat_interleave(len(ends)), ends.repeat(len(ends))
    loop = Var("i", base.numel())
    expr = call("pow", element("a", base, loop), element("b", exponent, loop))
    case = pointwise(expr, (loop,), {"a": base, "b": exponent})
    check([case], rtol=1e-6)
    (output,) = case.outputs
    found, expected = case.tensors[output], base.pow(exponent)
    assert torch.equal(found.signbit() & ~found.isnan(), expected.signbit() & ~expected.isnan())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_length_of_a_vector_neither_leaves_the_range_nor_its_exact_value(dtype: torch.dtype) -> None:
    ends = torch.tensor([0.0, -0.0, 1e-45, 1e-38, 1e-19, 1e19, 3e38, torch.inf, -torch.inf, torch.nan], dtype=dtype)
    whole = torch.arange(1, 800, dtype=dtype)
    rounded = 2e-7 if dtype == torch.float32 else 1e-15
    for x, y, rtol in ((ends.repeat_interleave(10), ends.repeat(10), rounded), (3 * whole, 4 * whole, 0.0)):
        loop = Var("i", x.numel())
        expr = call("hypot", element("a", x, loop), element("b", y, loop))
        check([pointwise(expr, (loop,), {"a": x, "b": y})], rtol=rtol)


@pytest.mark.parametrize("kind", ["uniform", "normal", "bits"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_random_numbers_are_the_reference_s(kind: str, dtype: torch.dtype) -> None:
    if kind == "bits":
        dtype = torch.int64
    seed, loops = torch.tensor(-123456789123456789), (Var("i", 9), Var("j", 31))
    stream = (5 << 32) + 3
    linear = loops[0].index * 31 + loops[1]
    node = random(kind, element("seed", seed), index_value(linear), stream)
    expr = Expr.make(node.op, node.args, dtype, node.payload)
    case = pointwise(expr, loops, {"seed": seed})
    run(case)
    want = random_reference(seed, (9, 31), stream, kind, dtype)
    if kind == "normal":
        torch.testing.assert_close(case.tensors["out"], want, rtol=2**-7 if dtype.itemsize == 2 else 1e-5, atol=1e-5)
    else:
        assert torch.equal(case.tensors["out"], want)


def test_kernels_that_draw_from_different_streams_are_one_kernel() -> None:
    seed, loops = torch.tensor(5), (Var("i", 33),)
    kernels = []
    for stream in (1, (3 << 32) + 2):
        expr = random("uniform", element("seed", seed), index_value(loops[0].index), stream)
        case = pointwise(expr, loops, {"seed": seed})
        kernels += run(case)
        assert torch.equal(case.tensors["out"], random_reference(seed, (33,), stream, "uniform", torch.float32))
        compile_offline(kernels[-1])
    assert kernels[0].name == kernels[1].name and kernels[0].streams != kernels[1].streams


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_op_compiles_for_a_device(dtype: torch.dtype) -> None:
    stores: list[Store] = []
    declarations = {}
    for op in sorted(OPS):
        if is_defined(op, dtype):
            case = case_of(op, dtype)
            (store,) = case.kernel.stores
            stores.append(attrs.evolve(store, tensor=f"out_{op}"))
            declarations |= {**case.declarations, f"out_{op}": case.declarations["out"]}
    masks = {"where", "masked"} & {s.tensor.removeprefix("out_") for s in stores}
    assert masks, "these take a bool first, so they have a kernel of their own"
    for group in (
        [s for s in stores if s.tensor.removeprefix("out_") in masks],
        [s for s in stores if s.tensor.removeprefix("out_") not in masks],
    ):
        own = dict(declarations)
        if group[0].tensor.removeprefix("out_") not in masks:
            own["a"] = own["b"] = case_of("eq", dtype).declarations["a"]
        kernel = Kernel("ops", case.kernel.outer, (), tuple(group))
        for emitted in emit(kernel, own):
            assert compile_offline(emitted, capability=90).asm["cubin"]
