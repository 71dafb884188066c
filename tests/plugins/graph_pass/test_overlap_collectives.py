"""Collectives start early and are waited for late, in the order of the program."""

from __future__ import annotations

import random

import pytest
import torch
from torch import fx

from turret.plugins.graph_pass import overlap_collectives

if not torch.distributed.is_available():
    pytest.skip("needs torch.distributed", allow_module_level=True)

from torch.distributed import _functional_collectives  # noqa: F401 (registers the ops)

ops, aten = torch.ops._c10d_functional, torch.ops.aten


def names(module):
    return [n.name for n in module.graph.nodes if n.op == "call_function"]


def test_what_is_independent_runs_between_a_collective_and_the_first_read_of_its_result():
    graph = fx.Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    product = graph.call_function(aten.mm.default, (x, w))
    other = graph.call_function(aten.mm.default, (w, x))
    shown = graph.call_function(aten.view.default, (product, [4]))
    started = graph.call_function(ops.all_reduce.default, (shown, "sum", "0"))
    waited = graph.call_function(ops.wait_tensor.default, (started,))
    back = graph.call_function(aten.view.default, (waited, [2, 2]))
    more = graph.call_function(aten.sin.default, (other,))
    graph.output((graph.call_function(aten.add.Tensor, (back, more)),))
    module = fx.GraphModule(torch.nn.Module(), graph)
    assert overlap_collectives.run(module)
    module.graph.lint()
    wanted = [product, shown, started, other, more, waited, back]
    assert names(module)[:-1] == [n.name for n in wanted]
    assert not overlap_collectives.run(module)


def test_graphs_without_collectives_are_left_alone():
    graph = fx.Graph()
    graph.output((graph.call_function(aten.sin.default, (graph.placeholder("x"),)),))
    assert not overlap_collectives.run(fx.GraphModule(torch.nn.Module(), graph))


@pytest.mark.parametrize("seed", range(20))
def test_the_new_order_is_legal_and_starts_collectives_in_the_old_one(seed):
    dice = random.Random(seed)
    graph = fx.Graph()
    values = [graph.placeholder("x")]
    for _ in range(25):
        kind = dice.randrange(6)
        value = dice.choice(values)
        if kind == 0:
            started = graph.call_function(ops.all_reduce.default, (value, "sum", "0"))
            values.append(graph.call_function(ops.wait_tensor.default, (started,)))
        elif kind == 1:
            values.append(graph.call_function(aten.view.default, (value, [4])))
        elif kind == 2 and len(values) > 1:
            graph.call_function(aten.copy_.default, (values[1], value))
        elif kind == 3:
            values.append(graph.call_function(aten.bernoulli.default, (value,)))
        else:
            values.append(graph.call_function(aten.add.Tensor, (value, dice.choice(values))))
    graph.output(tuple(values[-3:]))
    module = fx.GraphModule(torch.nn.Module(), graph)
    before = list(module.graph.nodes)
    overlap_collectives.run(module)
    module.graph.lint()
    after = list(module.graph.nodes)
    assert set(before) == set(after)

    def chosen(nodes, *targets):
        return [n for n in nodes if n.target in targets]

    assert chosen(after, ops.all_reduce.default) == chosen(before, ops.all_reduce.default)
    assert chosen(after, aten.copy_.default, aten.bernoulli.default) == chosen(
        before, aten.copy_.default, aten.bernoulli.default
    )
    for write in chosen(before, aten.copy_.default):  # nothing is read before or after a write that was not
        for order in (before, after):
            place = order.index(write)
            assert {n for n in order[:place] if n.target is aten.add.Tensor} == {
                n for n in before[: before.index(write)] if n.target is aten.add.Tensor
            }
