"""Attributes of objects and classes are read, set and deleted as Python does it, in the call and for those after it."""

from __future__ import annotations

import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, check, outcome

X = torch.arange(6.0).reshape(2, 3)


class Box:
    made = 0

    def __init__(self):
        self.count = 0

    @property
    def level(self):
        return self.count

    @level.deleter
    def level(self):
        self.count = -1

    @classmethod
    def make(cls):
        cls.made += 1
        return cls.made


class Small(Box):
    pass


class Plain:
    pass


def test_a_deleter_of_a_property_is_called():
    def program(x):
        box = Box()
        del box.level
        return x + box.count

    check(program, X)


def test_an_attribute_that_was_only_there_for_a_while_leaves_nothing():
    def program(x, box):
        box.extra = 1
        del box.extra
        return x + 1

    check(program, X, Box())


def test_a_class_attribute_may_be_set_on_a_subclass_between_calls():
    Small.__dict__.get("made") is not None and delattr(Small, "made")
    plain = [outcome(lambda x: (x + 1, Small.make()), (X,), {})[1][1] for _ in range(3)]
    del Small.made
    mine = Observed(lambda x: (x + 1, Small.make()))
    assert [mine(X)[1] for _ in range(3)] == plain == [1, 2, 3]
    del Small.made


def test_an_attribute_that_is_deleted_where_it_was_missing_before_is_deleted():
    def program(x, box):
        box.extra = 2.0
        for _ in range(2):
            with torch.inference_mode():
                del box.extra

    observed = Observed(program)
    for present in (False, True, False, True):
        box = Plain()
        if present:
            box.extra = 7
        with pytest.raises(AttributeError, match="extra"):
            observed(torch.ones(2), box)
        assert not vars(box)
