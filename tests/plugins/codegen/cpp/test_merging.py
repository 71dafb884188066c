"""Kernels that differ in numbers alone are one function, and give what each of them gave by itself, to the bit."""

from __future__ import annotations

import ctypes
import functools
import re
from unittest import mock

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.codegen.cpp.kernel_lab import Case, build, element, pointwise
from tests.plugins.codegen.cpp.random_kernels import cases
from turret.ir import Kernel, Store, call, cast, constant, index_value, load, part, reduce
from turret.ir.index import Var
from turret.plugins.codegen.cpp import emit, merging, segment, translation_unit
from turret.plugins.codegen.cpp.merging import VECTOR, merge_similar

F32 = torch.float32


def gelu(rows: int, width: int) -> Case:
    i, j = Var("i", rows), Var("j", width)
    x, bias = torch.randn(rows, width), torch.randn(width)
    value = call("add", element("x", x, i, j), element("bias", bias, j))
    value = call("mul", value, call("erf", call("mul", value, constant(float(width), F32))))
    return pointwise(value, (i, j), {"x": x, "bias": bias})


def column_sums(rows: int, width: int) -> Case:
    i, r = Var("i", width), Var("r", rows)
    tensors = {"x": torch.randn(rows, width), "out": torch.zeros(width)}
    stored = Store("out", (i.index,), reduce("sum", (r,), load("x", (r, i), F32)))
    return Case(Kernel("sums", (i,), (r,), (stored,)), tensors)


def layer_norm(rows: int, width: int) -> Case:
    i, r = Var("i", rows), Var("r", width)
    x = load("x", (i, r), F32)
    row = reduce("welford", (r,), x)
    scale = call("rsqrt", call("div", part(row, "m2"), constant(float(width), F32)))
    value = call("mul", call("sub", x, part(row, "mean")), scale)
    tensors = {"x": torch.randn(rows, width), "out": torch.zeros(rows, width)}
    return Case(Kernel("norm", (i,), (r,), (Store("out", (i.index, r.index), value),)), tensors)


def divided(rows: int, width: int) -> Case:
    """Indices that are divided, and integers of a narrow type that are multiplied past their range."""
    i, j = Var("i", rows), Var("j", width)
    x = torch.randint(-100, 100, (rows, width), dtype=torch.int32)
    flat = index_value(i.index * width + j.index)
    value = call("mul", element("x", x, i, j), constant(100_000 * width, torch.int32))
    value = call("add", value, cast(call("floordiv", flat, constant(3 * width, torch.int64)), torch.int32))
    return pointwise(value, (i, j), {"x": x})


def turned(rows: int, width: int) -> Case:
    i, j = Var("i", rows), Var("j", width)
    x = torch.randn(width, rows)
    return pointwise(call("neg", element("x", x, j, i)), (i, j), {"x": x})


FAMILIES = (gelu, column_sums, layer_norm, divided, turned)


def results(drawn: list[Case], merge: bool) -> tuple[list[torch.Tensor], int]:
    """What the cases store, run as a segment each; and how many functions there are."""
    emitted = [emit(case.kernel, case.declarations) for case in drawn]
    if merge:
        emitted = merge_similar(emitted)
    names = [[f"{number}.{name}" for name in kernel.buffers] for number, kernel in enumerate(emitted)]
    order = [name for own in names for name in own]
    segments = [
        segment(f"run{number}", [(kernel, [order.index(name) for name in names[number]], [])])
        for number, kernel in enumerate(emitted)
    ]
    library = build(translation_unit(emitted, segments))
    tensors = {f"{number}.{name}": t.clone() for number, c in enumerate(drawn) for name, t in c.tensors.items()}
    table = (ctypes.c_void_p * len(order))(*(tensors[name].data_ptr() for name in order))
    for number in range(len(drawn)):
        run = getattr(library, f"run{number}")
        run.restype = ctypes.c_int64
        assert run(table, None, ctypes.c_int(1 + number % 2)) == 0
    stored = [tensors[f"{number}.out"] for number in range(len(drawn))]
    return stored, len({kernel.function for kernel in emitted})


sizes = st.tuples(
    st.sampled_from((3, 64, 70, 130)), st.sampled_from((48, 64, 80, 100, 128, 133, 700, 1040, 1100, 2060))
)


@settings(max_examples=3)
@given(st.lists(sizes, min_size=4, max_size=6, unique=True))
def test_merged_kernels_give_the_same_to_the_bit(shapes: list[tuple[int, int]]) -> None:
    drawn = [family(*shape) for family in FAMILIES for shape in shapes]
    (apart, many), (together, few) = results(drawn, merge=False), results(drawn, merge=True)
    assert few <= many
    for case, one, other in zip(drawn, apart, together, strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other), case.kernel


