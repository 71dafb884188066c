"""Nested tensors (``layout=torch.jagged``) are part of the graph, as the tensors in them, with gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx

import turret
from tests.plugins.capture.capture_lab import Observed

WEIGHT = torch.arange(12.0).reshape(4, 3) / 12
OPTIONS = {"cache": False, "on_error": "raise"}


def jagged(*lengths, requires_grad=False):
    torch.manual_seed(len(lengths))
    rows = [torch.randn(length, 4) for length in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=requires_grad)


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor) and expected.is_nested:
        assert (found.requires_grad, found.dim(), found.lengths()) == (expected.requires_grad, expected.dim(), None)
        for part in ("values", "offsets"):
            torch.testing.assert_close(getattr(found, part)(), getattr(expected, part)())
    elif isinstance(expected, (list, tuple)):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected


STEPS = {
    "sin": torch.sin, "double": lambda v: v * 2 + v, "linear": lambda v: v @ WEIGHT @ WEIGHT.t(),
    "softmax": lambda v: torch.softmax(v, -1), "norm": lambda v: torch.nn.functional.layer_norm(v, (4,)),
    "remade": lambda v: torch.nested.nested_tensor_from_jagged(v.values() * 2, v.offsets()), "halves": lambda v: sum(v.chunk(2, -1)).repeat(1, 1, 2)
    if not v.is_nested else torch.cat([v, v], -1)[..., :4], "heads": lambda v: v.reshape(v.shape[0], v.shape[1], 2, 2).flatten(2), "scaled": lambda v: v * v.size(2) / v._get_max_seqlen(),
}  # fmt: skip


@settings(max_examples=4, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=2))
def test_what_is_computed_of_them_is_computed_of_the_tensors_in_them(steps):
    def program(nested):
        for step in steps:
            nested = STEPS[step](nested)
        return nested, nested.values().sum(), nested.sum(dim=1)

    observed = Observed(program, fullgraph=True)
    for lengths in ((2, 3, 1), (4, 1), (1, 1, 6, 2)):
        assert_same(observed(jagged(*lengths)), program(jagged(*lengths)))
    assert len(observed.graphs) <= 3
    assert all(
        type(v) is not torch.nested._internal.nested_tensor.NestedTensor for v in observed.graphs[0].example_inputs
    )


def test_gradients_reach_them_and_the_tensors_that_they_are_made_of():
    def program(nested, values, offsets):
        return nested.sin() * 2, torch.nested.nested_tensor_from_jagged(values, offsets).exp()

    compiled = turret.compile(program, fullgraph=True, options=OPTIONS)
    gradients = []
    for function in (compiled, program):
        inputs = jagged(2, 3, requires_grad=True), torch.ones(6, 4, requires_grad=True), torch.tensor([0, 1, 6])
        first, second = function(*inputs)
        (first.values().sum() + second.values().sum()).backward()
        gradients.append([first, second, inputs[0].grad, inputs[1].grad])
    assert_same(*gradients)


def test_ragged_sizes_are_equal_where_the_offsets_are_the_same_tensor():
    def program(one, other):
        return one + other if one.shape == other.shape else one.sin()

    observed = Observed(program, fullgraph=True)
    together = jagged(1, 2)
    beside = torch.nested.nested_tensor_from_jagged(together.values() + 1, together.offsets())
    for one, other in ((jagged(1, 2), jagged(1, 2)), (together, beside), (jagged(1, 2), jagged(1, 2))):
        assert_same(observed(one, other), program(one, other))
    assert len(observed.graphs) == 2


def test_the_shape_of_a_result_is_that_of_the_input():
    nested = jagged(1, 2)
    found = Observed(lambda v: ((v * 2).shape, v.size(1), v * 3), fullgraph=True)(nested)
    assert found[0] == nested.shape and found[1] == nested.shape[1] and found[2].shape == nested.shape


@pytest.mark.parametrize("values", [torch.ones(3, 4), torch.ones(5, 4)])
def test_they_outlive_a_graph_break(values):
    def program(values, offsets):
        nested = torch.nested.nested_tensor_from_jagged(values, offsets) * 2
        print(end="")
        return nested + nested

    observed = Observed(program)
    inputs = values, torch.tensor([0, 2, len(values)])
    assert_same(observed(*inputs), program(*inputs))
    assert len(observed.graphs) == 2


class TracedByTorch(Observed):
    """Each graph is traced again by torch's own tracer, as other compilers do."""

    def keep(self, captured):
        inputs = list(captured.example_inputs)
        with next(i.fake_mode for i in inputs if isinstance(i, FakeTensor)):
            return make_fx(torch.fx.Interpreter(captured.module).run)(*inputs)


def test_their_graphs_can_be_traced_by_torch_at_symbolic_sizes():
    def program(nested):
        return torch.cat([nested.clone() * nested.size(0), nested], dim=-1)

    observed = TracedByTorch(program, fullgraph=True, dynamic=True)
    for lengths in ((2, 3, 4), (1, 5)):
        assert_same(observed(jagged(*lengths)), program(jagged(*lengths)))
