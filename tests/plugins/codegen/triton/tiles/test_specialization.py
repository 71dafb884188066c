"""Kernels of symbolic sizes: what they take for granted holds where they run, and makes them as good as static ones."""

from __future__ import annotations

import functools
import itertools
import re

import attrs
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.plugins.codegen.triton.triton_lab import compile_offline
from turret.ir import Kernel, Store, TensorDecl, Var, call, constant, index_value, load, reduce
from turret.ir.expr import size_value, walk
from turret.ir.index import Size, size
from turret.plugins.codegen.triton import DeviceProperties, TritonKernel, emit
from turret.plugins.codegen.triton.tiles.facts import Facts
from turret.plugins.codegen.triton.tiles.normalise import normalise
from turret.plugins.codegen.triton.tiles.sizes import size_text
from turret.plugins.codegen.triton.tiles.specialization import (
    conditions,
    divided_text,
    is_multiple,
    sizes_fit,
)
from turret.plugins.codegen.triton.tiles.tiling import tile

CUDA, BF16 = torch.device("cuda"), torch.bfloat16
ROWS, COLUMNS, DEPTH = (sympy.Symbol(f"s{n}", integer=True, positive=True) for n in range(3))
LIKE = {"s0": 4096, "s1": 512}


def row_kernel(*, row_sum: bool) -> tuple[Kernel, dict[str, TensorDecl]]:
    """``y[i, j] = x[i, j] + 1``, or the sums of rows of ``x``, with rows of symbolic length."""
    i, j = Var("i0", size(ROWS)), Var("r0" if row_sum else "i1", size(COLUMNS))
    x = TensorDecl("x", (i.extent, j.extent), (j.extent, 1), BF16, CUDA)
    value = load("x", (i.index, j.index), BF16)
    if row_sum:
        y = TensorDecl("y", (i.extent,), (1,), BF16, CUDA)
        stores = (Store("y", (i.index,), reduce("sum", (j,), value), None),)
        kernel = Kernel("k", (i,), (j,), stores, ("sum",))
    else:
        y = attrs.evolve(x, name="y")
        kernel = Kernel("k", (i, j), (), (Store("y", (i.index, j.index), call("abs", value), None),), ("abs",))
    return kernel, {"x": x, "y": y}


def emitted(hints: dict[str, int], *, row_sum: bool = False) -> TritonKernel:
    kernel, declarations = row_kernel(row_sum=row_sum)
    (made,) = emit(kernel, declarations, DeviceProperties(), hints)
    return made


def test_without_hints_nothing_is_taken_for_granted() -> None:
    made = emitted({})
    assert made.otherwise is None and not made.assumes and not made.divisible


@pytest.mark.parametrize("row_sum", [False, True])
def test_sizes_like_the_first_run_the_fast_kernel_odd_ones_one_of_32_bits_and_others_the_general_one(
    row_sum: bool,
) -> None:
    made = emitted(LIKE, row_sum=row_sum)
    fast, narrow, general = made.alternatives
    for like in (LIKE, {"s0": 16, "s1": 1 << 20}, {"s0": 15, "s1": 1 << 20}):
        assert made.chosen_for(like) is fast, "vectors begin and end at no number of rows"
    assert made.chosen_for({"s0": 4096, "s1": 511}) is narrow
    for unlike in ({"s0": 1 << 16, "s1": 1 << 15}, {"s0": 1 << 40, "s1": 16}, {"s0": 1 << 40, "s1": 15}):
        assert made.chosen_for(unlike) is general, unlike
    assert "int64" in general.source and "int64" not in fast.source + narrow.source
    assert [each.signature["n0"] for each in made.alternatives] == ["i32", "i32", "i64"]
    assert fast.divisible and not narrow.divisible and not general.divisible


def test_sizes_near_the_end_of_32_bits_have_no_kernel_of_32_bits() -> None:
    made = emitted({"s0": 1 << 16, "s1": 1 << 16})
    assert made.assumes and "int64" in made.source, "rows that are multiples of 16 still are"
    assert emitted({"s0": (1 << 17) + 1, "s1": (1 << 15) + 1}).otherwise is None


def test_rows_as_long_as_the_first_lie_in_one_block_and_longer_ones_are_walked() -> None:
    kernel, declarations = row_kernel(row_sum=True)
    (store,) = kernel.stores
    (j,), total = kernel.inner, store.expr
    share = call("div", load("x", (kernel.outer[0].index, j.index), BF16), total)
    y = attrs.evolve(declarations["x"], name="y")
    shares = attrs.evolve(kernel, stores=(Store("y", (kernel.outer[0].index, j.index), share, None),))
    for columns, block in ((512, 512), (500, 512), (513, 512), (521, 1024)):
        (made,) = emit(shares, {**declarations, "y": y}, DeviceProperties(), {"s0": 4096, "s1": columns})
        assert all(dict(config.constants)["RBLOCK"] == block for config in made.configs) and "for " not in made.source
        assert made.chosen_for({"s0": 16, "s1": block}) is made
        general = made.alternatives[-1]
        assert made.chosen_for({"s0": 4096, "s1": block + 16}) is general and "for " in general.source
        odd = made.chosen_for({"s0": 4096, "s1": block - 1})
        assert odd is not general and dict(odd.configs[0].constants)["RBLOCK"] == block and not odd.divisible
    (long,) = emit(shares, {**declarations, "y": y}, DeviceProperties(), {"s0": 4096, "s1": 1 << 17})
    assert "for " in long.source


