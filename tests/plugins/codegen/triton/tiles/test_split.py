"""Rows of symbolic length in parts: right for any length, and read in vectors wherever the row ends."""

from __future__ import annotations

import re

import attrs
import pytest
import sympy
import torch

from tests.plugins.codegen.cpp.kernel_lab import Case, element
from tests.plugins.codegen.triton.tiles.test_specialization import widest_load
from tests.plugins.codegen.triton.triton_lab import check, compile_offline
from turret.ir import Kernel, Store, TensorDecl, Var, call, index_value, part, reduce
from turret.ir.expr import Expr, cast
from turret.ir.index import size
from turret.plugins.codegen.triton import DeviceProperties, TritonKernel, emit

ROWS, COLUMNS = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))
LARGE = {"s0": 8192, "s1": 4096}
KINDS = ("sum", "prod", "min", "max", "any", "argmin", "argmax", "mean", "m2")


def reduction(kind: str, over: tuple[Var, ...], value: Expr) -> Expr:
    if kind.startswith("arg"):
        return reduce(kind, over, value, index_value(over[-1]))
    if kind in ("mean", "m2"):
        return part(reduce("welford", over, value), kind)
    if kind == "any":
        return reduce(kind, over, call("gt", value, call("sub", value, value)))
    return reduce(kind, over, value)


def case(
    kind: str, along: str, rows: int, columns: int, *, stored: bool = False, dtype: torch.dtype = torch.float32
) -> Case:
    """A reduction of a whole matrix, or down or along its columns; ``stored``: its squares beside it."""
    i, j = Var("i0", size(ROWS)), Var("j0", size(COLUMNS))
    outer, inner = {"all": ((), (i, j)), "down": ((j,), (i,)), "along": ((i,), (j,))}[along]
    values = torch.randn(rows, columns, dtype=dtype)
    value = cast(element("x", values, i, j), torch.float32)
    expr = reduction(kind, inner, value)
    shape = [{i: rows, j: columns}[v] for v in outer]
    stores = [Store("out", tuple(v.index for v in outer), expr)]
    tensors = {"x": values, "out": torch.zeros(shape, dtype=expr.dtype)}
    declarations = {
        "x": TensorDecl("x", (i.extent, j.extent), (j.extent, 1), values.dtype, values.device),
        "out": TensorDecl("out", tuple(v.extent for v in outer), (1,) * len(outer), expr.dtype, values.device),
    }
    if stored:
        stores.append(Store("squares", (i.index, j.index), call("square", value)))
        tensors["squares"] = torch.zeros(rows, columns)
        declarations["squares"] = attrs.evolve(declarations["x"], name="squares")
    kernel = Kernel("k", outer, inner, tuple(stores))
    return Case(kernel, tensors, declarations, sizes={"s0": rows, "s1": columns})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("along", ["all", "down", "along"])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.thorough
def test_parts_of_symbolic_length_are_right_for_any(kind: str, along: str, stored: bool) -> None:
    """Also for lengths with parts that have nothing, and where the first had less than one of the blocks."""
    if kind.startswith("arg") and along == "all":
        pytest.skip("numbers of one loop repeat")
    hints = {"all": LARGE, "down": {"s0": 1 << 20, "s1": 64}, "along": {"s0": 2, "s1": 1 << 20}}[along]
    lengths = (1, 2, 33, 300) if kind == "prod" else (1, 15, 16, 17, 300, 4100, 9000)
    sizes = {"all": [(n, 7) for n in lengths], "down": [(n, 5) for n in lengths], "along": [(2, n) for n in lengths]}
    options = {"hints": hints, "properties": DeviceProperties(multiprocessors=8)}
    for rows, columns in sizes[along]:
        made = case(kind, along, rows, columns, stored=stored)
        kernels = emit(made.kernel, made.declarations, **options)
        assert len(kernels) > 1 and "part = tl.program_id(1)" in kernels[0].source
        check([made], options=options, rtol=2e-4, atol=2e-3)


def emitted(along: str, hints: dict[str, int]) -> TritonKernel:
    """The first kernel of a sum of bfloat16, in parts."""
    made = case("sum", along, 3, 5, dtype=torch.bfloat16)
    return emit(made.kernel, made.declarations, DeviceProperties(), hints)[0]


def test_parts_begin_where_vectors_can_be_loaded_whatever_the_length() -> None:
    for hints in (LARGE, {"s0": 8191, "s1": 4095}):
        for kernel in emitted("all", hints).alternatives:
            assert widest_load(kernel) == 128


def test_where_the_whole_ends_at_a_vector_the_last_block_is_read_in_vectors_too() -> None:
    kernel = emitted("all", LARGE)
    assert kernel.divisible and all("% 16" not in text for text in kernel.alternatives[-1].assumes)
    pointers = frozenset(kernel.parameters[: len(kernel.buffers)])
    ptx = compile_offline(attrs.evolve(kernel, divisible=kernel.divisible | pointers)).asm["ptx"]
    assert "ld.global.b16" not in ptx


