"""What an exception says of the one that was being handled is what Python says of it."""

from __future__ import annotations

import sys

import pytest
import torch

import turret
from tests.plugins.capture.capture_lab import Observed, assert_same


def test_an_exception_s_context_is_what_the_caller_handles():
    def helper(x, errors):
        try:
            raise IndexError from None
        except IndexError as error:
            errors.append(error)
        try:
            raise
        except Exception as error:
            errors.append(error)
        errors.append(sys.exc_info()[1])
        return x + 1

    def program(x, errors):
        try:
            raise KeyError(1)
        except KeyError:
            print(end="")
            return helper(x, errors)

    for function in (program, Observed(program), lambda *args: Observed(helper)(*args)):
        errors: list = []
        outer = KeyError(1)
        try:
            raise outer
        except KeyError:
            function(torch.ones(2), errors)
        assert isinstance(errors[0].__context__, KeyError) and errors[0].__suppress_context__
        assert errors[0].__context__ is errors[1] is errors[2]


def test_what_is_thrown_into_a_generator_has_no_context_of_who_throws():
    def waiting(errors):
        try:
            yield 1
        except KeyError as error:
            errors.append(error)
            yield 2
            raise error from None

    def program(x, errors):
        try:
            raise ValueError("handled")
        except ValueError:
            try:
                waiting(errors).throw(KeyError(0))
            except KeyError as error:
                errors.append(error)
            started = waiting(errors)
            next(started)
            started.throw(KeyError(1))
            try:
                started.throw(IndexError(2))
            except IndexError as error:
                errors.append(error)
            again = waiting(errors)
            next(again)
            again.throw(KeyError(3))
            try:
                next(again)
            except KeyError as error:
                errors.append(error)
        return x + 1

    def contexts(function):
        errors: list = []
        function(torch.ones(2), errors)
        return [(type(e), e.args, type(e.__context__), e.__suppress_context__) for e in errors]

    assert contexts(Observed(program)) == contexts(program)


@turret.disable
def failing_twice():
    try:
        {}["key"]
    except KeyError:
        raise ValueError("of a key")


def chain(error):
    found = []
    while error is not None:
        found.append(type(error).__name__)
        error = error.__context__
    return found


def breaking_in_a_handler(x):
    try:
        raise IndexError
    except IndexError:
        failing_twice()


def breaking_while_one_with_a_context_passes(x):
    try:
        int("x")
    except ValueError:
        try:
            try:
                raise IndexError(1)
            except IndexError:
                later = KeyError("later")
                later.__context__ = None
                raise later
        finally:
            turret.graph_break()


def breaking_while_one_without_passes(x):
    try:
        int("x")
    finally:
        try:
            started = (number for number in range(2))
            started.throw(RuntimeError("thrown"))
        finally:
            turret.graph_break()


def raising_what_was_handled_before(x):
    try:
        raise KeyError
    except KeyError as error:
        first = error
    try:
        raise IndexError
    except IndexError:
        raise first


@pytest.mark.parametrize(
    "program",
    [
        breaking_in_a_handler,
        breaking_while_one_with_a_context_passes,
        breaking_while_one_without_passes,
        raising_what_was_handled_before,
    ],
)
def test_exceptions_that_pass_a_break_keep_their_context(program):
    def ended(function):
        with pytest.raises(Exception) as caught:
            function(torch.ones(2))
        return chain(caught.value)

    assert ended(Observed(program)) == ended(program)


def test_a_context_is_what_was_handled_when_it_was_raised_last():
    def program(x, log):
        try:
            raising_what_was_handled_before(x)
        except KeyError as error:
            log.append(error)
        return x + 1

    def seen(function):
        log: list = []
        assert_same(function(torch.ones(2), log), torch.full((2,), 2.0))
        return chain(log[0])

    assert seen(Observed(program)) == seen(program) == ["KeyError", "IndexError"]


@pytest.mark.parametrize("broken", [False, True])
def test_what_a_generator_raises_for_a_stop_inside_names_that_as_its_cause(broken):
    def program(x):
        with torch.inference_mode(False) if broken else torch.no_grad():  # the first of the two breaks the graph

            def numbers():
                next(iter([]))
                yield x

            next(numbers())

    for call in (program, turret.compile(program)):
        with pytest.raises(RuntimeError, match="generator raised StopIteration") as raised:
            call(torch.ones(2))
        error = raised.value
        assert type(error.__cause__) is StopIteration and error.__cause__ is error.__context__


def cycles(length):
    """A program that raises while it handles an exception whose contexts go round."""

    def program(x):
        chain = [ValueError(n) for n in range(length)]
        for n, error in enumerate(chain):
            error.__context__ = chain[(n + 1) % length]
        try:
            try:
                raise chain[0]
            except ValueError:
                raise TypeError(length)
        except TypeError as error:
            last = error
        link, seen = last, []
        while link is not None and len(seen) < 2 * length + 2:
            seen.append(str(link))
            link = link.__context__
        return x + len(seen), seen

    return program


@pytest.mark.parametrize("length", range(1, 5))
def test_contexts_that_go_round_end_the_search_for_the_exception_that_is_raised(length):
    program = cycles(length)
    assert_same(Observed(program)(torch.ones(2)), program(torch.ones(2)))
