"""Numpy beside tensors: constants are computed while capturing, arrays and tensors share memory as in eager."""

from __future__ import annotations

import math

import numpy
import torch
from capture_lab import Observed, check

X = torch.arange(1.0, 5.0)
SCALE, TABLE = numpy.float64(2.5), numpy.arange(4, dtype=numpy.float32)


def full(program, *args, **settings):
    """One graph, equal to eager."""
    return check(program, *args, breaks=0, graphs=1, **settings)


def test_numbers_of_numpy_are_constants():
    full(lambda x: x * SCALE + SCALE * x - numpy.pi * numpy.sqrt(2.0) + numpy.int64(3), X)
    full(lambda x, n: x.long() * n, X, numpy.int32(3))


def test_another_number_is_another_graph():
    observed = Observed(lambda x, n: x * n)
    for number in (numpy.float32(2), numpy.float32(3), numpy.float64(3)):
        assert torch.equal(observed(X, number), X * float(number))
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


def test_an_array_leaves_the_graph():
    observed = Observed(lambda x: (x + 1).numpy(), fullgraph=True)
    found = observed(X)
    assert type(found) is numpy.ndarray and (found == (X + 1).numpy()).all()


def test_computing_with_arrays_of_tensors_breaks():
    observed = check(lambda x: torch.from_numpy(numpy.sin((x + 1).numpy())) + 1, X, breaks=1, graphs=2)
    assert "sin" in observed.breaks[0]


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
