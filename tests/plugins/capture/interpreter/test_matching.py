"""Patterns of ``match`` see in values what they see in objects."""

from __future__ import annotations

import collections

import pytest

from turret.plugins.capture.facts.policy import History, Policy
from turret.plugins.capture.interpreter import matching
from turret.plugins.capture.interpreter.tracer import FrameTracer

Point = collections.namedtuple("Point", "x y")


@pytest.fixture
def t() -> FrameTracer:
    return FrameTracer(Policy(None, History()))


def as_sequence(subject) -> bool:
    match subject:
        case [*_]:
            return True
    return False


def as_mapping(subject) -> bool:
    match subject:
        case {}:
            return True
    return False


@pytest.mark.parametrize("subject", [(1,), [1], {"a": 1}, {1}, "text", range(2), 3, collections.deque([1])], ids=repr)
def test_sequences_and_mappings_are_those_of_python(t, subject):
    value = t.made(subject) if not isinstance(subject, collections.deque) else t.wrap_known(subject)
    assert matching.is_sequence(value) is as_sequence(subject)
    assert matching.is_mapping(value) is as_mapping(subject)


def test_a_class_pattern_gets_the_subject_or_its_attributes_or_nothing(t):
    def found(subject, kind, count, *names):
        value = matching.match_class(t, t.wrap_known(subject), t.wrap_known(kind), count, names)
        return value.constant()

    assert found(3, int, 1) == (3,)
    assert found(3, int, 1, "imag") == (3, 0)
    assert found(3, float, 1) is None
    assert found(3, int, 0, "nothing") is None
    assert found(Point(1, 2), Point, 2) == (1, 2)  # by ``__match_args__``
    assert found(Point(1, 2), Point, 1, "y") == (1, 2)
