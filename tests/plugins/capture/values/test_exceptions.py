"""The traceback of an exception that compiled code caught is the one that Python gives it, to the column."""

from __future__ import annotations

import contextlib
import io
import re
import sys
import traceback

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same, check

X = torch.ones(3)


def failing(x):
    raise ValueError("of the program")


def caught_behind_a_break(x):
    y = x + 1
    try:
        failing(y)
    except ValueError as error:
        print(end="")
        return y * 2, error.__traceback__ is not None, "".join(traceback.format_exception(error))


def printed_by_the_handler(x):
    y = x + 1
    written = io.StringIO()
    try:
        failing(y)
    except ValueError:
        traceback.print_exc(file=written)
    return y * 2, written.getvalue()


def formatted_by_the_handler(x):
    y = x + 1
    try:
        return y, {}["key"]
    except KeyError:
        return y * 2, traceback.format_exc()


def lines(x):
    y = x + 1
    try:
        failing(y)
    except ValueError as error:
        return y, error.__traceback__.tb_lineno, error.__traceback__.tb_next.tb_lineno, sys.exc_info()[2].tb_lineno


def returned(x):
    try:
        y = x + 1
        max([3, 1], key=lambda v: failing(v))
    except ValueError as error:
        found = error
    return y, found


def returned_with_those_before(x):
    y = x + 1
    found = []
    try:
        try:
            failing(x)
        except ValueError as error:
            raise KeyError("other") from error
    except KeyError as error:
        found.append(error)
    try:
        try:
            int("x")
        finally:
            y = y * 2
            found[0].with_traceback(None)
            y += found[2]
    except IndexError as error:
        found.append(error)
    return y, found


def raised_again(x):
    try:
        y = x + 1
        try:
            failing(x)
        except ValueError as error:
            first = error
            raise
        finally:
            y = y * 2
    except ValueError:
        pass
    try:
        raise first
    except ValueError as error:
        second = error
    return y, second


def through_a_manager(x):
    @contextlib.contextmanager
    def manager():
        try:
            yield
        except KeyError as error:
            raise ValueError("made of it") from error

    y = x + 1
    try:
        with manager():
            y = y * {}["key"]
    except ValueError as error:
        found = error
    return y, found


class Manager:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.found, self.line = error, trace.tb_lineno
        return True


def kept_by_a_manager(x):
    manager = Manager()
    with manager:
        y = x + 1
        failing(y)
    return y, manager.found, manager.line


def raised_by_a_function_of_a_library(x):
    y = x + 1
    try:
        re.compile("(")
    except re.error as error:
        found = error
    return y, found


def looking_at_frames(x):
    y = x + 1
    try:
        failing(y)
    except ValueError as error:
        return y * 2, error.__traceback__.tb_frame.f_locals["y"]


def raised_from_another_before_a_break(x):
    y = x + 1
    try:
        try:
            try:
                failing(y)
            except ValueError:
                raise IndexError("second")
        except IndexError as error:
            raise KeyError("third") from error
    except KeyError as error:
        print(end="")
        text = "".join(traceback.format_exception(error))
        return y * 2, text, error.__cause__, error.__cause__.__context__


def described(value):
    if isinstance(value, list):
        return [described(v) for v in value]
    return "".join(traceback.format_exception(value)) if isinstance(value, BaseException) else value


