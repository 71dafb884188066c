"""What a language of the C family gets from ``turret.ir.emit.c_emitter``: here plain C, compiled and run."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from turret.errors import UnsupportedError
from turret.hooks.devices import INDEX_ERROR
from turret.ir import Expr, Kernel, Store, TensorDecl, Var, call, cast, check_index, load, reduce, scan
from turret.ir.emit.c_emitter import CEmitter, CType, literal, size_text
from turret.ir.index import Index
from turret.ir.nest import flat_load, map_roots, nest_of, plain_reduction, scan_innermost
from turret.storage.toolchain import find_command

F32, F64, I64 = torch.float32, torch.float64, torch.int64
ROW, COLUMN = Var("i0", 3), Var("i1", 4)
TYPES = {
    F32: CType("float", "float", 32, "float", "f"),
    F64: CType("double", "double", 64, "float"),
    torch.int32: CType("int32_t", "int32_t", 32, "int"),
    I64: CType("int64_t", "int64_t", 64, "int"),
    torch.bool: CType("bool", "uint8_t", 8, "bool"),
}
OPS = {
    **{op: f"{{0}} {sign} {{1}}" for op, sign in {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "=="}.items()},
    **{"max": "{0} > {1} ? {0} : {1}", "min": "{0} < {1} ? {0} : {1}", "where": "{0} ? {1} : {2}", "exp": "exp({0})"},
    **{"square": "{0} * {0}", "isnan": "{0} != {0}", "logical_or": "{0} | {1}", "logical_and": "{0} & {1}"},
}


class PlainC(CEmitter):
    """All that such a language has to say."""

    ctypes = TYPES

    def op_text(self, op, where, args, constant=None):
        return OPS[op].format(*args)


def function(expr: Expr, tensors: dict[str, TensorDecl]) -> tuple[str, list[str]]:
    """A function that stores ``expr`` at each row and column of ``out`` and returns errors; the tensors it takes."""
    kernel = Kernel("k", (ROW,), (COLUMN,), (Store("out", (ROW.index, COLUMN.index), expr),))
    nest = scan_innermost(nest_of(kernel, tensors))
    nest = map_roots(nest, lambda node: flat_load(node, tensors) if node.op == "load" else plain_reduction(node))
    emitter = PlainC(nest)
    emitter.write_nest()
    taken = ", ".join(f"{TYPES[tensors[t].dtype].element}* {name}" for t, name in emitter.pointers.items())
    lines = ["#include <stdint.h>", "#include <math.h>", f'extern "C" int f({taken}) {{', "int error = 0;"]
    return "\n".join([*lines, *emitter.base.lines, "return error; }"]), list(emitter.pointers)


def run(expr: Expr, folder: Path, status: int = 0, **inputs: torch.Tensor) -> torch.Tensor:
    tensors = {**inputs, "out": torch.zeros(3, 4, dtype=expr.dtype)}
    cpu = torch.device("cpu")
    declared = {n: TensorDecl(n, tuple(t.shape), tuple(t.stride()), t.dtype, cpu) for n, t in tensors.items()}
    text, order = function(expr, declared)
    (folder / "f.cpp").write_text(text)
    built = [*find_command("a test"), "-shared", "-fPIC", "-o", str(folder / "f.so"), str(folder / "f.cpp")]
    subprocess.run(built, check=True)
    assert ctypes.CDLL(str(folder / "f.so")).f(*(ctypes.c_void_p(tensors[n].data_ptr()) for n in order)) == status
    return tensors["out"]


def test_a_language_of_types_and_operators_writes_rows_scans_and_gathers(tmp_path) -> None:
    x, at = torch.randn(3, 4), torch.tensor([3, 0, 0, 2])
    value = load("x", (ROW, COLUMN), F32)
    picked = load("x", (ROW, Index.of_value(check_index(load("at", (COLUMN,), I64), 4))), F32)
    top = reduce("max", (COLUMN,), value)
    total = call("add", call("add", scan("sum", COLUMN, value), picked), call("exp", call("sub", value, top)))
    want = x.cumsum(1) + x[:, at] + (x - x.amax(1, keepdim=True)).exp()
    torch.testing.assert_close(run(total, tmp_path, x=x, at=at), want)


def test_welford_and_arg_reductions_become_plain_ones(tmp_path) -> None:
    from turret.ir import flatten, index_value, part

    x = torch.tensor([[1.0, 5.0, 5.0, 2.0], [float("nan"), 1.0, float("nan"), 9.0], [0.0, 0.0, 0.0, 0.0]])
    value = load("x", (ROW, COLUMN), F32)
    number = index_value(flatten([COLUMN.index], (4,)))
    best = cast(reduce("argmin", (COLUMN,), value, number), F32)
    spread = part(reduce("welford", (COLUMN,), value), "m2")
    found = run(best, tmp_path, x=x.nan_to_num(3.0))
    torch.testing.assert_close(found, x.nan_to_num(3.0).argmin(1, keepdim=True).expand(3, 4).float())
    y = torch.randn(3, 4)
    (tmp_path / "other").mkdir()
    want = (y - y.mean(1, keepdim=True)).square().sum(1, keepdim=True).expand(3, 4)
    torch.testing.assert_close(run(spread, tmp_path / "other", x=y), want)


def test_a_check_that_fails_is_a_status(tmp_path) -> None:
    at = torch.tensor([3, 0, 7, 2])
    picked = load("x", (ROW, Index.of_value(check_index(load("at", (COLUMN,), I64), 4))), F32)
    run(picked, tmp_path, INDEX_ERROR, x=torch.randn(3, 4), at=at)


def test_a_dtype_without_a_type_is_refused_by_name() -> None:
    half = torch.zeros(3, 4, dtype=torch.float16)
    declared = {n: TensorDecl(n, (3, 4), (4, 1), half.dtype, half.device) for n in ("x", "out")}
    with pytest.raises(UnsupportedError, match=r"C kernels do not compute with torch\.float16"):
        function(load("x", (ROW, COLUMN), half.dtype), declared)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_literal_of_a_double_is_that_number(value: float) -> None:
    assert float(literal(value, F64, TYPES[F64]).strip("()")) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_literal_of_an_integer_is_that_number(value: int) -> None:
    assert eval(literal(value, I64, TYPES[I64]).replace("ll", "")) == value


@given(st.integers(-50, 50), st.integers(1, 9))
def test_the_text_of_a_size_computes_it(n: int, m: int) -> None:
    s, t = sympy.Symbol("s", integer=True), sympy.Symbol("t", integer=True, positive=True)
    functions = {"floor_div": lambda a, b: a // b, "floor_mod": lambda a, b: a % b, "least": min, "most": max}
    for size in (s * 3 - t, sympy.floor(s / t), sympy.Max(s, t) + 1, sympy.Min(s, 4), s**2, sympy.Mod(s, t)):
        text = size_text(size, lambda name: name)
        assert eval(text, {**functions, "s": n, "t": m}) == size.subs({s: n, t: m}), text


def test_a_size_that_no_text_computes_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"OpenCL kernels cannot compute the size sin"):
        size_text(sympy.sin(sympy.Symbol("s")), str, "OpenCL")