@pytest.mark.parametrize("family", FAMILIES)
def test_what_differs_in_width_alone_is_one_function(family) -> None:
    # Rows of many groups of lanes: those of few are unrolled.  64-bit divisions are by numbers of the code.
    drawn = [family(64, width) for width in (2048, 2560, 3072)]
    (_, many), (_, few) = results(drawn, merge=False), results(drawn, merge=True)
    assert many == 3 and (few == 3 if family is divided else few < 3)


def test_short_rows_and_loops_stay_as_they_are() -> None:
    for family, widths in ((gelu, (16, 32)), (layer_norm, (64, 128)), (column_sums, (16, 48))):
        emitted = [emit(case.kernel, case.declarations) for case in (family(70, width) for width in widths)]
        assert merge_similar(emitted) == emitted


def test_rows_of_small_kernels_are_merged_where_there_are_many() -> None:
    drawn = [layer_norm(32, width) for width in (128, 192, 256, 320)]
    (apart, many), (together, few) = results(drawn, merge=False), results(drawn, merge=True)
    assert (many, few) == (4, 1)
    assert all(map(torch.equal, apart, together))
    large = [
        emit(case.kernel, case.declarations) for case in (layer_norm(9000, width) for width in (128, 192, 256, 320))
    ]
    for kept in (large, [emit(case.kernel, case.declarations) for case in drawn[:3]]):
        assert merge_similar(kept) == kept


def test_kernels_with_equal_sources_stay_one_and_those_alone_are_untouched() -> None:
    one, other = gelu(70, 100), gelu(70, 100)
    emitted = [emit(case.kernel, case.declarations) for case in (one, other, column_sums(3, 100))]
    assert merge_similar(emitted) == emitted


LEAST = 4
"""Random kernels are small."""

NUMBER = re.compile(r"\b(number\d+)\b")


def with_numbers(source: str, numbers: tuple[str, ...], words: int) -> str:
    """A merged source with its numbers written out."""
    own = {}
    for name, position in re.findall(r"const \w+ (number\d+) = .*sizes\[(\d+)\]", source):
        text = numbers[int(position) - words].removeprefix("(int64_t)")
        own[name] = re.sub(r"^bits_of<\w+>\((.*)\)$", r"\1", text)
    lines = [line for line in source.splitlines() if not re.match(r"\s*const \w+ number\d+ =", line)]
    text = "\n".join(lines[1:])
    bound = rf"\(int\)\((number\d+) \* {VECTOR}u \+ (\d+)u\)"
    text = re.sub(bound, lambda m: str(int(own[m[1]]) * VECTOR + int(m[2])), text)
    return NUMBER.sub(lambda m: own[m[1]], text)


LARGER = re.compile(r"(?<![\w.<\[])(\d+)(?![\w.\]])")


def _raised(step: int, match: re.Match[str]) -> str:
    return str(int(match[1]) + step * (int(match[1]) >= LEAST))


ARRAY = re.compile(r"(\w+ \w+\[)(\d+)(\];)")


@settings(max_examples=40)
@given(cases(), st.lists(st.sampled_from((16, 32, 1600)), min_size=1, max_size=2, unique=True))
def test_numbers_written_out_give_the_sources_that_were_merged(case: Case, more: list[int]) -> None:
    first = emit(case.kernel, case.declarations)
    siblings = [first]
    for step in more:
        source = LARGER.sub(functools.partial(_raised, step), first.source)
        if source != first.source:
            siblings.append(attrs.evolve(first, function=f"{first.function}{step}", source=source))
    with mock.patch.object(merging, "LEAST", LEAST):
        merged = merge_similar(siblings)
    for before, after in zip(siblings, merged, strict=True):
        if after.function == before.function:
            assert after == before
            continue
        wanted = "\n".join(before.source.splitlines()[1:])
        got = with_numbers(after.source, after.numbers, after.words)
        assert ARRAY.sub(r"\1\3", got) == ARRAY.sub(r"\1\3", wanted)
        for (_, length, _), (_, needed, _) in zip(ARRAY.findall(got), ARRAY.findall(wanted), strict=True):
            assert int(length) >= int(needed)


def test_a_checked_kernel_takes_its_numbers_behind_the_report() -> None:
    drawn = [gelu(64, width) for width in (2048, 2560)]
    emitted = merge_similar(emit(case.kernel, case.declarations, check_bounds=True) for case in drawn)
    assert emitted[0].function == emitted[1].function and emitted[0].numbers
    assert f"sizes[{emitted[0].words}]" in emitted[0].source
    assert emitted[0].words == 3 * len(emitted[0].buffers) + 1
