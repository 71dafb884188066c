"""Arguments are given by the names that functions have, whatever what stands for them at capture calls them."""

from __future__ import annotations

import copy
import math
import os
import typing

import numpy
import pytest
import torch

from tests.plugins.capture.capture_lab import Observed, assert_same

X = torch.arange(6.0)
CALLS = {
    "enumerate": lambda x: list(enumerate(iterable=[1, 2], start=1)),
    "round": lambda x: round(number=2.567, ndigits=1),
    "pow": lambda x: (pow(2, exp=3), pow(2, exp=3, mod=5)),
    "cast": lambda x: typing.cast(typ=int, val=3),
    "getenv": lambda x: os.getenv(key="no such variable"),
    "copy": lambda x: copy.copy(x=[1]),
    "limits of numpy": lambda x: numpy.finfo(dtype=numpy.float32).eps,
    "isclose": lambda x: (math.isclose(1.0, 1.1, rel_tol=0.2), math.isclose(a=1, b=x.shape[0], abs_tol=5)),
    "asarray": lambda x: (torch.asarray(obj=[1]), torch.asarray(obj=numpy.ones(2))),
    "copy_": lambda x: (x.clone().copy_(other=x + 1), x.clone().copy_(other=2)),
    "tensor_split": lambda x: torch.tensor_split(x, tensor_indices_or_sections=torch.tensor([1])),
    "tensor_split method": lambda x: x.tensor_split(tensor_indices_or_sections=torch.tensor(2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_taken_by_their_names(name):
    def program(x):
        return x + 1, CALLS[name](x)

    observed = Observed(program, fullgraph=True)
    assert_same(observed(X), program(X))


@pytest.mark.parametrize("call", [lambda: torch.asarray(), lambda: torch.tensor(), lambda: X.clone().copy_(src=X)])
def test_what_eager_refuses_is_refused(call):
    def program(x):
        try:
            return call()
        except TypeError:
            return x + 1

    assert torch.equal(Observed(program)(X), X + 1)
