"""Numpy's functions of arrays that the graph computes: their values, dtypes and kinds are numpy's, in one graph."""

from __future__ import annotations

import operator

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

import turret
from tests.plugins.capture.capture_lab import Observed

A = numpy.arange(1.0, 7.0).reshape(2, 3)
B = numpy.arange(6, dtype=numpy.float32).reshape(2, 3) - 2
INTS = numpy.arange(-2, 4).reshape(2, 3)
SQUARE = numpy.array([[4.0, 1.0], [1.0, 3.0]])


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            assert_same(mine, theirs)
    elif isinstance(expected, (numpy.ndarray, numpy.generic)):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert numpy.allclose(found, expected, equal_nan=True, rtol=1e-5, atol=1e-6)
    else:
        assert found == expected


def copies(values):
    return [v.copy() if isinstance(v, numpy.ndarray) else v for v in values]


def same(program, *args, breaks=0, graphs=1):
    observed = Observed(program)
    for _ in range(2):
        mine, theirs = copies(args), copies(args)
        assert_same(observed(*mine), program(*theirs))
        assert_same(mine, theirs)
    if breaks is not None:
        assert (len(observed.graphs), len(observed.breaks), observed.fallbacks) == (graphs, breaks, []), observed.breaks
    return observed


UNARY = [
    numpy.sin, numpy.exp, numpy.abs, numpy.negative, numpy.square, numpy.floor, numpy.sqrt, numpy.isnan, numpy.cumsum,
    numpy.sum, numpy.mean, numpy.max, numpy.argmin, numpy.std, numpy.any, numpy.ravel, numpy.transpose, numpy.flip,
    numpy.sort, numpy.ones_like, numpy.round, numpy.sign, numpy.prod, numpy.fft.fft, numpy.median,
]  # fmt: skip
BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
    operator.lt, operator.eq, numpy.maximum, numpy.hypot, numpy.arctan2, numpy.fmin, numpy.logaddexp, numpy.equal,
]  # fmt: skip
DTYPES = ["float64", "float32", "int64", "int32", "int8", "uint8", "bool", "complex64", "float16"]


@st.composite
def arrays(draw, shape=None):
    dtype = numpy.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from([(), (3,), (2, 3), (1, 3)])) if shape is None else shape
    number = st.integers(0 if dtype.kind == "u" else -4, 4)
    values = numpy.array([draw(number) for _ in range(int(numpy.prod(shape)))]).reshape(shape).astype(dtype)
    if dtype.kind == "f" and values.size and draw(st.booleans()):
        values.flat[0] = draw(st.sampled_from([numpy.nan, numpy.inf, -0.0]))
    return values.T if draw(st.booleans()) else values


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(UNARY), arrays())
def test_a_function_gives_what_numpy_gives_or_breaks(function, array):
    _agrees(function, array)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(BINARY), arrays((2, 3)), st.one_of(arrays(()), st.sampled_from([2, 2.5, True, numpy.float32(3)]))
)
def test_an_operator_gives_what_numpy_gives_or_breaks(function, array, other):
    if isinstance(other, numpy.ndarray) and other.shape == () and array.shape != (2, 3):
        other = other.reshape(1)
    _agrees(function, array, other)


def _agrees(function, *args):
    with numpy.errstate(all="ignore"):
        try:
            expected = function(*copies(args))
        except (TypeError, ValueError, IndexError) as error:
            with pytest.raises(type(error)):
                Observed(lambda *a: function(*a))(*copies(args))
            return
        observed = Observed(lambda *a: function(*a))
        assert_same(observed(*copies(args)), expected)
        assert_same(observed(*copies(args)), expected)


def test_reductions_give_scalars_and_arrays():
    same(
        lambda a: (
            a.sum(),
            a.sum(0),
            a.mean(axis=1, keepdims=True),
            a.argmax(),
            a.std() * 2,
            isinstance(a.max(), float),
        ),
        A,
    )
    same(lambda a, b: ((a - a.mean(0)) / (a.std(0) + 1e-5), b.sum().dtype, numpy.float32(a.sum())), A, B)


def test_indexing_and_views():
    same(
        lambda a: (
            a[0],
            a[0, 1],
            a[..., 0],
            a[:, None],
            a[:, ::2],
            a.T[1],
            a[numpy.array([1, 0])],
            [r.sum() for r in a],
        ),
        A,
    )
    same(lambda a: (a[::-1], (a * 2)[:, ::-1] + 1, numpy.diag(a @ a.T)), A)


