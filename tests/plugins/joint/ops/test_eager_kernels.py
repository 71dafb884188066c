"""What eager checks before it calls a kernel is checked in compiled code, which is no reason to run eagerly."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import turret

OPTIONS = {"cache": False, "on_error": "raise"}


@pytest.mark.parametrize("bad", [[0, 3], [-1, 0], [5, 0]])
def test_classes_out_of_range_raise_from_compiled_code(bad):
    compiled = turret.compile(lambda i: F.one_hot(i, 3), fullgraph=True, options=OPTIONS)
    good = torch.tensor([[2, 0], [1, 1]])
    assert torch.equal(compiled(good), F.one_hot(good, 3))
    with pytest.raises(RuntimeError, match="Class values must be"):
        compiled(torch.tensor(bad).expand(2, 2))
    assert torch.equal(compiled(good), F.one_hot(good, 3))


def test_classes_are_checked_against_numbers_that_vary():
    compiled = turret.compile(lambda i: F.one_hot(i, i.shape[0]), dynamic=True, options={"cache": False})
    for index in ([0, 1, 2], [3, 1, 0, 2], [1, 0]):
        index = torch.tensor(index)
        assert torch.equal(compiled(index), F.one_hot(index, len(index)))
    for index in ([0, 2], [0, -1, 1]):
        with pytest.raises(RuntimeError, match="Class values must be"):
            compiled(torch.tensor(index))
    with pytest.raises(RuntimeError, match="Can not infer"):
        compiled(torch.zeros(0, dtype=torch.int64))


def test_under_a_transform_classes_are_as_little_checked_as_in_eager():
    def program(i):
        return torch.vmap(lambda row: F.one_hot(row, 3))(i)

    index = torch.tensor([[0, 1], [3, -1]])
    assert torch.equal(turret.compile(program, options={"cache": False})(index), program(index))


def test_a_one_hot_of_columns_lies_in_memory_as_eager_s():
    index = torch.tensor([[0, 1, 2], [2, 1, 0]]).T
    made = turret.compile(lambda i: F.one_hot(i, num_classes=4), options=OPTIONS)(index)
    assert torch.equal(made, F.one_hot(index, 4)) and made.stride() == F.one_hot(index, 4).stride()
