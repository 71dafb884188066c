"""Exception groups and ``except*``: followed, with the groups that Python makes of what is caught and raised again."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.ones(2)


def outcome(function):
    """What a call gives, or raises."""
    try:
        return function(X)
    except BaseException as error:
        return "raised", repr(error), repr(error.__context__), repr(error.__cause__)


def parts(x):
    y = x
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), ValueError(3)])
    except* ValueError as e:
        y = y + len(e.exceptions)
    except* TypeError as e:
        y, text = y * 3, e.message
    return y, text


def the_rest_goes_on(x):
    y = x
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError:
            y = y + 1
    except ExceptionGroup as e:
        return y * 2, str(e), repr(e), [type(v).__name__ for v in e.exceptions]


def a_plain_exception(x):
    try:
        raise ValueError("a")
    except* ValueError as e:
        found = x + 1, type(e).__name__, str(e), [str(v) for v in e.exceptions]
    return found


def nothing_raised(x):
    try:
        y = x + 1
    except* ValueError:
        y = x * 2
    else:
        y = y * 5
    finally:
        y = y - 1
    return y


def another_exception(x):
    y = x
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2), OSError(3)])
        except* ValueError:
            raise KeyError("n") from None
        except* TypeError:
            y = y + 3
    except BaseException as e:
        return y, repr(e), [(repr(v), v.__suppress_context__) for v in e.exceptions]


def another_exception_alone(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1)])
        except* ValueError:
            raise KeyError("n")
    except BaseException as e:
        return x + 1, repr(e), repr(e.__context__)


def raised_again(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [TypeError(2), ValueError(4)]), KeyError(3)])
        except* ValueError:
            raise
        except* KeyError:
            x = x + 3
    except BaseException as e:
        return x, repr(e)


def raised_by_name(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError as e:
            raise e
    except BaseException as e:
        return x + 1, repr(e), repr(e.exceptions[0]), repr(e.exceptions[1])


def the_whole_raised_by_name(x):
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1)])
        except* ValueError as e:
            raise e
    except BaseException as e:
        return x + 1, repr(e)


def raised_in_a_call(x):
    def inner(x):
        if x.shape[0] == 2:
            raise ExceptionGroup("q", [KeyError("k")])
        return x

    try:
        y = inner(x)
    except* (KeyError, OSError) as group:
        y = x * 5 + len(group.message)
    return y


def in_a_loop(x):
    for n in range(3):
        try:
            if n % 2:
                raise ExceptionGroup("q", [KeyError("k")])
            x = x + 1
        except* KeyError:
            x = x * 2
    return x


def methods(x):
    g = ExceptionGroup("g", [ValueError(1), TypeError(2)])
    a, b = g.split(ValueError)
    return x + 1, repr(a), repr(b), repr(g.subgroup(TypeError)), g.subgroup(OSError), repr(g.derive([OSError()]))


def kept(x):
    g = BaseExceptionGroup("g", (ValueError(1), TypeError(2)))
    return x + 1, g, g.split(TypeError)[0], BaseExceptionGroup("b", [KeyboardInterrupt()])


def let_out(x):
    y = x + 1
    try:
        raise ExceptionGroup("g", [ValueError(1), OSError(1)])
    except* ValueError:
        y = y + 1


@pytest.mark.parametrize(
    "program",
    [
        parts, the_rest_goes_on, a_plain_exception, nothing_raised, another_exception, another_exception_alone,
        raised_again, raised_by_name, the_whole_raised_by_name, raised_in_a_call, in_a_loop, methods, kept,
    ],
)  # fmt: skip
def test_groups_are_followed(program):
    observed = Observed(program, fullgraph=True)
    assert_same(observed(X), program(X))


def broken(x):
    y = x
    try:
        try:
            y = y + 1
            print(end="")
            raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
        except* ValueError:
            y = y * 2
            print(end="")
            raise
    except BaseException as e:
        return y, repr(e)


class Own(ExceptionGroup):
    def derive(self, excs):
        return Own("own " + self.message, excs)


def of_an_own_class(x):
    try:
        try:
            raise Own("g", [ValueError(1), TypeError(2)])
        except* ValueError as e:
            x = x + len(e.message)
    except* TypeError as e:
        x = x * len(e.message)
    return x


@pytest.mark.parametrize("program", [let_out, broken, of_an_own_class])
def test_what_is_not_followed_is_eager_s(program):
    assert_same(outcome(Observed(program)), outcome(program))


def _program(tree, acts):
    """A program that raises a nested group and has a clause for each of three kinds."""

    def build(node):
        return node("leaf") if isinstance(node, type) else ExceptionGroup("g", [build(n) for n in node])

    def act(number, e):
        if acts[number] == "again":
            raise
        if acts[number] == "named":
            raise e
        if acts[number] == "other":
            raise RuntimeError(len(e.exceptions))

    def program(x):
        seen = []
        try:
            try:
                raise build(tree)
            except* ValueError as e:
                seen.append(repr(e))
                act(0, e)
            except* TypeError as e:
                seen.append(repr(e))
                act(1, e)
        except BaseException as e:
            seen.append(repr(e))
            seen.append(repr(e.__context__))
        return x + len(seen), seen

    return program


TREES = [
    [ValueError],
    [ValueError, TypeError],
    [OSError, [ValueError, [TypeError, ValueError]], TypeError],
    [[OSError]],
]
ACTS = list(itertools.product(["pass", "again", "named", "other"], repeat=2))


@pytest.mark.parametrize("tree", TREES)
def test_any_clauses_over_nested_groups(tree):
    for acts in ACTS:
        program = _program(tree, acts)
        assert_same(outcome(Observed(program)), outcome(program))
