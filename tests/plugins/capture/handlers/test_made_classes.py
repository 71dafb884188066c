"""Named tuples that compiled code makes are classes of each call, as in eager."""

from __future__ import annotations

import collections

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed

X = torch.arange(4.0)


def test_its_instances_are_followed_and_leave_the_graph():
    def program(x):
        Pair = collections.namedtuple("Pair", "first second third", defaults=(None, 1))
        made = Pair(x, x + 1)
        rest = len(Pair._fields), isinstance(made, Pair), made._replace(first=x * 3).first, made._asdict()["second"]
        return made, Pair(first=x * 2), rest

    observed = Observed(program, fullgraph=True)
    found, expected = observed(X), program(X)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(tuple(mine), tuple(theirs))
    assert found[0]._fields == ("first", "second", "third") and type(found[0]) is type(found[1])
    for name in ("__name__", "__qualname__", "__module__"):
        assert getattr(type(found[0]), name) == getattr(type(expected[0]), name)
    assert type(observed(X)[0]) is not type(found[0]) and len(observed.graphs) == 1


def test_names_that_are_refused_raise_as_in_eager():
    def program(x):
        try:
            collections.namedtuple("Pair", "first class")
        except ValueError:
            return x + 1
        return x

    assert torch.equal(Observed(program, fullgraph=True)(X), X + 1)


def test_one_outlives_a_graph_break():
    def program(x):
        Pair = collections.namedtuple("Pair", ["first", "second"], rename=True)
        made = Pair(x, 2)
        print(end="")
        return made.first * made.second, isinstance(made, Pair)

    observed = Observed(program)
    torch.testing.assert_close(observed(X), program(X))
    assert len(observed.breaks) == 1


@pytest.mark.parametrize("existing", [False, True])
def test_a_descriptor_may_keep_its_value_under_its_name(existing):
    class Counted:
        def __set_name__(self, owner, name):
            self.name = name

        def __get__(self, instance, owner=None):
            return instance.__dict__[self.name]

        def __set__(self, instance, value):
            instance.__dict__[self.name] = value + 1

    class Holder:
        field = Counted()

        def __init__(self, value):
            self.field = value

    mine, theirs = Holder(X), Holder(X)

    def program(x, holder):
        holder = holder if existing else Holder(x)
        holder.field = holder.field * 2
        return holder.field + 1, "field" in holder.__dict__, holder.__dict__["field"], holder

    (*found, one), (*expected, other) = Observed(program, fullgraph=True)(X, mine), program(X, theirs)
    torch.testing.assert_close(found, expected)
    assert list(vars(one)) == list(vars(other)) == ["field"]
    torch.testing.assert_close((one.field, mine.field), (other.field, theirs.field))
