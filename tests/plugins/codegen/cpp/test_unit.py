"""Units, segments, content addressing, and the compiler."""

from __future__ import annotations

import ctypes
import re
import stat
from pathlib import Path

import pytest
import torch

from tests.plugins.codegen.cpp.kernel_lab import build, declare, element, pointwise
from turret.errors import CodegenError, UnsupportedError
from turret.graph.ops.random_ops import random_reference
from turret.ir import Kernel, Store, call, check_index, constant, index_value, load, random, reduce
from turret.ir.index import Index, Var
from turret.plugins.codegen.cpp import compile_unit, compiler, emit, find_compiler, segment, translation_unit, unit_key
from turret.plugins.codegen.cpp import load as load_library
from turret.plugins.codegen.cpp.unit import parts
from turret.storage import toolchain
from turret.storage.artifact_cache import ArtifactCache, Entry

F32 = torch.float32


def layer(number: int):
    """The same kernel as another layer of a model has it: other names everywhere."""
    i, r = Var(f"i{number}", 8), Var(f"r{number}", 200)
    x, w = load(f"x{number}", (i, r), F32), load(f"w{number}", (r,), F32)
    expr = call("mul", call("sub", x, reduce("max", (r,), x)), w)
    kernel = Kernel(
        f"layer{number}",
        (i,),
        (r,),
        (Store(f"out{number}", (i.index, r.index), expr),),
        (f"mul_{number}",),
        (f"model.py:{number}",),
    )
    tensors = {f"x{number}": torch.randn(8, 200), f"w{number}": torch.randn(200), f"out{number}": torch.zeros(8, 200)}
    return kernel, tensors


def declarations(tensors: dict[str, torch.Tensor]) -> dict:
    return {name: declare(name, value) for name, value in tensors.items()}


def test_equal_kernels_of_different_layers_share_one_function() -> None:
    (first, first_tensors), (second, second_tensors) = layer(1), layer(2)
    one, two = emit(first, declarations(first_tensors)), emit(second, declarations(second_tensors))
    assert one.function == two.function and one.source == two.source
    assert one.buffers == ("x1", "w1", "out1") and two.buffers == ("x2", "w2", "out2")
    source = translation_unit([one, two])
    assert source.count(f"int64_t {one.function}(") == 1
    assert "model.py:1" in source and "model.py:2" in source


def test_source_is_the_same_to_the_byte_every_time() -> None:
    texts = set()
    for _ in range(3):
        kernel, tensors = layer(3)
        texts.add(translation_unit([emit(kernel, declarations(tensors))]))
    assert len(texts) == 1


def test_a_different_constant_or_stride_is_a_different_function() -> None:
    i = Var("i", 10)
    x = torch.randn(20)
    names = set()
    for value, source in ((1.0, x[:10]), (2.0, x[:10]), (1.0, x[::2])):
        case = pointwise(call("add", element("x", source, i), constant(value, F32)), (i,), {"x": source})
        names.add(emit(case.kernel, case.declarations).function)
    assert len(names) == 3


def test_segment_runs_kernels_in_order_over_one_table() -> None:
    (first, tensors), (second, more) = layer(1), layer(2)
    del more["x2"]
    one = emit(first, declarations(tensors))
    two = emit(second, declarations({"x2": tensors["out1"], **more}))
    everything = {**tensors, **more}
    order = list(everything)
    slots = {**{n: order.index(n) for n in order}, "x2": order.index("out1")}
    parts = segment("run", [(k, [slots[n] for n in k.buffers], []) for k in (one, two)])
    library = build(translation_unit([one, two], [parts]))
    table = (ctypes.c_void_p * len(order))(*(everything[n].data_ptr() for n in order))
    library.run.restype = ctypes.c_int64
    assert library.run(table, None, ctypes.c_int(2)) == 0
    step = (tensors["x1"] - tensors["x1"].amax(1, keepdim=True)) * tensors["w1"]
    torch.testing.assert_close(more["out2"], (step - step.amax(1, keepdim=True)) * more["w2"])


