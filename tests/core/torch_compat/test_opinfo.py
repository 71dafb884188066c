"""torch's table of operators finds the running test as torch itself does, in a fraction of the time."""

from __future__ import annotations

import unittest
from unittest import mock

import pytest

pytest.importorskip("expecttest", reason="torch's table of operations imports it")

import torch
from torch.testing._internal import common_utils

from turret.torch_compat.operators.opinfo import op_db, running_test


class Case(unittest.TestCase):
    found = ()

    def helper(self):
        return running_test()

    def test_asks(self):
        type(self).found = (running_test(), self.helper())


def test_the_running_method_of_unittest_is_found_from_whatever_it_calls():
    assert Case("test_asks").run().wasSuccessful()
    assert Case.found == (Case.test_asks,) * 2


def test_no_other_self_is_taken_for_a_test():
    class Other:
        def test_asks(self):
            return running_test()

    assert running_test() is None and Other().test_asks() is None


def test_the_table_asks_for_it_whenever_it_draws_samples():
    assert common_utils.extract_test_fn is running_test
    entry = next(entry for entry in op_db if entry.name == "add")
    with mock.patch("inspect.stack", side_effect=AssertionError("every frame's source is read")):
        assert next(iter(entry.sample_inputs("cpu", torch.float32))).input.dtype is torch.float32
