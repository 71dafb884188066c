"""Layouts of results: eager's, also where fake tensors say otherwise."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import turret
from tests.plugins.joint_harness import assert_same
from turret.graph.fakes.corrections import CorrectedFakeTensorMode
from turret.graph.fakes.strides import elementwise_strides
from turret.graph.op_traits import size_hint
from turret.plugins.joint.fakes import FakeRunner, layout_key


def laid_out(shape, order):
    """A dense tensor whose dimensions lie in memory in ``order``, the slowest first."""
    packed = torch.rand([shape[d] for d in order]) + 0.5
    return packed.permute([order.index(d) for d in range(len(shape))])


def layouts():
    for shape in [(2, 3, 2), (2, 1, 2), (1, 2, 2), (2, 1), (3, 2), (2,), ()]:
        yield from (laid_out(shape, order) for order in itertools.permutations(range(len(shape))))
    yield from (laid_out((2, 3, 2, 2), order) for order in [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0)])
    yield torch.rand(16).as_strided((2, 1, 2), (1, 4, 2))
    yield torch.rand(16).as_strided((2, 2), (8, 2))
    yield torch.rand(2).expand(3, 2)


OPS = [torch.add, torch.logical_or, torch.copysign, torch.xlogy, torch.maximum, torch.logaddexp, torch.lt]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_the_rule_gives_the_strides_of_eager(op):
    checked = 0
    for one, other in itertools.product(layouts(), repeat=2):
        try:
            shape = tuple(torch.broadcast_shapes(one.shape, other.shape))
        except RuntimeError:
            continue
        checked += 1
        assert elementwise_strides([one, other], shape) == op(one, other).stride(), (one.stride(), other.stride())
    assert checked > 500


@pytest.mark.parametrize(
    "function",
    [
        torch.logical_or,
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: torch.where(x > 1, x, y),
        torch.add,
        lambda x, y: x.double() + y,
    ],
)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (laid_out((2, 2, 2), (0, 1, 2)), torch.rand(4).as_strided((2, 1, 2), (1, 4, 2))),
        (torch.rand(()), laid_out((32, 31), (1, 0))),
        (torch.rand(4).as_strided((1, 1, 2), (1, 2, 1)), laid_out((3, 2), (0, 1))),
        (torch.rand(16).as_strided((2, 2), (8, 2)), laid_out((2, 2), (1, 0))),
    ],
)
def test_elementwise_results_have_eagers_strides(function, one, other):
    assert_same(function, [one, other])


def spread(shape, order, gap):
    """A tensor whose dimensions lie in memory in ``order``, the slowest first, with ``gap`` places to each element."""
    packed = torch.rand([shape[d] for d in order] + [gap])[..., 0] + 0.5
    return packed.permute([order.index(d) for d in range(len(shape))])


aten = torch.ops.aten
OVERLOADS = [
    *(aten.add.Tensor, aten.logical_or.default, aten.copysign.Tensor, aten.xlogy.Tensor, aten.maximum.default),
    *(aten.logaddexp.default, aten.lt.Tensor, aten.heaviside.default, aten.floor_divide.default, aten.ldexp.Tensor),
]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_elementwise_results_of_symbolic_sizes_have_eagers_strides(data):
    op = data.draw(st.sampled_from(OVERLOADS), "op")
    shape = data.draw(st.permutations([3, 4, 5]), "shape")

    def operand(name):
        own = [data.draw(st.sampled_from([n, n, 1]), name) for n in shape][data.draw(st.integers(0, 1), name) :]
        order = data.draw(st.permutations(range(len(own))), name)
        return spread(own, order, data.draw(st.sampled_from([1, 3]), name))

    agrees_where_sizes_are_symbols(op, operand("one"), operand("other"))


def agrees_where_sizes_are_symbols(op, *args):
    """The strides of a fake result, whose sizes are symbols, are those of eager's."""
    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv())

    def fake(value):
        if not isinstance(value, torch.Tensor):
            return value
        return mode.from_tensor(value, symbolic_context=StatelessSymbolicContext([DimDynamic.DYNAMIC] * value.dim()))

    with mode:
        result = FakeRunner(mode, layout_key)(op, tuple(map(fake, args)), {})
    assert [size_hint(s) for s in result.stride()] == list(op(*args).stride())


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_rolled_and_flipped_results_of_symbolic_sizes_have_eagers_strides(data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=2, max_size=5), "shape")
    x = spread(shape, data.draw(st.permutations(range(len(shape)))), data.draw(st.sampled_from([1, 1, 3]), "gap"))
    dims = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=2, unique=True), "dims")
    shifts = [data.draw(st.integers(-7, 7)) for _ in dims]
    agrees_where_sizes_are_symbols(aten.roll.default, x, shifts, dims)
    agrees_where_sizes_are_symbols(aten.flip.default, x, dims)


@pytest.mark.parametrize("order", itertools.permutations(range(4)))
@pytest.mark.thorough
def test_rolled_and_flipped_results_have_eagers_strides(order):
    for shape in [(2, 3, 2, 2), (2, 3, 2, 1)]:
        x = laid_out(shape, order)
        assert_same(lambda x: (x.roll(1, 0), x.roll((1, 1), (0, -1)), x.roll(2, 1), x.roll(1), x.flip(0)), [x])


def test_a_batch_norm_that_updates_statistics_gives_eagers_strides():
    def function(x, mean, variance):
        return torch.nn.functional.batch_norm(x, mean, variance, training=True)

    assert_same(function, [laid_out((7, 1, 5), (2, 1, 0)), torch.zeros(1), torch.ones(1)])


def test_an_elementwise_op_of_an_expanded_and_detached_tensor_has_eagers_strides():
    x = torch.randn(961).as_strided((1, 31, 31), (1, 31, 1))
    assert_same(lambda x: torch.ceil(x.expand(1, 5, -1, -1).detach()), [x])


def test_a_dimension_of_size_1_that_expand_adds_has_eagers_stride_where_sizes_are_symbols():
    def function(x):
        expanded = x.expand(1, 3, x.shape[1])
        return torch.logical_not(expanded), expanded

    compiled = turret.compile(function, options={"on_error": "raise"})
    for size in (7, 3, 5):
        x = torch.randn(size).as_strided((1, size), (1, 1))
        assert [t.stride() for t in compiled(x)] == [t.stride() for t in function(x)]


def test_a_symbolic_size_that_is_1_broadcasts_as_a_written_1_does():
    x, y = torch.randn(4, 16, 9, 1), torch.randn(64).as_strided((4, 16, 1, 1), (1, 4, 4, 4))

    def function(x, y, n):
        return torch.xlogy(x[:, :, :, -(n // 2) :], y.abs() + 0.5)

    compiled = turret.compile(function, options={"on_error": "raise"})
    for n in (0, 3, 0, 2):
        got, expected = compiled(x, y, n), function(x, y, n)
        assert torch.allclose(got, expected, equal_nan=True) and got.stride() == expected.stride()
