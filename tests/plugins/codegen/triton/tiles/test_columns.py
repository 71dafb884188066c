"""Sums down columns: few parts where the device is busy with them, and blocks that leave no lane idle."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.codegen.cpp.kernel_lab import declare, element
from turret.ir import Kernel, Store, call, cast, part, reduce
from turret.ir.index import Var
from turret.plugins.codegen.triton import DeviceProperties, TritonKernel, emit

H200 = DeviceProperties(multiprocessors=132)
SHAPES = [(4096, 768), (12608, 768), (200704, 64), (50176, 512), (12544, 1024), (3136, 2048)]


def kernels(rows: int, columns: int, kind: str) -> list[TritonKernel]:
    i, j = Var("i", columns), Var("j", rows)
    tensors = {name: torch.empty(rows, columns, dtype=torch.bfloat16, device="meta") for name in "xyz"}
    value = [cast(element(name, tensors[name], j, i), torch.float32) for name in "xyz"]
    if kind == "moments":
        moments = reduce("welford", (j,), value[0])
        roots = [part(moments, "mean"), part(moments, "m2")]
    else:
        roots = [
            reduce("sum", (j,), value[0] if kind == "sum" else call("mul", call("add", value[0], value[1]), value[2]))
        ]
    outputs = {f"out{n}": torch.empty(columns, dtype=torch.float32, device="meta") for n in range(len(roots))}
    stores = tuple(Store(name, (i.index,), root) for name, root in zip(outputs, roots, strict=True))
    return emit(
        Kernel("k", (i,), (j,), stores),
        {name: declare(name, tensor) for name, tensor in {**tensors, **outputs}.items()},
        properties=H200,
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["sum", "moments", "of three"])
def test_parts_fill_the_device_and_the_second_stage_has_them_in_one_block(shape: tuple[int, int], kind: str) -> None:
    parts, whole = kernels(*shape, kind)
    blocks = dict(parts.configs[0].constants)
    count = int(next(s.count for s in parts.scratch)) // shape[1]
    assert 132 <= count * shape[1] / blocks["XBLOCK"] <= 16 * 132
    assert count <= 256 and dict(whole.configs[0].constants)["RBLOCK"] >= count
    assert blocks["XBLOCK"] * blocks["RBLOCK"] <= 64 * 32 * 4