PROGRAMS = (
    caught_behind_a_break, printed_by_the_handler, formatted_by_the_handler, lines, returned,
    returned_with_those_before, raised_again, through_a_manager, kept_by_a_manager,
    raised_by_a_function_of_a_library, raised_from_another_before_a_break, looking_at_frames,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_caught_exception_has_python_s_traceback(program):
    observed = Observed(program)
    first, *expected = program(X)
    for _ in range(2):
        found, *others = observed(X)
        assert_same(found, first)
        assert_same([described(v) for v in others], [described(v) for v in expected])
    assert bool(observed.fallbacks) is (program is looking_at_frames)


def raised_and_caught(x, error):
    y = x + 1
    with contextlib.suppress(ValueError):
        raise error
    return y * 2


def raised_while_another_is_handled(x, error):
    y = x + 1
    try:
        try:
            raise KeyError("handled")
        except KeyError as handled:
            raise error from handled
    except ValueError:
        return y * 2


def changed(x, error):
    error.args = ("others",)
    error.__cause__ = KeyError("a cause")
    error.__suppress_context__ = False
    return x + 1


@pytest.mark.parametrize("program", [raised_and_caught, raised_while_another_is_handled, changed])
def test_what_becomes_of_an_exception_that_the_caller_made_is_seen_by_the_caller(program):
    def seen(call):
        error = ValueError("given")
        call(X, error)
        return described(error), error.args, repr(error.__cause__), repr(error.__context__), error.__suppress_context__

    observed = Observed(program)
    for _ in range(2):
        assert seen(observed) == seen(program)
    assert observed.graphs and not observed.fallbacks


@pytest.mark.parametrize("kinds", [int, (KeyError, 3), "KeyError", (KeyError, (ValueError,)), (KeyError, IndexError)])
def test_what_no_exception_can_be_is_refused_by_the_clause_that_names_it(kinds):
    def program(x, kinds):
        y = x + 1
        try:
            {}["key"]
        except kinds:
            return y * 2

    check(program, X, kinds, breaks=None)


def changed_with_a_clause_of_it(x, module):
    module.flag = 1
    y = x + 1
    try:
        raise KeyError
    except module:
        return y


def test_a_changed_module_is_no_class_of_exceptions():
    observed = Observed(changed_with_a_clause_of_it)
    for call in (changed_with_a_clause_of_it, observed):
        with pytest.raises(TypeError, match="catching classes that do not inherit"):
            call(X, torch.nn.Linear(3, 3))


class OwnFailure(OSError):
    pass


class OwnInit(OSError):
    def __init__(self, text):
        super().__init__(text)


class OwnStop(StopIteration):
    pass


def refuse(error, *cause):
    if cause:
        raise error from cause[0]
    raise error


FIELDS = "errno strerror filename filename2 name path obj value code msg lineno encoding start end reason object text".split()
RAISED = [
    "OSError(2, 'no')", "OSError(13, 'no', 'file')", "OSError('alone')", "OSError(99999, 'none')", "OSError('a', 'b')", "OSError()",
    "OSError(2, 'a', 'b', None, 'c')", "OwnFailure(2, 'no')", "OwnInit('text')", "FileNotFoundError(2, 'no', 'file')",
    "ImportError('m', name='n', path='p')", "ModuleNotFoundError('m', name='n')", "AttributeError('m', name='n', obj=3)",
    "NameError('m', name='n')", "NameError('m')", "SyntaxError('m', ('f', 1, 2, 't'))", "StopIteration(5)", "OwnStop(5)",
    "UnicodeDecodeError('utf8', b'a', 0, 1, 'why')", "UnicodeDecodeError('utf8')", "KeyError('a', 'b')", "ValueError('a', k=1)",
    "ValueError(1), 3", "ValueError(1), KeyError", "3", "int", "(1).missing", "missing_name", r"b'\xff'.decode()", "ValueError",
]  # fmt: skip


@pytest.mark.parametrize("text", RAISED)
def test_an_exception_has_the_class_the_words_and_the_fields_of_pythons(text):
    act = eval(f"lambda: refuse({text})", globals())

    def program(x):
        try:
            act()
        except FileNotFoundError as error:
            caught, kind = error, "not found"
        except OSError as error:
            caught, kind = error, "of the system"
        except Exception as error:
            caught, kind = error, "another"
        fields = [getattr(caught, name, "none") for name in FIELDS]
        return (
            x + 1,
            kind,
            type(caught).__name__,
            caught.args,
            str(caught),
            repr(caught),
            fields,
            repr(caught.__cause__),
        )

    assert_same(Observed(program)(torch.ones(2)), program(torch.ones(2)))