def test_rows_of_which_there_are_none_for_the_nearest_odd_size_are_tiled() -> None:
    kernel, declarations = row_kernel(row_sum=True)
    i, j = Var("i0", size(ROWS - 1024)), kernel.inner[0]
    x, y = (attrs.evolve(declarations[name], shape=(i.extent, *declarations[name].shape[1:])) for name in "xy")
    store = attrs.evolve(
        kernel.stores[0], coords=(i.index,), expr=reduce("sum", (j,), load("x", (i.index, j.index), BF16))
    )
    rest = Kernel("k", (i,), (j,), (store,), ("sum",))
    (made,) = emit(rest, {"x": x, "y": y}, DeviceProperties(), {"s0": 1024, "s1": 512})
    assert made.alternatives[-1].assumes == ()


def widest_load(kernel: TritonKernel) -> int:
    """Bits of the widest load from global memory."""
    pointers = frozenset(kernel.parameters[: len(kernel.buffers)])
    text = compile_offline(attrs.evolve(kernel, divisible=kernel.divisible | pointers)).asm["ptx"]
    found = re.findall(r"ld\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", text)
    return max(int(many or 1) * int(bits) for many, bits in found)


@pytest.mark.parametrize("row_sum", [False, True])
def test_the_fast_kernel_loads_whole_vectors(row_sum: bool) -> None:
    made = emitted(LIKE, row_sum=row_sum)
    assert widest_load(made) == 128
    assert widest_load(made.otherwise) == (16 if row_sum else 128), (
        "rows begin anywhere, but a run of all of them does not"
    )


NUMBER = sympy.Symbol("s2", integer=True)


@given(
    st.integers(0, 1 << 33),
    st.integers(1, 1 << 33),
    st.integers(-(1 << 33), 1 << 33),
    st.sampled_from(
        [
            ROWS * COLUMNS,
            ROWS - 3 * COLUMNS,
            (ROWS * COLUMNS + 255) // 256,
            -ROWS * COLUMNS + 7,
            ROWS // COLUMNS * ROWS,
            NUMBER,
            ROWS * NUMBER - COLUMNS,
        ]
    ),
)
def test_where_the_conditions_hold_no_size_leaves_32_bits(rows: int, columns: int, n: int, value: sympy.Expr) -> None:
    texts = conditions([size(value)], ())
    assert texts
    values = {"s0": rows, "s1": columns, "s2": n}
    if all(eval(text, dict(values)) <= 0 for text in texts):
        assert abs(_computed(size(value), values)) < 1 << 31


def test_sizes_that_pass_32_bits_on_the_way_are_not_narrow() -> None:
    hints = {"s0": 10, "s1": 6, "s2": 4}
    remainder = sympy.Mod(NUMBER * (1 << 40), 1000003, evaluate=False)
    assert sizes_fit([ROWS * COLUMNS, ROWS + NUMBER], hints)
    assert not sizes_fit([ROWS, remainder], hints) and not sizes_fit([ROWS * NUMBER * (1 << 30)], hints)
    assert not sizes_fit([NUMBER], {}), "what nobody has seen may be large"


def _computed(value: Size, values: dict[str, int]) -> int:
    return int(eval(size_text(value, str), {"floor_div": int.__floordiv__, "floor_mod": int.__mod__, **values}))


def test_what_is_assumed_is_in_the_same_order_in_every_process() -> None:
    i = Var("i0", size(ROWS))
    read = {f"x{n}": TensorDecl(f"x{n}", (i.extent,), (n,), BF16, CUDA) for n in range(1, 9)}
    value = functools.reduce(lambda a, b: call("add", a, b), [load(name, (i.index,), BF16) for name in read])
    declarations = {**read, "y": TensorDecl("y", (i.extent,), (9,), BF16, CUDA)}
    kernel = Kernel("k", (i,), (), (Store("y", (i.index,), value, None),), ("add",))
    facts = Facts(tile(normalise(kernel, declarations, {})))
    met = [node.tensor for node in walk(value) if node.op == "load"]
    assert facts.reaches() == [declarations[name].stride[0] * ROWS for name in (*met, "y")], "a set has another order"


def test_a_definition_of_many_sizes_takes_nothing_for_granted() -> None:
    symbols = [sympy.Symbol(f"s{n}", integer=True, positive=True) for n in range(40)]
    assert conditions([size(a + b) for a, b in itertools.pairwise(symbols)], ()) is None


def test_an_odd_size_parts_the_loads_of_its_last_block_alone() -> None:
    made = emitted({"s0": 4095, "s1": 511})
    assert widest_load(made) == widest_load(made.otherwise) == 128
    whole, last = made.source.split("    else:")[::-1]
    assert "mask" in last and "mask" not in whole


