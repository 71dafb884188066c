"""Arguments of nodes of fx are mapped in captured functions as torch's own functions map them."""

from __future__ import annotations

import collections

import pytest
import torch
from torch import fx
from torch.fx.node import map_aggregate

from tests.plugins.capture.capture_lab import Observed, assert_same

Pair = collections.namedtuple("Pair", "one two")


class Row(tuple):
    __slots__ = ()


def doubled(leaf):
    return leaf * 2 if isinstance(leaf, torch.Tensor) else leaf


def of_containers(x):
    given = (Pair(x, 1), Row((x, 2)), [x, {"a": x, 3: [4]}], collections.OrderedDict(a=x), slice(x.size(0), None), None)
    found = map_aggregate(given, doubled)
    return found, [type(part) for part in found], type(found[2][1])


def of_one_tensor(x):
    return map_aggregate(x, doubled), fx.node.map_arg([x, (1,)], lambda node: node.name)


def of_what_cannot_be_changed(x):
    found = map_aggregate([x, {}], doubled)
    try:
        found.append(x)
    except TypeError as error:
        return found[0], str(error)


def of_no_function(x):
    try:
        fx.node.map_arg(x, 3)
    except AssertionError as error:
        return x + 1, str(error)


@pytest.mark.parametrize("program", [of_containers, of_one_tensor, of_what_cannot_be_changed, of_no_function])
def test_arguments_of_nodes_are_mapped_in_a_full_graph(program):
    x = torch.arange(3.0)
    assert_same(Observed(program, fullgraph=True)(x), program(x))
