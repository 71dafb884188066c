"""Results of ops that have a layout of their own in eager, of arguments laid out in many ways."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import turret
from tests.plugins.joint_harness import assert_same, compiled, snapshot
from tests.torch_versions import needs_torch
from turret.graph.fakes.corrections import CorrectedFakeTensorMode


def laid_out(shape, order):
    packed = (torch.arange(math.prod(shape)) * 7 % 16 / 16 + 0.25).reshape([shape[d] for d in order])
    return packed.permute([order.index(d) for d in range(len(shape))])


def layouts(shape):
    """Dense in several orders of dimensions, with gaps, expanded."""
    rank = len(shape)
    channels_last = (0, *range(2, rank), 1)
    for order in {*list(itertools.permutations(range(rank)))[:: max(1, math.factorial(rank) // 6)], channels_last}:
        yield laid_out(shape, order)
    for order in (tuple(range(rank)), channels_last):
        dense = laid_out(shape, order)
        yield torch.zeros(2 * dense.numel()).as_strided(shape, [2 * s for s in dense.stride()]).copy_(dense)
        yield dense[:, :1].expand(shape)


SHAPES = {
    3: [(2, 3, 4), (1, 2, 3), (2, 1, 3)],
    4: [(2, 2, 2, 3), (1, 2, 1, 3), (2, 2, 1, 1)],
    5: [(2, 2, 2, 3, 2), (1, 2, 1, 2, 1)],
}


def seen(value):
    """What of a result's layout can be seen."""
    shape, stride, *rest = snapshot(value)
    steps = () if 0 in shape else tuple(s for s, extent in zip(stride, shape, strict=True) if extent != 1)
    return shape, steps, rest


def stats(x):
    return torch.zeros(x.shape[1]), torch.ones(x.shape[1])


def zeros(x):
    return torch.zeros_like(x, dtype=torch.int64)


def places(x):
    return torch.arange(x[0, 0].numel()).reshape(x.shape[2:])


ONE, TWO = torch.tensor([0]), torch.tensor([0, 0])