def rotary(hints: dict[str, int]) -> TritonKernel:
    """``y[i, j, k] = x[i, j, k] * w[j, k] + x[i, j, (k + s2 // 2) % s2]``, of symbolic sizes."""
    i, j, k = (Var(f"i{n}", size(s)) for n, s in enumerate((ROWS, COLUMNS, DEPTH)))
    x = TensorDecl("x", (i.extent, j.extent, k.extent), (COLUMNS * DEPTH, DEPTH, 1), BF16, CUDA)
    w = TensorDecl("w", (j.extent, k.extent), (DEPTH, 1), BF16, CUDA)
    half = size(sympy.floor((DEPTH + 1) / sympy.Integer(2)))
    first = call("lt", index_value(k), size_value(DEPTH - half))
    ahead, behind = (load("x", (i.index, j.index, k.index + step), BF16) for step in (half, half - DEPTH))
    turned = call("masked", first, ahead, call("masked", call("logical_not", first), behind, constant(0.0, BF16)))
    value = call("add", call("mul", load("x", (i, j, k), BF16), load("w", (j, k), BF16)), turned)
    store = Store("y", (i.index, j.index, k.index), value, None)
    (made,) = emit(
        Kernel("k", (i, j, k), (), (store,), ("rotary",)),
        {"x": x, "w": w, "y": attrs.evolve(x, name="y")},
        DeviceProperties(),
        hints,
    )
    return made


def test_rows_of_symbolic_length_are_blocks_that_nothing_divides() -> None:
    made = rotary({"s0": 256, "s1": 2048, "s2": 128})
    assert dict(made.configs[0].constants) == {"XBLOCK": 128, "YBLOCK": 16} and "x %" not in made.source
    text = compile_offline(attrs.evolve(made, divisible=made.divisible | {"p0", "p1", "p2"})).asm["ptx"]
    assert "ld.global.b16" not in text and "st.global.b16" not in text, "half of a multiple of 16 is one of 8"


def test_short_rows_of_symbolic_length_stay_one_run() -> None:
    assert set(dict(rotary({"s0": 256, "s1": 2048, "s2": 6}).configs[0].constants)) == {"XBLOCK"}


@pytest.mark.parametrize("length, block", [(128, 128), (130, 32), (4096, 1024), (33, 32), (1000, 1024), (127, 128)])
def test_blocks_of_rows_leave_few_lanes_idle(length: int, block: int) -> None:
    assert dict(rotary({"s0": 256, "s1": 2048, "s2": length}).configs[0].constants)["XBLOCK"] == block


@given(st.integers(0, 1 << 12), st.integers(0, 1 << 12), st.integers(1, 8))
def test_sizes_in_sixteenths_are_the_sizes(rows: int, columns: int, divisor: int) -> None:
    half = sympy.floor((ROWS + 1) / sympy.Integer(2))
    for value in (half, half - ROWS, ROWS * COLUMNS // divisor, sympy.floor((ROWS * COLUMNS + 7) / sympy.Integer(8))):
        values = {"s0": 16 * rows, "s1": columns}
        text = divided_text(size(value), str, ("s0",))
        assert eval(text, {"floor_div": int.__floordiv__, **values}) == _computed(size(value), values)
    assert divided_text(size(half), str, ("s0",)) == "((s0 // 16) * 8)"


@pytest.mark.parametrize(
    "value, is_one",
    [(16, True), (12, False), (8 * ROWS, True), (ROWS, True), (COLUMNS, False), (ROWS * COLUMNS + 8, True),
     (ROWS + COLUMNS, False), (2 * COLUMNS, False), (16 * sympy.floor(COLUMNS / 3), True)],
)  # fmt: skip
def test_what_is_sure_to_be_a_multiple_of_8(value: Size, is_one: bool) -> None:
    assert is_multiple(value, 8, ("s0",)) is is_one


def test_long_rows_that_do_not_begin_alike_fill_half_of_their_block() -> None:
    kernel, declarations = row_kernel(row_sum=True)
    (store,) = kernel.stores
    places = (kernel.outer[0].index, kernel.inner[0].index)
    share = Store("y", places, call("div", load("x", places, BF16), store.expr), None)
    shares = attrs.evolve(kernel, stores=(share,))
    declarations["y"] = attrs.evolve(declarations["x"], name="y", stride=(size(COLUMNS + 1), 1))
    (odd,), (even,), (short,) = (
        emit(shares, declarations, DeviceProperties(), {"s0": 4096, "s1": columns}) for columns in (4095, 4096, 511)
    )
    assert "tl.assume(n0 > RBLOCK // 2)" in odd.source and "assume" not in even.source + short.source
    assert odd.chosen_for({"s0": 7, "s1": 2049}) is odd and odd.chosen_for({"s0": 7, "s1": 2048}) is odd.otherwise
    masked, all_masked = (
        compile_offline(attrs.evolve(made, divisible=frozenset(made.parameters) & {"p0", "p1"})).asm["ptx"]
        for made in (odd, attrs.evolve(odd, source=odd.source.replace("tl.assume", "#")))
    )
    assert masked.count("setp") <= all_masked.count("setp") - 8