def test_a_part_is_a_program_and_only_its_last_block_is_masked() -> None:
    down = emitted("down", {"s0": 16384, "s1": 4096})
    for kernel in (*emitted("all", LARGE).alternatives, down):
        assert len(kernel.grid) == 2 and " % n" not in kernel.source
        loop, last = kernel.source.split("    if rwhole0 < rend0:")
        assert "rmask" in last and "rmask" not in loop


def in_loop(kernel: TritonKernel) -> list[str]:
    """What an instruction of each warp does, of loads and sums in the order of the machine code, up to where all lanes
    meet."""
    pointers = frozenset(kernel.parameters[: len(kernel.buffers)])
    text = compile_offline(attrs.evolve(kernel, divisible=kernel.divisible | pointers)).asm["sass"]
    return re.findall(r"LDG|FADD|FFMA|BAR", text.partition("BAR")[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_that_begin_anywhere_have_the_loads_of_a_block_under_way_before_one_is_used(dtype: torch.dtype) -> None:
    made = case("sum", "down", 3, 5, dtype=dtype)
    for kernel in emit(made.kernel, made.declarations, DeviceProperties(), {"s0": 16384, "s1": 4096})[0].alternatives[
        1:
    ]:
        found = in_loop(kernel)
        assert found.index("FADD") >= 10 and found.count("LDG") <= 32, found


def matrix(kind: str, along: str, rows: int, columns: int, dtype: torch.dtype) -> Case:
    """A reduction of a matrix of known sizes."""
    made = case(kind, along, rows, columns, dtype=dtype)
    known = {ROWS: rows, COLUMNS: columns}

    def fixed(values: tuple) -> tuple:
        return tuple(known.get(v, v) for v in values)

    i, j = Var("i0", rows), Var("j0", columns)
    outer, inner = {"all": ((), (i, j)), "down": ((j,), (i,))}[along]
    x = made.tensors["x"]
    expr = reduction(kind, inner, cast(element("x", x, i, j), torch.float32))
    kernel = Kernel("k", outer, inner, (Store("out", tuple(v.index for v in outer), expr),))
    declarations = {
        name: attrs.evolve(decl, shape=fixed(decl.shape), stride=fixed(decl.stride))
        for name, decl in made.declarations.items()
    }
    return Case(kernel, made.tensors, declarations)


PLAIN = ("sum", "prod", "min", "max", "any")
H200 = DeviceProperties(multiprocessors=132)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", PLAIN)
def test_columns_of_a_matrix_of_odd_width_are_read_in_vectors(kind: str, dtype: torch.dtype) -> None:
    """A program has rows that begin alike: each eighth (or fourth), as if that many were one row."""
    symbolic = case(kind, "down", 3, 5, dtype=dtype)
    sizes = {"s0": 16383, "s1": 4095}
    known = matrix(kind, "down", 1023, 4095, dtype)
    for made, hints in ((known, {}), (symbolic, sizes)):
        for kernel in emit(made.kernel, made.declarations, H200, hints)[0].alternatives:
            assert widest_load(kernel) == 128


@pytest.mark.parametrize("kind", PLAIN)
def test_columns_of_any_odd_width_are_right_for_any_number_of_rows(kind: str) -> None:
    rows = (8, 33) if kind == "prod" else (600, 1023, 1030)
    options = {"properties": DeviceProperties(multiprocessors=8)}
    for count in (*rows, 5000):
        for columns in (65, 127):
            check([matrix(kind, "down", count, columns, torch.bfloat16)], options=options, rtol=2e-3, atol=2e-3)
    for count in (1, 7, 8, 9, *rows):
        for columns in (1, 2, 16, 33):
            made = case(kind, "down", count, columns)
            hints = {"hints": {"s0": 1 << 16, "s1": 63}, **options}
            assert "program_id(1)" not in emit(made.kernel, made.declarations, **hints)[0].source
            check([made], options=hints, rtol=2e-4, atol=2e-3)


@pytest.mark.parametrize("kind", (*PLAIN, "mean", "m2"))
def test_a_whole_matrix_of_odd_sizes_is_read_in_vectors_and_ends_anywhere(kind: str) -> None:
    for rows, columns in ((257, 257), (511, 129), (300, 333)):
        made = matrix(kind, "all", rows, columns, torch.float32)
        if kind == "prod":
            made.tensors["x"].copy_(1 + made.tensors["x"] / 4096)
        options = {"properties": DeviceProperties(multiprocessors=8)}
        kernels = emit(made.kernel, made.declarations, **options)
        assert "part = tl.program_id(1)" in kernels[0].source and widest_load(kernels[0]) == 128
        check([made], options=options, rtol=2e-4, atol=2e-3)
