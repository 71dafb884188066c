"""Small random functional programs: forward and backward of every cut equal eager."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.plugins.joint_graphs import assert_same, make_context, run_eager, run_partitioned, trace_joint
from turret.plugins import graph_pass, partition
from turret.plugins.decompositions.table import decomposition_table

UNARY = {
    "sin": torch.sin,
    "exp": lambda x: torch.exp(-x.abs()),
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "softmax": lambda x: torch.softmax(x, -1),
    "layer_norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "sum_expand": lambda x: x.sum(0, keepdim=True).expand_as(x) * 0.5,
    "transpose_back": lambda x: x.t().contiguous().t() + 1,
    "slice_pad": lambda x: torch.nn.functional.pad(x[:, 1:], (1, 0)),
    "half_and_back": lambda x: x.to(torch.bfloat16).to(torch.float32) * 2,
    "max": lambda x: x - x.amax(1, keepdim=True),
    "index": lambda x: x[torch.tensor([3, 0, 2, 2])] * 1.5,
    "constant": lambda x: x * torch.ones(4, 4).cumsum(0),
}
BINARY = {
    "add": torch.add,
    "mul": torch.mul,
    "mm": lambda x, y: x @ y * 0.25,
    "where": lambda x, y: torch.where(x > y, x, y * 2),
    "cat_sum": lambda x, y: torch.cat([x, y]).view(2, 4, 4).sum(0),
}


@st.composite
def programs(draw):
    """A list of steps ``(op, operands)`` over three inputs, and which values are outputs."""
    count = draw(st.integers(1, 10))
    steps = []
    for i in range(count):
        available = 3 + i
        operand = st.integers(max(0, available - 5), available - 1)
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(sorted(UNARY))), draw(operand)))
        else:
            steps.append((draw(st.sampled_from(sorted(BINARY))), draw(operand), draw(operand)))
    outputs = draw(st.lists(st.integers(3, 2 + count), min_size=1, max_size=3, unique=True))
    grads = draw(st.tuples(st.booleans(), st.booleans(), st.just(True)))
    return steps, outputs, grads


def as_function(steps, outputs):
    def function(*inputs):
        values = list(inputs)
        for name, *operands in steps:
            op = UNARY.get(name) or BINARY[name]
            values.append(op(*(values[i] for i in operands)))
        return tuple(values[i] for i in outputs)

    return function


@pytest.mark.thorough
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs(), st.sampled_from([1.0, 0.5, 0.0]), st.booleans(), st.booleans())
def test_every_cut_equals_eager(program, budget, with_passes, dynamic):
    steps, outputs, grads = program
    function = as_function(steps, outputs)
    generator = torch.Generator().manual_seed(0)
    args = [torch.randn(4, 4, generator=generator).requires_grad_(g) for g in grads]
    tangents = [torch.randn(4, 4, generator=generator) for _ in outputs]
    want = run_eager(function, args, tangents)
    for partitioner in ("min_cut", "save_all"):
        joint = trace_joint(function, args, decomposition_table(), dynamic=dynamic)
        context = make_context(partition, graph_pass, partitioner=partitioner, memory_budget=budget)
        if with_passes:
            graph_pass.turret_graph_pass(context, "joint", joint.module)
        partitioned = partition.turret_partition(context, joint)
        if with_passes:
            graph_pass.turret_graph_pass(context, "forward", partitioned.forward)
            graph_pass.turret_graph_pass(context, "backward", partitioned.backward)
        got = run_partitioned(partitioned, args, tangents)
        assert_same(got[0], want[0], rtol=1e-4, atol=1e-4)
        assert_same(got[1], want[1], rtol=1e-3, atol=1e-3)