def test_changes_in_place():
    def program(a):
        a += 1
        a[0] = 5
        a[:, 1] *= 2
        part = a[1]
        part -= 3
        other = a.astype(a.dtype)
        other += 100
        numpy.add(a, a, out=a)
        return part, a.sum()

    same(program, A)


def test_a_change_beside_a_view_that_torch_has_no_like_of_runs_as_python():
    def program(a):
        back = a[::-1]
        a += 1
        return back

    assert "view" in same(program, A, breaks=None).fallbacks[0]


def test_a_view_that_leaves_is_one_of_the_same_memory():
    array = A.copy()
    found = Observed(lambda a: a[::-1])(array)
    array[0] = 7
    assert (found[1] == 7).all()


def test_an_array_made_by_the_program_is_filled():
    def program(a):
        made = numpy.zeros(3)
        made[0] = a.sum()
        made[1:] += a[0, :2]
        return made, numpy.array([a.max(), 1.0]), numpy.linspace(0, 1, 3) * a

    same(program, A)


def test_products_linear_algebra_and_transforms():
    same(lambda a, b: (a @ b.T, numpy.einsum("ij,kj->ik", a, b), numpy.stack([a, b]), numpy.dot(a[0], a[0])), A, B)
    same(
        lambda s: (numpy.linalg.inv(s), numpy.linalg.det(s), numpy.linalg.solve(s, s[0]), numpy.linalg.norm(s)), SQUARE
    )
    same(lambda a, b: (numpy.fft.fft(a), numpy.fft.rfft(b), numpy.fft.ifft(a).real), A, B)