CALLS = {
    3: {
        "max_pool1d": lambda x: F.max_pool1d(x, 2),
        "max_pool1d_with_indices": lambda x: F.max_pool1d(x, 2, return_indices=True),
        "interpolate_nearest": lambda x: F.interpolate(x, 3),
        "interpolate_exact": lambda x: F.interpolate(x, 3, mode="nearest-exact"),
        "interpolate_linear": lambda x: F.interpolate(x, 3, mode="linear"),
        "pad_circular": lambda x: F.pad(x, (1, 1), mode="circular"),
        "masked_fill": lambda x: x.masked_fill(x > 0.5, 2),
        "masked_fill_tensor": lambda x: x.masked_fill(x > 0.5, torch.tensor(2.0)),
        "masked_fill_broadcast": lambda x: x[:1].masked_fill(x > 0.5, 2),
        "pow_of_number": lambda x: 2.0**x,
        "ldexp": lambda x: torch.ldexp(x[:, :1], x),
        "floor_divide": lambda x: (x // torch.tensor(0.3), x // 0.3),
        "one_hot": lambda x: F.one_hot(zeros(x), 2),
        "index": lambda x: (x[TWO], x[:, TWO], x[..., TWO], x[TWO, TWO], x[:, ONE, TWO]),
        "index_apart": lambda x: x[TWO, :, ONE],
        "index_by_layout": lambda x: torch.arange(9.0)[(x * 4).long()],
        "index_fill": lambda x: x.index_fill(1, ONE, 1.0),
        "isin": lambda x: (torch.isin(x, torch.tensor([0.25, 0.5])), torch.isin(x, 0.25)),
        "binary_cross_entropy": lambda x: F.binary_cross_entropy(x / 2, x.contiguous() / 2, reduction="none"),
        "where": lambda x: (torch.where(x[:1] > 0.5, x, 0.0), torch.where(x > 0.5, 1.0, x.flip(0))),
        "where_of_two_types": lambda x: torch.where(x.contiguous() > 0.5, x, x.double().contiguous()),
        "rrelu": lambda x: F.rrelu(x),
        "logsigmoid": lambda x: F.logsigmoid(x),
    },
    4: {
        "batch_norm": lambda x: F.batch_norm(x, *stats(x)),
        "batch_norm_training": lambda x: F.batch_norm(x, *stats(x), training=True),
        "max_pool2d": lambda x: F.max_pool2d(x, 1, return_indices=True),
        "max_pool3d_without_batch": lambda x: F.max_pool3d(x, 1, return_indices=True),
        "max_unpool2d": lambda x: F.max_unpool2d(x, zeros(x) + places(x), 2),
        "channel_shuffle": lambda x: F.channel_shuffle(x, 1),
        "nll_loss": lambda x: F.nll_loss(x, zeros(x)[:, 0], reduction="none"),
        "unfold": lambda x: F.unfold(x, 1),
        "interpolate": lambda x: (F.interpolate(x, (3, 3)), F.interpolate(x, (3, 3), mode="bilinear")),
        "adaptive_pools": lambda x: (F.adaptive_avg_pool2d(x, 2), F.adaptive_max_pool2d(x, 2)),
        "group_norm": lambda x: F.group_norm(x, 1),
    },
    5: {
        "batch_norm": lambda x: F.batch_norm(x, *stats(x), training=True),
        "max_pool3d": lambda x: F.max_pool3d(x, 1, return_indices=True),
        "pad_reflect": lambda x: F.pad(x, (0, 0, 0, 0, 0, 0), mode="reflect"),
        "pad_replicate": lambda x: F.pad(x, (1, 1, 1, 1, 1, 1), mode="replicate"),
        "interpolate": lambda x: F.interpolate(x, (3, 3, 3)),
        "adaptive_pools": lambda x: (F.adaptive_avg_pool3d(x, 2), F.adaptive_max_pool3d(x, 2)),
    },
}


def with_ones(shape):
    """Tensors with dimensions of size 1 whose strides are not those of a packed tensor."""
    for x in layouts(shape):
        yield from (x.narrow(dim, 0, 1) for dim in range(x.dim()))
        yield x.narrow(0, 0, 1).narrow(-1, 0, 1)
        yield x.narrow(0, 0, 1).transpose(0, -1)


OF_ONES = {
    "binary_cross_entropy_with_logits": lambda x: tuple(
        F.binary_cross_entropy_with_logits(x, target, reduction="none") for target in (x, x.contiguous())
    ),
    "channel_shuffle": lambda x: (F.channel_shuffle(x, 1),),
    "deg2rad": lambda x: (torch.deg2rad(x), torch.rad2deg(x)),
    "diag_embed": lambda x: (torch.diag_embed(x),),
    "frexp": lambda x: tuple(torch.frexp(x)),
    "huber_loss": lambda x: tuple(F.huber_loss(x, y, reduction="none") for y in (x, x.contiguous())),
    "index_copy": lambda x: (torch.index_copy(x, 0, ONE, x[:1]),),
    "interpolate": lambda x: tuple(F.interpolate(x, (3, 3), mode=m) for m in ("nearest", "bilinear", "bicubic")),
    "interpolate_exact": lambda x: (F.interpolate(x, (3, 3), mode="nearest-exact"),),
    "interpolate_antialias": lambda x: (F.interpolate(x, (3, 3), mode="bilinear", antialias=True),),
    "prelu": lambda x: (F.prelu(x, torch.ones(1)),),
    "remainder_of_number": lambda x: (torch.remainder(2, x), torch.xlogy(2, x), torch.xlogy(x, 2)),
    "renorm": lambda x: (torch.renorm(x, 2, 0, 1.0),),
    "rot90": lambda x: tuple(torch.rot90(x, k, dims) for k in range(-1, 4) for dims in ((0, 1), (-1, 0))),
    "rsub": lambda x: (torch.rsub(x, x.contiguous()), torch.rsub(x[:, :1], x[..., :1]), 1 - x),
    "zeta": lambda x: (torch.special.zeta(x, 2.0), torch.special.zeta(2.0, x)),
}


@pytest.mark.parametrize("name", OF_ONES)
@pytest.mark.thorough
def test_fakes_have_eagers_strides_along_dimensions_of_size_1_too(name):
    function, checked = OF_ONES[name], 0
    shapes = [(2, 3, 2, 3), (2, 3, 4), (3, 4)]
    for x in (x for shape in shapes for x in with_ones(shape)):
        try:
            expected = function(x)
        except (RuntimeError, ValueError):
            continue
        checked += 1
        mode = CorrectedFakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            made = function(mode.from_tensor(x))
        assert [v.stride() for v in made] == [v.stride() for v in expected], (x.shape, x.stride())
    assert checked > 10


@pytest.mark.parametrize(("rank", "name"), [(rank, name) for rank, calls in CALLS.items() for name in calls])
@pytest.mark.thorough
def test_results_are_laid_out_as_in_eager(rank, name):
    function, checked = CALLS[rank][name], 0
    for x in (x for shape in SHAPES[rank] for x in layouts(shape)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = function(x)
            except (RuntimeError, ValueError):
                continue
        checked += 1
        expected = expected if isinstance(expected, tuple) else (expected,)
        actual = compiled(function, capture="call")(x)
        for one, other in zip(expected, actual, strict=True):
            assert seen(one) == seen(other), (x.shape, x.stride())
            torch.testing.assert_close(other, one, equal_nan=True)
    assert checked > 10


def matrices():
    """Matrices of 4 by 6 and what is expanded to them, laid out in many ways."""
    yield from (x[0] for x in layouts((1, 4, 6)))
    yield from (laid_out((4, 6), (0, 1)), laid_out((6, 4), (0, 1)).t(), torch.ones(6), torch.ones(4, 1), torch.ones(()))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("column", [torch.rand(4), torch.rand(8)[::2], torch.rand(1).expand(4)])
def test_an_outer_product_added_to_a_matrix_is_laid_out_as_in_eager(beta, column):
    row = torch.rand(12)[::2]
    for x in matrices():
        (actual,) = compiled(lambda *v: torch.addr(*v, beta=beta), capture="call")(x, column, row)
        expected = torch.addr(x, column, row, beta=beta)
        assert seen(expected) == seen(actual), (x.shape, x.stride())
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("pool", [lambda x: F.max_pool1d(x, 2), torch.nn.MaxPool1d(2), lambda x: x.detach() + 1])
def test_pooling_without_gradients_gives_row_major_results(pool):
    x = laid_out((2, 9, 8), (0, 2, 1))
    with torch.no_grad():
        assert_same(pool, [x])
    assert_same(pool, [x.clone(memory_format=torch.preserve_format).requires_grad_()])


def test_batch_norm_after_an_in_place_transposition():
    def function(x, mean, variance):
        y = x.amin(2, keepdim=True)
        y.transpose_(0, -1)
        return F.batch_norm(y[..., None], mean, variance, training=True)

    assert_same(function, [torch.randn(5, 5, 17, 1), torch.zeros(5), torch.ones(5)])


def test_the_condition_of_where_ranks_dimensions_as_it_lies():
    def function(condition, x):
        y = x * 1
        y.t_()
        return torch.where(condition, y, y.flip(0))

    assert_same(function, [torch.tensor([True, False]).expand(2, 2), torch.randn(2, 2)], capture="fx")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.dropout(x, 0.0),
        lambda x: F.dropout(x, 0.3, training=False),
        lambda x: torch.dropout(x * 2, 0.3, False),
        lambda x: F.dropout(x, p=0.3, training=True) * 0,
    ],
)
def test_dropout_that_drops_nothing_returns_its_argument(function):
    assert_same(function, [torch.rand(4, 5, requires_grad=True)])


