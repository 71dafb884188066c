"""Tensors that one native call makes are those that torch would make one by one."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turret.hooks.devices import Placed
from turret.hooks.graph_capture import extent
from turret.plan.launch.fresh_tensors import load, tensor_maker

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype]:
    """A dense layout, its dimensions in any order in memory, or one with gaps."""
    shape = draw(st.lists(st.integers(0, 4), max_size=7))
    stride, step = [0] * len(shape), draw(st.integers(1, 2))
    for n in draw(st.permutations(range(len(shape)))):
        stride[n], step = step, step * max(1, shape[n])
    return tuple(shape), tuple(stride), draw(st.sampled_from(DTYPES))


def facts(tensor: torch.Tensor) -> tuple:
    """All that tells a tensor from another, but for where it lies."""
    return (
        tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device,
        tensor.untyped_storage().nbytes(), tensor.is_contiguous(), tensor.requires_grad, tensor.is_inference(),
        tensor._is_view(), None if tensor.is_inference() else tensor._version, tensor.untyped_storage().resizable(),
        torch._C._dispatch_keys(tensor).raw_repr(),
    )  # fmt: skip


@given(st.lists(layouts(), min_size=1, max_size=6), st.booleans())
def test_tensors_in_memory_of_their_own_are_as_torch_makes_them(drawn: list, inference: bool) -> None:
    nbytes = [extent(shape, stride) * dtype.itemsize for shape, stride, dtype in drawn]
    placed = [Placed(*layout, n) for n, layout in enumerate(drawn)]
    told = list(reversed(range(len(drawn))))
    make = tensor_maker(CPU, nbytes, placed, told)
    with torch.inference_mode(inference):
        for _ in range(2):
            made, addresses = make()
            expected = [torch.empty_strided(shape, stride, dtype=dtype) for shape, stride, dtype in drawn]
            assert list(map(facts, made)) == list(map(facts, expected))
            assert addresses == [made[n].data_ptr() for n in told]
            for tensor in made:
                assert tensor.zero_().numel() == math.prod(tensor.shape)


def test_tensors_in_one_block_share_its_storage_and_have_versions_of_their_own() -> None:
    placed = [Placed((2, 2), (2, 1), torch.float32, 0, 4 * n) for n in range(3)]
    made, addresses = tensor_maker(CPU, [48], placed, [2, 0])()
    assert {t.untyped_storage().data_ptr() for t in made} == {made[0].data_ptr()}
    assert addresses == [made[0].data_ptr() + 32, made[0].data_ptr()]
    made[1].fill_(1)
    assert [t._version for t in made] == [0, 1, 0] and not made[1]._is_view()
    storage = weakref.ref(made[0].untyped_storage())
    del made
    gc.collect()
    assert storage() is None


def test_each_call_takes_other_memory_while_the_first_is_in_use() -> None:
    make = tensor_maker(CPU, [64, 64], [Placed((16,), (1,), torch.float32, n) for n in range(2)], [0, 1])
    (first, at_first), (second, at_second) = make(), make()
    assert len({*at_first, *at_second}) == 4
    first[0].requires_grad_().mul(2).sum().backward()
    assert first[0].grad is not None and second[0].grad is None


def test_what_cannot_be_made_is_an_error_that_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"can't allocate memory|out of memory"):
        tensor_maker(CPU, [1 << 61], [Placed((1,), (1,), torch.float32, 0)], [])()
    with pytest.raises(IndexError, match="none of the blocks"):
        tensor_maker(CPU, [4], [Placed((1,), (1,), torch.float32, 1)], [])
    with pytest.raises(IndexError, match="no tensor"):
        tensor_maker(CPU, [4], [Placed((1,), (1,), torch.float32, 0)], [1])
    with pytest.raises(TypeError, match="no arguments"):
        tensor_maker(CPU, [4], [Placed((1,), (1,), torch.float32, 0)], [])(1)  # type: ignore[call-arg]
    somebodys = torch.frombuffer(bytearray(4), dtype=torch.float32)
    with pytest.raises(ValueError, match="no allocator"):
        load().maker(somebodys._cdata, (4,), (), ())