def test_dtypes():
    same(
        lambda a, b: (a.astype(numpy.float32), b.astype("int64"), b + 2.5, b * numpy.float64(2), a.dtype, b.nbytes),
        A,
        B,
    )
    same(lambda i: (i / 2, i * 2.0, i // 2, i % 3, i & 1, ~i, numpy.sin(i), i.mean()), INTS)


def test_what_integers_may_be_is_left_to_numpy():
    for function in (operator.floordiv, numpy.mod, operator.lshift):
        with numpy.errstate(all="ignore"):
            same(lambda i, function=function: function(i, abs(i) // 2), INTS, breaks=None)


def test_another_dtype_or_number_of_dimensions_is_another_graph():
    observed = Observed(lambda a: a * 2 + 1, fullgraph=True)
    for array in (A, A, B, A[0], A[:1]):
        assert_same(observed(array), array * 2 + 1)
    assert len(observed.graphs) <= 4


def test_arrays_that_cannot_be_written_to():
    fixed = A.copy()
    fixed.flags.writeable = False

    def program(a):
        a += 1
        return a

    with pytest.raises(ValueError, match="read-only"):
        Observed(program)(fixed)
    observed = Observed(program)
    observed(A.copy())
    with pytest.raises(ValueError, match="read-only"):
        observed(fixed)


def test_a_mix_of_tensors_and_arrays():
    def program(x, a):
        y = numpy.sin((x + 1).numpy()) * a
        return torch.from_numpy(y).sum() + x, y

    x = torch.ones(3, dtype=torch.float64)
    observed = Observed(program, fullgraph=True)
    for _ in range(2):
        found, expected = observed(x, A), program(x, A)
        assert torch.allclose(found[0], expected[0]) and numpy.allclose(found[1], expected[1])


def test_it_is_compiled():
    def program(a, b):
        scaled = (a - a.mean(axis=0)) / (a.std(axis=0) + 1)
        return numpy.tanh(scaled @ b.T).sum(axis=1), scaled.max()

    compiled = turret.compile(program, fullgraph=True)
    for _ in range(2):
        assert_same(compiled(A, B), program(A, B))


class Listening(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.heard = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.heard.append(getattr(function, "__name__", function))
        return function(*args, **(kwargs or {}))


def test_modes_of_the_program_hear_its_calls_and_none_that_capture_makes_for_numpy():
    def program(x):
        array = x.detach().numpy()
        parts = numpy.maximum(array, 1), numpy.concatenate([array, array])[1:], array.mean(0) - array
        return [torch.from_numpy(part) for part in parts]

    heard = []
    fast = turret.compile(program, options={"on_error": "raise"})
    for call in (program, program, fast, fast):
        with Listening() as mode:
            made = call(torch.ones(3, 2))
        heard.append((mode.heard, [m.tolist() for m in made]))
    assert heard[2:] == heard[:2]


@pytest.mark.parametrize("make", [lambda: torch.arange(6.0).view(2, 3), lambda: torch.arange(6.0).view(3, 2).t()])
def test_new_arrays_have_their_dimensions_in_memory_in_numpys_order(make):
    def program(x):
        array = x.numpy()
        parts = numpy.concatenate([array, array]), numpy.cumsum(array, 0), numpy.maximum(array, 1), array.copy()
        return [torch.from_numpy(part) for part in parts]

    made, expected = turret.compile(program, options={"on_error": "raise"})(make()), program(make())
    assert [t.stride() for t in made] == [t.stride() for t in expected]
    torch.testing.assert_close(made, expected)


def test_a_view_of_a_tensor_of_a_part_of_an_array_begins_where_eager_s_does():
    def program(y):
        t = torch.from_numpy(numpy.concatenate([y.numpy()[:1], y.numpy()])[1:])
        return t[1], t.view_as(t), t[1:].t()

    x = torch.randn(2, 3)
    found, expected = turret.compile(program)(x), program(x)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert one.storage_offset() == other.storage_offset() and one.stride() == other.stride()
        assert one.untyped_storage().nbytes() == other.untyped_storage().nbytes()
    assert len({o.untyped_storage().data_ptr() for o in found}) == 1


@pytest.mark.parametrize(
    "function",
    [
        numpy.unique, numpy.nonzero, numpy.flatnonzero, numpy.argwhere, numpy.bincount, lambda a: a[a > 1] * 2,
        lambda a: numpy.unique(a, return_inverse=True, return_counts=True), lambda a: numpy.where(a > 1)[0],
        lambda a: numpy.repeat(a, a), lambda a: len(numpy.unique(a)), lambda a: numpy.unique(a * 0.5),
        lambda a: numpy.unique(numpy.sqrt(a - 1.0)),
    ],
)  # fmt: skip
def test_results_whose_size_depends_on_data_are_part_of_a_whole_graph(function):
    compiled = turret.compile(lambda x: function(x.numpy()), fullgraph=True, options={"on_error": "raise"})
    for numbers in ([1, 2, 2, 3], [0, 2, 0, 1], [1, 1, 1, 1]):
        x = torch.tensor(numbers)
        assert_same(compiled(x), function(x.numpy()))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x * torch.from_numpy(numpy.arange(len(x)))[:, None]).numpy(),
        lambda x: numpy.arange(1, len(x), 2, dtype=numpy.float32) + numpy.zeros((3, 1), dtype="int16"),
        lambda x: numpy.ones((2, len(x))) @ x.numpy() + numpy.full((2, 1), 0.5),
        lambda x: (numpy.full(len(x), True), x.numpy().T * 2 + x.numpy().T, numpy.ones((1, len(x))) @ x.numpy()),
        lambda x: numpy.concatenate([f(numpy.arange(len(x))[:, None] / 7.0) for f in (numpy.sin, numpy.cos)], 1),
    ],
)
def test_arrays_of_changing_sizes_are_captured_once_for_all(program):
    observed = Observed(program, fullgraph=True)
    for n in (5, 7, 9, 11):
        x = torch.randn(n, 3)
        assert_same(observed(x), program(x))
    assert len(observed.graphs) <= 2 and not observed.fallbacks


@pytest.mark.parametrize(
    "program",
    [
        lambda x, n: numpy.zeros((n, 3), numpy.float32) + numpy.full((n, 1), 2, numpy.int16),
        lambda x, n: (numpy.eye(n, dtype=numpy.float32), numpy.eye(n, 3), numpy.identity(n), numpy.tri(n, n + 1)),
        lambda x, n: (numpy.tile(x.numpy(), n), numpy.tile(numpy.array([[1, 2]]), (n, 2)), numpy.tile(A, (n, 1))),
        lambda x, n: (numpy.repeat(A, n), numpy.repeat(x.numpy(), n, axis=1), numpy.broadcast_to(A, (n, 2, 3)) + 1),
        lambda x, n: (numpy.linspace(0, 1, n), numpy.linspace(0.5, 2, n, endpoint=False, dtype=numpy.float32)),
        lambda x, n: (numpy.logspace(0, 1, n), numpy.logspace(1, 2, num=n, base=2.0), numpy.linspace(0, n, 5)),
        lambda x, n: (numpy.pad(x.numpy(), n), numpy.pad(INTS, ((0, n), (n, 1)), constant_values=7)),
        lambda x, n: (numpy.pad(A, (n, 0)), numpy.indices((n, 2)), numpy.zeros((n, 2), dtype=bool)),
        lambda x, n: numpy.split(numpy.tile(x.numpy(), (n, 2)), [n, n + 2], axis=0),
    ],
)
def test_arrays_of_forty_ints_are_captured_three_times_at_most(program):
    observed = Observed(program, fullgraph=True)
    for n in range(2, 42):
        x = torch.randn(4, 3)
        assert_same(observed(x, n), program(x, n))
    assert len(observed.graphs) <= 3 and not observed.fallbacks


def test_sizes_that_the_library_computes_are_not_assumed():
    def program(x):
        parts = numpy.split(x.numpy(), 3)
        return numpy.pad(parts[1], 1) + numpy.concatenate([parts[0], parts[2][:2]])

    observed = Observed(program, fullgraph=True)
    for n in range(4, 24):
        x = torch.randn(n * 3)
        assert_same(observed(x), program(x))
    assert len(observed.graphs) == 2


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[2:4], lambda a: a[6:], lambda a: a[3:3], lambda a: numpy.split(a, [3, 5])[1], lambda a: a[1:6:3],
        lambda a: numpy.array_split(a, 3)[2], lambda a: a.reshape(7, 1)[4:], lambda a: numpy.roll(a, 2)[2:4],
    ],
)  # fmt: skip
def test_views_of_arrays_share_memory_however_few_their_elements(view):
    def writes(compiled):
        x = torch.arange(7.0)
        part = compiled(x)
        part[...] = 77
        return part.tolist(), x.tolist()

    for program in (lambda x: view(x.numpy()), lambda x: torch.from_numpy(view(x.numpy()))):
        assert writes(Observed(program)) == writes(program)


