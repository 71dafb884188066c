"""What is written to the cache comes back equal, of the same types, and nothing else is written."""

from __future__ import annotations

import collections
import enum
import json
import math

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from turret.errors import CacheError
from turret.hooks.signature import InputInfo, Layout, Mutation
from turret.storage import codec

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.strided, torch.channels_last]),
    st.sampled_from([torch.device("cpu"), torch.device("cuda", 1), torch.device("meta")]),
    st.sampled_from(list(Mutation)),
    st.builds(Layout, st.tuples(st.integers()), st.tuples(st.text()), st.integers()),
    st.builds(InputInfo, st.booleans(), st.sampled_from(list(Mutation)), st.none() | st.integers()),
)
keys = st.one_of(st.text(), st.integers(), st.tuples(st.integers(), st.text()), st.none())
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


def same(a, b):
    """Equal, of equal types all the way down, NaN equal to itself and -0.0 unequal to 0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values())) and all(map(same, a, b))
    return a == b


@given(values)
@settings(max_examples=300, deadline=None)
def test_values_come_back_the_same(value):
    text = codec.dumps(value)
    assert same(codec.loads(text), value)
    assert codec.dumps(codec.loads(text)) == text


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int64,
    torch.bool, torch.complex64,
]  # fmt: skip


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    count = math.prod(shape)
    tensor = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8)
    tensor = (tensor % 2).bool()[:count] if dtype == torch.bool else tensor.view(dtype)
    tensor = tensor.reshape(shape)
    if len(shape) > 1 and draw(st.booleans()):
        tensor = tensor.transpose(0, 1)
    if shape and draw(st.booleans()):
        tensor = tensor[::2]
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(3, *tensor.shape)
    if dtype.is_complex and draw(st.booleans()):
        tensor = tensor.conj()
    return tensor


@given(tensors())
@settings(max_examples=150, deadline=None)
def test_tensors_come_back_to_the_bit_with_their_strides(tensor):
    again = codec.loads(codec.dumps({"tensor": tensor}))["tensor"]
    assert (again.dtype, again.shape, again.device) == (tensor.dtype, tensor.shape, tensor.device)
    assert again.stride() == tensor.resolve_conj().stride()
    assert torch.equal(bits(again), bits(tensor))


def bits(tensor):
    dense = tensor.resolve_conj().clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)


class Pair(tuple):
    pass


class Level(enum.IntEnum):
    LOW = 1


@attrs.frozen
class Unregistered:
    value: int = 0


@pytest.mark.parametrize(
    "value",
    [object(), {1}, b"bytes", len, Unregistered(), Pair((1, 2)), Level.LOW, collections.OrderedDict(a=1)],
    ids=lambda v: type(v).__name__,
)
def test_what_would_come_back_as_something_else_is_refused(value):
    with pytest.raises(CacheError, match="no way to write"):
        codec.dumps([value])


def test_sparse_and_fake_tensors_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
    for tensor in (torch.ones(2).to_sparse(), fake):
        with pytest.raises(CacheError):
            codec.dumps(tensor)


def test_reading_builds_registered_classes_alone():
    with pytest.raises(KeyError):
        codec.loads(json.dumps({"$": "Unregistered", "value": 1}))
    with pytest.raises(KeyError):
        codec.loads(json.dumps({"$": "object"}))
