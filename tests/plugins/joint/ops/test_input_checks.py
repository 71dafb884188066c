"""Calls that eager refuses although torch's shape functions do not: refused here too, and all others compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import turret
from turret.errors import StageError


def part(y, z):
    return torch.slice_scatter(y, z * 2, 1, 3)


def element(y, z):
    return torch.select_scatter(y, z * 2, 0, 1)


def diagonal(y, z):
    return torch.diagonal_scatter(y, z * 2)


def chosen(y, z):
    return torch.index_put(y, (torch.arange(2),), z * 2)


def added(y, z):
    return y.index_add(0, torch.arange(2), z * 2)


SHAPES = [
    (part, (5, 9), (5, 6), [((6, 9), (5, 6)), ((5, 9), (5, 7)), ((5, 9), (4, 6))]),
    (element, (5, 9), (9,), [((5, 9), (8,)), ((5, 8), (9,))]),
    (diagonal, (5, 9), (5,), [((6, 9), (5,)), ((5, 9), (6,))]),
    (chosen, (5, 9), (2, 9), [((5, 9), (3, 9)), ((5, 8), (2, 9)), ((5, 9), (0, 9))]),
    (added, (5, 9), (2, 9), [((5, 8), (2, 9)), ((5, 9), (2, 8))]),
]


def quiet_call(function: Callable, *args: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("program", "first", "second", "wrong"), SHAPES, ids=lambda v: getattr(v, "__name__", ""))
def test_a_part_of_another_shape_is_eagers_error(program, first, second, wrong, dynamic: bool) -> None:
    right = turret.compile(program, dynamic=dynamic, options={"on_error": "raise", "cache": False})
    y, z = torch.randn(first), torch.randn(second)
    torch.testing.assert_close(right(y, z), program(y, z))
    known = turret.compile(program, dynamic=dynamic, options={"cache": False})
    known(y, z)
    for shapes in wrong:
        args = [torch.randn(shape) for shape in shapes]
        with pytest.raises(RuntimeError) as eager:
            program(*args)
        for function in (known, turret.compile(program, dynamic=dynamic, options={"cache": False})):
            with pytest.raises(type(eager.value)) as compiled:
                quiet_call(function, *args)
            assert str(compiled.value) == str(eager.value)


def test_where_nothing_may_run_eagerly_the_error_says_what_was_wrong() -> None:
    strict = turret.compile(part, fullgraph=True, options={"on_error": "raise", "cache": False})
    with pytest.raises(StageError, match=r"eager refuses this call.*\(5, 7\), expected \(5, 6\)"):
        strict(torch.randn(5, 9), torch.randn(5, 7))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("shape", [(), (1,), (9,), (1, 9), (2, 1), (2, 9)], ids=str)
def test_values_that_broadcast_to_what_is_chosen_are_written_by_a_kernel(shape: tuple[int, ...], dynamic: bool) -> None:
    y, z = torch.randn(5, 9), torch.randn(shape)
    function = turret.compile(chosen, dynamic=dynamic, options={"on_error": "raise", "cache": False})
    torch.testing.assert_close(function(y, z), chosen(y, z))


def test_values_for_as_many_elements_as_the_data_say_are_written() -> None:
    def program(y: torch.Tensor) -> torch.Tensor:
        at = torch.nonzero(y[:, 0] > 0).squeeze(1)
        return torch.index_put(y, (at,), y[at].cos())

    y = torch.randn(5, 9)
    options = {"on_error": "raise", "cache": False, "capture_dynamic_output_shape_ops": True}
    function = turret.compile(program, fullgraph=True, options=options)
    torch.testing.assert_close(function(y), program(y))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: x - (n > 0),
        lambda x, n: 1 - (n > 0),
        lambda x, n: -(n > 0),
        lambda x, n: x.index_select(0, n.float()),
        lambda x, n: x.index_copy(0, n, x.double()),
        lambda x, n: torch.nn.functional.layer_norm(x, (3,), x.double()),
        lambda x, n: torch.nn.functional.nll_loss(x[None], n[:1], x.double()),
        lambda x, n: torch.nn.functional.binary_cross_entropy(x.sigmoid(), x.double().sigmoid()),
        lambda x, n: torch.nn.functional.batch_norm(x[None], x.double(), x.double().exp()),
        lambda x, n: torch.nn.functional.batch_norm(x.expand(2, 3), x[None], x.exp()),
        lambda x, n: torch.nn.functional.batch_norm(x.expand(2, 3), x.double(), x.double().exp(), training=True),
        lambda x, n: torch.nn.functional.batch_norm(x.expand(2, 3), None, None, x.double(), training=True),
    ],
)
def test_a_dtype_that_eager_refuses_is_eagers_error(program: Callable) -> None:
    args = torch.randn(3), torch.tensor([2, 1, 0])
    with pytest.raises((RuntimeError, IndexError)) as eager:
        program(*args)
    with pytest.raises(type(eager.value)) as compiled:
        quiet_call(turret.compile(program, options={"cache": False}), *args)
    assert str(compiled.value) == str(eager.value)


@pytest.mark.parametrize("norm", ["layer_norm", "group_norm"])
@pytest.mark.parametrize("given", [(True, True), (True, False), (False, True)], ids=["both", "weight", "bias"])
def test_a_norm_of_a_half_type_has_parameters_of_float32(norm: str, given: tuple[bool, bool]) -> None:
    def program(x: torch.Tensor, w: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor:
        return getattr(torch.nn.functional, norm)(x, (8,) if norm == "layer_norm" else 2, w, b)

    x = torch.randn(4, 8).bfloat16().requires_grad_()
    w, b = (torch.randn(8, requires_grad=True) if wanted else None for wanted in given)
    leaves = [t for t in (x, w, b) if t is not None]
    found = turret.compile(program, options={"on_error": "raise", "cache": False})(x, w, b)
    want = program(x, w, b)
    torch.testing.assert_close(found, want, rtol=2e-2, atol=2e-2)
    if w is None:
        return  # eager has no gradient of that
    for mine, eagers in zip(
        *(torch.autograd.grad(y.float().square().sum(), leaves) for y in (found, want)), strict=True
    ):
        torch.testing.assert_close(mine, eagers, rtol=5e-2, atol=2e-1)


def leading(x, mask, value):
    return torch.index_put(x, (mask,), value)


def in_place(x, mask, value):
    x = x * 1
    x[mask] = value
    return x


def with_rest(x, mask, value):
    x = x * 1
    x[:, mask] = value
    return x


@pytest.mark.parametrize("value", [0.5, 2.0])
@pytest.mark.parametrize(
    ("program", "shape", "mask"),
    [
        (leading, (5, 4, 2), (5, 4, 2)),
        (leading, (5, 4), (5,)),
        (in_place, (5, 4, 2), (5, 4)),
        (in_place, (5, 4), (5, 4)),
        (with_rest, (5, 4), (4,)),
    ],
)
def test_masks_have_the_sizes_of_what_they_are_masks_of(program, shape, mask, value) -> None:
    """Also where sizes are symbols: then they are guarded to be the same."""
    right = turret.compile(program, dynamic=True, options={"on_error": "raise", "cache": False})
    for more in (0, 1, 3):
        x, chosen = torch.randn([s + more for s in shape]), torch.randn([s + more for s in mask]) > 0
        torch.testing.assert_close(right(x, chosen, torch.tensor(value)), program(x, chosen, torch.tensor(value)))
    known = turret.compile(program, dynamic=True, options={"cache": False})
    known(torch.randn(shape), torch.ones(mask, dtype=torch.bool), torch.tensor(value))
    with pytest.raises(IndexError, match="mask"):
        quiet_call(known, torch.randn(shape), torch.ones([s + 1 for s in mask], dtype=torch.bool), torch.tensor(value))


INTEGERS = (torch.int64, torch.uint8)


@pytest.mark.parametrize(
    ("program", "dtypes"),
    [
        (lambda x: F.adaptive_max_pool2d(x, 2), INTEGERS),
        (lambda x: torch.softmax(x, -1), INTEGERS),
        (lambda x: F.log_softmax(x, -1), INTEGERS),
        (F.gelu, (*INTEGERS, torch.bool)),
        (F.silu, (*INTEGERS, torch.bool)),
        (F.celu, INTEGERS),
        (torch.frac, INTEGERS),
        (torch.bitwise_not, (torch.float32, torch.float16)),
        (torch.floor, (torch.bool,)),
        (torch.abs, (torch.bool,)),
        (lambda x: F.interpolate(x, scale_factor=2), (torch.int64, torch.bool)),
        (lambda x: F.mse_loss(x, x), INTEGERS),
        (lambda x: torch.round(x, decimals=2), INTEGERS),
    ],
)
def test_dtypes_that_eager_has_no_kernel_for_are_its_error(program, dtypes) -> None:
    known = turret.compile(program, options={"cache": False})
    for dtype in dtypes:
        with pytest.raises(RuntimeError) as eager:
            program(torch.ones(1, 2, 4, 4, dtype=dtype))
        with pytest.raises(type(eager.value)):
            quiet_call(known, torch.ones(1, 2, 4, 4, dtype=dtype))
    right = turret.compile(program, options={"on_error": "raise", "cache": False})
    accepted = torch.int64 if torch.float32 in dtypes else torch.float32
    x = torch.randint(-3, 4, (1, 2, 4, 4)).to(accepted)
    torch.testing.assert_close(right(x), program(x))


REFUSED = {
    "a bool subtracted": (lambda y: y * 2 - True, (3, 4)),
    "a bool as a factor": (lambda y: torch.add(y, y, alpha=True), (3, 4)),
    "a bool as a factor in place": (lambda y: (y * 2).sub_(y, alpha=False), (3, 4)),
    "a bool as a factor of a number": (lambda y: torch.rsub(y, 2, alpha=True), (3, 4)),
    "a row cut away that is only added later": (lambda y: torch.nn.functional.pad(y * 2, (7, -7)), (3, 4)),
    "a reciprocal that overflows": (lambda y: torch.nn.functional.celu(y, 1e-40), (3, 4)),
    "an element of nothing": (lambda y: y[torch.tensor([0])] * 2, (0, 4)),
    "written to nothing": (lambda y: torch.index_put(y, (torch.tensor([0]),), torch.tensor(2.0)), (0, 4)),
}


@pytest.mark.parametrize(("program", "shape"), REFUSED.values(), ids=REFUSED)
def test_numbers_that_eager_refuses_raise_what_eager_raises(program, shape) -> None:
    y = torch.randn(shape)
    with pytest.raises((RuntimeError, IndexError)) as eager:
        program(y)
    with pytest.raises(eager.type):
        quiet_call(turret.compile(program, options={"cache": False}), y)


def test_negative_padding_that_leaves_something_is_compiled() -> None:
    def program(y: torch.Tensor, n: int) -> torch.Tensor:
        return torch.nn.functional.pad(y * 2, (n, -3))

    compiled = turret.compile(program, dynamic=True, options={"on_error": "raise", "cache": False})
    y = torch.randn(3, 6)
    for n in (4, 2, -2, -3):
        torch.testing.assert_close(compiled(y, n), program(y, n))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: x.select(0, n) * 2,
        lambda x, n: x[n] * 2,
        lambda x, n: torch.select_scatter(x, x[0] * 2, 0, n),
        lambda x, n: x.exp().select(0, n).add_(1),
    ],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_an_element_past_either_end_is_eagers_error(program: Callable, rows: int) -> None:
    function = turret.compile(program, dynamic=True, options={"cache": False})
    x = torch.randn(rows, 4)
    for index in (-1, 0, rows - 1):
        torch.testing.assert_close(quiet_call(function, x, index), program(x, index))
    for index in (rows, rows + 5, -rows - 1):
        with pytest.raises(IndexError):
            quiet_call(function, x, index)


def test_a_slice_whose_size_is_guarded_to_be_1_is_repeated() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, n: int) -> torch.Tensor:
        return x[:, -n::2] + y

    function = turret.compile(
        program, dynamic=True, options={"on_error": "raise", "cache": False, "check_bounds": True}
    )
    x, y = torch.randn(6, 33), torch.randn(6, 11)
    for n in (2, 22, 1):
        torch.testing.assert_close(function(x, y, n), program(x, y, n))


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: x[n],
        lambda x, n: x[:, 0][None][n],
        lambda x, n: (x + 1)[n],
        lambda x, n: x.index_select(0, n),
        lambda x, n: x.gather(0, n[:, None]),
        lambda x, n: torch.nn.functional.embedding(n, x),
    ],
)
def test_an_index_into_the_one_element_of_a_dimension_is_checked(program: Callable) -> None:
    function = turret.compile(program, options={"on_error": "raise", "cache": False})
    x = torch.randn(1, 4)
    torch.testing.assert_close(function(x, torch.tensor([0])), program(x, torch.tensor([0])))
    for index in (1, -2):
        with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
            function(x, torch.tensor([index]))


FLOATS, WHOLE, BOOLS = torch.float32, torch.int64, torch.bool
DTYPES = [
    (lambda x: F.multi_margin_loss(x, torch.arange(3)), FLOATS, WHOLE),
    (lambda x: F.multilabel_margin_loss(x, torch.tensor([[0, -1, 2], [1, 0, -1], [-1, 0, 0]])), FLOATS, WHOLE),
    (lambda x: F.bilinear(x, x, x[:2, :, None].expand(2, 3, 3)), WHOLE, BOOLS),
    (lambda x: torch.bucketize(x, x[0]), WHOLE, BOOLS),
    (lambda x: torch.searchsorted(x[0], x), WHOLE, BOOLS),
    (lambda x: torch.arange(2, dtype=x.dtype), WHOLE, BOOLS),
    (lambda x: F.max_pool1d(x[None], 2), FLOATS, WHOLE),
    (lambda x: F.prelu(x, x[0, :1]), FLOATS, WHOLE),
    (lambda x: F.interpolate(x[None], 6), FLOATS, torch.complex64),
    (lambda x: F.fold(x.reshape(1, 9, 1)[:, :4], (2, 2), 2), BOOLS, WHOLE),
    (lambda x: F.unfold(x[None, None], 2), BOOLS, WHOLE),
    (lambda x: F.binary_cross_entropy(x, x), FLOATS, WHOLE),
    (lambda x: torch.ldexp(x, x), BOOLS, None),
    (lambda x: x.clamp(0, 1), BOOLS, None),
    (lambda x: x.clamp(False, True), WHOLE, BOOLS),
    (lambda x: x.clamp_min(False), WHOLE, BOOLS),
    (lambda x: x.clamp(x[0], x[1]), WHOLE, BOOLS),
    (lambda x: x.clamp(min=x[0]).clamp_max(x[1]), BOOLS, None),
]


@pytest.mark.parametrize("program, taken, refused", DTYPES)
def test_a_dtype_is_taken_where_eager_takes_it(
    program: Callable, taken: torch.dtype, refused: torch.dtype | None
) -> None:
    x = torch.ones(3, 3, dtype=taken)
    strict = turret.compile(program, options={"on_error": "raise", "cache": False})
    torch.testing.assert_close(strict(x), program(x))
    if refused is None:
        return
    wrong = torch.ones(3, 3, dtype=refused)
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        program(wrong)
    with pytest.raises(expected.type):
        quiet_call(turret.compile(program, options={"cache": False}), wrong)


def test_labels_behind_the_end_of_a_row_do_not_count() -> None:
    x, labels = torch.tensor([[0.0, 1.0, 2.0], [1.0, 3.0, 2.0]]), torch.tensor([[0, -1, 2], [-1, 0, 1]])
    for dynamic in (False, True):
        compiled = turret.compile(F.multilabel_margin_loss, dynamic=dynamic, options={"on_error": "raise"})
        torch.testing.assert_close(compiled(x, labels), F.multilabel_margin_loss(x, labels))


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("shuffle", [F.pixel_shuffle, F.pixel_unshuffle])
@pytest.mark.filterwarnings("ignore:Turret runs a graph eagerly")
def test_a_pixel_shuffle_of_nothing_is_eagers(shuffle, gradient: bool) -> None:
    def shape_of(program) -> tuple[int, ...] | type:
        x = torch.ones(2, 0, 4, 4, requires_grad=gradient)
        try:
            found = program(x)
            found.sum().backward() if gradient else None
        except RuntimeError as error:
            return type(error)
        return tuple(found.shape)

    def program(x):
        return shuffle(x, 2)

    assert shape_of(turret.compile(program, options={"cache": False})) == shape_of(program)


@pytest.mark.parametrize("choose", [torch.min, torch.max, torch.median])
def test_a_part_that_may_have_nothing_to_choose_from_is_refused_as_eager_refuses_it(choose: Callable) -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        return choose(x[n % 4 :], 0).values

    compiled, x = turret.compile(program, options={"cache": False}), torch.randn(3, 2)
    torch.testing.assert_close(compiled(x, 0), program(x, 0))
    with warnings.catch_warnings(record=True) as told, pytest.raises(IndexError):
        warnings.simplefilter("always")
        compiled(x, -1)
    assert not any("VerificationError" in str(warning.message) for warning in told)
