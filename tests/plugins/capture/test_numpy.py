"""Numpy beside tensors: constants are computed while capturing, arrays and tensors share memory as in eager."""

from __future__ import annotations

import math

import numpy
import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, check, outcome
from turret.errors import CaptureError

X = torch.arange(1.0, 5.0)
SCALE, TABLE = numpy.float64(2.5), numpy.arange(4, dtype=numpy.float32)


def full(program, *args, **settings):
    """One graph, equal to eager."""
    return check(program, *args, breaks=0, graphs=1, **settings)


def test_numbers_of_numpy_are_constants():
    full(lambda x: x * SCALE + SCALE * x - numpy.pi * numpy.sqrt(2.0) + numpy.int64(3), X)
    full(lambda x, n: x.long() * n, X, numpy.int32(3))


def test_a_number_of_another_type_is_another_graph():
    observed = Observed(lambda x, n: x * n)
    for number in (numpy.float32(2), numpy.float32(3), numpy.float64(3)):
        assert torch.equal(observed(X, number), X * float(number))
    assert len(observed.graphs) == 3


OF_A_NUMBER = {
    "product": lambda x, n: x * n + n,
    "power": lambda x, n: x**n,
    "tensor": lambda x, n: x + torch.tensor(n) + torch.as_tensor(n) + torch.full((4,), n),
    "functions": lambda x, n: (x * numpy.sqrt(abs(n)), n * 2 + 1, x * max(n, 0.2), x * round(n, 1)),
    "python": lambda x, n: (x * float(n), x * int(n * 10), x * n.item(), type(n)),
    "argument": lambda x, n: (
        x.clamp(max=n),
        torch.add(x, x, alpha=n),
        torch.lerp(x, x + 1, n),
        torch.where(x > n, x, n),
    ),
    "types": lambda x, n: (x * n.dtype.itemsize, x * 2 if isinstance(n, float) else x, n.astype(numpy.float32)),
    "sequence": lambda x, n: (torch.tensor([n, n + 1]), torch.as_tensor([n, 2])),
    "returned": lambda x, n: (n, x * [n, 1][0], x[int(abs(n)) % 3], x.clone().fill_(n)),
}


@pytest.mark.parametrize("kind", [numpy.float64, numpy.float32, numpy.int64, numpy.uint8])
@pytest.mark.parametrize("name", OF_A_NUMBER)
def test_numbers_that_change_are_inputs_of_one_graph(name, kind):
    program = OF_A_NUMBER[name]
    if name == "argument" and numpy.issubdtype(kind, numpy.integer):
        pytest.skip("eager takes no such numbers for a weight")
    observed = Observed(program)
    for number in (3.25, 7.5, 5.0, 9.75, 1.5):
        assert_same(observed(X, kind(number)), program(X, kind(number)))
    most = {"functions": 4, "sequence": 5}.get(name, 3)  # the ones compare, the others take integers for what they are
    assert len(observed.graphs) <= most


def test_a_number_that_decides_is_a_graph_a_way():
    observed = Observed(lambda x, n: x * 2 if n > 0.5 else x * 3)
    for number in (0.25, 0.75, 0.5, 1.5, 0.125):
        torch.testing.assert_close(observed(X, numpy.float64(number)), X * (2 if number > 0.5 else 3))
    assert len(observed.graphs) == 3


def test_the_dtype_of_a_number_counts_where_a_tensor_is_made_of_it():
    full(lambda x: (torch.tensor(numpy.float64(2)), torch.as_tensor(numpy.int16(2)), x + 1), X)


def test_functions_of_constants_are_computed():
    def program(x):
        total = float(numpy.prod([1, 2, 3])) + int(numpy.ceil(2.2)) + numpy.log(x.shape[0])
        grid = numpy.linspace(0, 1, 4).astype(numpy.float32) * 2
        grid[0] = 7
        return x * total + torch.from_numpy(grid), grid.mean(), len(grid), [v for v in grid]

    full(program, X)


def test_arrays_from_before_are_inputs():
    observed = Observed(lambda x, a: x + torch.from_numpy(a) + torch.from_numpy(TABLE), fullgraph=True)
    array = numpy.ones(4, dtype=numpy.float32)
    for _ in range(2):
        assert torch.equal(observed(X, array), X + torch.from_numpy(array + TABLE))
        array += 1
    assert len(observed.graphs) == 1
    TABLE[0] += 1
    assert torch.equal(observed(X, array), X + torch.from_numpy(array + TABLE))


def test_memory_is_shared_and_copies_are_not():
    def program(a):
        torch.from_numpy(a).add_(1)
        torch.tensor(a).add_(100)
        return torch.as_tensor(a, dtype=torch.float64) * 2

    mine, plain = numpy.zeros(3), numpy.zeros(3)
    observed = Observed(program, fullgraph=True)
    assert torch.equal(observed(mine), program(plain)) and (mine == plain).all() and (mine == 1).all()