def test_kernels_that_draw_from_different_streams_are_one_function_and_draw_different_numbers() -> None:
    i, seed = Var("i", 50), torch.tensor(-987654321987)
    streams = (3, (7 << 32) + 1, 3)
    cases = []
    for stream in streams:
        expr = call("add", *(random("uniform", element("seed", seed), index_value(i.index), s) for s in (stream, 4)))
        cases.append(pointwise(expr, (i,), {"seed": seed}))
    same = random("uniform", element("seed", seed), index_value(i.index), 9)
    cases.append(pointwise(call("add", same, same), (i,), {"seed": seed}))
    emitted = [emit(case.kernel, case.declarations) for case in cases]
    assert len({k.function for k in emitted[:3]}) == 1 and emitted[3].function != emitted[0].function
    tensors = {"seed": seed} | {f"out{n}": torch.zeros(50) for n in range(4)}
    order = list(tensors)
    slots = [[order.index(b if b == "seed" else f"out{n}") for b in k.buffers] for n, k in enumerate(emitted)]
    parts = segment("run", [(k, at, []) for k, at in zip(emitted, slots, strict=True)])
    library = build(translation_unit(emitted, [parts]))
    addresses = (ctypes.c_void_p * len(order))(*(tensors[n].data_ptr() for n in order))
    library.run.restype = ctypes.c_int64
    assert library.run(addresses, None, ctypes.c_int(1)) == 0
    for number, pair in enumerate([*((s, 4) for s in streams), (9, 9)]):
        want = sum(random_reference(seed, (50,), s, "uniform", F32) for s in pair)
        torch.testing.assert_close(tensors[f"out{number}"], want, rtol=0, atol=0)


def test_segment_stops_at_the_first_error() -> None:
    i = Var("i", 3)
    at, table, other = torch.tensor([0, 7, 1]), torch.randn(3), torch.zeros(3)
    row = Index.of_value(check_index(element("at", at, i), 3))
    gather = pointwise(load("table", (row,), F32), (i,), {"at": at, "table": table})
    fill = Kernel("fill", (i,), (), (Store("other", (i.index,), constant(1.0, F32)),))
    one, two = emit(gather.kernel, gather.declarations), emit(fill, {"other": declare("other", other)})
    tensors = {**gather.tensors, "other": other}
    order = list(tensors)
    parts = segment("run", [(k, [order.index(n) for n in k.buffers], []) for k in (one, two)])
    library = build(translation_unit([one, two], [parts]))
    addresses = (ctypes.c_void_p * len(order))(*(tensors[n].data_ptr() for n in order))
    library.run.restype = ctypes.c_int64
    assert library.run(addresses, None, ctypes.c_int(1)) == 1
    assert (other == 0).all()


def test_complex_tensors_are_refused_by_name() -> None:
    i = Var("i", 3)
    x = torch.zeros(3, dtype=torch.complex64)
    case = pointwise(element("x", x, i), (i,), {"x": x})
    with pytest.raises(UnsupportedError, match="complex64"):
        emit(case.kernel, case.declarations)


def trivial() -> str:
    i = Var("i", 4)
    x = torch.randn(4)
    case = pointwise(call("neg", element("x", x, i)), (i,), {"x": x})
    return translation_unit([emit(case.kernel, case.declarations)])


def test_missing_compiler_says_what_was_tried_and_how_to_get_one(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CodegenError, match=r"g\+\+: not found; clang\+\+: not found.*apt install g\+\+"):
        find_compiler()
    with pytest.raises(CodegenError, match="no-such-compiler: not found"):
        find_compiler("no-such-compiler")


def broken_compiler(tmp_path: Path, script: str) -> str:
    path = tmp_path / "broken-g++"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_broken_compiler_gives_one_error_with_its_messages(tmp_path: Path) -> None:
    path = broken_compiler(
        tmp_path, 'case "$1" in --version) echo "fake 1.0";; *) echo "cc1plus: out of luck" >&2; exit 1;; esac'
    )
    with pytest.raises(CodegenError, match="out of luck"):
        compile_unit(trivial(), find_compiler(path), ArtifactCache(tmp_path / "cache"))
    assert ArtifactCache(tmp_path / "cache").entries() == []


