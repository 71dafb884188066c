"""Fake results have the dtypes and layouts of real ones, in every supported version of torch."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import turret
from turret.graph.fakes.corrections import CorrectedFakeTensorMode
from turret.graph.op_traits import size_hint

aten = torch.ops.aten

LAST = torch.empty(1, 2, 2, 1).permute(0, 3, 1, 2)
X = torch.tensor([[2.0, 1.0, 2.0], [3.0, 1.0, 2.0]])


def layouts(results: tuple[Tensor, ...]) -> list[tuple]:
    return [(r.dtype, r.dim(), r.device) for r in results]


@pytest.mark.parametrize("function", [torch.unique, torch.unique_consecutive], ids=["unique", "unique_consecutive"])
@pytest.mark.parametrize("dim", [None, 0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_inverse_and_counts_are_integers(function: Callable, dim: int | None, dtype: torch.dtype) -> None:
    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv())
    real = X.to(dtype)
    with mode:
        found = function(mode.from_tensor(real), return_inverse=True, return_counts=True, dim=dim)
    assert layouts(found) == layouts(function(real, return_inverse=True, return_counts=True, dim=dim))


def halved(x: Tensor) -> tuple[Tensor, ...]:
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
    return values * 2, inverse.float().mean(), inverse // 2, counts / 2


@pytest.mark.parametrize("options", [{}, {"capture_dynamic_output_shape_ops": True}], ids=["breaks", "one graph"])
def test_what_is_computed_of_an_inverse_is_eagers(options: dict) -> None:
    run = turret.compile(halved, options={"on_error": "raise", "cache": False, **options})
    for rows in (X, X.flip(0), torch.randint(0, 4, (5, 3)).float()):
        for got, expected in zip(run(rows), halved(rows), strict=True):
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    "power",
    [lambda x, r: x**r, lambda x, r: r**x, lambda x, r: torch.pow(x, r) + torch.pow(r, x)],
    ids=["x", "r", "both"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
def test_a_power_by_a_number_that_changes_breaks_no_graph(power: Callable, dtype: torch.dtype) -> None:
    run = turret.compile(power, fullgraph=True, options={"on_error": "raise", "cache": False})
    x = X.to(dtype)
    for number in (0.7, 1.3, 2.0, 0.5, 1.0, 3.0):
        torch.testing.assert_close(run(x, number), power(x, number))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return torch.native_layer_norm(x, [3], weight, bias, 1e-5)


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    return torch.native_group_norm(x.mT.contiguous(), weight, bias, 2, 3, 4, 1, 1e-5)


@pytest.mark.parametrize("norm", [layer_norm, group_norm])
def test_statistics_of_a_half_beside_wide_parameters(norm: Callable) -> None:
    mode = CorrectedFakeTensorMode()
    real = (torch.ones(2, 4, 3, dtype=torch.bfloat16), torch.ones(3), torch.ones(3))
    with mode:
        found = norm(*map(mode.from_tensor, real))
    assert layouts(found) == layouts(norm(*real))


OVERLAPPING = torch.arange(4.0).as_strided((4, 4), (1, 0)), torch.arange(7.0).as_strided((4, 4), (1, 1))
SCATTERS: dict[str, Callable] = {
    "select": lambda x: torch.select_scatter(x, x[:, 0] * 2, 1, 0),
    "slice": lambda x: torch.slice_scatter(x, x[:, :1] * 2, 1, 0, 1),
    "diagonal": lambda x: torch.diagonal_scatter(x, x.diagonal() * 2),
}


@pytest.mark.parametrize("name", SCATTERS)
@pytest.mark.parametrize("x", OVERLAPPING, ids=["expanded", "overlapping"])
def test_a_scatter_into_a_view_makes_a_tensor_whose_elements_lie_apart(name: str, x: Tensor) -> None:
    expected = SCATTERS[name](x)
    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv())
    with mode:
        assert SCATTERS[name](mode.from_tensor(x)).stride() == expected.stride()
    run = turret.compile(lambda x: SCATTERS[name](x) @ x, options={"cache": False})
    torch.testing.assert_close(run(x), expected @ x)


@pytest.mark.parametrize("read", [True, False])
def test_parameters_of_a_layer_norm_have_the_normalized_shape(read: bool) -> None:
    def program(x: Tensor, bias: Tensor) -> Tensor:
        made = torch.nn.functional.layer_norm(x, (7,), x[0], bias)
        return made if read else x * 2

    run = turret.compile(program)
    for size in (7, 1, 3, 7):
        for function in (program, run):
            if size == 7:
                function(torch.ones(2, 7), torch.ones(size))
            else:
                with pytest.raises(RuntimeError, match="shape"):
                    function(torch.ones(2, 7), torch.ones(size))


LIKE = {
    "zeros": torch.zeros_like,
    "ones, of another dtype": lambda x: torch.ones_like(x, dtype=torch.int32),
    "full": lambda x: torch.full_like(x, 2),
    "empty": torch.empty_like,
    "random": torch.rand_like,
}


@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("layout", [((1, 2), (7, 1)), ((4, 1), (1, 9)), ((1, 1, 3), (5, 2, 1)), ((3, 1), (4, 1))])
def test_a_tensor_made_like_another_keeps_its_strides_where_the_size_is_1(name: str, layout: tuple) -> None:
    x = torch.randn(40).as_strided(*layout)
    expected = LIKE[name](x).stride()
    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv())
    with mode:
        assert LIKE[name](mode.from_tensor(x, static_shapes=True)).stride() == expected
    run = turret.compile(lambda x: LIKE[name](x).zero_(), options={"on_error": "raise", "cache": False})
    assert run(x).stride() == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dims", [(2, 3), (3, 3), (3, 2), (2, 2)], ids=str)
def test_a_grouped_product_has_rows_that_begin_at_multiples_of_16_bytes(dtype: torch.dtype, dims: tuple) -> None:
    ends = torch.tensor([8, 8, 24], dtype=torch.int32)
    left, right = {
        (2, 3): (torch.ones(24, 16), torch.ones(3, 41, 16).mT),
        (3, 3): (torch.ones(3, 8, 16), torch.ones(3, 41, 16).mT),
        (3, 2): (torch.ones(3, 8, 16), torch.ones(24, 16).t()),
        (2, 2): (torch.ones(24, 8).t(), torch.ones(24, 40)),
    }[dims]
    arguments = left.to(dtype), right.to(dtype), None if dims == (3, 3) else ends
    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv())
    with mode:
        fakes = [None if a is None else mode.from_tensor(a) for a in arguments]
        found = torch._grouped_mm(*fakes)
    real = torch._grouped_mm(*arguments)
    assert (found.shape, found.stride(), found.dtype) == (real.shape, real.stride(), real.dtype)


def test_grouped_products_of_any_number_of_rows_break_no_graph() -> None:
    run = turret.compile(
        lambda x, w, ends: torch._grouped_mm(x, w, offs=ends) + 1,
        options={"on_error": "raise", "cache": False},
        fullgraph=True,
        dynamic=True,
    )
    w, ends = torch.randn(2, 16, 8), torch.tensor([3, 8], dtype=torch.int32)
    for rows in (8, 10):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(run(x, w, ends)[:8], torch._grouped_mm(x, w, offs=ends)[:8] + 1)


@pytest.mark.parametrize("order", [2.0, 1.0, 0.0, -1.0, 3.5, float("inf")])
@pytest.mark.parametrize("dims", [-2, (0, 1), (-1,), None], ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 1), (1, 1)], ids=str)
def test_a_norm_over_dimensions_of_size_1_has_none_of_them(shape: tuple, dims: object, order: float) -> None:
    def norm(x: Tensor) -> Tensor:
        return torch.linalg.vector_norm(x, order, dims)

    x = torch.randn(shape)
    with CorrectedFakeTensorMode() as mode:
        made = norm(mode.from_tensor(x))
    assert (made.shape, made.stride()) == (norm(x).shape, norm(x).stride())
    torch.testing.assert_close(turret.compile(norm, options={"on_error": "raise", "cache": False})(x), norm(x))


def test_expanded_strides_are_eagers() -> None:
    generator = random.Random(0)
    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv())
    for _ in range(500):
        shape = [generator.choice([1, 1, 2, 3]) for _ in range(generator.randint(0, 4))]
        x = torch.empty(500).as_strided(shape, [generator.choice([0, 1, 2, 5]) for _ in shape])
        new = [generator.choice([1, 2, 3]) for _ in range(generator.randint(0, 3))]
        wanted = new + [s if s != 1 else generator.choice([1, 4]) for s in shape]
        found = mode.from_tensor(x, static_shapes=True).expand(wanted)
        assert found.stride() == x.expand(wanted).stride(), (x.shape, x.stride(), wanted)


@st.composite
def viewed(draw: st.DrawFn) -> tuple[Tensor, list[int]]:
    """A tensor of which dimensions of size 1 have strides of their own, and a shape that it may be viewed in."""
    shape = draw(st.lists(st.sampled_from([1, 1, 2, 3, 4, 0]), max_size=4), "shape")
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(draw(st.sampled_from([0, 1, 5, 24])) if size == 1 else step)
        step *= max(size, 1)
    source = torch.empty(400).as_strided(shape, strides[::-1])
    factors = [n for size in shape for n in ([2, 2] if size == 4 else [size]) if size != 1]
    cuts = draw(st.lists(st.integers(0, len(factors)), max_size=4), "cuts")
    bounds = [0, *sorted(cuts), len(factors)]
    return source, [math.prod(factors[a:b]) for a, b in itertools.pairwise(bounds)]


@settings(max_examples=120, deadline=None)
@given(viewed(), st.booleans())
def test_views_have_eagers_strides_along_dimensions_of_size_1_too(drawn: tuple, dynamic: bool) -> None:
    real, shape = drawn
    kind = DimDynamic.DYNAMIC if dynamic else DimDynamic.STATIC
    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv())
    fake = mode.from_tensor(real, symbolic_context=StatelessSymbolicContext([kind] * real.dim()))
    for view in (aten.view.default, aten._unsafe_view.default):
        with mode:
            made = view(fake, shape)
        assert [size_hint(stride) for stride in made.stride()] == list(view(real, shape).stride())
        assert not real.numel() or made.untyped_storage()._cdata == fake.untyped_storage()._cdata


def test_compiled_code_reads_eagers_strides_of_a_view() -> None:
    x = torch.arange(8).as_strided((1, 1, 8), (1, 1, 1))

    def function(x: Tensor) -> Tensor:
        return x + x.unflatten(-1, (2, -1)).stride(0)

    assert torch.equal(turret.compile(function, fullgraph=True)(x), function(x))


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.lists(st.one_of(st.none(), st.integers(0, 2)), min_size=1, max_size=4).filter(
        lambda r: any(n is not None for n in r)
    ),
    function=st.sampled_from([aten.index.Tensor, aten._unsafe_index.Tensor]),
)
def test_an_indexed_tensor_has_the_shape_that_all_indices_make(ranks: list, function: Callable) -> None:
    x = torch.arange(81.0).view(3, 3, 3, 3)
    sizes = ((), (2,), (3, 2))
    indices = [None if rank is None else torch.zeros(sizes[rank], dtype=torch.int64) for rank in ranks]
    with CorrectedFakeTensorMode() as mode:
        faked = [None if i is None else mode.from_tensor(i) for i in indices]
        found = function(mode.from_tensor(x), faked)
    real = function(x, indices)
    assert found.shape == real.shape and found.stride() == real.stride()


def test_a_batched_index_beside_one_that_is_not_is_in_the_graph() -> None:
    def program(x, rows, columns):
        return torch.func.vmap(lambda row, column: x[row, column] * 2, in_dims=(None, 0))(rows, columns)

    run = turret.compile(program, fullgraph=True, options={"on_error": "raise", "cache": False})
    given = (torch.arange(20.0).view(2, 10), torch.arange(2), torch.arange(10))
    torch.testing.assert_close(run(*given), program(*given))


def test_an_op_that_carries_an_effects_token_runs_on_fakes() -> None:
    """Compilers that are given our fakes order effects by such ops, which have neither tags nor a schema."""
    mode = CorrectedFakeTensorMode(shape_env=ShapeEnv())
    with mode:
        token, x = torch.empty(()), torch.empty(2, 3)
        _, made = torch.ops.higher_order.with_effects(token, aten.sin.default, x)
    assert (made.shape, made.dtype) == (x.shape, x.dtype)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(), (5,), (1, 5), (2, 5)], ids=str)
@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss], ids=["one label", "several"])
def test_a_loss_by_margins_has_eagers_shape(loss: Callable, shape: tuple[int, ...], reduction: str) -> None:
    labels = [shape] if loss is F.multilabel_margin_loss else [(), (1,)] if len(shape) < 2 else [shape[:1]]
    for label in labels:
        x, target = torch.ones(shape), torch.zeros(label, dtype=torch.int64)
        with CorrectedFakeTensorMode() as mode:
            found = loss(mode.from_tensor(x), mode.from_tensor(target), reduction=reduction)
        assert found.shape == loss(x, target, reduction=reduction).shape


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 1), (2, 1), (1, 3), (2, 3), (3, 3), (1, 2, 3)])
@pytest.mark.parametrize("function", [torch.addmm, torch.addmv])
def test_what_is_added_to_a_product_is_expanded_and_expands_nothing(
    function: Callable, shape: tuple[int, ...], size: int
) -> None:
    added = torch.randn(shape)
    left, right = ((size, 4), (4,)) if function is torch.addmv else ((min(size, 2), 4), (4, size))
    operands = (added, torch.randn(left), torch.randn(right))
    compiled = turret.compile(function, options={"cache": False})
    try:
        expected = function(*operands)
    except RuntimeError:
        with pytest.raises(RuntimeError):
            compiled(*operands)
    else:
        torch.testing.assert_close(compiled(*operands), expected)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        pytest.param(
            lambda g, y: torch.ops.aten._softmax_backward_data(g, y, 1, g.dtype), [(6, 5), (6, 5)], id="softmax"
        ),
        pytest.param(
            lambda g, y: torch.ops.aten._log_softmax_backward_data(g, y, 1, g.dtype), [(6, 5), (6, 5)], id="log_softmax"
        ),
        pytest.param(lambda a, x, y: a.addmm_(x, y) * 1, [(6, 5), (6, 4), (4, 5)], id="addmm_"),
        pytest.param(torch.addmm, [(6, 5), (6, 4), (4, 5)], id="addmm"),
        pytest.param(lambda x, y: F.nll_loss(x, y.long()), [(6, 3, 4, 5), (6, 4, 5)], id="nll_loss2d"),
    ],
)
def test_sizes_of_several_inputs_that_are_equal_are_guarded_to_be(
    function: Callable, shapes: list[tuple[int, ...]]
) -> None:
    compiled = turret.compile(function, dynamic=True, fullgraph=True)
    for rows in (6, 7):
        given = [torch.rand([rows if size == 6 else size for size in shape]) for shape in shapes]
        expected = function(*(x.clone() for x in given))
        torch.testing.assert_close(compiled(*given), expected)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("loss", [F.multi_margin_loss, F.multilabel_margin_loss, F.hardshrink, F.softshrink])
def test_gradients_that_torch_knows_for_constant_sizes_are_compiled_for_others(loss: Callable, reduction: str) -> None:
    compiled = turret.compile(loss, dynamic=True, fullgraph=True, options={"on_error": "raise"})
    for rows in (6, 7):
        x = torch.randn(rows, 5, requires_grad=True)
        rest: tuple = (0.3,)
        named: dict = {}
        if "loss" in loss.__name__:
            rest = (torch.randint(0, 5, (rows,) if loss is F.multi_margin_loss else (rows, 5)),)
            named = {"reduction": reduction}
        (expected,) = torch.autograd.grad(loss(x, *rest, **named).sum(), x)
        (found,) = torch.autograd.grad(compiled(x, *rest, **named).sum(), x)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", ["squeeze_", "squeeze_.dim", "squeeze_.dims"])
def test_an_input_that_is_squeezed_in_place_crashes_nothing(name: str, dynamic: bool | None) -> None:
    dims = {"squeeze_": (), "squeeze_.dim": (0,), "squeeze_.dims": ((0, 1),)}[name]

    def program(x: Tensor) -> Tensor:
        x.squeeze_(*dims)
        return x * 2

    x = torch.randn(3, 2, 4, requires_grad=True)
    torch.testing.assert_close(turret.compile(program, dynamic=dynamic)(x.clone()), program(x.clone()))


@pytest.mark.parametrize(
    "write",
    [
        lambda s, x: s.mul_(x),
        lambda s, x: s.mul_(x.sum()),
        lambda s, x: s.addcmul_(x, x),
        lambda s, x: s.addcdiv_(x, x),
        lambda s, x: s.add_(x * 1j),
        lambda s, x: s.sub_(x * 1j),
    ],
)
def test_a_write_of_values_of_another_kind_is_refused_where_the_program_handles_it(write: Callable) -> None:
    def program(x: Tensor, y: Tensor) -> tuple:
        y.copy_(x * 2)
        said = ""
        try:
            write(x.detach().int(), x.detach())
        except RuntimeError as error:
            said = str(error)
        return x + 1, said

    for run in (program, turret.compile(program), turret.compile(program, fullgraph=True)):
        x, y = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3)
        result, said = run(x, y)
        assert "can't be cast" in said and torch.equal(y, 2 * x) and torch.equal(result, x + 1)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "resize",
    [
        lambda x: aten.resize(x + 1, [2, 3]),
        lambda x: aten.resize(x, [2, 3], memory_format=torch.contiguous_format),
        lambda x: aten.resize_as(x.t(), torch.empty(3, 2)),
        lambda x: aten.resize(x, [1, 2, 1, 2], memory_format=torch.channels_last),
        lambda x: aten.resize_as(x.t(), LAST, memory_format=torch.preserve_format),
    ],
)
def test_what_has_changing_sizes_is_resized_to_constant_ones(resize: Callable, dynamic: bool | None) -> None:
    run = turret.compile(resize, dynamic=dynamic, fullgraph=True)
    for rows in (4, 2, 5, 2, 3):  # enough elements that all of the result are known; at 2 some keep their size
        x = torch.randn(rows, 3)
        expected, made = resize(x), run(x)
        assert torch.equal(made, expected)
        assert made.stride() == expected.stride()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "resize",
    [
        lambda x, n, m: aten.resize(x + 1, [n, m]),
        lambda x, n, m: aten.resize(x, [1, n, 2, m], memory_format=torch.channels_last),
        lambda x, n, m: aten.resize_as(x.t(), torch.empty(n, m)),
        lambda x, n, m: aten.resize_as(x, torch.empty(1, n, 1, m), memory_format=torch.channels_last),
    ],
)
def test_what_is_resized_has_sizes_that_change(resize: Callable, dynamic: bool | None) -> None:
    run = turret.compile(resize, dynamic=dynamic, fullgraph=True)
    for n, m in ((4, 3), (2, 5), (3, 3), (5, 2)):
        x = torch.randn(6, 5)
        expected, made = resize(x, n, m), run(x, n, m)
        assert torch.equal(made, expected)
        assert made.stride() == expected.stride()


def test_results_of_fakes_are_fakes() -> None:
    with CorrectedFakeTensorMode() as mode:
        x = torch.empty(2, 3)
    for made in (aten.resize(x, [3, 2]), aten.resize_as(x, x.t()), aten.resize(x, [2, 3])):
        assert getattr(made, "fake_mode", None) is mode


@settings(max_examples=25)
@given(
    sign=st.sampled_from([torch.abs, torch.sgn, F.hardtanh, lambda v: v.norm(1)]),
    seen=st.sampled_from([torch.flatten, torch.Tensor.t, lambda v: v.reshape(1, -1), lambda v: v.expand(2, 2, 2)]),
    rows=st.sampled_from([None, 1, 2]),
)
def test_gradients_of_gradients_of_signs_are_eagers_whatever_views_are_between(
    sign: Callable, seen: Callable, rows: int | None
) -> None:
    def program(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = seen(x)
        y = sign(y if rows is None else F.linear(y.flatten()[:4], w, b)).sum()
        (found,) = torch.autograd.grad(y, x, create_graph=True)
        return (found * x).sum()

    def gradients(function: Callable) -> list[Tensor | None]:
        torch.manual_seed(0)
        given = [torch.randn(*shape, requires_grad=True) for shape in ((2, 2), (rows or 1, 4), (rows or 1,))]
        function(*given).backward()
        return [v.grad for v in given]

    found = gradients(turret.compile(program, fullgraph=True, options={"on_error": "raise", "cache": False}))
    for mine, theirs in zip(found, gradients(program), strict=True):
        assert (mine is None) == (theirs is None)
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("bias_needs_one", [False, True], ids=["no gradient of a bias", "one of a bias"])
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "in one storage"])
def test_gradients_of_memory_efficient_attention_are_laid_out_as_its_kernel_lays_them_out(
    bias_needs_one: bool, shared: bool
) -> None:
    """Of which there is one for GPUs alone: what it gives is written down."""
    q, k, v = (torch.randn(2, 5, 3, 8, dtype=torch.bfloat16) for _ in range(3))
    bias = torch.randn(2, 3, 5, 5, dtype=torch.bfloat16)
    with CorrectedFakeTensorMode(shape_env=ShapeEnv()) as mode:
        given, seed = [mode.from_tensor(x) for x in (q, q, k, v, bias, q)], torch.zeros((), dtype=torch.int64)
        numbers = (5, 5, torch.empty(2, 3, 32), 0.0, seed, seed, 0, bias_needs_one)
        made = aten._efficient_attention_backward(*given, None, None, *numbers, scale=0.5, shared_storage_dqdkdv=shared)
    pitch = 3 if shared else 1
    assert [(g.shape, g.stride(), g.dtype) for g in made[:3]] == [
        (q.shape, (120 * pitch, 24 * pitch, 8, 1), torch.bfloat16)
    ] * 3
    assert not bias_needs_one or (made[3].shape, made[3].stride()) == (bias.shape, (240, 80, 16, 1))
