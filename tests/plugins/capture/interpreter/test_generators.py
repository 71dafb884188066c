"""Generators run, wait, take exceptions and end as Python has them, whoever holds them."""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import itertools
import types

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same, check
from turret.plugins.capture.python.lifetimes import has_observable_finalizer

X = torch.arange(6.0).reshape(2, 3)


def numbers(count, log):
    try:
        for number in range(count):
            yield number
    except ValueError as error:
        log.append(str(error))
        yield -1
    finally:
        log.append("closed")


def delegating(count, log):
    yield from numbers(count, log)
    yield "end"


def fail(kind=KeyError):
    raise kind


fail._torchdynamo_disable = True


def logged(function):
    """What two calls write into a log; each gives a tensor as well."""
    log: list = []
    for _ in range(2):
        assert isinstance(function(X, log), torch.Tensor)
    return log


def test_a_generator_left_in_a_try_block_is_closed_when_its_variable_ends():
    def left(x, log):
        for _ in range(2):
            generator = numbers(2, log)
            log.append(next(generator))
        return x + 1

    def in_a_loop(x, log):
        for number in numbers(3, log):
            if number:
                break
        log.append("behind")
        return x + 1

    def with_an_exception(x, log):
        try:
            for _ in numbers(2, log):
                fail()
        except KeyError:
            log.append("caught")
        return x * 2

    for function in (left, in_a_loop, with_an_exception):
        assert logged(Observed(function)) == logged(function)


def test_exceptions_are_thrown_into_the_generator_that_another_delegates_to():
    def program(x, log):
        generator = delegating(2, log)
        next(generator)
        log.append(generator.throw(ValueError("t")))
        generator.close()
        log.append(next(generator, "over"))
        return x + 1

    assert logged(Observed(program)) == logged(program)


def test_a_generator_that_was_not_started_takes_none_only():
    def program(x):
        try:
            numbers(2, []).send(3)
        except TypeError as error:
            return x + 1, str(error)

    check(program, X, breaks=None)


class Rows(collections.abc.Sequence):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def guarded(rows):
    try:
        for row in rows:
            try:
                yield row
            except ValueError:
                yield None
    except IndexError:
        return


def test_a_generator_left_waiting_under_handlers_of_other_exceptions_is_no_obstacle():
    def program(x):
        rows = Rows([x, x + 1, x + 2])
        return next(iter(rows)) + next(guarded(rows))

    x = torch.ones(3)
    compiled = turret.compile(program, fullgraph=True, options={"capture": "turret", "on_error": "raise"})
    torch.testing.assert_close(compiled(x), program(x))


def test_a_generator_bound_anew_in_a_loop_is_closed_when_the_next_one_takes_its_place():
    def program(x, log):
        for _ in range(3):
            waiting = numbers(2, log)
            log.append(next(waiting))
            print(end="")
        return x + 1

    assert logged(Observed(program)) == logged(program)


def test_a_kept_exception_keeps_the_frame_and_its_generator_waiting():
    def program(x, log, errors):
        try:
            raise KeyError(1)
        except KeyError as error:
            errors.append(error)
            open_one = numbers(2, log)
            log.append(next(open_one))
        return x + 1

    log: list = []
    errors: list = []
    assert_same(Observed(program)(torch.ones(2), log, errors), torch.full((2,), 2.0))
    assert log == [0]
    assert errors[0].__traceback__.tb_frame.f_code.co_name == "program"
    errors.clear()
    assert log == [0, "closed"]


def test_a_kept_exception_of_a_break_does_not_keep_a_generator_from_its_end_when_its_variable_is_bound_anew():
    def program(x, errors, log):
        for _ in (1, 2):
            try:
                waiting = numbers(2, log)
                log.append(next(waiting))
                fail()
            except KeyError as error:
                errors.append(error)
        return x + 1

    for function in (program, Observed(program)):
        errors: list = []
        log: list = []
        function(X, errors, log)
        assert log == [0, "closed", 0] and len(errors) == 2


def test_a_generator_ends_when_the_exception_is_let_go_that_holds_its_frame():
    def leaving(log):
        open_one = delegating(3, log)
        log.append(next(open_one))
        [].remove(2)

    def program(x, log):
        for turn in range(2):
            try:
                leaving(log)
            except ValueError as error:
                log.append(type(error).__name__)
            log.append((turn, "left"))
        return x + 1

    assert logged(program) == 2 * [0, "ValueError", "closed", (0, "left"), 0, "ValueError", "closed", (1, "left")]
    assert logged(Observed(program)) == logged(program)


