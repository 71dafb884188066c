"""What surrounds the values of a kernel: blocks, their ends, and the stores in them."""

from __future__ import annotations

import attrs
import pytest
import torch

from tests.plugins.codegen.cpp.kernel_lab import Case, element
from tests.plugins.codegen.triton.tiles.test_specialization import widest_load
from tests.plugins.codegen.triton.triton_lab import check
from turret.ir import Kernel, Store, TensorDecl, Var, call, load
from turret.plugins.codegen.triton import DeviceProperties, TritonKernel, emit
from turret.plugins.codegen.triton.emission.body import FEWEST


def squares(count: int, step: int = 1) -> TritonKernel:
    i = Var("i0", count)
    x = TensorDecl("x", (count,), (step,), torch.bfloat16, torch.device("cuda"))
    store = Store("y", (i.index,), call("square", load("x", (i.index,), x.dtype)))
    (made,) = emit(Kernel("k", (i,), (), (store,)), {"x": x, "y": attrs.evolve(x, name="y")}, DeviceProperties(), {})
    return made


@pytest.mark.parametrize("short", [1, 15, 16])
def test_whatever_a_large_size_is_its_blocks_are_read_in_vectors(short: int) -> None:
    made = squares((1 << 20) - short)
    assert widest_load(made) == 128
    assert ("else:" in made.source) == bool(short % 16)


def test_few_elements_and_such_as_lie_apart_have_one_body() -> None:
    for made in (squares(FEWEST - 1), squares(FEWEST + 1, step=3)):
        assert "else:" not in made.source and "xmask" in made.source


@pytest.mark.parametrize("count", [FEWEST + 1, FEWEST + 1023])
def test_the_last_block_of_a_large_odd_size_ends_where_the_size_does(count: int) -> None:
    i = Var("i0", count)
    tensors = {"x": torch.randn(count), "y": torch.zeros(count + 64)}
    declarations = {
        "x": TensorDecl("x", (count,), (1,), torch.float32, torch.device("cpu")),
        "y": TensorDecl("y", (count + 64,), (1,), torch.float32, torch.device("cpu")),
    }
    store = Store("y", (i.index,), call("square", element("x", tensors["x"], i)))
    check([Case(Kernel("k", (i,), (), (store,)), tensors, declarations)])
    assert not tensors["y"][count:].any()