def test_from_a_tensor_and_back():
    def program(x):
        y = x * 2
        array = y.numpy()
        z = torch.from_numpy(array)
        z.add_(1)
        return y, array.shape, array.ndim, array.dtype, z * 2

    full(program, X)


@pytest.mark.parametrize("function", [torch.from_numpy, torch.as_tensor, torch.asarray])
def test_a_tensor_of_the_array_of_a_tensor_is_another_object_in_its_memory(function):
    def program(x):
        array = x.numpy()
        one, two = function(array), function(array)
        one.unsqueeze_(0)
        two.mul_(2)
        return x.shape, one.shape, one is x, two is x, one is two, x * 1

    full(program, X)


def test_an_array_leaves_the_graph():
    observed = Observed(lambda x: (x + 1).numpy(), fullgraph=True)
    found = observed(X)
    assert type(found) is numpy.ndarray and (found == (X + 1).numpy()).all()


def test_computing_with_arrays_of_tensors_is_tensor_code():
    full(lambda x: torch.from_numpy(numpy.sin((x + 1).numpy())) + 1, X)


def test_an_array_changed_through_a_tensor_in_its_memory_runs_as_python():
    def program(x):
        array = numpy.zeros(4, dtype=numpy.float32)
        held = torch.from_numpy(array)
        held.add_(1)
        return x + held, float(numpy.sum(array))

    observed = Observed(program)
    assert observed(X)[1] == 4.0 and "numpy array" in observed.fallbacks[0]


def test_random_numbers_of_numpy_run_as_python():
    def program(x):
        return x + 1, numpy.random.rand()

    observed = Observed(program)
    numpy.random.seed(0)
    found = [observed(X)[1] for _ in range(2)]
    numpy.random.seed(0)
    assert found == [numpy.random.rand(), numpy.random.rand()]


def test_a_nan_of_numpy():
    observed = Observed(lambda x, n: x * n, fullgraph=True)
    assert torch.isnan(observed(X, numpy.float64(math.nan))).all()


def test_arrays_as_indices():
    def program(x, rows):
        y = x.reshape(2, 2) * 2
        y[numpy.array([0]), 1] = 7
        return y[numpy.array([1, 0])], y[:, numpy.arange(1)], y[rows], y[numpy.int64(1)]

    full(program, X, numpy.array([1]))


def test_legacy_constructors_take_arrays():
    def program(x):
        table = numpy.zeros((4, 2))
        table[:, 0::2] = numpy.sin(numpy.arange(4)[:, None])
        return x.unsqueeze(1) + torch.FloatTensor(table)

    full(program, X)


class Table(torch.nn.Module):
    def __init__(self, dtype=numpy.float64):
        super().__init__()
        self.table, self.epoch = numpy.linspace(1, 2, 4).astype(dtype), 0

    def forward(self, x):
        return x / self.table[self.epoch] + self.table.sum() + sum(float(v) for v in self.table)


def test_numbers_of_an_array_that_the_program_keeps_are_assumed_to_stay():
    for dtype in (numpy.float64, numpy.float32, numpy.int64):
        module = Table(dtype)
        observed = Observed(module.__call__, fullgraph=True)
        for _ in range(2):
            assert torch.equal(observed(X), module(X))
        assert len(observed.graphs) == 1
        module.table[0] = 7
        assert torch.equal(Observed(module.__call__, fullgraph=True)(X), module(X))


def test_an_array_whose_numbers_change_is_read_by_python():
    module = Table()
    observed = Observed(module.__call__)
    for number in range(4):
        module.table[:] += 1
        assert torch.equal(observed(X), module(X))
        assert bool(observed.breaks) == (number > 0)


def test_a_part_of_an_array_from_before_is_the_programs_own():
    def program(x):
        part = TABLE[1:]
        part[0] = part[0] + 1
        torch.from_numpy(TABLE[2:]).add_(1)
        return x * float(TABLE[1])

    before = TABLE.copy()
    try:
        observed = Observed(program)
        for _ in range(2):
            mine = TABLE.copy()
            found, left = observed(X), TABLE.copy()
            TABLE[:] = mine
            assert torch.equal(found, program(X)) and (left == TABLE).all()
    finally:
        TABLE[:] = before


def test_an_array_that_is_read_and_changed_through_a_tensor():
    def program(x, held):
        held.add_(1)
        return x * float(TABLE[1])

    before = TABLE.copy()
    try:
        held, observed = torch.from_numpy(TABLE), Observed(program)
        for _ in range(3):
            expected = X * float(TABLE[1] + 1)
            assert torch.equal(observed(X, held), expected)
    finally:
        TABLE[:] = before


