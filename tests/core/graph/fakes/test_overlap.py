"""Tensors in one storage: which have elements in common, and what ops that write to several of them leave."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import turret
from tests.plugins.joint_harness import assert_same, compiled
from turret.errors import UnsupportedError
from turret.graph.fakes.corrections import CorrectedFakeTensorMode
from turret.graph.fakes.overlap import Overlap, overlap

ELEMENTS = 60


@st.composite
def strided_views(draw, dtypes=(torch.float32, torch.float64, torch.int8)):
    """A view of any strides within the first bytes of a buffer."""
    dtype = draw(st.sampled_from(dtypes))
    limit, offset = ELEMENTS // 8 * 8 // dtype.itemsize, draw(st.integers(0, 6))
    shape, strides, last = [], [], offset
    for _ in range(draw(st.integers(0, 3))):
        stride = draw(st.integers(0, 9))
        extent = draw(st.integers(0, 4))
        if last + stride * max(extent - 1, 0) < limit:
            shape.append(extent)
            strides.append(stride)
            last += stride * max(extent - 1, 0)
    return dtype, shape, strides, offset


def make(buffer, view):
    dtype, shape, strides, offset = view
    return buffer.view(dtype).as_strided(shape, strides, offset)


def places(view):
    dtype, shape, strides, offset = view
    found = [offset]
    for extent, stride in zip(shape, strides, strict=True):
        found = [place + stride * index for place in found for index in range(extent)]
    return {place * dtype.itemsize + byte for place in found for byte in range(dtype.itemsize)}


@settings(max_examples=300, deadline=None)
@given(strided_views(), strided_views())
def test_views_overlap_where_they_have_a_byte_in_common(one, other):
    buffer = torch.zeros(ELEMENTS // 8 * 8, dtype=torch.int8)
    found = overlap(make(buffer, one), make(buffer, other))
    assert (found is Overlap.SAME) == (one == other)
    if one != other:
        assert (found is Overlap.PARTIAL) == bool(places(one) & places(other))


WRITES = {
    "add_": lambda a, b: a.add_(b),
    "copy_": lambda a, b: a.copy_(b),
    "lerp_": lambda a, b: a.lerp_(b, 0.5),
    "where": lambda a, b: torch.where(b > 3, b, b, out=a),
    "maximum": lambda a, b: torch.maximum(b, b, out=a),
    "masked_fill_": lambda a, b: a.masked_fill_(b > 3, 2.0),
    "masked_scatter_": lambda a, b: a.masked_scatter_(b > 3, b),
    "fill_": lambda a, b: a.fill_(1.0),
    "zero_": lambda a, b: a.zero_(),
    "uniform_": lambda a, b: a.uniform_(),
    "cumsum": lambda a, b: torch.cumsum(b, 0, out=a),
    "gelu": lambda a, b: torch.ops.aten.gelu.out(b, out=a),
    "gather": lambda a, b: torch.gather(b, 0, torch.zeros(b.shape, dtype=torch.int64), out=a),
    "index_add_": lambda a, b: a.index_add_(0, torch.arange(b.shape[0]), b),
    "scatter_": lambda a, b: a.scatter_(0, torch.zeros(b.shape, dtype=torch.int64), b),
    "scatter_add_": lambda a, b: a.scatter_add_(0, torch.zeros(b.shape, dtype=torch.int64), b),
    "scatter_reduce_": lambda a, b: a.scatter_reduce_(0, torch.zeros(b.shape, dtype=torch.int64), b, "amax"),
    "index_copy_": lambda a, b: a.index_copy_(0, torch.arange(b.shape[0]), b),
    "index_select": lambda a, b: torch.index_select(b, 0, torch.arange(b.shape[0]), out=a),
    "index_put_": lambda a, b: a.index_put_((torch.arange(b.shape[0]),), b),
    "put_": lambda a, b: a.put_(torch.arange(b.numel()).view(b.shape), b),
    "take": lambda a, b: torch.take(b, torch.arange(b.numel()).view(b.shape), out=a),
}


@st.composite
def views_of_one_shape(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    layouts = [draw(st.lists(st.integers(0, 5), min_size=len(shape), max_size=len(shape))) for _ in range(2)]
    dense = torch.empty(shape).stride()
    layouts = [draw(st.sampled_from((dense, tuple(layout)))) for layout in layouts]
    return [(torch.float32, shape, layout, draw(st.integers(0, 3))) for layout in layouts]


def is_refused(write, buffer, one, other):
    try:
        write(make(buffer, one), make(buffer, other))
    except RuntimeError as error:
        assert "memory" in str(error)
        return True
    return False


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(WRITES)), views_of_one_shape())
@pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors")
def test_fake_tensors_refuse_the_writes_that_eager_refuses_for_where_its_arguments_lie(name, views):
    refused = is_refused(WRITES[name], torch.rand(60), *views)
    with CorrectedFakeTensorMode(shape_env=ShapeEnv()):
        assert is_refused(WRITES[name], torch.rand(60), *views) == refused


@pytest.mark.parametrize("backend", ["turret", "eager"])
@pytest.mark.parametrize(
    "write",
    [
        lambda y: y[:6].add_(y[1:7]),
        lambda y: y[:1].expand(4).add_(1),
        lambda y: torch.add(y, 1, out=y[:1]),
        lambda y: torch.ones(3).expand(2, 3).copy_(y[:6].view(2, 3)),
    ],
)
def test_what_comes_before_a_write_that_eager_refuses_has_been_done(write, backend):
    def program(y, items, n):
        items[0] = n
        y.mul_(2)
        items.append(write(y))
        items.append(n)

    found = []
    for function in (program, turret.compile(program, backend=backend)):
        y, items = torch.arange(12.0), [0]
        with pytest.raises(RuntimeError, match="unsupported operation"):
            function(y, items, 5)
        found.append((y.tolist(), items))
    assert found[0] == found[1]


def test_halves_of_a_dynamic_size_do_not_overlap():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(torch.zeros(2, 6, 5), static_shapes=False)
    assert overlap(x[0], x[1]) is Overlap.NONE
    assert overlap(x[1], x[0]) is Overlap.NONE
    assert overlap(x, x[1]) is Overlap.PARTIAL
    assert overlap(x[1], x[1]) is Overlap.SAME


@torch.library.custom_op(
    "turret_overlap::spread",
    mutates_args=("lists", "one"),
    schema="(Tensor x, Tensor(a!)?[]? lists, Tensor(b!)? one) -> Tensor",
)
def spread(x, lists, one):
    """Reads what it wrote before: each write shows in the next."""
    for number, item in enumerate(lists or ()):
        if item is not None:
            item.mul_(0.5).add_(x, alpha=number + 1)
    if one is not None:
        one.add_(x.sum())
    return x * 3


@spread.register_fake
def _(x, lists, one):
    return torch.empty_like(x)


VIEWS = (
    lambda a, b: a,
    lambda a, b: b[0],
    lambda a, b: b[1],
    lambda a, b: b[2],
    lambda a, b: b.view(-1)[2:6],
    lambda a, b: b.view(-1)[::5],
    lambda a, b: b.t()[1],
    lambda a, b: a * 2,
)


def inputs():
    return [torch.arange(4.0), torch.arange(16.0).view(4, 4) / 8]


def same_or_refused(function):
    """As in eager where the trace takes it; overlaps that are not exact it may refuse."""
    try:
        assert_same(function, inputs(), capture="call", backward=False)
    except UnsupportedError as error:
        assert "in part" in str(error)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_ops_that_write_to_several_tensors_see_their_own_writes(data):
    number = st.integers(0, len(VIEWS) - 1)
    read = data.draw(number)
    listed = data.draw(st.none() | st.lists(st.none() | number, max_size=4))
    one = data.draw(st.none() | number)

    def function(a, b):
        def view(which):
            return None if which is None else VIEWS[which](a, b)

        items = None if listed is None else [view(which) for which in listed]
        result = spread(view(read), items, view(one))
        return result + 1, [item for item in items or () if item is not None], a * 2, b + 1.0

    same_or_refused(function)


@pytest.mark.parametrize("kind", ["Tensor(a!)[]", "Tensor(a!)[]?", "Tensor(a!)?[]", "Tensor(a!)?[]?"])
@pytest.mark.parametrize(
    "items", [lambda a, b: [b[0], b[1]], lambda a, b: [b[0], b[0]], lambda a, b: [a], lambda a, b: []]
)
def test_lists_that_an_op_writes_to_are_compiled(kind, items):
    name = "fill_" + "".join(letter if letter.isalpha() else str(ord(letter)) for letter in kind)
    if not hasattr(torch.ops.turret_overlap, name):
        schema = f"(Tensor x, {kind} lists) -> Tensor"
        op = torch.library.custom_op(
            f"turret_overlap::{name}", lambda x, lists: spread(x, lists, None), mutates_args=("lists",), schema=schema
        )
        op.register_fake(lambda x, lists: torch.empty_like(x))
    op = getattr(torch.ops.turret_overlap, name)
    assert_same(lambda a, b: (op(a + 1, items(a, b)), a * 2, b * 2), inputs(), capture="call")


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["_foreach_add_", "_foreach_mul_", "_foreach_sub_", "_foreach_maximum_", "_foreach_copy_"]),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7)), min_size=1, max_size=4),
)
def test_foreach_ops_go_through_their_lists_in_order(name, pairs):
    def function(a, b):
        getattr(torch, name)([VIEWS[x](a, b)[:4] for x, _ in pairs], [VIEWS[y](a, b)[:4] for _, y in pairs])
        return a * 2, b.t() + 1

    try:
        function(torch.arange(4.0), torch.arange(16.0).view(4, 4))
    except RuntimeError:
        return
    same_or_refused(function)


@pytest.mark.parametrize("write", [
    lambda b: torch._foreach_exp_([b[0], b[0]]),
    lambda b: torch._foreach_mul_([b[0], b[1], b[0]], 3.0),
    lambda b: torch._foreach_add_([b[0], b[1]], [b[1], b[0]]),
    lambda b: torch._foreach_mul_([b[0], b[1]], [b[0], b[1]]),
    lambda b: torch._foreach_lerp_([b[0], b[1]], [b[1], b[2]], 0.5),
])  # fmt: skip
def test_foreach_ops_over_one_tensor_twice_are_compiled(write):
    assert_same(lambda a, b: (write(b), b.sin())[1], inputs(), capture="call", backward=False)


@pytest.mark.parametrize("write", [
    lambda x: x[1:].add_(x[:-1]),
    lambda x: x[:-1].copy_(x[1:]),
    lambda x: torch.add(x[1:], 1, out=x[:-1]),
    lambda x: x.index_add_(0, torch.tensor([1, 0, 2, 3]), x),
])  # fmt: skip
def test_writes_that_eager_refuses_are_refused(write):
    with pytest.raises(RuntimeError, match="single memory location"):
        write(torch.zeros(4, 4))
    with pytest.raises(UnsupportedError, match="shares in part"):
        compiled(write, capture="call")(torch.zeros(4, 4))


@pytest.mark.parametrize("write", [
    lambda x: x[:-1].add_(x[1:]),
    lambda x: x[1:].mul_(x[:-1]),
    lambda x: x[:-1].copy_(x[1:]),
])  # fmt: skip
def test_writes_that_eager_refuses_are_refused_with_sizes_that_are_symbols(write):
    ours = turret.compile(lambda x: (write(x), x.sin())[1], dynamic=True)
    for size in (5, 8):
        with pytest.raises(RuntimeError, match="single memory location"):
            ours(torch.zeros(size))


def test_halves_of_any_size_are_added_in_one_graph():
    def program(x):
        half = x.shape[0] // 2
        x[:half] += x[half : half * 2]
        return x.sin()

    ours = turret.compile(program, dynamic=True, options={"on_error": "raise"})
    for size in (6, 9, 8):
        torch.testing.assert_close(ours(torch.arange(float(size))), program(torch.arange(float(size))))