def test_a_generator_that_another_holds_is_closed_where_the_other_is_let_go():
    def program(y, log):
        for _turn in range(3):

            def outer(count):
                for _ in range(count):
                    yield 3
                    inner = numbers(4, log)
                    log.append(next(inner))

            made = outer(2)
            next(made)
            next(made)
            log.append("turn")
        return y + 1

    assert logged(Observed(program)) == logged(program)


def test_a_generator_in_a_cell_is_closed_where_the_cell_takes_another_value():
    def program(x, log):
        held = numbers(4, log)
        log.append(next(held))
        for _ in [x, x + 1]:

            def later():
                yield list(held)

            held = later()
            with contextlib.ExitStack() as stack:
                stack.callback(log.append, "left")
                if len(log) > 50:
                    (lambda a: a)()
        return x + 1

    assert logged(Observed(program)) == logged(program)


def test_generators_that_wait_when_their_frame_ends_are_closed_first_to_last():
    def logged_at_the_end(name, log):
        try:
            yield name
        finally:
            log.append(name)

    def program(x, log):
        first = logged_at_the_end("first", log)
        next(first)
        second = logged_at_the_end("second", log)
        next(second)
        third = logged_at_the_end("third", log)
        next(third)
        log.append(x.shape[0])
        return x + 1

    compiled = turret.compile(program)
    for _ in range(3):
        mine, theirs = [], []
        compiled(torch.ones(2), mine)
        program(torch.ones(2), theirs)
        assert mine == theirs == [2, "first", "second", "third"]


def started(log):
    generator = numbers(3, log)
    next(generator)
    return generator


HOLDERS = {
    "itself": started,
    "islice": lambda log: itertools.islice(started(log), 3),
    "map": lambda log: map(abs, started(log)),
    "zip": lambda log: zip(started(log), [1, 2], strict=False),
    "chain": lambda log: itertools.chain([1], started(log)),
    "list": lambda log: [started(log)],
    "dict": lambda log: {"a": (started(log),)},
    "deque": lambda log: collections.deque([started(log)]),
    "partial": lambda log: functools.partial(next, started(log)),
    "method": lambda log: started(log).__next__,
    "nested": lambda log: [iter([enumerate(started(log))])],
}


def unbound(x, log, make):
    held = make(log)
    turret.graph_break()
    del held
    log.append("behind")
    return x + 1


def bound_anew(x, log, make):
    for _ in range(2):
        held = make(log)
        turret.graph_break()
    log.append("behind")
    return (x + 1, held)[0]


def taken_from_attribute(x, log, make):
    box = types.SimpleNamespace(held=make(log), own=Box())
    box.own.held = box.held
    box.held = None
    turret.graph_break()
    box.own.held = None
    log.append("behind")
    return x + 1


def taken_from_list(x, log, make):
    items = [make(log), 2]
    turret.graph_break()
    items.pop(0)
    log.append("behind")
    return x + 1


def taken_from_dict(x, log, make):
    items = {"held": make(log)}
    turret.graph_break()
    items.clear()
    log.append("behind")
    return x + 1


class Box:
    """Holds what a test gives it."""


@pytest.mark.parametrize("way", [unbound, bound_anew, taken_from_attribute, taken_from_list, taken_from_dict])
@pytest.mark.parametrize("holder", HOLDERS)
def test_a_generator_is_closed_where_what_holds_it_is_let_go(holder, way):
    mine, theirs = [], []
    compiled = turret.compile(way, backend="eager", options={"cache": False})
    for _ in range(2):
        compiled(X, mine, HOLDERS[holder])
        way(X, theirs, HOLDERS[holder])
        assert mine == theirs


class Unhashable(type):
    """A metaclass whose classes cannot be hashed."""

    __hash__ = None


def test_what_has_a_class_that_cannot_be_hashed_is_looked_at_without_hashing_it():
    assert not has_observable_finalizer(Unhashable("Plain", (), {})())
    assert not has_observable_finalizer([Unhashable("Plain", (), {})()])


@contextlib.contextmanager
def entered(log):
    try:
        yield
    except LookupError as error:
        log.append(error)
        raise
    finally:
        log.append("end")


def test_a_context_manager_hands_its_generator_the_exception_itself():
    def inner(log):
        with entered(log):
            [][1]

    def program(x):
        log = []
        try:
            inner(log)
        except IndexError as error:
            log.append(error.args)
            log.append(error is log[0])
        return x + 1, log[1:]

    assert_same(Observed(program, fullgraph=True)(torch.ones(2)), program(torch.ones(2)))