def test_an_array_handed_in_is_no_constant():
    observed = check(lambda x, a: x * float(a[0]), X, numpy.ones(2), breaks=1)
    assert "array" in observed.breaks[0] or "ndarray" in observed.breaks[0]


def test_functions_of_numpy_of_a_tensor():
    full(lambda x: (numpy.sqrt(x), numpy.log(x) + 1, numpy.abs(-x), x / numpy.sqrt(x.sum())), X)
    check(lambda x: numpy.sqrt(x.long()) + 1, X, breaks=None)
    check(lambda x: numpy.sqrt(x.reshape(2, 2).t()) + 1, X, breaks=None)


def test_an_array_made_of_a_tensor():
    def program(x):
        y = x + 1
        copied, shared = torch.from_numpy(numpy.array(y)), torch.from_numpy(numpy.asarray(y))
        y.add_(1)
        return copied.long(), shared * 2, numpy.array(x)

    full(program, X)


def test_limits_of_numpys_types():
    def program(x):
        return x.clamp(numpy.finfo(numpy.float32).min, numpy.iinfo("int8").max) + numpy.finfo(numpy.float64).eps

    full(program, X)


def test_products_of_arrays():
    full(lambda x: x * float(numpy.matmul(numpy.array([1.0, 2.0]).transpose(), numpy.rint(numpy.ones(2)))), X)


def test_changes_in_place_reach_views():
    def program(x):
        table = numpy.ones((2, 4))
        part = table[:, 0::2]
        part -= numpy.tile(table[:, 2] * 0.5, (2, 1)).T
        kept = table
        table *= 2
        table[0, 1] += 3
        return x * float(kept.sum()) + float(part[0, 0])

    full(program, X)

    def fails(x):
        table = numpy.ones(2, dtype=numpy.int64)
        try:
            table /= 2
        except TypeError:
            return x + 1
        return x

    full(fails, X)


def test_tensors_of_parts_of_arrays_begin_where_the_arrays_do_and_share_their_memory():
    def program(x):
        array = (x * 2).numpy()
        part = torch.from_numpy(array[1:])
        same = torch.from_numpy(array[1:])
        part.add_(5)
        return array, part, same, part is same, torch.from_numpy(x.numpy()[2])

    found = []
    for call in (program, turret.compile(program, options={"on_error": "raise"})):
        x = torch.ones(3, 3)
        array, part, same, identical, of_input = call(x)
        array[1, 1] = 9
        x[2, 0] = 4
        layouts = [(t.storage_offset(), t.untyped_storage().nbytes(), t.stride()) for t in (part, same, of_input)]
        found.append((array.tolist(), part.tolist(), same.tolist(), identical, of_input.tolist(), layouts))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "made",
    [
        lambda n: numpy.float32(numpy.mgrid[0:n, 0:n].T).sum(-1),
        lambda n: numpy.mgrid[0:1:3j],
        lambda n: sum(numpy.ogrid[0:n, 0:3]),
        lambda n: numpy.r_[0:n, 7],
        lambda n: numpy.c_[numpy.arange(3), numpy.arange(3)],
    ],
)
def test_grids_of_slices_are_made_while_capturing(made):
    def program(x, n):
        return x + torch.from_numpy(made(n)).double().sum()

    compiled = turret.compile(program, fullgraph=True)
    for n in (3, 5):
        torch.testing.assert_close(compiled(torch.ones(2), n), program(torch.ones(2), n))


def compared(x):
    a = x.numpy()
    same = numpy.array_equal(a, a + 0), numpy.array_equal(a, a + 1), numpy.array_equal(a, a[:1])
    return *same, numpy.allclose(a, a + 1e-9), numpy.array_equiv(a, a), x * 2 if numpy.array_equal(a, a - 1) else x - 1


def shapes(x):
    a = x.numpy() + 1
    return numpy.shape(a), numpy.ndim(a), numpy.size(a), numpy.size(a, 1), numpy.shape(x), numpy.ndim(x)


def lists_of_arrays(x):
    a = x.numpy()
    return numpy.mean([a, a + 1]), numpy.max([a, a * 2], axis=0), numpy.abs([a, -a]), numpy.stack([a, a])


def signs_and_squares(x):
    floats, integers = x.numpy() - 2, x.long().numpy() - 2
    return numpy.sign(floats), numpy.sign(integers), numpy.square(floats), numpy.square(integers), (
        numpy.sign(floats * float("nan"))
    )  # fmt: skip


def stable_orders(x):
    zeros = x.numpy() * 0
    return numpy.argsort(zeros, kind="stable"), numpy.argsort(x.numpy() % 3, axis=0, kind="stable")


@pytest.mark.parametrize("program", [compared, shapes, lists_of_arrays, signs_and_squares, stable_orders])
def test_questions_about_arrays_of_the_graph_are_answered_in_numpys_types(program):
    observed = Observed(program, fullgraph=True)
    for number in range(3):
        x = torch.arange(6.0).reshape(2, 3) - number
        assert_same(observed(x), program(x))