def test_compiler_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    path = broken_compiler(tmp_path, "exit 0")
    with pytest.raises(CodegenError, match="failed on generated code"):
        compile_unit(trivial(), find_compiler(path), ArtifactCache(tmp_path / "cache"))


def test_library_is_compiled_once_and_found_again(tmp_path: Path) -> None:
    compiler, source, cache = find_compiler(), trivial(), ArtifactCache(tmp_path)
    entry, found = compile_unit(source, compiler, cache)
    again, found_again = compile_unit(source, compiler, cache)
    assert not found and found_again and again.files == entry.files
    assert load_library(again) is load_library(entry)


def test_key_depends_on_source_flags_and_compiler() -> None:
    plain, flagged = find_compiler(), find_compiler(None, "-g")
    keys = {unit_key("a", plain), unit_key("b", plain), unit_key("a", flagged)}
    assert len(keys) == 3 and "-g" in flagged.flags


def test_loading_what_is_no_library_is_a_codegen_error() -> None:
    with pytest.raises(CodegenError, match="cannot be loaded"):
        load_library(Entry("key", "library", {"kernels.so": b"not a library"}))


def test_process_keeps_one_openmp_runtime() -> None:
    """Two pools of threads would fight over the cores: ours must be the one that torch has loaded."""
    i = Var("i", 1 << 20)
    x = torch.randn(1 << 20)
    case = pointwise(call("exp", element("x", x, i)), (i,), {"x": x})
    load_library(compile_unit(translation_unit([emit(case.kernel, case.declarations)]), find_compiler())[0])
    maps = Path("/proc/self/maps").read_text()
    assert len({line.split()[-1] for line in maps.splitlines() if "libgomp" in line}) == 1


def test_a_unit_in_parts_that_are_compiled_side_by_side_makes_the_same_library(monkeypatch) -> None:
    (first, tensors), (second, more) = layer(1), layer(2)
    one, two = emit(first, declarations(tensors)), emit(second, declarations(more))
    i = Var("i", 8)
    total = pointwise(call("neg", element("out1", tensors["out1"], i, 3)), (i,), {"out1": tensors["out1"]})
    three = emit(total.kernel, total.declarations)
    everything = {**tensors, **more, **total.tensors}
    order = list(everything)
    run = segment("run", [(k, [order.index(n) for n in k.buffers], []) for k in (one, two, three)])
    source = translation_unit([one, two, three], [run])
    for count in (1, 2, 3, 7):
        made = parts(source, count)
        assert len(made) == min(count, 3)  # two kernels, as the layers' is one, and the segment
        names = [one.function, three.function, "run"]
        for unit in made:
            assert all(unit.count(f"int64_t {name}(") == 1 for name in names)
        for name in names:
            assert sum(re.search(rf"int64_t {name}\(.*\) {{", unit) is not None for unit in made) == 1
    monkeypatch.setattr(compiler, "PART", 1)
    monkeypatch.setattr(toolchain, "processors", lambda: 3)
    running: list[int] = []
    build_all = toolchain.build_all
    monkeypatch.setattr(toolchain, "build_all", lambda c, m, w: (running.append(len(c)), build_all(c, m, w))[1])
    library = load_library(compile_unit(source, find_compiler(), ArtifactCache())[0])
    assert running == [3, 1]
    table = (ctypes.c_void_p * len(order))(*(everything[n].data_ptr() for n in order))
    library.run.restype = ctypes.c_int64
    assert library.run(table, None, ctypes.c_int(1)) == 0
    for number in (1, 2):
        x, w = everything[f"x{number}"], everything[f"w{number}"]
        assert torch.equal(everything[f"out{number}"], (x - x.amax(1, keepdim=True)) * w)
    assert torch.equal(everything["out"], -everything["out1"][:, 3])
