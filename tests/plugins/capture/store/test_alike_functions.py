"""Functions that a program makes, and compiles, anew in each call: captured once for each code, each by what is its."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import turret

X = torch.arange(4.0)


class Counted:
    """A backend that counts the graphs that it is given."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, module, inputs):
        self.graphs += 1
        return module.forward


def test_functions_of_one_code_share_a_capture_and_compute_with_what_is_their_own():
    backend = Counted()

    def run(x, number, weight):
        first = turret.compile(lambda y: y + number, backend=backend)
        second = turret.compile(lambda y: y * weight, backend=backend)
        return second(first(x))

    for number in range(5):
        weight = torch.full((4,), float(number))
        assert torch.equal(run(X, number, weight), (X + number) * weight)
    assert backend.graphs == 3


def test_functions_around_other_functions_share_nothing():
    backend = Counted()

    def around(inner):
        def wrapped(x):
            return inner(x)

        return turret.compile(wrapped, backend=backend)

    for size in (3, 4):
        x = torch.arange(float(size))
        assert torch.equal(around(torch.sin)(x), x.sin())
        assert torch.equal(around(lambda x: x + 1)(x), x + 1)
        assert torch.equal(around(lambda x: x * 2)(x), x * 2)


def test_other_backends_and_other_options_make_captures_of_their_own():
    one, other = Counted(), Counted()
    for _ in range(2):
        for backend in (one, other):
            assert torch.equal(turret.compile(_double, backend=backend)(X), X * 2)
            assert torch.equal(turret.compile(_double, backend=backend, dynamic=True)(X), X * 2)
    assert one.graphs == other.graphs == 2


def _double(x):
    return x * 2


def test_a_reset_forgets_them():
    backend = Counted()
    for expected in (1, 2):
        for _ in range(2):
            assert torch.equal(turret.compile(_double, backend=backend)(X), X * 2)
        assert backend.graphs == expected
        turret.reset()


def test_frames_behind_breaks_are_shared_too():
    backend = Counted()

    def run(x, number):
        def program(x):
            y = x * 2
            count = y.sum().item()
            return y + count + number

        return turret.compile(program, backend=backend)(x)

    for number in (3, 4, 5, 6):
        assert torch.equal(run(X, number), X * 2 + 12.0 + number)
    assert backend.graphs <= 4


@pytest.mark.parametrize("kind", [torch.nn.Linear, lambda *size: torch.randn(*size)])
def test_what_a_function_closes_over_lives_no_longer_than_it(kind):
    def made():
        held = kind(4, 4)
        function = turret.compile(lambda x: torch.nn.functional.linear(x, getattr(held, "weight", held)))
        function(X)
        return weakref.ref(held)

    references = [made() for _ in range(3)]
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_globals_are_those_of_each_function():
    backend = Counted()
    text = "def function(x): return x * factor"
    code = compile(text, "<factors>", "exec")
    for factor in (2, 3, 2):
        scope = {"factor": factor}
        exec(code, scope)
        assert torch.equal(turret.compile(scope["function"], backend=backend)(X), X * factor)