@pytest.mark.parametrize("value", [torch.tensor(0.3), torch.rand(3, 4).t()], ids=["number", "transposed"])
@pytest.mark.parametrize("boundaries", [torch.tensor([0.1, 0.5]), torch.tensor([])], ids=["two", "none"])
@pytest.mark.parametrize("options", [{}, {"out_int32": True, "right": True}], ids=["plain", "options"])
def test_buckets_of_numbers_and_of_no_boundaries(value, boundaries, options):
    assert_same(lambda x, b: torch.bucketize(x, b, **options), [value, boundaries], capture="call")


@needs_torch(2, 12, "torch.compile, which captures here, takes no view_copy of strides that a view does not fit")
@pytest.mark.parametrize("x", [torch.rand(3, 4).t(), torch.rand(3, 4), torch.rand(4, 1).expand(4, 3)])
def test_view_copy_takes_any_strides(x):
    assert_same(lambda x: torch.view_copy(x, (6, -1)), [x])


@pytest.mark.parametrize("index", [torch.tensor(3), torch.tensor([[0, -1], [5, 2]]).t()], ids=["number", "transposed"])
def test_take_of_a_number_and_of_indices_laid_out_otherwise(index):
    assert_same(torch.take, [torch.rand(3, 4).t().requires_grad_(), index], capture="call")


