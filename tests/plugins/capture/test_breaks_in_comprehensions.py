"""Graph breaks in comprehensions, which from Python 3.12 on have no frame of their own but share variables' slots."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same, outcome


def outside(value):
    return value


def fail(value):
    raise KeyError(value)


outside._torchdynamo_disable = fail._torchdynamo_disable = True


def a_variable_of_the_same_name(x, log):
    k = 5
    log.append(([outside(k) + 1 for k in range(3)], k))
    return x + k


def an_unbound_variable_of_the_same_name(x, log):
    log.append([outside(k) + 1 for k in range(3)])
    try:
        k
    except NameError as error:
        log.append(type(error).__name__)
    return x


def a_closure_over_the_comprehension(x, log):
    made = [(outside(k), lambda: k)[1] for k in range(3)]
    log.append([f() for f in made])
    return x + 1


def a_closure_over_the_variable_outside(x, log):
    k = 5

    def read():
        return k

    log.append(([outside(k) + 1 for k in range(3)], read(), k))
    k = 7
    outside(k)
    log.append((read(), k))
    return x + k


def closures_over_both(x, log):
    k = 5

    def read():
        return k

    made = [(outside(k), lambda: k)[1] for k in range(3)]
    log.append(([f() for f in made], read(), k))
    k = 7
    outside(k)
    log.append((read(), [f() for f in made], k))
    return x + k


def a_closure_over_a_variable_bound_later(x, log):
    def read():
        return k

    log.append([outside(k) for k in range(2)])
    outside(1)
    try:
        read()
    except NameError as error:
        log.append(str(error))
    k = 3
    log.append(read())
    return x + k


def one_within_another(x, log):
    k = 7

    def read():
        return k

    made = [([(lambda: k, outside(k))[0] for k in range(k)], outside(k), lambda: k) for k in range(3)]
    log.append(([([f() for f in inner], seen, f()) for inner, seen, f in made], read(), k))
    return x + k


def two_variables(x, log):
    a, b = 1, 2

    def read():
        return a, b

    made = [(lambda: (a, b), outside(a + b))[0] for a in range(2) for b in range(2)]
    log.append(([f() for f in made], read()))
    a = 9
    outside(1)
    log.append(([f() for f in made], read()))
    return x + a


def an_exception_in_it(x, log):
    k = 5

    def read():
        return k

    try:
        try:
            [fail((lambda: k)()) for k in (1, 2)]
        finally:
            log.append((k, read()))
            outside(k)
    except KeyError as error:
        log.append((k, read(), str(error)))
    return x + k


def a_decision_on_data(x, log):
    k = 5

    def read():
        return k

    log.append(([k.item() for k in x.flatten() if k > 2], read()))
    return x + k


def _in_a_closure():
    k = 5

    def two_cells_of_one_name(x, log):
        made = [(outside(k), lambda: k)[1] for k in range(3)]
        log.append([f() for f in made])
        outside(1)
        return x + k

    return two_cells_of_one_name


PROGRAMS = [
    a_variable_of_the_same_name,
    an_unbound_variable_of_the_same_name,
    a_closure_over_the_comprehension,
    a_closure_over_the_variable_outside,
    closures_over_both,
    a_closure_over_a_variable_bound_later,
    one_within_another,
    two_variables,
    an_exception_in_it,
    a_decision_on_data,
    _in_a_closure(),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_cells_and_variables_are_plain_python_s(program):
    captured = Observed(program)
    for _ in range(2):
        logs: list[list] = [[], []]
        expected = outcome(program, (torch.arange(6.0), logs[0]), {})
        found = outcome(captured, (torch.arange(6.0), logs[1]), {})
        assert found[0] == expected[0] == "returned", (found, expected)
        assert_same(found[1], expected[1])
        assert logs[1] == logs[0]
    if program.__name__ != "two_cells_of_one_name":
        assert captured.breaks and not captured.fallbacks