def test_tensors_of_parts_of_one_array_are_where_their_parts_are():
    def program(x):
        one, two, three = numpy.array_split(x.numpy() * 2, 3)
        middle = torch.from_numpy(two)
        return middle, one, three, torch.from_numpy(three), middle[1:], two

    observed = Observed(program, fullgraph=True)
    found, expected = (call(torch.arange(7.0)) for call in (observed, program))
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(theirs))
        if isinstance(theirs, torch.Tensor):
            assert mine.storage_offset() == theirs.storage_offset()
            assert mine.untyped_storage().nbytes() == theirs.untyped_storage().nbytes()
    found[5][:] = 77
    assert [v.tolist() for v in found] == [[77, 77], [0, 2, 4], [10, 12], [10, 12], [77], [77, 77]]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: numpy.zeros(n, dtype=object),
        lambda n: numpy.full(n, "a"),
        lambda n: numpy.zeros(n, dtype="datetime64[s]"),
        lambda n: numpy.arange(n, dtype=numpy.uint64),
        lambda n: numpy.arange(0, n, 0.7),
        lambda n: numpy.zeros((n, 2), order="F"),
    ],
)
def test_arrays_that_torch_has_no_like_of_are_numpys(make):
    observed = Observed(lambda x: (make(len(x)), x + 1))
    for n in (5, 7, 9):
        found, expected = observed(torch.ones(n))[0], make(n)
        assert found.dtype == expected.dtype and found.tolist() == expected.tolist()
        assert found.strides == expected.strides
    assert not observed.breaks


def test_arrays_in_fortrans_order_keep_it_behind_graph_breaks_and_as_tensors():
    def program(x):
        made = numpy.ones((3, 2), order="F")
        turret.graph_break()
        made[0] = 2
        other = numpy.asfortranarray(numpy.full((3, 2), 1.5))
        return made, made.strides, other.strides, torch.tensor(other).stride(), torch.from_numpy(other).stride(), x + 1

    found, expected = Observed(program)(torch.ones(2)), program(torch.ones(2))
    assert_same(found[:-1], expected[:-1])
    assert found[0].flags.f_contiguous


def test_arrays_that_numpy_makes_as_parts_of_its_own_leave_compiled_code():
    def program(x):
        spaced = numpy.linspace(0, 1, 5)
        return spaced, numpy.tile(numpy.array([1, 2]), (2, 2)), numpy.arange(6.0).reshape(2, 3), x + 1

    observed = Observed(program, fullgraph=True)
    found, expected = observed(torch.ones(2)), program(torch.ones(2))
    assert_same(found[:-1], expected[:-1])
    assert all(a.flags.writeable for a in found[:-1])
    one, other = Observed(lambda x: ((a := numpy.arange(4)), a[1:], x + 1))(torch.ones(2))[:2]
    one[1] = 7
    assert other.tolist() == [7, 2, 3]