@pytest.mark.parametrize("view", [False, True], ids=["alone", "viewed"])
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_what_comes_of_a_transposed_tensor_that_was_written_lies_as_in_eager(dynamic: bool, view: bool) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x.copy_(y)
        found = x + 1
        return (found[:], found) if view else (found,)

    function = turret.compile(program, dynamic=dynamic, options={"on_error": "raise", "cache": False})
    for rows in (17, 16):
        y = torch.randn(rows, 2)
        results = zip(function(torch.zeros(2, rows).t(), y), program(torch.zeros(2, rows).t(), y), strict=True)
        for found, wanted in results:
            assert found.stride() == wanted.stride()
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("name", ["angle", "abs", "sgn", "exp", "reciprocal", "conj_physical"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32], ids=str)
def test_a_function_of_complex_numbers_has_eager_s_layout(name, dtype):
    for x in layouts((2, 3, 4)):
        x = x.to(dtype)
        expected, (actual,) = getattr(torch, name)(x), compiled(getattr(torch, name), capture="call")(x)
        assert seen(expected) == seen(actual), (x.shape, x.stride())


@pytest.mark.parametrize("shifts, dims", [(-1, 0), (1, 1), ((1, 1), (0, 1)), (1, ())])
def test_what_is_rolled_along_an_extent_that_is_computed_to_be_0_is_memory_of_its_own(shifts, dims):
    def program(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        filled = x.new_full((abs(n) % 3, 2), n)
        return torch.roll(filled, shifts, dims), filled

    run = turret.compile(program, dynamic=True, fullgraph=True)
    for n in (-3, 5, 0):
        rolled, filled = run(torch.randn(8), n)
        expected, _ = program(torch.randn(8), n)
        assert rolled is not filled
        assert seen(rolled) == seen(expected) and torch.equal(rolled, expected)


@st.composite
def transforms(draw):
    rank = draw(st.integers(1, 5))
    shape = draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank))
    order = draw(st.permutations(range(rank)))
    dims = draw(st.permutations(range(rank)))[: draw(st.integers(1, rank))]
    kind = draw(st.sampled_from(("c2c", "r2c", "c2r")))
    return kind, laid_out(shape, order), list(dims), draw(st.booleans())


@given(transforms())
def test_fourier_transforms_lie_as_in_eager(transform):
    kind, x, dims, flag = transform
    aten = torch.ops.aten
    call, args = {
        "c2c": (aten._fft_c2c.default, (x.to(torch.complex64), dims, 0, flag)),
        "r2c": (aten._fft_r2c.default, (x, dims, 0, flag)),
        "c2r": (aten._fft_c2r.default, (x.to(torch.complex64), dims, 0, max(1, 2 * x.shape[dims[-1]] - 2 + flag))),
    }[kind]
    with CorrectedFakeTensorMode() as mode:
        fake = call(mode.from_tensor(args[0]), *args[1:])
    real = call(*args)
    assert (fake.shape, fake.stride()) == (real.shape, real.stride())