def test_an_order_of_equal_numbers_that_numpy_chooses_is_left_to_numpy():
    with pytest.raises(CaptureError, match="orders what is equal"):
        Observed(lambda x: numpy.argsort(x.numpy()), fullgraph=True)(torch.ones(3))


def test_an_array_that_is_forced_is_of_the_detached_tensor():
    def program(x, w):
        array = (x * 2).numpy(force=True)
        array[0] = 5
        return array, w.numpy(force=True) + 1, (w * x).numpy(force=True)

    observed, w = Observed(program, fullgraph=True), torch.ones(4, requires_grad=True)
    for found, expected in zip(observed(X, w), program(X, w), strict=True):
        numpy.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64, numpy.int64])
@pytest.mark.parametrize("shape", [(), (4,), (2, 4)])
def test_an_array_to_the_right_of_a_tensor_is_computed_by_numpy_and_gives_a_tensor(dtype, shape):
    array = numpy.full(shape, 3, dtype)

    def program(x, given):
        kept = x
        x += given
        return x, kept, kept - array, x / (given + 1), kept.long() * given

    observed = Observed(program, fullgraph=True)
    for scale in (1, 3):
        x, given = torch.arange(4.0) * scale, numpy.asarray(array * dtype(scale))
        assert_same(observed(x, given), program(x, given))


def test_an_array_beside_a_tensor_is_refused_where_eager_refuses_it():
    array = numpy.ones(3, numpy.float32)
    for program in (lambda x: x * array, lambda x: array * x):
        x = torch.ones(3, requires_grad=True)
        with pytest.raises((RuntimeError, TypeError)):
            program(x)
        with pytest.raises((RuntimeError, TypeError)):
            Observed(program)(x)


def test_numbers_of_numpys_in_a_list_that_change_are_inputs_of_one_graph():
    class Holder(torch.nn.Module):
        def forward(self, x):
            return x * self.numbers[0] - self.numbers[1]

    holder = Holder()
    holder.numbers = [numpy.int64(1), numpy.float32(2)]
    programs = (
        lambda x, numbers: x * torch.tensor(numbers).sum(),
        lambda x, numbers: x * torch.as_tensor([[numbers[0], 3], numbers]).sum(),
    )
    for program in programs:
        observed = Observed(program, fullgraph=True)
        for kind in (numpy.int64, numpy.float64):
            for number in range(1, 5):
                given = [kind(number), kind(number + 2)]
                assert_same(observed(X, given), program(X, given))
        assert len(observed.graphs) <= 3
    observed = Observed(holder, fullgraph=True)
    for number in range(1, 6):
        holder.numbers = [numpy.int64(number), numpy.float32(number * 3)]
        assert_same(observed(X), holder(X))
    assert len(observed.graphs) == 2


OF_INTS = {
    "added": lambda x, n: n + x,
    "chosen": lambda x, n: numpy.where(x < 2, n, x),
    "bounded": lambda x, n: numpy.clip(x, 0, n),
    "compared": lambda x, n: x > n,
    "rolled": lambda x, n: numpy.roll(x, n),
    "cut": lambda x, n: x[:n] * 2,
    "filled": lambda x, n: numpy.full_like(x, n),
    "in sums": lambda x, n: x.sum() + n,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OF_INTS)
def test_ints_that_change_are_symbols_beside_arrays_that_hold_them(name, dynamic):
    program = OF_INTS[name]
    observed = Observed(program, fullgraph=True, dynamic=dynamic)
    for number in (2, 3, 5, 4) if name in ("rolled", "cut") else (2, 3, 5, -1, 70000):  # where it decides nothing
        x = numpy.arange(7) + 0.5
        assert_same(observed(x, number), program(x, number))
    assert len(observed.units) <= 2


@pytest.mark.parametrize("dtype", [numpy.int8, numpy.uint8, numpy.uint64, numpy.int32, numpy.float16])
def test_ints_that_an_array_does_not_hold_raise_as_in_numpy(dtype):
    def program(x, number):
        return x + number

    observed = Observed(program)
    for number in (2, 3, 300, -1, 2**33, 5):
        x = numpy.array([1, 2, 3]).astype(dtype)
        (kind, mine), (expected, theirs) = outcome(observed, (x, number), {}), outcome(program, (x, number), {})
        assert (kind, type(mine)) == (expected, type(theirs))
        if kind == "returned":
            assert_same(mine, theirs)


def test_ints_that_torchs_library_takes_no_symbols_for_are_constants():
    observed = Observed(numpy.tile, fullgraph=True)
    for number in (2, 3, 4):
        assert_same(observed(numpy.arange(3.0), number), numpy.tile(numpy.arange(3.0), number))
    assert not observed.breaks
